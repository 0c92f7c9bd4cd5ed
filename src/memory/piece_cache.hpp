// SPDX-License-Identifier: Apache-2.0
#pragma once
// Blocks of a tier that this machine has read, in a folder of its own that all its processes share.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <vector>

#include "episodic/store/block_tier.hpp"

namespace episodic::detail {

/// Reads blocks through a folder of bounded bytes. What was used last stays longest. A block is
/// compared with its name when it comes from the tier, and when a process first finds it in the
/// folder. What the folder refuses (no room, no rights) is read from the tier.
class PieceCache {
 public:
  /// A part of a block.
  struct Part {
    BlockHash name;
    std::int64_t from = 0;    ///< its first byte in the block
    std::span<std::byte> to;  ///< empty: the block is only brought here
  };

  /// \param dir made where it is not there \param most_bytes of all blocks in it; 0: none are kept
  PieceCache(std::shared_ptr<BlockTier> tier, std::filesystem::path dir, std::int64_t most_bytes,
             io::Syscalls& calls);

  BlockTier& tier() const { return *tier_; }
  bool keeps() const { return most_ > 0; }

  /// Several threads may read at once; a block that several want is fetched once.
  /// \throws FileError of the tier
  void read(std::vector<Part> parts);
  void insert(const BlockHash& name, std::span<const std::byte> bytes) noexcept;

 private:
  bool read_here(const Part& part);
  void fetch(std::span<const Part> parts);
  void put_here(const BlockHash& name, std::span<const std::byte> bytes);
  std::int64_t make_room(std::int64_t most) const;
  std::filesystem::path path_of(const BlockHash& name) const;

  std::shared_ptr<BlockTier> tier_;
  std::filesystem::path dir_;
  std::int64_t most_;
  io::Syscalls& calls_;
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::set<BlockHash> under_way_, checked_;
};

}  // namespace episodic::detail
