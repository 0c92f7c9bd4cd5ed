// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products of the decoder: y = x W^T, cut into blocks whose number and shape depend on the
// operands only, each computed by one thread. So results do not depend on the number of threads,
// and are the same from run to run.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>

namespace episodic {

/// A weight as Hugging Face stores it, rows being outputs: a block of outputs is contiguous, which
/// is what one token needs, and sgemm runs as fast on it as on its transpose.
struct Linear {
  at::Tensor weight;  ///< [out, in] float32
  at::Tensor bias;    ///< [out] float32, or undefined
  std::int64_t out = 0, in = 0;
};

struct Product {
  const Linear* linear = nullptr;
  const float* x = nullptr;  ///< [n, in] packed
  float* y = nullptr;        ///< [n, out] packed
  bool add = false;          ///< add to what y holds instead of overwriting it
};

/// Who cuts the work: `blocks` spreads this product over threads, `whole` leaves it in one piece
/// because the caller already runs one piece per thread.
enum class Cut : std::uint8_t { blocks, whole };

/// All products for the same n rows, as one parallel loop.
void multiply(std::int64_t n, std::span<const Product> products, Cut cut);

}  // namespace episodic
