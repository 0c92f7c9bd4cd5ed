// SPDX-License-Identifier: Apache-2.0
// The head of a decoder's step: logits, what they say of tokens, and what runs beside it.
#include <algorithm>
#include <vector>

#include "decoder_step.hpp"
#include "step_cost.hpp"

namespace episodic::device {

/// Of each part's first token, by the logits behind its sequence's step before.
void DecoderSteps::first_surprise(const Step& step, cudaStream_t on) {
  std::vector<kernels::SurpriseParams> of;
  for (const DecoderPart& part : step.parts) {
    if (!part.of->stepped) {
      check(cudaMemsetAsync(part.of->surprise, 0, sizeof(float), on), "surprise");
      continue;
    }
    kernels::SurpriseParams& p = of.emplace_back();
    p.logits = part.of->last_logits;
    p.dtype = DType::float32;
    p.n = 1;
    p.vocab = p.row_stride = config.vocab_size;
    p.targets = step.a.ids + part.first;
    p.surprise = part.of->surprise;
    p.maybe_parts = part.of->parts;
    p.maybe_arrived = part.of->parts_arrived;
  }
  launch_batch(kernels::token_surprise_batch, of, on, "surprise");
}

/// What the step before left decides a token's surprise, and with it its thresholds.
void DecoderSteps::fork_surprise(const Step& step) {
  beside_.fork_from(stream.get());
  first_surprise(step, beside_.get());
  surprise_made_.record(beside_.get());
  DeviceMemory::enqueue_thresholds_batch(step.ends, beside_.get());
}

/// Behind the last layer's attention nothing on the stream reads what an end changes, nor changes
/// what it reads.
void DecoderSteps::fork_ends(const Step& step, std::int64_t l) {
  if (l != last_served_ || step.ends.empty()) return;
  beside_.fork_from(stream.get());
  DeviceMemory::enqueue_end_batch(step.ends, beside_.get());
}

void DecoderSteps::copy_logits(const float* from, std::int64_t cols, std::int64_t n,
                               float* to) const {
  check(cudaMemcpy2DAsync(to, static_cast<std::size_t>(config.vocab_size) * sizeof(float), from,
                          static_cast<std::size_t>(cols) * sizeof(float),
                          static_cast<std::size_t>(cols) * sizeof(float),
                          static_cast<std::size_t>(n), cudaMemcpyDeviceToHost, stream.get()),
        "copying logits");
}

namespace {

kernels::SurprisePieceParams piece_of(const ModelConfig& config, const Activations& a,
                                      const DecoderPart& part) {
  kernels::SurprisePieceParams p;
  p.n = part.n;
  p.vocab = config.vocab_size;
  p.multiplier = static_cast<float>(config.logit_multiplier);
  p.soft_cap = static_cast<float>(config.logit_soft_cap);
  p.targets = a.ids + part.first + 1;
  p.state = a.surprise_state + part.first;
  p.surprise = part.of->surprise + 1;
  p.last = part.of->last_logits;
  return p;
}

/// Whether the head's products are logits as they are.
bool are_logits(const kernels::SurprisePieceParams& p) {
  return p.multiplier == 1.0f && p.soft_cap == 0.0f;
}

}  // namespace

/// Rows of one token each: their products are made where their logits stay.
void DecoderSteps::head_of_few(Step& step, float* maybe_logits) {
  float* rows[kernels::kMostProductRows] = {};
  for (std::size_t i = 0; i < step.parts.size(); ++i) rows[i] = step.parts[i].of->last_logits;
  const kernels::ProductParams of = product_of(step, weights.head);
  check(kernels::product(of, rows, stream.get()), "the head", of, rows);
  std::vector<kernels::SurprisePieceParams> pieces;
  for (const DecoderPart& part : step.parts) {
    kernels::SurprisePieceParams p = piece_of(config, step.a, part);
    p.logits = p.last;
    p.cols = p.row_stride = p.vocab;
    if (!are_logits(p)) pieces.push_back(p);
  }
  launch_batch(kernels::surprise_piece_batch, pieces, stream.get(), "surprise");
  if (maybe_logits) copy_logits(rows[0], config.vocab_size, 1, maybe_logits);
}

/// Logits of all rows, a piece of the vocabulary at a time, and what they say of the tokens behind
/// them: row i of a sequence of its token i + 1. Its last row's stay.
void DecoderSteps::run_head(Step& step, float* maybe_logits) {
  // The head puts other logits where those of the step before are, which its surprise is of.
  if (step.branches)
    surprise_made_.hold(stream.get());
  else
    first_surprise(step, stream.get());
  if (step.few) return head_of_few(step, maybe_logits);
  const bool in_place = step.n == 1;
  const std::int64_t width = in_place ? config.vocab_size : piece_width(step.n, config.vocab_size);
  for (std::int64_t first = 0; first < config.vocab_size; first += width) {
    const std::int64_t cols = std::min(width, config.vocab_size - first);
    float* const tile = in_place ? step.parts[0].of->last_logits : step.a.tile;
    multiply(weights.head.rows(first, cols, size_of(dtype)), step.a.normed, step.n, DType::float32,
             tile);
    std::vector<kernels::SurprisePieceParams> pieces;
    for (const DecoderPart& part : step.parts) {
      kernels::SurprisePieceParams p = piece_of(config, step.a, part);
      p.logits = tile + part.first * cols;
      p.first = first;
      p.cols = p.row_stride = cols;
      p.write_back = maybe_logits != nullptr;
      if (!in_place || !are_logits(p)) pieces.push_back(p);
    }
    launch_batch(kernels::surprise_piece_batch, pieces, stream.get(), "surprise");
    if (maybe_logits) copy_logits(tile, cols, step.n, maybe_logits + first);
  }
}

}  // namespace episodic::device
