// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a memory hands to another one that goes on with its sequence elsewhere, on a device say.

#include <cstdint>
#include <functional>
#include <vector>

#include "episodic/recall/index.hpp"
#include "episodic/store/codec.hpp"
#include "episodic/timeline/timeline.hpp"

namespace episodic {

/// All that a memory carries from step to step but its closed events: its timeline's state and its
/// layers'.
struct MemoryState : Timeline::State {
  /// Rings over tokens: token t at t % ring_capacity; zero where no token was yet. As float32,
  /// whatever dtype the window is in.
  struct Layer {
    std::vector<float> keys, values;  ///< [G, ring_capacity, d], keys before rotary embedding
    std::vector<float> relevance;     ///< [ring_capacity, H]
    std::vector<float> sink_keys, sink_values;    ///< [G, n_init, d]
    std::vector<EventId> similarity, contiguity;  ///< recall lists of the last step
  };
  std::vector<Layer> layers;
};

/// What a memory elsewhere has made of a sequence since it was loaded from here.
struct MemoryAdvance {
  MemoryState state;
  std::int64_t shared_events = 0;  ///< closed events that both have, the first ones
  std::int64_t shared_tokens = 0;  ///< tokens that both have read
  std::vector<TokenRange> events;  ///< closed events behind the shared ones
  std::vector<std::int64_t> ids;   ///< of the tokens behind the shared ones; empty: unknown
  /// Reads one layer (counted among those that recall) of an event: its keys and values, valid
  /// until the next call, and its representative vector [H * d]. Called in order of time, all
  /// layers of an event one after the other.
  std::function<RingView(EventId event, std::int64_t layer, float* representative)> read;
};

}  // namespace episodic
