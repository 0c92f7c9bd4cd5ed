// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an EpisodicMemory has beside a HostMemory, for the sources of this room.

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "episodic/memory/detail/memory_core.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "memory_directory.hpp"
#include "page_image.hpp"
#include "tiered_folder.hpp"
#include "token_log.hpp"

namespace episodic {

/// disk_bytes in two bounds whose sum it is, by what an event of min_block tokens takes of each.
struct DiskShares {
  std::int64_t segments = 0, vectors = 0;  ///< 0: no bound
};
DiskShares disk_shares(const MemoryConfig& config, const MemoryShape& shape);

namespace detail {
/// Where everything lies that a state does not hold itself.
struct TierImages {
  VectorImage vectors;
  StoreImage store;
  void save(ByteWriter& to) const;
  static TierImages load(ByteReader& from);
};
/// Where a memory that is only read puts what comes. \throws FileError
std::filesystem::path scratch_folder();
}  // namespace detail

/// What a base is made of. Nothing of it changes, but what its store's readers share under a lock.
struct MemoryBase::Parts {
  std::shared_ptr<detail::TieredFolder> on_tier;  // what makes the calls of all below
  std::shared_ptr<const MemoryBase> below;  // whose events come first; tiers and lanes refer to it
  MemoryConfig config;
  MemoryShape shape;
  std::vector<std::int64_t> given;
  Timeline::State time;
  std::vector<EventTable> events;               // of each scope
  std::vector<std::vector<EventId>> forgotten;  // of each scope
  detail::LayerBank::Numbers numbers;
  std::unique_ptr<const detail::PageImage> rings;  // of each layer
  std::vector<detail::LayerMark> layers;
  std::int64_t step_number = 0;
  MemoryCounters counters;
  std::optional<detail::MemoryDirectory> directory;  // for its lock
  detail::Tiers tiers;
  std::vector<std::vector<detail::Lane>> lanes;  // of each layer
  std::vector<std::uint8_t> beside;              // Impl::saved_beside
};

/// The core with a folder, a disk tier and a base.
struct EpisodicMemory::Impl : detail::MemoryCore {
  // A kept memory.
  std::shared_ptr<detail::TieredFolder> on_tier;  // of one that lies there
  std::optional<detail::MemoryDirectory> directory;
  KeepOptions keep;
  OpenMode mode = OpenMode::write;
  detail::TokenLog ids;           // only of a kept memory
  bool drop_checkpoints = false;  // they would bring back what was forgotten
  bool drop_caches = false;       // they hold something of what was forgotten
  // Least token count since the last commit: states kept before, but past it, tell of a sequence
  // that was given up.
  std::int64_t gone_back_to = kNever;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();
  static constexpr std::int64_t kMostCounted = std::int64_t{1}
                                               << 62;  // so that it can be counted on

  // What belongs to the sequence beside the memory; and what did after `beside_at` tokens, while
  // nobody carries it on.
  std::shared_ptr<BesideMemory> beside;
  std::vector<std::uint8_t> beside_bytes;
  std::int64_t beside_at = 0;
  /// As it is now; empty if there is nothing. \throws DataError for other tokens
  std::vector<std::uint8_t> saved_beside() const;

  detail::Tiers make_tiers() const override;
  /// What was committed is not lost before the next commit.
  bool keeps_tiers() const override { return directory.has_value(); }
  void check_behind_base(const char* what, std::int64_t tokens) const override;
  void check_own(const char* what, std::int64_t scope, EventId event) const override;
  bool pinned(std::int64_t scope, EventId event) const override;
  void reserve_ids(std::int64_t n_tokens) override;
  void push_ids(const std::int64_t* step_ids, std::int64_t n_tokens) noexcept override;
  void went_back(std::int64_t tokens) noexcept override;
  void event_forgotten() noexcept override { drop_checkpoints = drop_caches = true; }

  /// Room of its own for what a memory over a base adds.
  struct Tail {
    detail::Tiers tiers;
    std::vector<std::vector<detail::Lane>> lanes;  // of each layer
  };
  /// \param store null if no layer recalls \param below(l): the lanes of layer l, to go on from
  template <class Below>
  Tail make_tail(const EventStore* store, Below&& below) const;
  DiskStoreOptions disk_options() const;
  VectorTierOptions vector_options() const;
  /// Why there is no folder to do this in; empty if there is one.
  std::string not_kept(const char* what) const;
  /// \throws ConfigError if the memory is not kept
  void check_kept(const char* what) const;
  /// Whether every scope has forgotten the events that hold these tokens. \return [count]
  std::vector<bool> forgotten_tokens(std::int64_t first, std::int64_t count) const;
  void commit();
  /// Where the folder is a tier's: its files are read by the tier's calls.
  void use_tier(std::shared_ptr<detail::TieredFolder> folder);
  void make_room();
  void merge_files();
  /// \param beside_now saved_beside()
  void save(ByteWriter& to, const detail::TierImages& images,
            const std::vector<std::uint8_t>& beside_now) const;
  /// \param windows dtype of the windows that are read
  void load(ByteReader& from, const detail::TierImages& images, DType windows);
  /// \param where the tables were read, for a message \throws FileError
  void check_tables(const StoreImage& store, const std::string& where) const;
  /// Those of the sequence, or of each lane's scope.
  void append_events(const MemoryAdvance& advance);
  void append_events(const MemoryAdvance& advance, const detail::Lane* alone);
};

inline EpisodicMemory::Impl& EpisodicMemory::impl() { return static_cast<Impl&>(*core_); }
inline const EpisodicMemory::Impl& EpisodicMemory::impl() const {
  return static_cast<const Impl&>(*core_);
}

}  // namespace episodic
