// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a memory counts.

#include <cstdint>

#include "episodic/base/inline.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/store/event_store.hpp"

namespace EPISODIC_NAMESPACE {

/// Counters since construction or reset; seconds are wall time inside the memory. Of a memory over
/// a base: bytes and store count what it has of its own (the whole of its windows, though pages of
/// them that were not written to are the base's), `events` all.
struct MemoryCounters {
  std::int64_t tokens = 0, steps = 0, events = 0;
  std::int64_t recalled_events = 0;    ///< over all layers and steps
  std::int64_t window_bytes = 0;       ///< sinks, window and pending of all layers
  std::int64_t index_bytes = 0;        ///< representatives in host memory
  std::int64_t vector_disk_bytes = 0;  ///< representatives in the disk tier
  IndexQuality index_quality;          ///< of an approximate index, over all layers
  StoreCounters store;
  struct Seconds {
    double recall = 0, attend = 0, append = 0, refine = 0, close = 0, store = 0;
  } seconds;
};

}  // namespace EPISODIC_NAMESPACE
