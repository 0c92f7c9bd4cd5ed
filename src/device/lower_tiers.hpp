// SPDX-License-Identifier: Apache-2.0
#pragma once
// What lies under the device's slots where host memory does not hold all events: a DiskStore (host
// cache, then segment files). Here the host takes part in every step: it must know what is recalled
// to read it from a file, and waits for the device to say so.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "convert.hpp"
#include "cuda.hpp"
#include "episodic/base/rules/eviction.hpp"
#include "episodic/store/disk_store.hpp"
#include "kernels/close_events.hpp"
#include "kernels/copies.hpp"
#include "kernels/timeline_state.hpp"

namespace episodic::device {

/// Device slots of all layers under the host's management.
struct SlotArrays {
  std::byte* slots = nullptr;  ///< [layers, n_slots, slot_bytes], device memory
  void** blocks = nullptr;     ///< [layers, max_events], device memory: where attention reads
  std::int64_t n_slots = 0;
  std::int64_t slot_bytes = 0;
  std::int64_t max_events = 0;
};

class LowerTiers {
 public:
  /// \param most_recalled events of a layer and step; n_slots must not be less
  /// \param most_closed_tokens of a step
  /// \throws BudgetError, FileError as make_disk_store
  LowerTiers(const StoreShape& shape, const DiskStoreOptions& options, const SlotArrays& arrays,
             std::int64_t most_recalled, std::int64_t most_closed_tokens);

  /// Page-locked memory that the device writes a step's closed events to, layer by layer: the block
  /// of an event that starts s tokens behind the step's first closed one at s * token bytes.
  std::byte* staging() const { return closed_.as<std::byte>(); }
  std::int64_t staging_layer_bytes() const { return staging_layer_bytes_; }

  /// \param step number of the step. One that is begun anew counts as another for the slots: what
  /// its first attempt recalled may leave them.
  void begin_step(std::int64_t step) {
    store_->begin_step(step);
    ++clock_;
  }

  /// Takes the step's closed events over from the staging memory, which the device has finished.
  /// \throws BudgetError, DiskFullError, FileError: none of them is kept
  void keep(std::span<const kernels::EventRange> closed);

  /// Brings recalled events of a layer into its slots and tells attention where they are. What it
  /// enqueues reads page-locked memory of this object: the next fetch must find the stream passed.
  /// \throws FileError for a damaged block
  void fetch(std::int64_t layer, std::span<const kernels::DeviceEventId> recalled,
             cudaStream_t stream);

  /// Copies one layer of an event to host memory. Not a recall. \throws FileError
  void read(EventId event, std::int64_t layer, std::byte* block) {
    store_->read(event, layer, block);
  }

  /// Gives up an event's keys and values: it is neither recalled nor read again.
  void forget(EventId event);

  /// A pinned event leaves its slots, and the store's cache, last.
  void pin(EventId event, bool pinned);

  /// Forgets the events from n_events on.
  void truncate(std::int64_t n_events);

  StoreCounters counters() const { return store_->counters(); }

 private:
  using Slot = rules::Resident;
  /// The slot to give away, by the rules of episodic/base/rules/eviction.hpp.
  std::int64_t choose(std::span<const Slot> slots) const;

  StoreShape shape_;
  SlotArrays arrays_;
  std::unique_ptr<EventStore> store_;
  std::int64_t n_events_ = 0;
  std::int64_t clock_ = 0;  // attempts at steps so far: the stamps of slots
  std::int64_t staging_layer_bytes_ = 0;
  PinnedBuffer closed_;                             // [layers, staging_layer_bytes_]
  PinnedBuffer fetched_;                            // [most_recalled, slot_bytes]
  PinnedBuffer pointers_;                           // [most_recalled] entries of `blocks`
  std::vector<std::vector<Slot>> slots_;            // of each layer
  std::vector<std::vector<std::int32_t>> slot_of_;  // of each layer and event; -1: none
  std::vector<bool> pinned_;                        // of each event
  /// One call's copies, as kernels/copies.hpp takes them.
  struct Copies {
    std::vector<void*> to;
    std::vector<const void*> from;
    std::vector<std::size_t> bytes;
    void clear() {
      to.clear();
      from.clear();
      bytes.clear();
    }
    void add(void* to_place, const void* from_place, std::size_t size) {
      to.push_back(to_place);
      from.push_back(from_place);
      bytes.push_back(size);
    }
  } copies_;
  std::vector<EventId> missing_;
  std::vector<KvSegment> segments_;
  EventRings rings_;
};

}  // namespace episodic::device
