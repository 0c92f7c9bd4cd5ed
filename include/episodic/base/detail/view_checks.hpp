// SPDX-License-Identifier: Apache-2.0
#pragma once
// Whether a view can be read or written as a call wants it. What does not fit is one DataError that
// names the parameter; nothing is allocated unless one is thrown.

#include <algorithm>
#include <cstdint>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/tensor_view.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE::detail {

constexpr const char* name_of(MemoryKind memory) {
  return memory == MemoryKind::host ? "host" : "CUDA";
}

inline std::string described(const TensorSizes& s) {
  return concat("[", s.n, ", ", s.heads, ", ", s.dim, "]");
}

inline std::string described(const TensorStrides& s) {
  return concat("row stride ", s.row, " and head stride ", s.head);
}

/// More than any memory has, in bytes; sums of two such offsets stay in int64.
inline constexpr std::int64_t kMostViewBytes = std::int64_t{1} << 56;

/// Whether the elements of non-empty sizes can lie in one memory.
inline bool is_addressable(const void* data, const TensorSizes& sizes, const TensorStrides& strides,
                           DType dtype) {
  std::int64_t rows = 0, heads = 0, end = 0, bytes = 0;
  std::uintptr_t address = 0;
  return !__builtin_mul_overflow(sizes.n - 1, strides.row, &rows) &&
         !__builtin_mul_overflow(sizes.heads - 1, strides.head, &heads) &&
         !__builtin_add_overflow(rows, heads, &end) &&
         !__builtin_add_overflow(end, sizes.dim, &end) &&
         !__builtin_mul_overflow(end, size_of(dtype), &bytes) && bytes <= kMostViewBytes &&
         !__builtin_add_overflow(reinterpret_cast<std::uintptr_t>(data),
                                 static_cast<std::uintptr_t>(bytes), &address);
}

/// Whether no two of the n * heads rows of non-empty, addressable sizes share an element.
inline bool rows_apart(const TensorSizes& sizes, const TensorStrides& strides) {
  const std::int64_t dim = sizes.dim;
  const auto within = [&](std::int64_t inner, std::int64_t count, std::int64_t outer,
                          std::int64_t outer_count) {
    const bool inside = count == 1 || inner >= dim;
    return inside && (outer_count == 1 || outer >= (count - 1) * inner + dim);
  };
  if (within(strides.head, sizes.heads, strides.row, sizes.n)) return true;
  if (within(strides.row, sizes.n, strides.head, sizes.heads)) return true;
  // Neither is within the other: of each distance between heads, the nearest rows.
  if (sizes.n == 1 || sizes.heads == 1 || strides.row < dim || strides.head < dim) return false;
  for (std::int64_t h = 1; h < sizes.heads; ++h) {
    const std::int64_t distance = h * strides.head;
    const std::int64_t below = std::min(distance / strides.row, sizes.n - 1);
    if (distance - below * strides.row < dim) return false;
    if (below + 1 < sizes.n && (below + 1) * strides.row - distance < dim) return false;
  }
  return true;
}

/// Of a view that says by itself how much there is.
inline void check_sizes(const char* call, const TensorSizes& sizes) {
  if (sizes.n >= 0 && sizes.heads >= 0 && sizes.dim >= 0) return;
  throw DataError(concat(call, ": sizes are ", described(sizes), ", must not be negative"));
}

/// \param call, name begin the message: "attend" and "q". \param sizes that the view must have
template <class Element>
void check_view(const char* call, const char* name, const BasicTensorView<Element>& view,
                const TensorSizes& sizes, MemoryKind memory = MemoryKind::host) {
  const auto fail = [&](const auto&... what) {
    throw DataError(concat(call, ": ", name, " ", what...));
  };
  if (view.data == nullptr) fail("is null");
  if (view.memory != memory) {
    fail("lies in ", name_of(view.memory), " memory, must lie in ", name_of(memory), " memory");
  }
  if (view.dtype != DType::float32 && view.dtype != DType::bfloat16 &&
      view.dtype != DType::float16) {
    fail("is ", episodic::name_of(view.dtype), "; give float32, bfloat16 or float16");
  }
  if (view.sizes != sizes) {
    fail("is ", described(view.sizes), ", must be ", described(sizes), " of tokens, heads and ",
         "channels");
  }
  if (view.strides.row < 0 || view.strides.head < 0) {
    fail("has ", described(view.strides), ", must not be negative");
  }
  if (sizes.n > 0 && sizes.heads > 0 && sizes.dim > 0 &&
      !is_addressable(view.data, sizes, view.strides, view.dtype)) {
    fail("has ", described(view.strides), ": its last element would lie beyond all memory");
  }
}

/// Rows that are written must also lie apart from each other.
inline void check_written_view(const char* call, const char* name, const MutableTensorView& view,
                               const TensorSizes& sizes, MemoryKind memory = MemoryKind::host) {
  check_view(call, name, view, sizes, memory);
  if (sizes.n == 0 || sizes.heads == 0 || rows_apart(sizes, view.strides)) return;
  throw DataError(concat(call, ": ", name, " has ", described(view.strides), ": rows of ",
                         sizes.dim, " channels would overlap"));
}

/// \param n tokens of the step
inline void check_surprise(const char* call, const SurpriseView& surprise, std::int64_t n,
                           MemoryKind memory) {
  if (surprise.data == nullptr) throw DataError(concat(call, ": surprise is null"));
  if (surprise.memory != memory) {
    throw DataError(concat(call, ": surprise lies in ", name_of(surprise.memory),
                           " memory, must lie in ", name_of(memory), " memory"));
  }
  if (surprise.n != n) {
    throw DataError(
        concat(call, ": surprise is of ", surprise.n, " tokens, but the step was begun with ", n));
  }
}

}  // namespace EPISODIC_NAMESPACE::detail
