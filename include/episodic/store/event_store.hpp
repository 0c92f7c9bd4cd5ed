// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where the keys and values of closed events live (spec 6). The host-memory store is the first
/// tenant; the disk and device tiers implement the same interface.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/attention/segment.hpp"
#include "episodic/base/config.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/timeline/event_table.hpp"

namespace episodic {

struct StoreShape {
  std::int64_t n_layers = 0;    ///< L, episodic layers
  std::int64_t n_kv_heads = 0;  ///< G
  std::int64_t head_dim = 0;    ///< d
  DType dtype = DType::float32;
  /// Bytes of one token over all layers, keys and values.
  std::int64_t token_bytes() const { return 2 * n_layers * n_kv_heads * head_dim * size_of(dtype); }
};

/// Keys or values of a run of tokens that may wrap around a ring: element (g, i, c) of token
/// first + i at data[g * head_stride + ((first + i) % capacity) * row_stride + c].
struct RingView {
  const float* key = nullptr;
  const float* value = nullptr;
  std::int64_t capacity = 0;
  std::int64_t head_stride = 0;
  std::int64_t row_stride = 0;
};

struct StoreCounters {
  std::int64_t events = 0;
  std::int64_t bytes_used = 0;      ///< of keys and values
  std::int64_t bytes_reserved = 0;  ///< taken from the system; never above the budget
  std::int64_t acquires = 0;        ///< events handed out so far
};

/// Keys and values of events. One writer; not thread-safe.
class EventStore {
 public:
  virtual ~EventStore() = default;

  /// Makes room for the next events, all layers of them. All or nothing.
  /// \throws BudgetError naming the budget, what is needed and what it would have to be; the store
  /// is
  ///         unchanged then.
  virtual void append(std::span<const TokenRange> events) = 0;

  /// Copies one layer of an appended event out of the window's ring, converting to the stored
  /// dtype.
  virtual void write(EventId event, std::int64_t layer, const RingView& source) = 0;

  /// Hands out events of one layer in place, in the order given: out[i] is events[i] as a
  /// fixed-position segment. Valid until release of the same layer. Counts as a recall (LRU).
  virtual void acquire(std::int64_t layer, std::span<const EventId> events,
                       std::vector<KvSegment>& out) = 0;

  /// Ends the lease of the last acquire of this layer.
  virtual void release(std::int64_t layer) = 0;

  /// Step number of the event's last recall in any layer; -1: never.
  virtual std::int64_t last_recall(EventId event) const = 0;

  /// Tells the store that a step begins (its LRU clock).
  virtual void begin_step(std::int64_t step) = 0;

  /// Forgets the events from `n_events` on and gives their room back for later ones.
  virtual void truncate(std::int64_t n_events) = 0;

  virtual StoreCounters counters() const = 0;
};

/// Host memory, within `budget_bytes` (0: unbounded). Memory is reserved in large slabs; an event
/// is contiguous: layer by layer, keys [G, n, d] then values [G, n, d].
///
/// \throws BudgetError if the budget cannot hold one event of `max_block` tokens.
std::unique_ptr<EventStore> make_host_store(const StoreShape& shape, std::int64_t budget_bytes,
                                            std::int64_t max_block);

}  // namespace episodic
