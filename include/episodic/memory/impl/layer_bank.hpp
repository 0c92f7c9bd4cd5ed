// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/detail/layer_bank.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/detail/layer_bank.hpp"

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE::detail {

EPISODIC_INLINE std::span<const KeyRing> LayerBank::lend_keys() {
  rings_.clear();
  for (const LayerState& layer : layers) rings_.push_back(layer.key_ring());
  return rings_;
}

EPISODIC_INLINE std::vector<LayerMark> LayerBank::marks() const {
  std::vector<LayerMark> all;
  all.reserve(layers.size());
  for (const LayerState& layer : layers) all.push_back(layer.mark());
  return all;
}

EPISODIC_INLINE void LayerBank::append(const Lane& lane, std::span<const TokenRange> events) {
  if (events.empty()) return;
  SharedList<EventId>& numbers = stored_[at(lane.scope)];
  numbers.reserve(events.size());
  EventId next = tiers.store->size();
  tiers.store->append(events, {lane.store_lane, 1});
  for (std::size_t e = 0; e < events.size(); ++e) numbers.push_back(next++);
}

EPISODIC_INLINE void LayerBank::close(const Timeline& time, std::int64_t first) {
  std::vector<std::int64_t> before;
  bool any = false;
  for (std::int64_t s = 0; s < time.scopes(); ++s) any |= !time.closed(s).empty();
  if (!any) return;
  for (std::int64_t s = 0; s < time.scopes(); ++s) before.push_back(time.events(s).size());
  try {
    if (stored_.empty()) {
      if (tiers.store) tiers.store->append(time.closed());
    } else {
      for (const LayerState& layer : layers)
        for (const Lane& lane : layer.lanes)
          if (lane.index) append(lane, time.closed(lane.scope));
    }
    parallel_for(static_cast<std::int64_t>(layers.size()), [&](std::int64_t l) {
      LayerState& layer = layers[at(l)];
      for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
        const Lane& lane = layer.lane(p);
        if (!lane.index) continue;
        const auto& closed = time.closed(lane.scope);
        const EventId number = time.events(lane.scope).size();
        for (std::size_t e = 0; e < closed.size(); ++e) {
          tiers.store->write(stored(lane.scope, number + static_cast<EventId>(e)), lane.store_lane,
                             layer.ring(p));
          layer.add_event(p, closed[e], first);
        }
      }
    });
  } catch (...) {
    truncate(before);
    throw;
  }
}

EPISODIC_INLINE void LayerBank::commit(std::int64_t first, std::int64_t n) noexcept {
  parallel_for_or_alone(static_cast<std::int64_t>(layers.size()),
                        [&](std::int64_t l) { layers[at(l)].commit(first, n); });
}

EPISODIC_INLINE std::int64_t LayerBank::kept(std::span<const std::int64_t> n_events) const {
  std::int64_t n = 0;
  for (std::size_t s = 0; s < stored_.size(); ++s)
    n += std::min(n_events[s], static_cast<std::int64_t>(stored_[s].size()));
  return n;
}

EPISODIC_INLINE bool LayerBank::keeps_first(std::span<const std::int64_t> n_events) const {
  const std::int64_t n = kept(n_events);
  for (std::size_t s = 0; s < stored_.size(); ++s)
    if (const std::size_t of_scope = std::min(at(n_events[s]), stored_[s].size());
        of_scope > 0 && stored_[s][of_scope - 1] >= n)
      return false;
  return true;
}

EPISODIC_INLINE void LayerBank::truncate(std::span<const std::int64_t> n_events) {
  // The store first: what it may fail for, it fails for before anything changes.
  if (tiers.store) {
    std::int64_t n = n_events.front();
    if (!stored_.empty()) n = kept(n_events);
    tiers.store->truncate(n);
  }
  for (std::size_t s = 0; s < stored_.size(); ++s) stored_[s].truncate(at(n_events[s]));
  for (LayerState& layer : layers)
    for (Lane& lane : layer.lanes)
      if (lane.index) lane.index->truncate(std::min(n_events[at(lane.scope)], lane.index->size()));
}

EPISODIC_INLINE void LayerBank::forget(std::int64_t scope, EventId event) {
  if (recalling(scope)) tiers.store->forget(stored(scope, event));
  for (LayerState& layer : layers)
    for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
      Lane& lane = layer.lane(p);
      if (lane.scope != scope) continue;
      if (lane.index) lane.index->forget(event);
      layer.drop(p, event);
    }
}

EPISODIC_INLINE void LayerBank::shrink() noexcept {
  try {
    parallel_for(static_cast<std::int64_t>(layers.size()), [&](std::int64_t l) {
      for (Lane& lane : layers[at(l)].lanes)
        if (lane.index) lane.index->shrink();
    });
    if (tiers.vectors) tiers.vectors->compact(kDeadShare);
  } catch (...) {
  }
}

EPISODIC_INLINE bool LayerBank::recalling(std::int64_t scope) const {
  if (stored_.empty()) return tiers.store != nullptr;
  return lane(scope).index != nullptr;  // each lane has a scope to itself
}

EPISODIC_INLINE void LayerBank::stored(std::int64_t scope, std::span<const EventId> events,
                                       std::vector<EventId>& out) const {
  out.clear();
  for (const EventId e : events) out.push_back(stored(scope, e));
}

EPISODIC_INLINE void LayerBank::number(const Timeline& time, std::span<const LaneRange> lanes,
                                       const std::string& where) {
  number(time.scopes());
  std::vector<std::int64_t> scope_of;  // by lane of the store
  for (const LayerState& layer : layers)
    for (const Lane& lane : layer.lanes)
      if (lane.index) scope_of.push_back(lane.scope);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const LaneRange e = lanes[i];
    if (e.count != 1 || e.first < 0 || at(e.first) >= scope_of.size())
      throw FileError(concat(where, ": stored event ", i, " is of lanes ", e.first, " to ",
                             e.first + e.count - 1, "; the file is damaged"));
    stored_[at(scope_of[at(e.first)])].push_back(static_cast<EventId>(i));
  }
  for (const std::int64_t s : scope_of)
    if (static_cast<std::int64_t>(stored_[at(s)].size()) != time.events(s).size())
      throw FileError(concat(where, ": ", stored_[at(s)].size(), " stored events for ",
                             time.events(s).size(), " of scope ", s, "; the file is damaged"));
}

}  // namespace EPISODIC_NAMESPACE::detail
