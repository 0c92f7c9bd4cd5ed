// SPDX-License-Identifier: Apache-2.0
#pragma once
// How kernels read views: whole heads side by side, rows apart.

#include <cstdint>

#include "episodic/base/tensor_view.hpp"

namespace episodic::device {

/// What kernels that take 16 bytes at a time need of an address, in bytes, and of the distance from
/// a row to the next, in elements.
inline constexpr std::int64_t kViewAlignment = 16, kViewRow = 8;

/// Elements from a token's row to the next: of one token those of its row, for its stride may be
/// anything.
inline std::int64_t row_stride(const TensorView& view) {
  return view.sizes.n > 1 ? view.strides.row : view.sizes.heads * view.sizes.dim;
}

}  // namespace episodic::device
