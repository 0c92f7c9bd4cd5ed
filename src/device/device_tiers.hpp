// SPDX-License-Identifier: Apache-2.0
#pragma once
// Where keys and values of closed events lie: at home in device memory, in page-locked host memory
// under slots of the device, or in files under both. The twin of the host's store.
//
// With events at home in page-locked memory, copies over the host's link run beside the stream, on
// a stream for each direction. What a step closes is written home in parts of 1, 2, 4, ... layers,
// a launch each. A layer of the next step waits for the parts up to its own: the first for its own
// events and no others. What a layer recalls is fetched for the next one too, while it attends.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "cuda.hpp"
#include "device_layers.hpp"
#include "device_timeline.hpp"
#include "growing_pinned.hpp"
#include "kernels/closed_events.hpp"
#include "kernels/copies.hpp"
#include "kernels/place_events.hpp"
#include "kernels/residency.hpp"
#include "kernels/rows.hpp"
#include "lower_tiers.hpp"
#include "memory_layout.hpp"
#include "memory_sizes.hpp"

namespace episodic::device {

/// What of a layer's events lies in device memory, where that does not hold all.
struct SlotPlan {
  std::int64_t n_slots = 0;  ///< of device memory in each layer; 0: all events are at home there
  std::int64_t slot_bytes = 0;
  bool on_disk = false;  ///< events are at home in a DiskStore
};

class DeviceTiers {
 public:
  /// \param sizes, timeline, layers outlive it
  DeviceTiers(const MemorySizes& sizes, const DeviceTimeline& timeline, const DeviceLayers& layers)
      : sizes_(sizes), timeline_(timeline), layers_(layers) {}

  // -- places -----------------------------------------------------------------------------------
  const SlotPlan& plan() const { return plan_; }
  void set_plan(const SlotPlan& plan) { plan_ = plan; }
  bool has_host_tier() const { return plan_.n_slots > 0 && !plan_.on_disk; }
  void lay_out_events(MemoryLayout& layout);
  void lay_out_tables(MemoryLayout& layout);
  void lay_out_step(MemoryLayout& layout);
  /// Over files: their store. \throws as LowerTiers
  void open_files(const DiskStoreOptions& options);
  /// Over host memory: all of it, or addresses, where device memory grows too, by this granule.
  /// \throws BudgetError
  void take_home(std::int64_t bytes, int device, std::int64_t granule);
  std::int64_t home_held() const { return host_.memory ? host_.memory->held() : 0; }
  /// Room at home for so many tokens of each lane, and the next ones' on a thread, while the steps
  /// before them compute. \throws BudgetError
  void lock_home(std::int64_t token_rows);
  /// Over host memory too: events go on from another memory's. Of the tokens behind n_init the
  /// first `shared_rows` stay where they are, for both; up to `rows` they are copied. Waits.
  /// \throws BudgetError
  void go_on_at_home(const DeviceTiers& from, std::int64_t shared_rows, std::int64_t rows);
  bool shares_home() const { return host_.base || (host_.memory && host_.memory.use_count() > 1); }
  /// Before closed events are written anew: what others share stays theirs. \throws BudgetError
  void leave_shared_home();
  /// How often that was: other launches are then told of other places.
  std::uint32_t homes() const { return host_.number; }
  /// What never changes. Waits.
  void upload(cudaStream_t stream) const;
  /// The empty sequence: nothing lies in a slot.
  void clear(cudaStream_t stream);
  /// What is read of events before it is written: none is pinned or lies in a slot.
  void prepare_events(std::int64_t first, std::int64_t end, cudaStream_t stream) const;
  /// Set to 1 by kernels: keys or values that have no code.
  const std::int32_t* not_finite() const { return not_finite_; }

  // -- what a step's launches are told ------------------------------------------------------------
  /// Of the layer's lanes, if it recalls.
  EventPlaces places_of(const DeviceLayer& layer) const;
  /// [lanes] that recall: whose events each one's are; null: all of the one table.
  const std::int32_t* lane_scopes() const { return lane_scopes_; }
  /// Those of the last end of a step.
  kernels::ClosedEvents closed() const {
    return {closed_.start, closed_.end,       closed_.count,
            closed_.first, sizes_.max_closed, sizes_.by_head()};
  }
  kernels::PlaceEventsParams place_params() const;
  /// What writes the closed events' keys and values where place_events says, of `count` layers
  /// among those that recall, each with its lanes.
  kernels::EventBlockParams block_params(std::int64_t first, std::int64_t count) const;

  // -- beside the stream, with a host tier --------------------------------------------------------
  /// Whether a step's closed events are written home beside the stream. A step of one token closes
  /// little and may be captured: a graph must have joined what forked off it, so that nothing of
  /// this would run beside the next step.
  bool writes_beside(std::int64_t n) const { return !write_outs_.empty() && n > 1; }
  /// Of all that recall, behind what the stream has.
  void write_out(cudaStream_t stream);
  bool fetches_ahead() const { return fetches_ahead_; }
  /// The stream comes behind all that runs beside it.
  void join(cudaStream_t stream);
  /// Brings what layer l recalled to the device, of memories over a host tier that share their
  /// launches, and while they attend to it, beside the stream, the same events to the next layer,
  /// which recalls much the same. What finds no slot is attended where it is, over the link.
  ///
  /// The streams take turns with the tables and lists of an exchange: those of the next layer are
  /// the other stream's from the end of this function until that layer calls it.
  struct Recalled {
    DeviceTiers* tiers;
    std::size_t lists;  // of the layer: the one or the other
  };
  static void swap_in(std::int64_t l, std::span<const Recalled> memories, cudaStream_t stream);

  // -- over files ---------------------------------------------------------------------------------
  LowerTiers* files() const { return files_.get(); }
  /// Hands what a step has closed to the files. \param now the states behind it
  /// \throws as LowerTiers::keep
  void keep_closed(const std::vector<DeviceTimeline::State>& now, cudaStream_t stream);
  /// Nothing of it is left in their store.
  void drop_closed(const std::vector<DeviceTimeline::State>& now);
  /// Of each scope the first so many events stay.
  void truncate(std::span<const std::int64_t> n_events);

  // -- edits and copies ---------------------------------------------------------------------------
  void forget(std::int64_t scope, EventId event);
  /// Waits. \return whether the event's scope has lanes, in whose tiers it can be pinned
  bool pin(std::int64_t scope, EventId event, bool to, cudaStream_t stream);
  /// After `clear`, which has emptied the slots: attention finds every event of a lane where it is
  /// at home. Waits.
  void all_at_home(std::int64_t lane, const std::vector<TokenRange>& events,
                   cudaStream_t stream) const;
  /// Scales of a lane that recalls, null without codes: [max_events, scales_of_event()].
  float* scales_of(std::int64_t lane) const {
    return event_scales_ ? event_scales_ + lane * sizes_.max_events * sizes_.scales_of_event()
                         : nullptr;
  }
  /// Events side by side from token `first` on, `bytes` in all, to where a lane's are at home;
  /// files keep them by `keep`. Waits.
  void write_home(std::int64_t lane, std::int64_t first, const std::byte* from, std::int64_t bytes,
                  cudaStream_t stream) const;
  std::vector<std::byte> read_home(std::int64_t lane, std::int64_t first, std::int64_t bytes,
                                   cudaStream_t stream) const;
  /// Where who fills them puts a lane's events for `keep`, and their scales.
  std::byte* staging(std::int64_t lane) const {
    return files_->staging() + lane * files_->staging_lane_bytes();
  }
  void keep(std::int64_t scope, std::span<const kernels::EventRange> events);
  /// As if a step had closed the first so many events of each table. Waits.
  kernels::ClosedEvents write_closed(const std::vector<std::int32_t>& counts,
                                     cudaStream_t stream) const;

 private:
  /// Of a layer that recalls, with a host tier.
  struct LayerSlots {
    kernels::ResidencyMap residency;
    std::byte* memory = nullptr;  // [n_slots, slot_bytes]
  };
  /// Of the last end of a step, a list for each table: kernels::ClosedEvents.
  struct Closed {
    std::int64_t *start = nullptr, *end = nullptr, *first = nullptr;
    std::int32_t* count = nullptr;
  };
  /// The lists of a layer's exchange between the tiers.
  struct Exchange {
    DeviceEventId *missing = nullptr, *victims = nullptr;
    std::int32_t *n_missing = nullptr, *n_victims = nullptr, *given_slots = nullptr,
                 *n_given = nullptr;
    kernels::CopyRun* copies = nullptr;
  };
  /// What brings events that a layer attends into its slots: one launch after the other.
  struct Fetches {
    std::vector<kernels::TouchParams> touched;
    std::vector<kernels::VictimParams> room_for;
    std::vector<kernels::OccupyParams> occupied;
    std::vector<kernels::CopyRunsParams> runs;
    void clear();
    void launch(cudaStream_t stream) const;
  };
  /// Some layers' part of a step's closed events, on their way home.
  struct WriteOut {
    std::int64_t first, count;  // among the layers that recall
    Event written;
  };
  void make_home();
  std::byte* home_of(std::int64_t lane, std::int64_t token) const;
  void make_side_streams();
  const LayerSlots& slots_of(const DeviceLayer& layer) const {
    return slots_[static_cast<std::size_t>(layer.place)];
  }
  void await_homes(std::int64_t place, cudaStream_t stream);
  void add_fetch(const DeviceLayer& layer, const RecallLists& lists, bool ahead, Fetches& to) const;
  static void fetch_ahead(std::int64_t l, std::span<const Recalled> memories, cudaStream_t stream);
  std::vector<std::int64_t> of_tables(std::span<const std::int64_t> of_scopes) const;
  template <class F>
  void for_lanes(F&& f) const;

  const MemorySizes& sizes_;
  const DeviceTimeline& timeline_;
  const DeviceLayers& layers_;
  SlotPlan plan_;
  std::byte* home_ = nullptr;       // of all events: in device memory, or with a host tier there
  std::byte* all_slots_ = nullptr;  // [recalling (of files: lanes), n_slots, slot_bytes]
  std::vector<LayerSlots> slots_;   // [recalling]
  std::uint8_t* pins_ = nullptr;    // [scopes, max_events] 1 where one is pinned, with a host tier
  void **blocks_ = nullptr, **step_blocks_ = nullptr;  // [lanes, max_events]; [lanes, max_closed]
  float* event_scales_ = nullptr;                      // [lanes, max_events, scales_of_event()]
  std::int32_t* not_finite_ = nullptr;
  kernels::EventBlockLayer* block_lanes_ = nullptr;  // [lanes]
  std::int32_t* lane_scopes_ = nullptr;
  Closed closed_;
  Exchange exchange_;
  /// Page-locked host memory, which the device reads and writes.
  struct HostHome {
    std::int64_t bytes = 0, granule = 0;  // of all tokens; that are locked at a time
    int device = 0;
    std::shared_ptr<GrowingPinned> memory;
    GrowingArrays tokens;  // the lanes' there, counted from its start
    // Of a fork: where events that begin before token base_end lie.
    std::shared_ptr<const GrowingPinned> base;
    std::int64_t base_end = 0;
    std::uint32_t number = 0;
  } host_;
  std::vector<GrowingPinned::Part> parts_;  // to be locked
  std::unique_ptr<LowerTiers> files_;       // over files; null otherwise
  SideStream write_stream_, fetch_stream_;
  std::vector<WriteOut> write_outs_;
  std::size_t awaited_ = 0;     // of write_outs_: those that the stream is behind
  bool fetches_ahead_ = false;  // fetch_stream_ has something that the stream is not behind
  Fetches fetches_;             // of launches, kept so that they allocate nothing
  std::vector<kernels::EventBlockParams> written_;  // the same
};

/// Few blocks fill the host's link, and leave the device to others.
inline constexpr std::int64_t kLinkBlocks = 32;

}  // namespace episodic::device
