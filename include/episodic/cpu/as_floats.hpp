// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rows of keys that are kept in any of the dtypes, read as float32.

#include <cstdint>

#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::cpu {

/// A row of n elements of float32, bfloat16 or float16 as float32, exactly: where it lies, or
/// widened into `buffer` [n], which float32 does not need.
inline const float* as_floats(const Kernels& k, const void* row, DType dtype, std::int64_t n,
                              float* buffer) {
  if (dtype == DType::float32) return static_cast<const float*>(row);
  k.to_float(row, dtype, n, buffer);
  return buffer;
}

}  // namespace EPISODIC_NAMESPACE::cpu
