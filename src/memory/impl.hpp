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
#include "episodic/memory/detail/layer_bank.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/timeline/timeline.hpp"
#include "memory_directory.hpp"
#include "page_image.hpp"
#include "retention.hpp"
#include "token_log.hpp"

namespace episodic {

struct EpisodicMemory::Snapshot {
  std::uint64_t owner = 0;           // Impl::id
  std::vector<std::int64_t> events;  // of each scope, the first ones of its table
  std::int64_t generation = 0;
  Timeline::State time;
  std::vector<detail::LayerMark> layers;
  std::shared_ptr<detail::RowLog> overwritten;  // since, of the rings
  std::optional<detail::Retention> retention;
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

/// What a base is made of. Nothing of it changes, but what its store's readers share under a lock.
struct MemoryBase::Parts {
  std::shared_ptr<const MemoryBase> below;  // whose events come first; tiers and lanes refer to it
  MemoryConfig config;
  MemoryShape shape;
  std::vector<std::int64_t> given;
  Timeline::State time;
  std::vector<EventTable> events;                  // of each scope
  std::vector<std::vector<EventId>> forgotten;     // of each scope
  std::vector<std::vector<EventId>> numbers;       // LayerBank::numbers
  std::unique_ptr<const detail::PageImage> rings;  // of each layer
  std::vector<detail::LayerMark> layers;
  std::int64_t step_number = 0;
  MemoryCounters counters;
  std::optional<detail::MemoryDirectory> directory;  // for its lock
  detail::Tiers tiers;
  std::vector<std::vector<detail::Lane>> lanes;  // of each layer
};

struct EpisodicMemory::Impl {
  std::uint64_t id = unique_number();      // of all memories of this process
  std::shared_ptr<const MemoryBase> base;  // tiers and lanes refer to it
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
  std::vector<std::vector<EventId>> forgotten;  // of each scope, on purpose, in order of time
  std::optional<detail::Retention> retention;
  MemoryCounters counters;
  std::int64_t step_number = 0;
  SnapshotValidity snapshots;
  mutable std::weak_ptr<detail::RowLog> overwritten;  // since the last snapshot that there still is
  std::uint64_t window_version = 0;                   // RowLog::version

  // The open step.
  bool open = false;
  std::int64_t n = 0, next_layer = 0, n_recalled = 0;
  bool recalls_now = true;
  AttendWorkspace workspace;
  std::vector<float> q_relative, q_fixed, mean_query;
  std::vector<KvSegment> segments, event_segments;
  std::vector<std::span<const KvSegment>> lists;  // of each lane of the layer
  std::vector<std::size_t> list_ends;             // in `segments`
  std::vector<EventId> numbers;                   // of a lane's events in the store
  std::vector<float*> sums;
  detail::Leases leases;  // of the layer that attends
  RecallHook recall_hook;
  AttentionHook attention_hook;
  std::vector<double> masses, event_masses;  // of all segments; of a lane's events
  std::vector<float> scores, weights;        // of the events that it looks at

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

  static std::uint64_t unique_number();

  /// An empty sequence over the tiers that are there. \param lanes of each layer
  void build(std::vector<std::vector<detail::Lane>> lanes);
  /// Room of its own for what a memory over a base adds.
  struct Tail {
    detail::Tiers tiers;
    std::vector<std::vector<detail::Lane>> lanes;  // of each layer
  };
  /// \param store null if no layer recalls \param below(l): the lanes of layer l, to go on from
  template <class Below>
  Tail make_tail(const EventStore* store, Below&& below) const;
  MemoryCounters count() const;
  /// The log that what is overwritten from now on belongs to; of the last snapshot, if the window
  /// is still the same. \throws std::bad_alloc
  std::shared_ptr<detail::RowLog> open_log() const;
  /// \throws ConfigError for tokens that end before the base's
  void check_behind_base(const char* what, std::int64_t tokens) const;
  /// \throws ConfigError for an event of the base
  void check_own(const char* what, std::int64_t scope, EventId event) const;
  /// Empty tiers of the kind that the configuration asks for.
  detail::Tiers make_tiers() const;
  /// Empty lanes for each layer.
  std::vector<std::vector<detail::Lane>> make_lanes(VectorTier* vectors) const;
  DiskStoreOptions disk_options() const;
  VectorTierOptions vector_options() const;
  void check_idle(const char* what) const;
  void check_scope(std::int64_t scope) const;
  /// \throws ConfigError if a layer has several lanes
  void check_plain(const char* what) const;
  void check_event(std::int64_t scope, EventId event) const;
  void check_unpinned(std::int64_t scope, EventId event) const;
  /// \throws ConfigError if the memory is not kept
  void check_kept(const char* what) const;
  /// Whether an event was forgotten on purpose.
  bool is_forgotten(std::int64_t scope, EventId event) const;
  void forget(std::int64_t scope, EventId event);
  /// Undoes all events of each scope from `kept` of it on.
  void truncate(std::span<const std::int64_t> kept);
  std::vector<std::int64_t> n_events() const;  // of each scope
  std::int64_t counted_events() const;         // of all scopes
  /// Whether every scope has forgotten the events that hold these tokens. \return [count]
  std::vector<bool> forgotten_tokens(std::int64_t first, std::int64_t count) const;
  void commit();
  void make_room();
  void save(ByteWriter& to, const detail::TierImages& images) const;
  /// \param windows dtype of the windows that are read
  void load(ByteReader& from, const detail::TierImages& images, DType windows);
  void recall(detail::LayerState& layer, std::int64_t p);
  /// What each lane of a layer attends to, into `lists`; its events are leased. \param far whether
  /// any key is outside a query's window \return events recalled, over all lanes
  std::int64_t list_segments(std::int64_t l, bool far);
  /// Segments of what a lane recalls, into event_segments.
  void acquire(std::int64_t l, std::int64_t p);
  /// Sets the value weights of what a lane recalls, by `reweight` and the hook.
  void weight(std::int64_t l, std::int64_t p);
  bool wants_masses() const { return retention || attention_hook; }
  /// Passes on what each recalled event of the layer received.
  void hand_out_masses(std::int64_t l);
  /// Of an empty sequence, where there is one.
  std::optional<detail::Retention> make_retention() const;
  /// The layer whose representatives are retention's engrams.
  std::int64_t retention_layer() const;
  /// Lets retention judge what the open step closes.
  void judge(EventId first_event);
  /// Forgets what retention gave up.
  void forget_due();
  const detail::Lane& lane_at(std::int64_t lane) const;
  void check_end() const;
  /// The step's end, once the timeline has read its signal. \param ids null: unknown
  void finish(const std::int64_t* ids);
  void append_events(const MemoryAdvance& advance);
};

}  // namespace episodic
