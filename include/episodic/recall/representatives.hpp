// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Choice of an event's representative keys (EM 3.4).

#include <cstdint>
#include <span>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Keys of a run of tokens: element (g, i, c) at data[g * head_stride + i * row_stride + c], of
/// float32, bfloat16 or float16.
struct KeyView {
  const void* data = nullptr;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
  DType dtype = DType::float32;
};

/// Per query head h, the min(n_repr, n) tokens of largest relevance among n, and their mean key.
///
/// Ties: the earlier token. The chosen keys are summed in order of time, so that equal tokens give
/// equal bits.
/// \param keys unrotated keys of the n tokens, G kv heads, d channels
/// \param relevance [n, H] row stride H
/// \param mean [H * d], written
/// \param each [min(n_repr, n), H * d] the chosen keys in order of time, written; or null
/// \return min(n_repr, n)
std::int64_t select_representatives(const KeyView& keys, const float* relevance, std::int64_t n,
                                    std::int64_t n_heads, std::int64_t n_kv_heads,
                                    std::int64_t head_dim, std::int64_t n_repr, float* mean,
                                    float* each);

/// Scales a vector to length 1; one of zeros stays as it is.
void scale_to_unit(std::span<float> vector);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/representatives.hpp"
#endif
