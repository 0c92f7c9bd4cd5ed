// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where the keys and values of closed events live (EM C.3). The host-memory store is the first
/// tenant; the disk and device tiers implement the same interface.

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "episodic/attention/segment.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/recall/index.hpp"
#include "episodic/store/codec.hpp"
#include "episodic/timeline/event_table.hpp"

namespace EPISODIC_NAMESPACE {

struct StoreCounters {
  std::int64_t events = 0;          ///< appended and not forgotten
  std::int64_t bytes_used = 0;      ///< of their keys and values
  std::int64_t bytes_reserved = 0;  ///< host memory taken for events; never above host_bytes
  std::int64_t acquires = 0;        ///< events handed out so far, per lane

  // Only of stores with a disk tier.
  std::int64_t disk_bytes = 0;   ///< taken from the file system; never above the disk's budget
  std::int64_t host_blocks = 0;  ///< blocks that lie in host memory
  std::int64_t hits = 0;         ///< acquires served from host memory
  std::int64_t prefetched = 0;   ///< acquires served by a read that was begun before
  std::int64_t evictions = 0;    ///< blocks that left host memory
  std::int64_t read_bytes = 0, written_bytes = 0;
  std::int64_t read_errors = 0;  ///< blocks refused for a wrong checksum or identity
};

/// One of many that read a store which nobody changes meanwhile, each on a thread of its own: its
/// leases and its counters, and where there are files the reads it has under way. Refers to the
/// store; what it does is no recall to the store's LRU.
class StoreReader {
 public:
  virtual ~StoreReader() = default;
  /// \see EventStore::acquire, release, read, prefetch
  virtual void acquire(std::int64_t lane, std::span<const EventId> events,
                       std::vector<KvSegment>& out) = 0;
  virtual void release(std::int64_t lane) = 0;
  virtual void read(EventId event, std::int64_t lane, std::byte* block) = 0;
  virtual void prefetch(std::int64_t lane, std::span<const EventId> events) {
    (void)lane, (void)events;
  }
  /// Of this reader: acquires, hits, prefetched, evictions, read_bytes, read_errors, and as
  /// bytes_reserved the host memory that it takes beside the store's.
  virtual StoreCounters counters() const = 0;
};

/// Keys and values of events, numbered in the order in which they were appended. Its unit is a
/// block, one lane of one event. One writer; not thread-safe, but for readers.
class EventStore {
 public:
  virtual ~EventStore() = default;

  /// Makes room for the next events, in each of these lanes. All or nothing.
  /// \throws BudgetError naming the budget, what is needed and what it would have to be; the store
  /// is
  ///         unchanged then.
  virtual void append(std::span<const TokenRange> events, LaneRange lanes) = 0;
  /// The same in all lanes.
  void append(std::span<const TokenRange> events) { append(events, {0, n_lanes()}); }
  virtual std::int64_t n_lanes() const = 0;

  /// Copies one lane of an appended event out of the window's ring, converting to the stored
  /// dtype. Called once for each lane of an event; calls for different lanes may come from
  /// several threads at once.
  virtual void write(EventId event, std::int64_t lane, const RingView& source) = 0;

  /// Hands out events of one lane in place, in the order given: out[i] is events[i] as a
  /// fixed-position segment, its heads counted from the lane's first. Valid until release of the
  /// same lane. Counts as a recall (LRU).
  virtual void acquire(std::int64_t lane, std::span<const EventId> events,
                       std::vector<KvSegment>& out) = 0;

  /// Ends the lease of the last acquire of this lane.
  virtual void release(std::int64_t lane) = 0;

  /// Copies one lane of an event, as it is stored. Not a recall. \param block [block_bytes]
  /// \throws DataError for a forgotten event; FileError for a damaged block
  virtual void read(EventId event, std::int64_t lane, std::byte* block) = 0;

  /// Says which events of a lane may be acquired next, so that a slow tier can begin to read.
  /// Never fails, never waits.
  virtual void prefetch(std::int64_t lane, std::span<const EventId> events) {
    (void)lane, (void)events;
  }

  /// Gives up an event's keys and values for good, in all tiers. It may not be acquired again; its
  /// number stays taken.
  virtual void forget(EventId event) = 0;

  /// A pinned event stays in the highest tier that has room for it. A hint: budgets come first.
  virtual void pin(EventId event, bool pinned) { (void)event, (void)pinned; }

  /// Step number of the event's last recall in any lane; -1: never.
  virtual std::int64_t last_recall(EventId event) const = 0;

  /// Tells the store that a step begins (its LRU clock).
  virtual void begin_step(std::int64_t step) = 0;

  /// Forgets the events from `n_events` on and gives their room back for later ones.
  virtual void truncate(std::int64_t n_events) = 0;

  /// Events that were appended, forgotten ones among them.
  virtual EventId size() const = 0;

  /// Any number of readers may read at once, as long as nobody changes the store.
  /// \throws BudgetError where the system refuses the memory to read into
  virtual std::unique_ptr<StoreReader> reader() const = 0;

  virtual StoreCounters counters() const = 0;
};

/// The events of `base`, which is only read, and behind them those that are appended, which go to
/// `added` (empty, of the same shape). What would change the base is refused with a ConfigError.
/// Counters are those of `added` and of what was read here. \param base outlives the store
std::unique_ptr<EventStore> make_store_over(const EventStore& base,
                                            std::unique_ptr<EventStore> added);

/// Host memory, within `budget_bytes` (0: unbounded). Memory is reserved in large slabs; an event
/// is contiguous: lane by lane, each a block as of store/codec.hpp.
///
/// \throws BudgetError if the budget cannot hold one event of `max_block` tokens.
std::unique_ptr<EventStore> make_host_store(const StoreShape& shape, std::int64_t budget_bytes,
                                            std::int64_t max_block);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/store/impl/host_store.hpp"
#include "episodic/store/impl/layered_store.hpp"
#endif
