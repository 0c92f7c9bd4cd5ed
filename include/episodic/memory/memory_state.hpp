// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a memory hands to another one that goes on with its sequence elsewhere, on a device say.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/store/codec.hpp"
#include "episodic/timeline/timeline.hpp"

namespace EPISODIC_NAMESPACE {

/// All that a memory carries from step to step but its closed events: its timeline's state and its
/// layers'.
struct MemoryState : Timeline::State {
  std::int64_t steps = 0;            ///< that the memory has made, its number of the next one
  std::int64_t recalled_events = 0;  ///< MemoryCounters::recalled_events
  /// Rings over tokens: token t at t % ring_capacity; zero where no token was yet. As float32,
  /// whatever dtype the window is in.
  struct Layer {
    std::vector<float> keys, values;  ///< [G, ring_capacity, d], keys before rotary embedding
    std::vector<float> relevance;     ///< [ring_capacity, H]
    std::vector<float> sink_keys, sink_values;  ///< [G, n_init, d]
    /// Recall lists of the last step, of each lane.
    struct Lists {
      std::vector<EventId> similarity, contiguity;
    };
    std::vector<Lists> lanes;
  };
  std::vector<Layer> layers;
  /// With retention: its graph, what events received and which are to be forgotten
  /// (detail::Retention::save).
  std::vector<std::byte> retention;
};

/// How often an event was recalled.
struct EventRecalls {
  std::int64_t recalls = 0;       ///< by lanes and steps
  std::int64_t last_recall = -1;  ///< number of the step; -1: never
  bool operator==(const EventRecalls&) const = default;
};

/// What a memory elsewhere has made of a sequence since it was loaded from here.
struct MemoryAdvance {
  MemoryState state;
  std::int64_t shared_tokens = 0;  ///< tokens that both have read
  /// Of each scope: closed events that both have, the first ones. Of scopes that are heads those of
  /// one moment of an earlier advance, or of this memory's own steps: a store forgets from its end.
  std::vector<std::int64_t> shared_events;
  std::vector<std::vector<TokenRange>> events;  ///< of each scope: those closed behind them
  /// Of each scope: counts of all its events. Empty: nothing was counted.
  std::vector<std::vector<EventRecalls>> recalls;
  std::vector<std::int64_t> ids;  ///< of the tokens behind shared_tokens; empty: unknown
  /// Reads one lane (counted among those that recall) of an event of its scope: keys and values,
  /// valid until the next call, its representative vector [H / P * d], and with score `max` its
  /// individual ones, `each` [min(n_repr, tokens), H / P * d] in order of time, else null. Called
  /// in order of time for each lane; of the sequence's events for all lanes of one after the other.
  std::function<RingView(EventId event, std::int64_t lane, float* representative, float* each)>
      read;
};

}  // namespace EPISODIC_NAMESPACE
