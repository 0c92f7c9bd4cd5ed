// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Blocks (lanes of events) in one arena of host memory: an allocator with two-level segregated
/// free lists and boundary tags, a table of what lies where, and the order of last use. Nothing is
/// allocated after construction. Not thread-safe.

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "episodic/recall/index.hpp"

namespace episodic {

class BlockCache {
 public:
  static constexpr std::int64_t kLine = 64;
  /// Bytes that a block takes beside its own.
  static constexpr std::int64_t kOverhead = kLine;
  static constexpr std::uint32_t kNone = 0xffffffffu;
  /// Of an arena: its lines are counted in 32 bits, of which one number says nowhere.
  static constexpr std::int64_t kMostBytes = std::int64_t{kNone} * kLine;

  enum class State : std::uint8_t {
    free,
    filling,  ///< its bytes are not there yet
    dirty,    ///< to be written to its file, or being written
    clean,    ///< its file has the same bytes
  };

  /// In front of each block, in the arena. Places are counted in lines; kNone: nowhere.
  struct Block {
    std::uint32_t lines = 0;                     ///< with this tag
    std::uint32_t below = 0;                     ///< lines of the block before it in memory
    std::uint32_t older = kNone, newer = kNone;  ///< by use; of a free block: its free list
    std::uint32_t chain = kNone;                 ///< next with the same hash
    EventId event = 0;
    std::int32_t lane = 0;
    std::uint32_t leases = 0;
    State state = State::free;
    bool pinned = false;
  };
  static_assert(sizeof(Block) <= kLine);

  /// \param arena aligned to 64 bytes, at most kMostBytes \param table a power of two of them
  BlockCache(std::span<std::byte> arena, std::span<std::uint32_t> table);

  std::uint32_t find(EventId event, std::int64_t lane) const;
  /// A new block in state `filling`, as the latest used. \return kNone if no hole is large enough
  std::uint32_t insert(EventId event, std::int64_t lane, std::int64_t bytes, bool pinned);
  void erase(std::uint32_t at);
  /// Makes it the latest used.
  void touch(std::uint32_t at);
  void pin(std::uint32_t at, bool pinned);
  /// Forgets the block longest unused of those that are clean and not leased; pinned ones last.
  /// \return false if there is none
  bool evict();

  Block& operator[](std::uint32_t at) {
    return *reinterpret_cast<Block*>(arena_.data() + std::int64_t{at} * kLine);
  }
  const Block& operator[](std::uint32_t at) const {
    return *reinterpret_cast<const Block*>(arena_.data() + std::int64_t{at} * kLine);
  }
  std::byte* data(std::uint32_t at) { return arena_.data() + (std::int64_t{at} + 1) * kLine; }

  std::int64_t blocks() const { return blocks_; }

 private:
  // Free lists: by the size's highest bit, then by the kSteps next steps below the next power.
  static constexpr int kSteps = 16, kStepBits = 4, kPowers = 32;
  struct Uses {
    std::uint32_t oldest = kNone, newest = kNone;
  };

  static std::pair<int, int> list_of(std::uint32_t lines);
  std::uint32_t take_hole(std::uint32_t lines);
  void add_hole(std::uint32_t at);
  void remove_hole(std::uint32_t at);
  void set_lines(std::uint32_t at, std::uint32_t lines);
  void link(std::uint32_t at);
  void unlink(std::uint32_t at);
  std::uint32_t& bucket(EventId event, std::int64_t lane) const;

  std::span<std::byte> arena_;
  std::span<std::uint32_t> table_;
  std::array<std::array<std::uint32_t, kSteps>, kPowers> holes_;
  std::array<std::uint32_t, kPowers> steps_{};  ///< bit s of steps_[p]: holes_[p][s] is not empty
  std::uint64_t powers_ = 0;
  std::array<Uses, 2> uses_;  ///< of blocks not pinned, and pinned
  std::int64_t blocks_ = 0;
};

}  // namespace episodic
