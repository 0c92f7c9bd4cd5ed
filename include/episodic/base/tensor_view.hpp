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
/// \endcode

#include <cstdint>
#include <type_traits>

#include "episodic/base/dtype.hpp"

namespace episodic {

/// Whose memory an address is of.
enum class MemoryKind : std::uint8_t { host, cuda };

/// Whether queries and keys have been through rotary embedding. Those of a memory have not: it
/// turns `after` back by its own table, exact to rounding.
enum class Rotary : std::uint8_t { before, after };

/// Element (i, h, c) is data[i * strides.row + h * strides.head + c] for token i, head h, channel
/// c. Sizes and strides are in elements; strides are not negative. Owns nothing.
template <class Element>
struct BasicTensorView {
  struct Sizes {
    std::int64_t n = 0, heads = 0, dim = 0;
  };
  struct Strides {
    std::int64_t row = 0, head = 0;
  };

  Element* data = nullptr;
  DType dtype = DType::float32;
  MemoryKind memory = MemoryKind::host;
  Rotary rotary = Rotary::before;  ///< of queries and keys; values have none
  Sizes sizes;
  Strides strides;

  constexpr BasicTensorView() = default;
  constexpr BasicTensorView(Element* first, DType type, Sizes of, Strides apart,
                            MemoryKind where = MemoryKind::host)
      : data(first), dtype(type), memory(where), sizes(of), strides(apart) {}
  /// Packed rows [n, heads, dim].
  constexpr BasicTensorView(Element* first, DType type, Sizes of,
                            MemoryKind where = MemoryKind::host)
      : BasicTensorView(first, type, of, {of.heads * of.dim, of.dim}, where) {}
  /// A view that may be written is one that may be read.
  template <class Other,
            class = std::enable_if_t<std::is_const<Element>::value && !std::is_const<Other>::value>>
  constexpr BasicTensorView(const BasicTensorView<Other>& other)
      : data(other.data),
        dtype(other.dtype),
        memory(other.memory),
        rotary(other.rotary),
        sizes{other.sizes.n, other.sizes.heads, other.sizes.dim},
        strides{other.strides.row, other.strides.head} {}

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
  /// Whether it is [n, heads, dim] without a gap.
  constexpr bool packed() const {
    return (sizes.heads <= 1 || strides.head == sizes.dim) &&
           (sizes.n <= 1 || strides.row == sizes.heads * sizes.dim);
  }
};

using TensorView = BasicTensorView<const void>;
using MutableTensorView = BasicTensorView<void>;

}  // namespace episodic
