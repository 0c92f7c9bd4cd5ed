// SPDX-License-Identifier: Apache-2.0
#include "decoder_blocks.hpp"

#include <algorithm>

#include "elementwise.hpp"

namespace episodic {

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

void norm_heads(const ModelConfig& c, const DecoderNorm& norm, std::int64_t n,
                std::int64_t row_width, float* x) {
  if (norm.empty()) return;
  norm_rows(c, norm, x, n * row_width / static_cast<std::int64_t>(norm.weight.size()), x);
}

void finish_keys(const ModelConfig& c, const LayerSpec& spec, const DecoderLayer& w, std::int64_t n,
                 float* k, float* v) {
  if (spec.keys_are_values) std::copy_n(k, n * w.k.out, v);
  norm_heads(c, w.k_norm, n, w.k.out, k);
  norm_heads(c, w.v_norm, n, w.k.out, v);
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

}  // namespace episodic
