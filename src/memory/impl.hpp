// SPDX-License-Identifier: Apache-2.0
#pragma once
// What an EpisodicMemory is made of, for the sources of this room: the steps (episodic_memory.cpp)
// and what is kept (kept_memory.cpp).

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "episodic/attention/attend.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/timeline/timeline.hpp"
#include "layer_bank.hpp"
#include "memory_directory.hpp"
#include "token_log.hpp"

namespace episodic {

struct EpisodicMemory::Snapshot {
  const void* owner = nullptr;
  std::int64_t events = 0;  // the first ones of the table
  std::int64_t generation = 0;
  Timeline::State time;
  std::vector<detail::LayerWindow> windows;
};

/// Which snapshots still tell of this sequence: those of states that no restore went back behind.
class SnapshotValidity {
 public:
  std::int64_t generation() const { return generation_; }
  /// \throws ConfigError for a snapshot from before the last `reset`, or of tokens that were given
  /// up since it was taken: others may have come in their place
  void check(std::int64_t generation, std::int64_t tokens) const;
  /// Makes room for one `went_back`.
  void reserve() { rewinds_.reserve(rewinds_.size() + 1); }
  /// The sequence was cut to its first `tokens`. \pre reserve()
  void went_back(std::int64_t tokens) noexcept;
  /// The sequence begins anew.
  void reset() noexcept;

 private:
  struct Rewind {
    std::int64_t generation = 0;  ///< that began with it
    std::int64_t tokens = 0;      ///< that were kept
  };
  std::int64_t generation_ = 0, first_ = 0;
  std::vector<Rewind> rewinds_;  ///< by tokens: one that kept as few or fewer makes others idle
};

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
}  // namespace detail

/// Refuses the second of two threads that are in one memory at once. A thread that is inside may
/// call again, from a callback say.
class ThreadGuard {
 public:
  /// For the time of a call. \throws Error if another thread is inside
  class Inside {
   public:
    explicit Inside(ThreadGuard& guard);
    ~Inside();
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    ThreadGuard& guard_;
    bool outer_ = false;  // an outer call of this thread holds the guard
  };
  /// For a look that takes no time. \throws Error if another thread is inside
  void check() const;

 private:
  std::atomic<std::thread::id> owner_{};
};

struct EpisodicMemory::Impl {
  MemoryConfig config;
  MemoryShape shape;
  std::vector<std::int64_t> given;
  std::int64_t capacity = 0;  // tokens of the rings

  std::vector<detail::Rotation> rotations;  // one for each rotary table; the layers refer to them
  std::vector<std::size_t> rotation_of;     // by layer
  std::vector<float> scales;                // by layer; 0: 1 / sqrt(head_dim)
  std::vector<float> softcaps;              // by layer; 0: none
  Timeline time;
  detail::LayerBank bank;
  std::vector<EventId> forgotten;  // on purpose, in order of time
  MemoryCounters counters;
  std::int64_t step_number = 0;
  SnapshotValidity snapshots;

  // The open step.
  bool open = false;
  std::int64_t n = 0, next_layer = 0, n_recalled = 0;
  bool recalls_now = true;
  AttendWorkspace workspace;
  std::vector<float> q_relative, q_fixed, mean_query;
  std::vector<KvSegment> segments, event_segments;
  std::vector<float*> sums;
  RecallHook recall_hook;
  std::vector<float> scores, weights;  // of the events that it looks at

  // A kept memory.
  std::optional<detail::MemoryDirectory> directory;
  KeepOptions keep;
  OpenMode mode = OpenMode::write;
  detail::TokenLog ids;           // only of a kept memory
  bool drop_checkpoints = false;  // they would bring back what was forgotten
  // Least token count since the last commit: states kept before, but past it, tell of a sequence
  // that was given up.
  std::int64_t gone_back_to = kNever;
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  mutable ThreadGuard threads;

  /// An empty sequence over the tiers that are there.
  void build();
  /// Empty tiers of the kind that the configuration asks for.
  detail::Tiers make_tiers() const;
  /// An empty index for each layer, null for one that does not recall.
  std::vector<std::unique_ptr<RepresentativeIndex>> make_indexes(VectorTier* vectors) const;
  DiskStoreOptions disk_options() const;
  VectorTierOptions vector_options() const;
  StoreShape store_shape() const;
  void check_idle(const char* what) const;
  void check_event(EventId event) const;
  void check_unpinned(EventId event) const;
  /// Undoes all events from `n_events` on.
  void truncate(std::int64_t n_events);
  void commit();
  void save(ByteWriter& to, const detail::TierImages& images) const;
  void load(ByteReader& from);
  void recall(detail::LayerState& layer);
  void ask_hook(std::int64_t l, const std::vector<EventId>& events);
  void check_end() const;
  /// The step's end, once the timeline has read its signal. \param ids null: unknown
  void finish(const std::int64_t* ids);
  void append_events(const MemoryAdvance& advance);
};

}  // namespace episodic
