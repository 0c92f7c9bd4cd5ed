// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a memory will need, before anything is read.

#include <cstdint>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/memory/episodic_memory.hpp"

namespace EPISODIC_NAMESPACE {

/// Bytes per tier of a memory of `tokens` tokens in `events` events (with scope `head`: of each
/// head).
struct MemoryPlan {
  std::int64_t tokens = 0, events = 0;
  struct Host {
    std::int64_t windows = 0;          ///< sinks, window and pending of all layers; scratch
    std::int64_t representatives = 0;  ///< within repr_bytes, or all
    std::int64_t event_store = 0;      ///< within host_bytes, or all without a disk tier
    std::int64_t timeline = 0;  ///< tables of events, what segmenters and refinement keep of keys
    std::int64_t graph = 0;     ///< of retention: engrams and their counts, about
    std::int64_t total() const {
      return windows + representatives + event_store + timeline + graph;
    }
  } host;
  struct Disk {
    std::int64_t segments = 0;  ///< keys and values
    std::int64_t vectors = 0;   ///< representatives
    std::int64_t tokens = 0;    ///< ids
    std::int64_t states = 0;    ///< windows and tables, with the checkpoints
    std::int64_t total() const { return segments + vectors + tokens + states; }
  } disk;
};

/// With `retention`, keys, values and representatives are those of the events that are held in the
/// long run (Memoria::most_held), in files at most as many again, of events that are gone, behind a
/// commit; what a memory writes from one commit to the next comes on top.
///
/// \param n_events expected number of events, or the largest: tokens / min_block
/// \param kept whether the memory is kept in a folder (all events are then written there)
/// \throws ConfigError; BudgetError naming the budget that cannot hold it and what it must be
MemoryPlan plan_memory(const MemoryConfig& config, const MemoryShape& shape, std::int64_t n_tokens,
                       std::int64_t n_events, bool kept, int checkpoints = 4);

}  // namespace EPISODIC_NAMESPACE
