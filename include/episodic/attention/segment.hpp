// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `KvSegment`: a run of consecutive keys and values where they lie. Attention reads them in place;
/// nothing is gathered to attend. C++17-clean POD, shared with CUDA.

#include <cstdint>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Where the keys of a segment stand relative to a query (EM 3.1).
enum class Position : std::uint8_t {
  relative,  ///< local window: keys and `q_relative` both rotated by their own position
  fixed,     ///< all else: keys unrotated, `q_fixed` rotated by angle index n_local - 1
};

/// A run of `length` tokens first_token, first_token + 1, ... of the key/value heads first_head,
/// first_head + 1, ..., at least of those whose list it is in.
///
/// Element (g, i, c) of the keys is key[(g - first_head) * head_stride + i * row_stride + c] for kv
/// head g, token first_token + i, channel c; the same strides hold for the values, unless they have
/// strides of their own. Strides are in elements. Elements of int8 and fp8 are codes, and stand for
/// key_scale[g - first_head] * code and value_scale[g - first_head] * code.
///
/// Visibility is per query at position p and follows from `position` (docs/papers.md, attention):
///   relative: token i is seen iff 0 <= p - i < n_local
///   fixed:    token i is seen iff p - i >= n_local
/// so a token that crosses the window's edge inside a chunk is given in both kinds of segment and
/// is seen by each query exactly once.
struct KvSegment {
  const void* key = nullptr;
  const void* value = nullptr;
  std::int64_t length = 0;
  std::int64_t first_token = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  DType dtype = DType::float32;
  Position position = Position::fixed;
  float value_weight = 1.0f;           ///< factor of the values after the softmax (EpMAN 3.2)
  const float* key_scale = nullptr;    ///< one per head of the segment, read for codes only
  const float* value_scale = nullptr;  ///< one per head of the segment, read for codes only
  std::int64_t first_head = 0;         ///< kv head whose rows `key` and `value` point to
  std::int64_t value_head_stride = 0;  ///< 0: head_stride
  std::int64_t value_row_stride = 0;   ///< 0: row_stride
};

}  // namespace EPISODIC_NAMESPACE
