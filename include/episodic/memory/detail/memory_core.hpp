// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a HostMemory is made of: timeline and layers, and the step that is open. EpisodicMemory's
// is this with a folder, a disk tier and a base beside it (src/memory/impl.hpp).

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "episodic/attention/attend.hpp"
#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/group/group.hpp"
#include "episodic/memory/counters.hpp"
#include "episodic/memory/detail/layer_bank.hpp"
#include "episodic/memory/detail/retention.hpp"
#include "episodic/memory/detail/row_log.hpp"
#include "episodic/memory/detail/snapshot_validity.hpp"
#include "episodic/memory/detail/thread_guard.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/timeline/timeline.hpp"

namespace EPISODIC_NAMESPACE {
class MemoryBase;
}

namespace EPISODIC_NAMESPACE::detail {

/// Adds the wall time of its scope to a counter.
class Stopwatch {
 public:
  explicit Stopwatch(double& total) : total_(total), start_(Clock::now()) {}
  ~Stopwatch() { total_ += std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  using Clock = std::chrono::steady_clock;
  double& total_;
  Clock::time_point start_;
};

/// What is leased within a scope is released at its end.
class LeaseScope {
 public:
  explicit LeaseScope(Leases& leases) : leases_(leases) {}
  ~LeaseScope() { leases_.release(); }
  LeaseScope(const LeaseScope&) = delete;
  LeaseScope& operator=(const LeaseScope&) = delete;

 private:
  Leases& leases_;
};

struct MemoryCore {
  MemoryCore() = default;
  MemoryCore(const MemoryCore&) = delete;  // layers refer to its rotations
  MemoryCore& operator=(const MemoryCore&) = delete;
  virtual ~MemoryCore() = default;

  // -- what a memory that files hold, or that goes on from a base, does besides -------------------

  /// Empty tiers of the kind that the configuration asks for: the store in host memory.
  virtual Tiers make_tiers() const;
  /// Whether the empty sequence begins in the tiers that are there, truncated; else in new ones.
  virtual bool keeps_tiers() const { return false; }
  /// \throws ConfigError for tokens that it cannot go back to
  virtual void check_behind_base(const char* /*what*/, std::int64_t /*tokens*/) const {}
  /// \throws ConfigError for an event that is not its own to change
  virtual void check_own(const char* /*what*/, std::int64_t /*scope*/, EventId /*event*/) const {}
  virtual bool pinned(std::int64_t /*scope*/, EventId /*event*/) const { return false; }
  /// Makes room for the ids of n tokens, so that `push_ids` of them cannot fail.
  virtual void reserve_ids(std::int64_t /*n*/) {}
  /// \param ids [n]; null: unknown
  virtual void push_ids(const std::int64_t* /*ids*/, std::int64_t /*n*/) noexcept {}
  /// The sequence was cut to its first `tokens`.
  virtual void went_back(std::int64_t /*tokens*/) noexcept {}
  virtual void event_forgotten() noexcept {}

  // -- making one ---------------------------------------------------------------------------------

  /// \throws ConfigError
  void configure(const MemoryConfig& settings, const MemoryShape& of_model,
                 std::vector<std::int64_t> given_boundaries);
  /// Empty lanes for each layer.
  std::vector<std::vector<Lane>> make_lanes(VectorTier* vectors) const;
  /// Of an empty sequence, where there is one.
  std::optional<Retention> make_retention() const;
  /// An empty sequence over the tiers that are there. \param lanes of each layer
  /// \param rings what the window of each layer begins with; empty: zeros
  /// \throws BudgetError where the system has no room for the windows
  void build(std::vector<std::vector<Lane>> lanes, std::vector<Pages> rings = {});
  /// The same over new tiers.
  void build();
  void take_room(std::vector<std::vector<Lane>> lanes, std::vector<Pages> rings);
  [[noreturn]] void refuse_room() const;

  // -- the parts of a step ------------------------------------------------------------------------

  void recall(std::int64_t l, std::int64_t p);
  /// The ranking of a lane that is all ranks': by the sum of their scores.
  /// \param query of this rank's heads
  RecallBuffers::Ranking ranking_of_all(const Lane& lane, const float* query);
  /// What each lane of a layer attends to, into `lists`; its events are leased. \param far whether
  /// any key is outside a query's window \param again by the events that this step has recalled
  /// \return events recalled, over all lanes
  std::int64_t list_segments(std::int64_t l, bool far, bool again);
  /// Whether any key is outside the window of a query of the open step.
  bool sees_far() const { return time.tokens() + n > config.n_local; }
  /// The rotated queries of a layer, for near and, where there are such, far keys.
  void rotate(std::int64_t l, const TensorView& q);
  /// Attends with those to what `lists` has. \param count whether sums and masses are kept
  void attend_lists(std::int64_t l, const MutableTensorView& out, const float* sink_logits,
                    bool count);
  /// Segments of what a lane recalls, into event_segments.
  void acquire(std::int64_t l, std::int64_t p);
  /// Sets the value weights of what a lane recalls, by `reweight` and the hook.
  void weight(std::int64_t l, std::int64_t p);
  bool wants_masses() const { return retention || attention_hook; }
  /// Passes on what each recalled event of the layer received.
  void hand_out_masses(std::int64_t l);
  void check_end() const;
  /// The step's end, once the timeline has read its signal. \param ids null: unknown
  void finish(const std::int64_t* ids);
  /// Waits for the outcome of the step on all ranks. \param before events of each scope before it
  void agree(std::span<const std::int64_t> before);
  /// Asks retention about the events of the chunk whose end the open step reaches.
  void apply_retention(EventId first_event);
  /// Forgets what retention gave up.
  void forget_due();

  // -- going back and forgetting ------------------------------------------------------------------

  /// The log that what is overwritten from now on belongs to; of the last snapshot, if the window
  /// is still the same. \throws std::bad_alloc
  std::shared_ptr<RowLog> open_log() const;
  /// Undoes all events of each scope from `kept` of it on.
  void truncate(std::span<const std::int64_t> kept);
  void forget(std::int64_t scope, EventId event);
  /// Behind what was forgotten: gives up its room where no commit may come back to it.
  void shrink() noexcept;
  /// Whether an event was forgotten on purpose.
  bool is_forgotten(std::int64_t scope, EventId event) const;

  // -- looking at it ------------------------------------------------------------------------------

  MemoryCounters count() const;
  std::vector<std::int64_t> n_events() const;  // of each scope
  std::int64_t counted_events() const;         // of all scopes
  const Lane& lane_at(std::int64_t lane) const;
  void check_idle(const char* what) const;
  /// A hook that would rank or weight by a rank's part of a lane. \throws ConfigError
  template <class Hook>
  void refuse_hook(const Hook& hook, const char* what) const {
    if (hook && shape.recall_together) refuse_hook(what);
  }
  [[noreturn]] void refuse_hook(const char* what) const;
  void check_layer(std::int64_t layer) const;
  void check_scope(std::int64_t scope) const;
  void check_event(std::int64_t scope, EventId event) const;
  void check_unpinned(std::int64_t scope, EventId event) const;

  static std::uint64_t unique_number();

  std::uint64_t id = unique_number();      // of all memories of this process
  std::shared_ptr<const MemoryBase> base;  // tiers and lanes refer to it; null where there is none
  MemoryConfig config;
  MemoryShape shape;
  std::vector<std::int64_t> given;
  std::shared_ptr<Group> group;  // whose ranks have the other heads; null: one process
  std::int64_t capacity = 0;     // tokens of the rings

  std::vector<Rotation> rotations;       // one for each rotary table; the layers refer to them
  std::vector<std::size_t> rotation_of;  // by layer
  std::vector<float> scales;             // by layer; 0: 1 / sqrt(head_dim)
  std::vector<float> softcaps;           // by layer; 0: none
  Timeline time;
  LayerBank bank;
  std::vector<std::vector<EventId>> forgotten;  // of each scope, on purpose, in order of time
  std::optional<Retention> retention;
  MemoryCounters counters;
  std::int64_t step_number = 0;
  SnapshotValidity snapshots;
  mutable std::weak_ptr<RowLog> overwritten;  // since the last snapshot that there still is
  std::uint64_t window_version = 0;           // RowLog::version

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
  Leases leases;  // of the layer that attends
  RankHook rank_hook;
  RecallHook recall_hook;
  AttentionHook attention_hook;
  std::vector<double> masses, event_masses;  // of all segments; of a lane's events
  std::vector<float> scores, weights;        // of the events that it looks at
  std::vector<float> sums_of_scores;         // of all events of a lane that is all ranks'
  bool scored = false;                       // whether they are of the present recall

  mutable ThreadGuard threads;
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/memory_core.hpp"
#endif
