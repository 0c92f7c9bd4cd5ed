// SPDX-License-Identifier: Apache-2.0
#pragma once
// How the parts of a DeviceMemory make its steps together, for the sources memory_*.cpp.

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "device_layers.hpp"
#include "device_retention.hpp"
#include "device_tiers.hpp"
#include "device_timeline.hpp"
#include "episodic/device/device_memory.hpp"
#include "growing_buffer.hpp"
#include "kept_rows.hpp"
#include "memory_layout.hpp"
#include "memory_sizes.hpp"

namespace episodic {
namespace device {

/// How device memory grows with the sequence (memory_growth.cpp).
struct Growth {
  std::int64_t granule = kUsualGranule;           // that memory is mapped by; 0: it does not grow
  std::int64_t fixed_bytes = 0, range_bytes = 0;  // what does not grow; with what may come
  GrowingArrays of_events, of_tokens;
  std::vector<kernels::TimelineState> last_told;  // what the device last said of each scope
  PinnedBuffer report;                            // the same, on its way while `is_asked`
  Event reported;
  bool is_asked = false;
};

/// What steps change in place, as a snapshot has it: in one of a few places in device memory, or
/// in host memory while none is free. It may outlive the memory and end on any thread.
class StateCopy {
 public:
  /// Two, for the usual snapshots of one sequence: where answers begin, and where a prompt ended.
  static constexpr std::size_t kPlaces = 2;
  struct Places {
    std::array<std::atomic<bool>, kPlaces> taken{};
  };
  /// \param maybe_places null: in host memory
  StateCopy(std::shared_ptr<Places> maybe_places, std::int64_t bytes);
  ~StateCopy();
  StateCopy(const StateCopy&) = delete;
  StateCopy& operator=(const StateCopy&) = delete;

  std::int64_t place = -1;      // -1: in `host`
  std::vector<std::byte> host;  // empty else

 private:
  std::shared_ptr<Places> places_;
};

/// Snapshots: dead once a restore went back behind them, for their tokens may have been given anew.
struct Snapshots {
  std::int64_t generation = 0;
  std::int64_t forks = 0;  // that the memory had: what came before belongs to each
  KeptRows kept_rows;
  std::byte* state_copies = nullptr;  // [StateCopy::kPlaces, state_bytes()] of `spare`, else null
  std::shared_ptr<StateCopy::Places> places = std::make_shared<StateCopy::Places>();
  std::weak_ptr<StateCopy> state_now;  // of the state as it is; null: there is no copy
  struct Rewind {
    std::int64_t generation, tokens;  // begun with it, and gone back to
  };
  std::vector<Rewind> rewinds;
};

/// The host's memory that this one came from.
struct HostTwin {
  struct At {
    std::int64_t tokens = 0;
    std::vector<std::int64_t> events;  // of each scope
  };
  At twin, shared;  // at the last load or save, and how much of that still holds
  // Since the load, what was saved, step by step, as far as the sequence did not go back behind it:
  // of scopes that are heads, the host's store can be cut there and nowhere else.
  std::vector<At> saved;
};

/// The lists of a launch's parameters, one for each sequence that shares it: of the memory that
/// launches, kept from layer to layer, so that steps allocate nothing once they have their length.
/// Each list is filled and launched by one function, which begins with `emptied`.
template <class T>
std::vector<T>& emptied(std::vector<T>& list) {
  list.clear();
  return list;
}

/// Of a layer.
struct LayerLaunches {
  std::vector<kernels::RotaryAnglesParams> angles;
  std::vector<DeviceMemory*> without_angles;
  std::vector<kernels::TurnBackParams> turned;
  std::vector<DeviceMemory::SequenceStep> before_rotary;
  std::vector<kernels::AppendParams> appended;
  std::vector<kernels::MeanQueryParams> queries;
  std::vector<kernels::RecallParams> recalls, recalls_apart;
  std::vector<kernels::RowsParams> recalled_rows, rows_alone;
  std::vector<kernels::EventScoreParams> scores, scores_of_lists;
  std::vector<kernels::RecallTopParams> tops;
  std::vector<kernels::CopyRunsParams> read;
  std::vector<DeviceTiers::Recalled> over_host;
  std::vector<kernels::AttentionParams> attention;
  std::vector<kernels::EventMassParams> masses;
};

/// Of a step's end.
struct EndLaunches {
  std::vector<kernels::ReceiveParams> masses;
  std::vector<kernels::RecallCountsParams> counts;
  std::vector<kernels::ThresholdParams> raw_flags;
  std::vector<kernels::KeySegmenterParams> keys;
  std::vector<kernels::RefineParams> refinements;
  std::vector<kernels::RelevanceParams> relevance;
  std::vector<kernels::CloseEventsParams> closings;
  std::vector<kernels::PlaceEventsParams> places;
  std::vector<kernels::RepresentativeParams> chosen;
  std::vector<kernels::CodeParams> codes;
  std::vector<kernels::EventBlockParams> kept;
};

}  // namespace device

struct DeviceMemory::Impl {
  using Layer = device::DeviceLayer;
  using RecallLists = device::RecallLists;
  using TimelineState = kernels::TimelineState;

  Impl() = default;
  ~Impl();
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  device::GrowingBuffer memory;  // given back last: the parts' streams end first, with their work

  // -- the parts ----------------------------------------------------------------------------------
  device::MemorySizes sizes;
  device::DeviceTimeline timeline{sizes};
  device::DeviceLayers layers{sizes, timeline};
  device::DeviceTiers tiers{sizes, timeline, layers};
  device::DeviceRetention retention{sizes, timeline, layers};
  device::StepState step;

  // -- what they lie in ---------------------------------------------------------------------------
  std::vector<std::int64_t> given;
  int device = 0;  // current whenever this works
  cudaStream_t stream = nullptr;
  device::Event left;  // where work on the stream before ended
  DeviceMemoryBytes bytes;
  device::Growth growth;
  device::Workspace workspace;
  std::byte* before_end = nullptr;  // over files: what the open step's end changes, before it
  mutable device::StagingRing staging;
  device::PinnedBuffer found_wrong;  // what check copies, to wait once: all states, int32 [3]
  bool broken = false;               // over files: a step could be neither kept nor taken back
  bool is_out_of_room = false;       // the device has no memory for snapshots
  device::Snapshots snapshots;
  device::HostTwin host;
  mutable std::optional<EventTable> inspected_events;  // what was last handed out to be looked at
  mutable StepRecord inspected_step;
  mutable device::LayerLaunches of_layer;
  mutable device::EndLaunches of_end;
  std::vector<Impl*> due;  // of forget_due

  // -- sizes and places (memory_plan.cpp) ---------------------------------------------------------
  void plan();
  void plan_workspace();
  void plan_tiers();
  void drop_tiers() { tiers.set_plan({}); }
  void count();
  std::pair<std::int64_t, std::int64_t> measure(std::int64_t events_room);
  std::int64_t planned_events() const;
  std::int64_t granules_of(std::int64_t event_rows) const;
  void lay_out(device::MemoryLayout& layout);
  void upload_constants();

  // -- growth (memory_growth.cpp) -----------------------------------------------------------------
  void take_memory();
  void take_planned(const DeviceMemoryOptions& asked);
  void place_arrays();
  void plan_again(const DeviceMemoryOptions& asked);
  /// What is small is taken at once: a granule more or less is much of it.
  bool grows() const {
    return growth.granule > 0 && sizes.recalling > 0 && growth.range_bytes >= 16 * growth.granule;
  }
  void lock_home(std::int64_t token_rows);
  void make_room(std::int64_t next);
  void make_room_for(std::int64_t token_rows, std::int64_t event_rows);
  bool hold_rows(std::int64_t token_rows, std::int64_t event_rows);
  void read_report();
  void accept_report(std::span<const TimelineState> now);
  std::int64_t most_events(std::int64_t until) const;
  void prepare_events(std::int64_t first, std::int64_t end);
  /// All else that it takes, once its device memory is there; the empty sequence.
  void open();

  // -- forks (memory_fork.cpp) --------------------------------------------------------------------
  void take_as(const Impl& from);
  void share_events(Impl& from, const std::vector<TimelineState>& now);
  void go_on_as(Impl& from);
  void leave_shared();

  // -- a step (memory_step.cpp, memory_recall.cpp) ------------------------------------------------
  bool shares_launches(const Impl& other) const;
  void check_turn(const char* call, std::int64_t layer) const;
  void check_view(const char* name, const TensorView& view, std::int64_t heads) const;
  void check_layer_step(std::int64_t l, const LayerStep& of) const;
  std::span<const SequenceStep> before_rotary(std::int64_t l,
                                              std::span<const SequenceStep> steps) const;
  void attend(std::int64_t layer, std::span<const SequenceStep> steps);
  void recall(std::int64_t layer, std::span<const SequenceStep> steps);
  void recall_apart(std::int64_t layer, std::span<const SequenceStep> steps);
  bool recalls_rows(const Layer& layer) const;
  const RecallLists& lists_of_step(const Layer& layer) const { return layer.lists[step.lists()]; }
  const std::uint8_t* maybe_marks(const Layer& layer) const {
    return retention.maybe_marks(layers.scope_of(layer, 0));
  }

  // -- its end (memory_end.cpp) -------------------------------------------------------------------
  /// All that the host knows of closing: nothing can before something has left the window.
  bool may_close() const { return sizes.recalling > 0 && step.far; }
  /// Whether the open step's end waits until files have kept what it closed: all that cannot be
  /// put back comes behind that (end_behind_files).
  bool keeps_in_files() const { return tiers.files() && may_close(); }
  // On `on`, the stream or one beside it.
  static void enqueue_thresholds(std::span<const EndOfStep> steps, cudaStream_t on);
  static void enqueue_end(std::span<const EndOfStep> steps, cudaStream_t maybe_on);
  void find_thresholds(std::span<const EndOfStep> steps, cudaStream_t on);
  void find_boundaries(std::span<const EndOfStep> steps, cudaStream_t on);
  void close(std::span<const EndOfStep> steps, cudaStream_t on);
  void keep_closed();
  void end_behind_files();
  void end_step();

  // -- states and edits; these wait ---------------------------------------------------------------
  void check_scope(std::int64_t scope) const;
  void check_event(std::int64_t scope, EventId event) const;
  void check_unpinned(std::int64_t scope, EventId event) const;
  void check_closed(const char* call) const;
  /// Events of a table, sorted.
  struct ToForget {
    Impl* memory;
    std::int64_t scope;
    std::vector<EventId> events;
  };
  static void forget(std::span<const ToForget> all);
  static void send_forgotten(std::span<const ToForget> fresh);
  void set_pinned(std::int64_t scope, EventId event, bool to);
  void apply_retention();
  static void forget_due(std::span<Impl* const> memories);
  /// Back to the empty sequence; with files below, their first events of each scope stay for who
  /// goes on with them.
  void clear(std::span<const std::int64_t> kept_events);
  void clear() { clear(std::vector<std::int64_t>(static_cast<std::size_t>(sizes.scopes), 0)); }
  /// Of the last step.
  device::HostRecallLists read_lists(const Layer& layer, std::int64_t p) const;
  void write_lists(const Layer& layer, std::int64_t p, const device::HostRecallLists& lists);
  std::int64_t state_bytes() const;
  void copy_state(device::StateCopy& copy, bool back);
  std::shared_ptr<device::StateCopy> take_state();
  void put_state(const std::shared_ptr<device::StateCopy>& copy);
  MemoryState read_state(const std::vector<TimelineState>& now) const;
  void go_on_from(const EpisodicMemory& from, const MemoryState& handed);
  void write_events(const EpisodicMemory& from);
  void write_events(const EpisodicMemory& from, std::int64_t scope);
  class EventReader;
};

/// f(part) for the runs of neighbours in `all` whose memories share their launches.
template <class Of, class Shares, class F>
void for_sharing(std::span<const Of> all, const Shares& shares, const F& f) {
  for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
    for (end = first + 1; end < all.size() && shares(all[first], all[end]);) ++end;
    f(all.subspan(first, end - first));
  }
}

}  // namespace episodic
