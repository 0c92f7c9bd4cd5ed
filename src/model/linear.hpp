// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products of the decoder: y = x W^T, cut into blocks whose number and shape depend on the
// operands only, each computed by one thread. So results do not depend on the number of threads,
// and are the same from run to run.

#include <cstddef>
#include <cstdint>
#include <span>

#include "episodic/base/tensor_type.hpp"

namespace episodic {

/// A weight as it is stored, rows being outputs: a block of outputs is contiguous, which is what
/// one token needs, and sgemm runs as fast on it as on its transpose. It owns nothing.
struct Linear {
  TensorType type = TensorType::f32;  ///< f32, f16, bf16 or a block type
  const std::byte* weight = nullptr;  ///< [out, in], plain types aligned to their element
  const float* bias = nullptr;        ///< [out], or null
  std::int64_t out = 0, in = 0;

  std::int64_t row_bytes() const { return in / block_elements(type) * block_bytes(type); }
};

/// Whether `multiply` knows weights of this type.
bool can_multiply(TensorType type);

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
