// SPDX-License-Identifier: Apache-2.0
#pragma once
// Matrix products of the decoder: y = x W^T + bias, by the loops of the cpu room.
//
// What is promised of the bits (cpu::multiply_weights, test "linear: a row's bits ..."): those of
// row i of a product depend on row i of x, the weights, the bias, what y held if it is added to,
// the setting of activations, the instruction set, and the class of rows (`few` or `many`). They do
// not depend on the other rows of the call, on their number, on which outputs are asked for
// together, on Cut, or on the number of threads. `few` and `many` sum in different orders, so who
// needs the same bits for a row in any company names the class; `by_count` takes `few` for at most
// few_rows rows.

#include <cstddef>
#include <cstdint>
#include <span>

#include "episodic/base/tensor_type.hpp"
#include "episodic/cpu/weights.hpp"

namespace episodic {

/// A weight as it is stored, rows being outputs: a block of outputs is contiguous. It owns nothing.
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

using cpu::RowClass;

/// All products for the same n rows, as one parallel loop.
void multiply(std::int64_t n, std::span<const Product> products, Cut cut,
              RowClass rows = RowClass::by_count);

}  // namespace episodic
