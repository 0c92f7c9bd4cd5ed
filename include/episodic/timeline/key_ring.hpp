// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Keys of recent tokens where a layer keeps them, and how many there are.

#include <cstdint>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Unrotated keys of the recent tokens of one layer, in a ring: element (g, t, c) of token t lies
/// at data[g * head_stride + (t % capacity) * row_stride + c], of float32, bfloat16 or float16.
struct KeyRing {
  const void* data = nullptr;
  std::int64_t capacity = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  DType dtype = DType::float32;

  /// The key of token t in head g.
  const void* row(std::int64_t g, std::int64_t t) const {
    const std::int64_t at = g * head_stride + t % capacity * row_stride;
    return static_cast<const char*>(data) + at * size_of(dtype);
  }
  /// The same of one head.
  KeyRing head(std::int64_t g) const {
    return {static_cast<const char*>(data) + g * head_stride * size_of(dtype), capacity,
            head_stride, row_stride, dtype};
  }
};

/// Of a token's keys in all layers.
struct KeyShape {
  std::int64_t n_layers = 0;
  std::int64_t n_kv_heads = 0;  ///< of each layer
  std::int64_t head_dim = 0;
};

}  // namespace EPISODIC_NAMESPACE
