// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/detail/huge_pieces.hpp; how they become functions: base/inline.hpp.
#include "episodic/base/inline.hpp"
#include "episodic/recall/detail/huge_pieces.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <new>

namespace EPISODIC_NAMESPACE::detail {
namespace huge_pieces_detail {

inline constexpr std::int64_t kLine = 64;

#if defined(MADV_COLLAPSE)
inline constexpr int kCollapse = MADV_COLLAPSE;
#else
inline constexpr int kCollapse = 25;  // Linux 6.1; headers may be older than the system
#endif

inline std::int64_t round_up(std::int64_t n, std::int64_t to) { return (n + to - 1) / to * to; }

/// Zeros, aligned to a huge page. \throws std::bad_alloc
inline std::byte* map_block(std::int64_t bytes) {
  const std::int64_t slack = HugePieces::kPage;
  void* at = mmap(nullptr, static_cast<std::size_t>(bytes + slack), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) throw std::bad_alloc();
  auto* begin = static_cast<std::byte*>(at);
  const auto address = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(at));
  const std::int64_t before = round_up(address, HugePieces::kPage) - address;
  if (before > 0) munmap(begin, static_cast<std::size_t>(before));
  if (before < slack) munmap(begin + before + bytes, static_cast<std::size_t>(slack - before));
  return begin + before;
}

}  // namespace huge_pieces_detail

EPISODIC_INLINE HugePieces::HugePieces(std::int64_t bytes)
    : stride_(huge_pieces_detail::round_up(std::max<std::int64_t>(1, bytes),
                                           huge_pieces_detail::kLine)),
      per_block_(std::max<std::int64_t>(1, kPage / stride_)),
      block_bytes_(huge_pieces_detail::round_up(per_block_ * stride_, kPage)) {}

EPISODIC_INLINE HugePieces::~HugePieces() {
  for (std::byte* block : blocks_) munmap(block, static_cast<std::size_t>(block_bytes_));
}

EPISODIC_INLINE void HugePieces::resize(std::int64_t n) {
  const std::int64_t needed = (n + per_block_ - 1) / per_block_;
  blocks_.reserve(static_cast<std::size_t>(needed));
  while (static_cast<std::int64_t>(blocks_.size()) < needed)
    blocks_.push_back(huge_pieces_detail::map_block(block_bytes_));
  while (static_cast<std::int64_t>(blocks_.size()) > needed) {
    munmap(blocks_.back(), static_cast<std::size_t>(block_bytes_));
    blocks_.pop_back();
  }
  if (n < size_ && n % per_block_ != 0) {
    // Zeros again from piece n on; whole pages of them go back to the system.
    constexpr std::int64_t kSmallPage = 4096;
    const std::int64_t from = n % per_block_ * stride_;
    const std::int64_t page =
        std::min(huge_pieces_detail::round_up(from, kSmallPage), block_bytes_);
    std::fill(blocks_.back() + from, blocks_.back() + page, std::byte{0});
    if (page < block_bytes_ &&
        madvise(blocks_.back() + page, static_cast<std::size_t>(block_bytes_ - page),
                MADV_DONTNEED) != 0)
      std::fill(blocks_.back() + page, blocks_.back() + block_bytes_, std::byte{0});
  }
  size_ = n;
  finished_ = std::min(finished_, n / per_block_);
}

EPISODIC_INLINE void HugePieces::finish(std::int64_t n) {
  for (; (finished_ + 1) * per_block_ <= std::min(n, size_); ++finished_) {
    std::byte* block = blocks_[static_cast<std::size_t>(finished_)];
    const auto bytes = static_cast<std::size_t>(block_bytes_);
#if defined(MADV_HUGEPAGE)
    // The second does at once what the first leaves to a thread of the kernel. Either may be
    // refused; the content stays as it is.
    if (madvise(block, bytes, MADV_HUGEPAGE) == 0)
      madvise(block, bytes, huge_pieces_detail::kCollapse);
#endif
  }
}

}  // namespace EPISODIC_NAMESPACE::detail
