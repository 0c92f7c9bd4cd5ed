// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The rings of a window in pages, which need not lie together: a pool of pages serves the windows
/// of many sequences, and a sequence holds no more of them than it has tokens for.

#include <cstdint>

#include "fields.hpp"

namespace episodic::kernels {

/// A ring's slot s is row s % page of page s / page, whose number in the pool a table says. A page
/// holds the rows of every kv head, those of head g at g * ring_head_stride in it, so that element
/// (g, slot, c) lies at
///     array[table[slot / page] * page_stride + g * ring_head_stride + (slot % page) * row + c]
/// for each array of the ring: keys, rotated keys and values have the same pages, each in an
/// array of its own. Without pages a ring is one piece, as if it were one page of its capacity.
///
/// Pages behind the first ring_capacity tokens of a sequence may be claimed when it gets there: a
/// launch looks at the entries of the slots that it reads or writes, and no others.
struct RingPages {
  /// [(ring_capacity + page - 1) / page] in device memory, numbers of pages; null: no pages
  const std::uint32_t* table = nullptr;
  std::uint32_t page_stride = 0;  ///< elements between the pool's pages, a multiple of 8
  int log2_tokens = 0;            ///< page = 2^log2_tokens, 0 to 20
};

/// Slots that lie in one piece: a head is at least so many rows from the next one.
inline std::int64_t slots_in_a_piece(const RingPages& pages, std::int64_t capacity) {
  return pages.table ? std::int64_t{1} << pages.log2_tokens : capacity;
}
inline bool valid(const RingPages& pages) {
  return !pages.table ||
         (pages.log2_tokens >= 0 && pages.log2_tokens <= 20 && pages.page_stride > 0 &&
          pages.page_stride % 8 == 0 && reinterpret_cast<std::uintptr_t>(pages.table) % 4 == 0);
}

}  // namespace episodic::kernels
