// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Keys of recent tokens where a layer keeps them, and how many there are.

#include <cstdint>

namespace episodic {

/// Unrotated keys of the recent tokens of one layer, in a ring: element (g, t, c) of token t lies
/// at data[g * head_stride + (t % capacity) * row_stride + c].
struct KeyRing {
  const float* data = nullptr;
  std::int64_t capacity = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;

  /// The same of one head.
  KeyRing head(std::int64_t g) const {
    return {data + g * head_stride, capacity, head_stride, row_stride};
  }
};

/// Of a token's keys in all layers.
struct KeyShape {
  std::int64_t n_layers = 0;
  std::int64_t n_kv_heads = 0;  ///< of each layer
  std::int64_t head_dim = 0;
};

}  // namespace episodic
