// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `TensorView`: vectors of n tokens and several heads where they lie, so that queries, keys,
/// values and outputs are taken out of (and put into) whatever tensor a model keeps them in.
/// C++17-clean.
///
/// \code
/// // a projection [n, (H + 2 G) d] that holds q, k and v of each token side by side
/// const std::int64_t row = (H + 2 * G) * d;
/// const TensorView q(qkv, DType::bfloat16, {n, H, d}, {row, d});
/// const TensorView k(qkv + H * d, DType::bfloat16, {n, G, d}, {row, d});
/// // packed rows of float32
/// const MutableTensorView out(floats, {n, H, d});
/// \endcode

#include <cstdint>
#include <type_traits>

#include "episodic/base/dtype.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Whose memory an address is of.
enum class MemoryKind : std::uint8_t { host, cuda };

/// Whether queries and keys have been through rotary embedding. Those of a memory have not: it
/// turns `after` back by its own table.
enum class Rotary : std::uint8_t { before, after };

/// n tokens of so many heads, dim elements each.
struct TensorSizes {
  std::int64_t n = 0, heads = 0, dim = 0;

  constexpr bool operator==(const TensorSizes& other) const {
    return n == other.n && heads == other.heads && dim == other.dim;
  }
  constexpr bool operator!=(const TensorSizes& other) const { return !(*this == other); }
};

/// Elements from a token to the next, and from a head to the next. Not negative.
struct TensorStrides {
  std::int64_t row = 0, head = 0;
};

/// Element (i, h, c) of token i, head h and channel c is data[i * strides.row + h * strides.head +
/// c]. Elements are float32, bfloat16 or float16. Nothing is checked before a view is used; calls
/// that take one say what they refuse. Owns nothing.
template <class Element>
struct BasicTensorView {
  using Float = std::conditional_t<std::is_const<Element>::value, const float, float>;

  Element* data = nullptr;
  DType dtype = DType::float32;
  MemoryKind memory = MemoryKind::host;
  Rotary rotary = Rotary::before;  ///< of queries and keys; not read of values and outputs
  TensorSizes sizes;
  TensorStrides strides;  ///< of a size of 1 not read, but for a sign

  constexpr BasicTensorView() = default;
  constexpr BasicTensorView(Element* first, DType type, TensorSizes of, TensorStrides apart,
                            MemoryKind where = MemoryKind::host)
      : data(first), dtype(type), memory(where), sizes(of), strides(apart) {}
  /// Packed rows [n, heads, dim].
  constexpr BasicTensorView(Element* first, DType type, TensorSizes of,
                            MemoryKind where = MemoryKind::host)
      : BasicTensorView(first, type, of, {of.heads * of.dim, of.dim}, where) {}
  /// Packed rows of float32.
  constexpr BasicTensorView(Float* first, TensorSizes of, MemoryKind where = MemoryKind::host)
      : BasicTensorView(first, DType::float32, of, where) {}
  /// A view that may be written is one that may be read.
  template <class Other,
            class = std::enable_if_t<std::is_const<Element>::value && !std::is_const<Other>::value>>
  constexpr BasicTensorView(const BasicTensorView<Other>& other)
      : data(other.data),
        dtype(other.dtype),
        memory(other.memory),
        rotary(other.rotary),
        sizes(other.sizes),
        strides(other.strides) {}

  /// The dim elements of token i and head h.
  constexpr Element* at(std::int64_t i, std::int64_t h) const {
    using Byte = std::conditional_t<std::is_const<Element>::value, const char, char>;
    return static_cast<Byte*>(data) + (i * strides.row + h * strides.head) * size_of(dtype);
  }
  /// Tokens [first, first + count).
  constexpr BasicTensorView rows(std::int64_t first, std::int64_t count) const {
    BasicTensorView part = *this;
    part.data = at(first, 0);
    part.sizes.n = count;
    return part;
  }
  /// The same elements, said to have been through rotary embedding, or not.
  constexpr BasicTensorView with(Rotary which) const {
    BasicTensorView same = *this;
    same.rotary = which;
    return same;
  }
  /// Whether it is [n, heads, dim] without a gap.
  constexpr bool packed() const {
    return (sizes.heads <= 1 || strides.head == sizes.dim) &&
           (sizes.n <= 1 || strides.row == sizes.heads * sizes.dim);
  }
};

using TensorView = BasicTensorView<const void>;
using MutableTensorView = BasicTensorView<void>;

/// The surprise of a step's tokens in nats, [n].
struct SurpriseView {
  const float* data = nullptr;
  std::int64_t n = 0;
  MemoryKind memory = MemoryKind::host;
};

}  // namespace EPISODIC_NAMESPACE
