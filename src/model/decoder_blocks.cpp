// SPDX-License-Identifier: Apache-2.0
#include "decoder_blocks.hpp"

#include <algorithm>
#include <cmath>

#include "elementwise.hpp"

namespace episodic {
namespace {

/// Norms of queries, keys or values, if there are such: of each head, or of a token's whole row.
void norm_heads(const ModelConfig& c, const DecoderNorm& norm, std::int64_t n,
                std::int64_t row_width, float* x) {
  if (norm.empty()) return;
  norm_rows(c, norm, x, n * row_width / static_cast<std::int64_t>(norm.weight.size()), x);
}

}  // namespace

void embed(const DecoderWeights& w, std::span<const std::int64_t> ids, float* to) {
  const Linear& table = w.embedding;
  const auto multiplier = static_cast<float>(w.config.embedding_multiplier);
  for (const std::int64_t id : ids) {
    widen(table.type, table.weight + id * table.row_bytes(), table.in, to);
    if (multiplier != 1.0f) scale(multiplier, to, table.in);
    to += table.in;
  }
}

void norm_rows(const ModelConfig& c, const DecoderNorm& w, const float* x, std::int64_t n,
               float* y) {
  const auto width = static_cast<std::int64_t>(w.weight.size());
  const auto eps = static_cast<float>(c.rms_norm_eps);
  if (c.layer_norm)
    layer_norm(x, w.weight.data(), w.bias.empty() ? nullptr : w.bias.data(), eps, n, width, y);
  else
    rms_norm(x, w.weight.data(), eps, n, width, y);
}

void activate(const LayerSpec& spec, const Xielu& xielu, float* gate, const float* up,
              std::int64_t n) {
  if (spec.gated)
    return spec.activation == Activation::silu ? silu_times(gate, up, n) : gelu_times(gate, up, n);
  switch (spec.activation) {
    case Activation::silu:
      return silu(gate, n);
    case Activation::gelu_tanh:
      return gelu(gate, n);
    case Activation::relu_squared:
      return relu_squared(gate, n);
    case Activation::xielu:
      return apply_xielu(xielu, gate, n);
  }
}

void scale_queries(const QueryScale& scale, std::span<const SequenceRows> sequences,
                   std::int64_t first, std::int64_t n, std::int64_t width, float* q) {
  if (scale.beta == 0) return;
  for (const SequenceRows& s : sequences)
    for (std::int64_t row = std::max(first, s.first); row < std::min(first + n, s.end()); ++row) {
      const std::int64_t position = std::min(s.position + row - s.first, s.last_position);
      const double factor = scale.at(position);
      if (factor != 1)
        episodic::scale(static_cast<float>(factor), q + (row - first) * width, width);
    }
}

void attention_heads(const ModelConfig& c, const LayerSpec& spec, const DecoderLayer& w,
                     const float* x, std::int64_t first, std::int64_t n, Cut cut,
                     StepBuffers& step) {
  float* const q = step.q.from(first);
  const std::int64_t width = spec.n_heads * spec.head_dim, kv = spec.n_kv_heads * spec.head_dim;
  if (spec.latent) {
    latent_heads(spec.latent, w.latent, x, first, n, cut, step);
  } else {
    float *const k = step.k.from(first), *const v = step.v.from(first);
    const Product qkv[] = {
        {&w.q, x, spec.output_gate ? step.gated_q.from(first) : q}, {&w.k, x, k}, {&w.v, x, v}};
    const std::size_t made = spec.keys_of >= 0 ? 1 : spec.keys_are_values ? 2 : 3;
    step.multiply(first, n, {qkv, made}, cut);
    if (spec.output_gate) step.take_queries(spec, first, n);
    norm_heads(c, w.q_norm, n, width, q);
    if (made == 2) std::copy_n(k, n * kv, v);
    if (made > 1) norm_heads(c, w.k_norm, n, kv, k);
    if (made > 1) norm_heads(c, w.v_norm, n, kv, v);
  }
  // slots scale by 1 / sqrt(head_dim)
  const double usual = 1 / std::sqrt(static_cast<double>(spec.head_dim));
  if (spec.scale != usual) scale(static_cast<float>(spec.scale / usual), q, n * width);
  scale_queries(c.query_scale, step.sequences, first, n, width, q);
}

}  // namespace episodic
