// SPDX-License-Identifier: Apache-2.0
#pragma once
// The layer plane: all layers of a memory with the tiers that their events lie in. It meets the
// timeline in two calls of a step: key_rings, and close with the ranges that the timeline found.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/base/shared_list.hpp"
#include "episodic/memory/detail/layer_state.hpp"
#include "episodic/recall/vector_tier.hpp"
#include "episodic/store/event_store.hpp"
#include "episodic/timeline/timeline.hpp"

namespace EPISODIC_NAMESPACE {
class DiskStore;
}

namespace EPISODIC_NAMESPACE::detail {

/// Where closed events lie.
struct Tiers {
  std::shared_ptr<io::Syscalls> calls;  ///< of their files, where they are none that always are
  std::unique_ptr<VectorTier> vectors;  ///< null without a disk tier; indexes refer to it
  std::unique_ptr<EventStore> store;    ///< null when no layer recalls
  DiskStore* disk = nullptr;            ///< `store`, where it is one
};

/// Events of one layer, held where they lie until `release` or the end of this.
class Leases {
 public:
  Leases() = default;
  ~Leases() { release(); }
  Leases(const Leases&) = delete;
  Leases& operator=(const Leases&) = delete;

  /// Room for so many lanes at once, so that nothing is allocated in a step.
  void reserve(std::int64_t lanes) { lanes_.reserve(static_cast<std::size_t>(lanes)); }
  /// \throws as EventStore::acquire; what was acquired before is still held
  void acquire(EventStore& store, std::int64_t lane, std::span<const EventId> events,
               std::vector<KvSegment>& out) {
    store.acquire(lane, events, out);
    store_ = &store;
    lanes_.push_back(lane);
  }
  void release() {
    for (const std::int64_t lane : lanes_) store_->release(lane);
    lanes_.clear();
  }

 private:
  EventStore* store_ = nullptr;
  std::vector<std::int64_t> lanes_;
};

/// Share of a tier's file that belongs to nothing any more from which on it is written anew: what
/// is kept then takes at most twice its room.
inline constexpr double kDeadShare = 0.5;

struct LayerBank {
  Tiers tiers;
  std::vector<LayerState> layers;

  /// Of all layers together.
  std::int64_t n_lanes() const {
    std::int64_t n = 0;
    for (const LayerState& layer : layers) n += layer.n_lanes();
    return n;
  }
  /// Which lane of which layer a number below n_lanes() is: lanes are counted layer by layer.
  struct LanePlace {
    std::size_t layer = 0;
    std::int64_t lane = 0;
  };
  LanePlace place_of(std::int64_t lane) const {
    LanePlace place{0, lane};
    for (; place.lane >= layers[place.layer].n_lanes(); ++place.layer)
      place.lane -= layers[place.layer].n_lanes();
    return place;
  }
  const Lane& lane(std::int64_t number) const {
    const LanePlace place = place_of(number);
    return layers[place.layer].lane(place.lane);
  }

  /// Keys of all layers, for the timeline. Valid until the next call.
  std::span<const KeyRing> key_rings();

  /// What a snapshot copies of all layers. \throws std::bad_alloc
  std::vector<LayerMark> marks() const;

  /// Makes room in the store for the next events of a lane's scope that has events of its own.
  /// \throws as EventStore::append: none of them is there then
  void append(const Lane& lane, std::span<const TokenRange> events);
  /// Writes the events that the open step closes, and their representatives, in every lane that
  /// recalls. \param first of the step's tokens
  /// \throws BudgetError, DiskFullError, FileError, DataError: nothing is changed then
  void close(const Timeline& time, std::int64_t first);
  /// The step of n tokens has come. Nothing in it can fail.
  void commit(std::int64_t first, std::int64_t n) noexcept;

  /// Whether the first `n_events` of each scope, as far as they are there, are the first ones of
  /// the store: truncate asks it.
  bool keeps_first(std::span<const std::int64_t> n_events) const;
  /// Forgets the events of each scope from `n_events` of it on, as far as they are there. Fails at
  /// its beginning or not at all; never for events that were just appended.
  void truncate(std::span<const std::int64_t> n_events);
  /// Never recalls an event again.
  void forget(std::int64_t scope, EventId event);
  /// Gives up the room of forgotten events' representatives, where that is worth it. What cannot be
  /// read or written leaves them where they are, for the next call: no result depends on it.
  /// \pre no commit may come back to a kept tier's rows
  void shrink() noexcept;

  /// The store numbers events of all scopes together, in the order in which they closed: the
  /// number of one. Scopes of layers that do not recall have none there.
  EventId stored(std::int64_t scope, EventId event) const {
    return stored_.empty() ? event : stored_[at(scope)][static_cast<std::size_t>(event)];
  }
  /// Whether a scope's events are in the store.
  bool recalling(std::int64_t scope) const;
  /// The same of several, into `out`.
  void stored(std::int64_t scope, std::span<const EventId> events, std::vector<EventId>& out) const;
  /// All numbers by scope, empty where the sequence is the only one; to take them over.
  using Numbers = std::vector<SharedList<EventId>>;
  const Numbers& numbers() const { return stored_; }
  /// From now on a copy of them takes no room for them.
  void share_numbers() {
    for (SharedList<EventId>& numbers : stored_) numbers.share();
  }
  void take_numbers(Numbers numbers) noexcept { stored_ = std::move(numbers); }
  /// For scopes of their own: none has events yet.
  void number(std::int64_t n_scopes) { stored_.assign(static_cast<std::size_t>(n_scopes), {}); }
  /// The sequence begins anew.
  void unnumber() noexcept {
    for (SharedList<EventId>& numbers : stored_) numbers.clear();
  }
  /// The numbers, from the lanes of all events of a store in its order. \param where that was read,
  /// for a message \throws FileError for events that are not the timeline's
  void number(const Timeline& time, std::span<const LaneRange> lanes, const std::string& where);

 private:
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  /// Of all scopes together.
  std::int64_t kept(std::span<const std::int64_t> n_events) const;

  std::vector<KeyRing> rings_;
  Numbers stored_;  // by scope; empty where the sequence is the only one
};

}  // namespace EPISODIC_NAMESPACE::detail

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/layer_bank.hpp"
#endif
