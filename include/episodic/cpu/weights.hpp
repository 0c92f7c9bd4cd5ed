// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Products with weights as they are stored: plain floats of 4 or 2 bytes, and the block types of
/// GGUF. A matrix is never widened as a whole. An internal room: callers check shapes; nothing here
/// throws but std::bad_alloc.
///
/// A weight matrix is [out, in], one row per output, rows packed one after another, unaligned. Of a
/// block type `in` is a multiple of block_elements(type).

#include <cstdint>
#include <span>

#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_type.hpp"

namespace EPISODIC_NAMESPACE::cpu {

/// Whether the functions below know the type: F32, F16, BF16 and the block types.
bool is_weight_type(TensorType type);

/// Bytes of a row of n elements.
std::int64_t row_bytes(TensorType type, std::int64_t n);

/// The numbers that a stored row stands for, exactly as the format defines them (products and sums
/// in float32, each rounded).
/// \param row n elements, unaligned
void widen_row(TensorType type, const void* row, std::int64_t n, float* out);

/// Stores n numbers as `type`: F32, F16, BF16 (to nearest even), Q8_0 and Q4_0 (with the rounding
/// of the format's reference: halves away from zero, and for Q4_0 the scale that keeps the number
/// of the largest magnitude) and MXFP4 (to the nearest, of two alike the one of smaller code, under
/// the scale whose largest numbers are those of the largest magnitude). Numbers must be finite and,
/// for Q8_0 and Q4_0, their scales within float16's range.
/// \return false for another type
bool quantize_row(TensorType type, const float* x, std::int64_t n, void* row);

/// What products do with the activations. `rounded` and `exact` differ for block-quantised weights
/// only: products of plain types take activations as they are.
enum class Activations : std::uint8_t {
  /// Rounded to 8 bits with a scale for each 32 of them: integer products, the fastest. The
  /// rounding adds about 0.4 % (root mean square, of the sum's scale) to each output.
  rounded,
  /// As they are: rows of weights are widened, products are float32.
  exact,
  /// For many rows, activations and weights of every type rounded to bfloat16 and multiplied by the
  /// machine's matrix units (AMX), sums in float32: several times float32's rate. Each factor is
  /// off by at most 2^-9 of itself. `rounded` where there are no such units, and for few rows.
  bfloat16,
};

/// How the rows of a product are multiplied. The two ways sum in different orders, so their last
/// bits differ; within one of them the bits of a row depend on nothing but the row itself, see
/// multiply_weights.
enum class RowClass : std::uint8_t {
  by_count,  ///< the faster one for so many rows: `few` up to few_rows() of them, else `many`
  few,       ///< weights are read where they lie: for one row, or some
  many,      ///< weights are packed into panels first: for tens of rows
};

/// y[i, o] (+)= sum_c x[i, c] * weight[o, c] + bias[o].
struct WeightProduct {
  TensorType type = TensorType::f32;
  const void* weight = nullptr;  ///< [out, in] as stored
  std::int64_t out = 0, in = 0;
  const float* bias = nullptr;  ///< [out], or null
  const float* x = nullptr;     ///< [n, in], rows x_stride apart
  std::int64_t x_stride = 0;
  float* y = nullptr;  ///< [n, out], rows y_stride apart; does not overlap x
  std::int64_t y_stride = 0;
  bool add = false;  ///< add to what y holds instead of overwriting it
};

/// Whether Activations::bfloat16 is more than `rounded` here.
bool has_matrix_units();

struct WeightOptions {
  Activations activations = Activations::rounded;
  RowClass rows = RowClass::by_count;
  /// Spread over threads by parallel_for; false: the calling thread does it all.
  bool parallel = true;
};

/// The largest number of rows that RowClass::by_count takes for few, of weights of this type.
std::int64_t few_rows(TensorType type, Activations activations = Activations::rounded);

/// All products for the same number of rows n, as one parallel loop.
///
/// The bits of y[i, o] depend on row i of x, row o of the weights with its type, bias[o], what y[i,
/// o] held if it is added to, `activations`, the instruction set and the class of rows (few or
/// many), and on nothing else: not on n, `out`, strides, products beside it, or the number of
/// threads. One exception: under Activations::bfloat16 and RowClass::by_count the matrix units take
/// 16 rows or more.
///
/// Products with the same x share its rounding. Scratch memory (a few hundred KB, for long rows of
/// blocks a few MB, and 4 bytes for each rounded activation) is kept by each thread.
void multiply_weights(std::int64_t n, std::span<const WeightProduct> products,
                      const WeightOptions& options = {});

}  // namespace EPISODIC_NAMESPACE::cpu
