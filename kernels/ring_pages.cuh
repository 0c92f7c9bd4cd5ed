// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/ring_pages.hpp.

#include <cstdint>
#include <type_traits>

#include "device.cuh"
#include "ring_pages.hpp"

namespace episodic::kernels {

/// Elements from a head's first row, which is at g * ring_head_stride, to that of a slot. \param
/// row elements from one slot's to the next one's; both in 32 bits where registers are dear
template <class Index>
__device__ inline std::int64_t ring_row(const RingPages& pages, Index slot, Index row) {
  using Wide = std::conditional_t<(sizeof(Index) < 8), std::uint64_t, std::int64_t>;
  Wide page = 0;
  if (pages.table) {
    page = Wide{pages.table[slot >> pages.log2_tokens]} * pages.page_stride;
    slot &= (Index{1} << pages.log2_tokens) - 1;
  }
  return static_cast<std::int64_t>(page + Wide{slot} * row);
}

/// Slots from this one on that lie in one piece with it, the ring's end among what ends a piece.
__device__ inline std::int64_t slots_to_end(const RingPages& pages, std::int64_t slot,
                                            std::int64_t capacity) {
  const std::int64_t left = capacity - slot;
  if (!pages.table) return left;
  const std::int64_t page = std::int64_t{1} << pages.log2_tokens, in_page = page - slot % page;
  return in_page < left ? in_page : left;
}

}  // namespace episodic::kernels
