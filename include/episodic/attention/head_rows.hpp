// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `HeadRows`: vectors of n tokens and several heads where they lie, so that queries, keys, values
/// and outputs are taken out of (and put into) whatever tensor a model keeps them in. C++17-clean.

#include <cstdint>
#include <type_traits>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"

namespace episodic {

/// Element (i, h, c) is data[i * row_stride + h * head_stride + c] for token i, head h, channel c.
/// Strides are in elements and not negative; both 0 stand for packed rows [n, heads, d]. The dtype
/// is float32, bfloat16 or float16. Owns nothing.
///
/// A projection [n, (H + 2 G) d] that holds q, k and v of each token side by side is three of
/// these, all with row_stride (H + 2 G) d and head_stride d; [H, n, d] has row_stride d,
/// head_stride n d.
template <class Element>
struct BasicHeadRows {
  using Float = std::conditional_t<std::is_const_v<Element>, const float, float>;

  Element* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  constexpr BasicHeadRows() = default;
  /// Packed rows of float32; null: none.
  constexpr BasicHeadRows(Float* packed) : data(packed) {}
  constexpr BasicHeadRows(Element* first, DType type, std::int64_t between_rows,
                          std::int64_t between_heads)
      : data(first), dtype(type), row_stride(between_rows), head_stride(between_heads) {}

  /// The same rows with their strides spelled out.
  constexpr BasicHeadRows with_strides(std::int64_t heads, std::int64_t d) const {
    return row_stride == 0 && head_stride == 0 ? BasicHeadRows(data, dtype, heads * d, d) : *this;
  }
  /// Rows i, i + 1, ...; strides must be spelled out.
  constexpr BasicHeadRows from_row(std::int64_t i) const {
    return {row(i, 0), dtype, row_stride, head_stride};
  }
  /// The d elements of token i and head h; strides must be spelled out.
  constexpr Element* row(std::int64_t i, std::int64_t h) const {
    using Byte = std::conditional_t<std::is_const_v<Element>, const char, char>;
    return static_cast<Byte*>(data) + (i * row_stride + h * head_stride) * size_of(dtype);
  }
};

using HeadRows = BasicHeadRows<const void>;
using MutableHeadRows = BasicHeadRows<void>;

/// to = from, element by element, converted to its dtype (to nearest even). The two do not overlap,
/// or are the same rows.
/// \throws DataError naming the parameter for null data, an unsupported dtype, or rows of `to` that
///         overlap each other.
void copy_rows(std::int64_t n, std::int64_t heads, std::int64_t head_dim, const HeadRows& from,
               const MutableHeadRows& to);

}  // namespace episodic

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/attention/impl/head_rows.hpp"
#endif
