// SPDX-License-Identifier: Apache-2.0
#pragma once
// Unrotated keys of a whole text, and their prefix sums.

#include <cstdint>
#include <span>
#include <vector>

namespace episodic::analysis {

/// Keys before rotary embedding of every layer of a text. A unit is one key/value head of one
/// layer, number layer * n_kv_heads + head.
struct RecordedKeys {
  std::int64_t n_tokens = 0, n_layers = 0, n_kv_heads = 0, head_dim = 0;
  std::vector<std::vector<float>> layers;  ///< of each layer [n_tokens, n_kv_heads, head_dim]

  std::int64_t units() const { return n_layers * n_kv_heads; }
  std::int64_t row() const { return n_kv_heads * head_dim; }
  /// [head_dim]
  std::span<const float> key(std::int64_t unit, std::int64_t token) const {
    const std::vector<float>& layer = layers[static_cast<std::size_t>(unit / n_kv_heads)];
    return std::span(layer).subspan(
        static_cast<std::size_t>(token * row() + unit % n_kv_heads * head_dim),
        static_cast<std::size_t>(head_dim));
  }
  /// \throws DataError unless the sizes fit each other and every key is finite
  void check() const;
};

/// P_t, the sum of the first t keys, of every unit in float64: the sum over any range is a
/// difference, so that a score of the graph A_ij = k_i . k_j never needs the graph (EM 3.3).
class KeySums {
 public:
  explicit KeySums(const RecordedKeys& keys);

  std::int64_t units() const { return units_; }
  std::int64_t head_dim() const { return head_dim_; }
  std::int64_t n_tokens() const { return n_tokens_; }
  /// Sum of the keys of tokens [start, end) of a unit. \param sum [head_dim], written
  void range(std::int64_t unit, std::int64_t start, std::int64_t end, std::span<double> sum) const;

 private:
  std::int64_t units_, head_dim_, n_tokens_;
  std::vector<std::vector<double>> prefix_;  // of each unit [n_tokens + 1, head_dim]
};

}  // namespace episodic::analysis
