// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Memory for what a search reads of all events: in blocks that the system is asked to back with
/// huge pages. Read at random, or once in a long while, ordinary pages cost more in address
/// translation than in data.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Pieces of equal size that never move, appended and cut at the end. A block takes ordinary pages
/// while it fills, so that a short list costs no more than it holds; huge ones are asked for when
/// it is full. Where there are none, nothing but the speed differs.
class HugePieces {
 public:
  static constexpr std::int64_t kPage = std::int64_t{2} << 20;  ///< of the huge ones

  /// \param bytes of a piece, at least 1
  explicit HugePieces(std::int64_t bytes);
  ~HugePieces();
  HugePieces(const HugePieces&) = delete;
  HugePieces& operator=(const HugePieces&) = delete;

  std::int64_t size() const { return size_; }
  /// Aligned to 64 bytes.
  std::byte* piece(std::int64_t i) const {
    return blocks_[static_cast<std::size_t>(i / per_block_)] + i % per_block_ * stride_;
  }
  /// New pieces are zero. The memory of cut ones is given back. \throws std::bad_alloc
  void resize(std::int64_t n);
  /// Tells that the pieces below n are written: full blocks of them get huge pages.
  void finish(std::int64_t n);

  /// Memory of a piece with its share of what a block leaves unused.
  std::int64_t piece_bytes() const { return (block_bytes_ + per_block_ - 1) / per_block_; }
  std::int64_t bytes() const { return size_ * piece_bytes(); }

 private:
  std::int64_t stride_, per_block_, block_bytes_;
  std::int64_t size_ = 0, finished_ = 0;  // pieces; blocks
  std::vector<std::byte*> blocks_;
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/recall/impl/huge_pieces.hpp"
#endif
