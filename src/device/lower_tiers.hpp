// SPDX-License-Identifier: Apache-2.0
#pragma once
// What lies under the device's slots where host memory does not hold all events: a DiskStore (host
// cache, then segment files). Here the host takes part in every layer: it must know what is
// recalled to read it from a file. It does so as a piece of the stream's work, on the runtime's own
// thread: the stream waits for it, the thread that enqueues does not, but once in a step's last
// layer.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "convert.hpp"
#include "cuda.hpp"
#include "episodic/base/rules/eviction.hpp"
#include "episodic/store/disk_store.hpp"
#include "kernels/close_events.hpp"
#include "kernels/copies.hpp"
#include "kernels/timeline_state.hpp"

namespace episodic::device {

/// Device slots of all lanes under the host's management.
struct SlotArrays {
  std::byte* slots = nullptr;  ///< [lanes, n_slots, slot_bytes], device memory
  void** blocks = nullptr;     ///< [lanes, max_events], device memory: where attention reads
  std::int64_t n_slots = 0;
  std::int64_t slot_bytes = 0;
  std::int64_t max_events = 0;
};

/// Whose events the lanes' are.
struct LaneTables {
  std::int64_t per_layer = 1;  ///< lanes
  bool of_each = false;        ///< a table of events for each lane; else one for all
};

class LowerTiers {
 public:
  LowerTiers(const LowerTiers&) = delete;
  LowerTiers& operator=(const LowerTiers&) = delete;

  /// \param most_recalled events of a lane and step; n_slots must not be less
  /// \param most_closed_tokens, most_closed of a step: tokens and events
  /// \throws BudgetError, FileError as make_disk_store
  LowerTiers(const StoreShape& shape, const DiskStoreOptions& options, const SlotArrays& arrays,
             const LaneTables& tables, std::int64_t most_recalled, std::int64_t most_closed_tokens,
             std::int64_t most_closed);

  /// Page-locked memory that the device writes a step's closed events to, lane by lane: the block
  /// of an event that starts s tokens behind the step's first closed one at s * token bytes.
  std::byte* staging() const { return closed_.as<std::byte>(); }
  std::int64_t staging_lane_bytes() const { return staging_lane_bytes_; }
  /// Of events of codes, page-locked too: the lane's [events of a step, 2 G], for who calls `keep`.
  float* staged_scales(std::int64_t lane) const {
    return scales_.as<float>() + lane * staged_events_ * scales_of_event_;
  }

  /// \param step number of the step. One that is begun anew counts as another for the slots: what
  /// its first attempt recalled may leave them.
  void begin_step(std::int64_t step) {
    await();
    store_->begin_step(step);
    ++clock_;
  }

  /// Takes the step's closed events over from the staging memory, which the device has finished.
  /// \throws BudgetError, DiskFullError, FileError: none of them is kept
  void keep(std::span<const kernels::EventRange> closed);
  /// The same of one lane, where each has a table of its own.
  void keep(std::int64_t lane, std::span<const kernels::EventRange> closed);

  /// Enqueues, of all lanes of a layer, what brings recalled events into their slots and tells
  /// attention where they are: copies of the lists to the host, and what the host does about them.
  /// \param recalled [lanes of a layer, most_recalled] and sizes [lanes of a layer, 3], of which
  ///        the third says how many: device memory
  /// \return the copies that the host will have listed, which the caller launches behind it, and
  ///         then calls copies_launched
  kernels::CopyRunsParams fetch(std::int64_t first_lane, const kernels::DeviceEventId* recalled,
                                const std::int32_t* sizes, cudaStream_t stream);

  /// Without it, what the last fetch gave slots to counts as in none.
  void copies_launched() { uncopied_ = -1; }

  /// Waits until the host has done its part of what was enqueued. The other members do so as well,
  /// and forget what failed.
  /// \throws FileError for a damaged block: what the layers since then attended to makes no sense,
  ///         and the step may be begun anew
  void wait_and_rethrow();

  /// Copies one lane of an event to host memory, keys and then values. Not a recall.
  /// \param tokens of the event \throws FileError
  void read(EventId event, std::int64_t lane, std::int64_t tokens, std::byte* to);

  /// Gives up the keys and values of an event of a lane's table: it is neither recalled nor read
  /// again.
  void forget(std::int64_t lane, EventId event);

  /// A pinned event of a lane's table leaves its slots, and the store's cache, last.
  void pin(std::int64_t lane, EventId event, bool pinned);

  /// Forgets the events of each table from n_events on. \param n_events of the only table, or of
  /// each lane's; at a step's end
  void truncate(std::span<const std::int64_t> n_events);

  StoreCounters counters() {
    await();
    return store_->counters();
  }

 private:
  using Slot = rules::Resident;
  /// What a host function is told: whose lanes, from which one on.
  struct Layer {
    LowerTiers* tiers;
    std::int64_t first_lane;
  };
  void await();
  /// The host's part of a layer's fetch. Calls nothing of CUDA.
  void load_missing(std::int64_t first_lane) noexcept;
  void load_lane(std::int64_t lane, std::span<const kernels::DeviceEventId> recalled);
  /// Attention reads the lane's recalled events that are in no slot from one of its slots, whatever
  /// is there.
  void set_placeholders(std::int64_t lane, std::span<const kernels::DeviceEventId> recalled);
  /// The copy of a slot's address to where attention finds it.
  void set_block_address(std::int64_t lane, EventId event, std::int64_t slot);
  std::byte* slot(std::int64_t lane, std::int64_t s) const {
    return arrays_.slots + (lane * arrays_.n_slots + s) * arrays_.slot_bytes;
  }
  /// The slot to give away, by the rules of episodic/base/rules/eviction.hpp.
  std::int64_t choose(std::span<const Slot> slots) const;
  static std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }
  /// The store numbers events of all tables together, in the order in which they came.
  EventId stored(std::int64_t lane, EventId event) const {
    return numbers_.empty() ? event : numbers_[at(lane)][at(event)];
  }
  /// The lanes that have the lane's table: [first, second).
  std::pair<std::size_t, std::size_t> lanes_beside(std::int64_t lane) const {
    return numbers_.empty() ? std::pair(std::size_t{0}, slots_.size())
                            : std::pair(at(lane), at(lane) + 1);
  }
  /// Events `first` on of the lane, numbered in its table, out of the staging memory.
  void write(std::int64_t lane, EventId first, std::span<const TokenRange> ranges);

  StoreShape shape_;
  SlotArrays arrays_;
  std::unique_ptr<EventStore> store_;
  std::int64_t per_layer_ = 1;                 // lanes
  std::vector<std::vector<EventId>> numbers_;  // of each lane; empty where there is one table
  std::vector<std::vector<EventId>> last_;     // the same: stored events of a lane's last recall
  std::int64_t n_events_ = 0;                  // of all tables
  std::int64_t clock_ = 0;                     // attempts at steps so far: the stamps of slots
  std::int64_t staging_lane_bytes_ = 0;
  std::int64_t staged_events_ = 0, scales_of_event_ = 0;  // 0: events have no scales
  PinnedBuffer closed_;                                   // [lanes, staging_lane_bytes_]
  PinnedBuffer scales_;             // [lanes, staged_events_, scales_of_event_]
  std::int64_t most_recalled_ = 0;  // of a lane and step
  PinnedBuffer asked_;     // [per_layer_, most_recalled_] event ids, then [per_layer_, 3] sizes
  PinnedBuffer fetched_;   // [per_layer_ * most_recalled_, slot_bytes]
  PinnedBuffer pointers_;  // [per_layer_ * most_recalled_] entries of `blocks`
  PinnedBuffer runs_;      // [2 * per_layer_ * most_recalled_] copies of the two, then their number
  std::int64_t n_fetched_ = 0, n_pointers_ = 0;  // of the layer that is being fetched
  std::vector<Layer> of_layers_;                 // [lanes / per_layer_]
  std::exception_ptr failure_;                   // of a fetch in this step
  Event brought_;                                // behind the host's part of the last fetch
  bool is_bringing_ = false;                     // and it may not have ended
  std::int64_t uncopied_ = -1;  // first lane of a fetch whose copies are not launched; -1: none
  std::vector<std::vector<Slot>> slots_;            // of each lane
  std::vector<std::vector<std::int32_t>> slot_of_;  // of each lane and event; -1: none
  std::vector<bool> pinned_;                        // of each event, as the store numbers them
  std::vector<EventId> missing_;  // of the lane's table, and as the store numbers them
  std::vector<EventId> missing_stored_;
  std::vector<KvSegment> segments_;
  EventRings rings_;
  std::vector<std::byte> block_;
};

}  // namespace episodic::device
