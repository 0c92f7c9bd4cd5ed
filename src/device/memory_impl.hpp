// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a DeviceMemory is made of, for the sources of this room: its sizes and places
// (memory_plan.cpp), its steps (memory_step.cpp), and the rest (device_memory.cpp).

#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "episodic/device/device_memory.hpp"
#include "episodic/memory/detail/retention.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "growing_buffer.hpp"
#include "growing_pinned.hpp"
#include "kept_rows.hpp"
#include "kernels/attention.hpp"
#include "kernels/close_events.hpp"
#include "kernels/codes.hpp"
#include "kernels/copies.hpp"
#include "kernels/event_mass.hpp"
#include "kernels/forgetting.hpp"
#include "kernels/key_segmenter.hpp"
#include "kernels/place_events.hpp"
#include "kernels/product.hpp"
#include "kernels/recall.hpp"
#include "kernels/recall_counts.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"
#include "kernels/residency.hpp"
#include "kernels/reweight.hpp"
#include "kernels/rows.hpp"
#include "kernels/threshold.hpp"
#include "kernels/timeline_state.hpp"
#include "kernels/turn_back.hpp"
#include "kernels/window.hpp"
#include "lower_tiers.hpp"

namespace episodic {
namespace device {

using kernels::DeviceEventId;

/// What recall leaves in a layer. Two in turn: a step reads the queue of the one before, and a step
/// that is begun anew finds it untouched.
struct RecallLists {
  DeviceEventId* similarity = nullptr;  // [P, room], lane by lane
  DeviceEventId* contiguity = nullptr;
  DeviceEventId* recalled = nullptr;
  std::int32_t* sizes = nullptr;  // [P, 3]
};

/// The same on the host, of one lane.
struct HostRecallLists {
  std::vector<DeviceEventId> similarity, contiguity, recalled;
};

/// What segmenters that read keys carry from step to step, on the host: one for the sequence, or
/// for each scope.
struct HostKeySegmenter {
  std::vector<kernels::KeySegmenterState> states;
  std::vector<double> mean, variance;  // [scopes, channels]
};

/// A rotary table that some layers rotate by, on the device.
struct DeviceRotary {
  RotaryTable table;
  double* inverse_frequency = nullptr;
  float *cos = nullptr, *sin = nullptr;              // [chunk, rotary_dim / 2] of the open step
  float *fixed_cos = nullptr, *fixed_sin = nullptr;  // [rotary_dim / 2]

  std::int64_t dim() const { return table.rotary_dim(); }
  bool interleaved() const { return table.pairs == RotaryPairs::interleaved; }
};

struct DeviceLayer {
  std::size_t rotary = 0;               // of Impl::rotaries
  float scale = 0.0f, soft_cap = 0.0f;  // as in LayerShape
  std::byte *ring_key = nullptr, *ring_rotated = nullptr,
            *ring_value = nullptr;                       // [G, capacity, d]
  std::byte *sink_key = nullptr, *sink_value = nullptr;  // [G, n_init, d]
  float* relevance = nullptr;                            // [capacity, H]
  float* sums = nullptr;                  // [n_local + chunk - 1, H] of the open step
  kernels::ColumnStats* stats = nullptr;  // [H] where the sums are scores (defers_column_sums)
  std::int64_t place = -1;                // among the layers that recall; -1: not one of them
  std::byte* representatives = nullptr;   // [P, max_events, H / P * d] of their own dtype
  std::byte* each = nullptr;              // [P, max_events, n_repr, H / P * d] of it with score max
  // with codes of them: kernels::CodeLayer
  std::int8_t* codes = nullptr;
  float* code_bounds = nullptr;
  std::array<RecallLists, 2> lists;
  double* masses = nullptr;  // [P, room] with retention: what the events of the open step received
  // with a host tier: which events lie in slots of device memory
  kernels::ResidencyMap residency;
  std::byte* slots = nullptr;  // [n_slots, slot_bytes]
};

/// What grows with the sequence: arrays of a row for each event, or for each token of closed ones.
/// They lie behind all others, and are counted in bytes from there.
struct GrowingArrays {
  struct Array {
    std::int64_t begin, row;
  };
  std::vector<Array> arrays;
  std::int64_t most = 0;  // rows of a sequence of max_tokens
  std::int64_t held = 0;  // rows that all of them have memory for
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

/// The lists of a launch's parameters, one for each sequence that shares it: of the memory that
/// launches, kept from layer to layer, so that steps allocate nothing once they have their length.
/// Each list is filled and launched by one function, which begins with `emptied`.
template <class T>
std::vector<T>& emptied(std::vector<T>& list) {
  list.clear();
  return list;
}

}  // namespace device

struct DeviceMemory::Impl {
  using Layer = device::DeviceLayer;
  using TimelineState = kernels::TimelineState;
  using RecallLists = device::RecallLists;

  Impl() = default;
  ~Impl();

  MemoryConfig config;
  MemoryShape shape;
  DeviceMemoryOptions options;
  std::vector<std::int64_t> given;
  int device = 0;  // current whenever this works
  cudaStream_t stream = nullptr;
  device::Event left;  // where work on the stream before ended

  DeviceMemoryBytes bytes;
  device::GrowingBuffer memory;
  device::GrowingPinned host_home;  // the host tier: page-locked, which the device reads and writes
  std::int64_t n_slots = 0;  // of device memory in each layer; 0: all events are at home there
  std::int64_t slot_bytes = 0;
  bool on_disk = false;                       // events are at home in a DiskStore
  std::unique_ptr<device::LowerTiers> lower;  // then; null otherwise
  bool broken = false;                        // then: a step could be neither kept nor taken back
  mutable device::StagingRing staging;
  device::PinnedBuffer found_wrong;      // what check copies, to wait once: all states, int32 [3]
  std::unique_ptr<Segmenter> segmenter;  // where token numbers alone set the flags; on the host

  // Growth (memory_growth.cpp).
  std::int64_t granule = device::kUsualGranule;   // that memory is mapped by; 0: it does not grow
  std::int64_t fixed_bytes = 0, range_bytes = 0;  // what does not grow; with what may come
  device::GrowingArrays of_events, of_tokens;
  device::GrowingArrays of_home;         // the lanes' tokens in host_home, counted from its start
  std::vector<TimelineState> last_told;  // what the device last said of each scope
  device::PinnedBuffer report;           // the same, on its way while `is_asked`
  device::Event reported;
  bool is_asked = false;

  // sizes
  std::int64_t window_tokens = 0;  // that the windows have rows for, as the host's
  // More rows, for tokens behind a snapshot before what it needs is overwritten
  // (memory_snapshot.cpp).
  bool is_out_of_room = false;  // the device has no memory for them
  std::int64_t spare = 0;
  std::int64_t capacity = 0, head_stride = 0, element = 2;  // of the rings: with those
  std::int64_t recalling = 0;                               // layers
  LaneShape lanes;          // P lanes of each layer, heads side by side that recall by themselves
  std::int64_t scopes = 1;  // with tables of events: the sequence, or each kv head of each layer
  std::int64_t max_events = 0, max_closed = 0, max_rows = 0, room = 0;  // of a lane or scope
  std::int64_t max_event_rows = 0;                                      // of max_rows
  std::int64_t lane_bytes = 0, token_bytes = 0;                         // of a lane's events

  // device memory
  std::vector<Layer> layers;
  kernels::TimelineState* state = nullptr;  // [scopes]
  kernels::EventRange* events = nullptr;    // [scopes, max_events]
  float *recent = nullptr, *threshold = nullptr, *surprise = nullptr;
  std::int64_t recent_capacity = 0;
  std::uint8_t *raw = nullptr, *flags = nullptr;  // [scopes or 1, n]; [scopes, capacity]
  std::vector<device::DeviceRotary> rotaries;     // each table once
  float* mean_query = nullptr;
  std::byte *turned_q = nullptr, *turned_k = nullptr;  // [chunk, H, d], [chunk, G, d] of a layer
  float* event_scores = nullptr;   // [P, max_events] of a layer's recall, with reweighting
  std::uint8_t* is_top = nullptr;  // [P, max_events], with reweighting that chooses
  // with retention
  float* lse = nullptr;                                 // [chunk, H] of a layer's attention
  double* received = nullptr;                           // [max_events] since some were closed last
  std::array<kernels::LayerMasses*, 2> layer_masses{};  // [recalling] over the one or other lists
  kernels::RecallCount* recall_counts = nullptr;        // [scopes, max_events]
  unsigned long long* recalled_events = nullptr;        // [1] of all lanes and steps
  kernels::DeviceEventId* forgetting = nullptr;         // [chunk] events that are to be marked
  std::array<kernels::LaneLists*, 2> lane_lists{};  // [lanes] that recall, over the lists in turn
  std::uint8_t* marks = nullptr;   // [scopes, max_events] 1 where an event was forgotten, else 0
  std::uint8_t* pins = nullptr;    // [scopes, max_events] 1 where one is pinned, with a host tier
  kernels::KvRow* rows = nullptr;  // [P, max_rows]
  // where events are codes: scales of all events, which lie beside representatives wherever the
  // codes are at home, and where the rows' are
  float* event_scales = nullptr;       // [lanes, max_events, scales_of_event()]
  const float** row_scales = nullptr;  // [P, max_rows]
  std::int32_t* n_rows = nullptr;      // [P]
  // set to 1 by kernels, told by `check`: rows left out, a table too small, keys without codes
  std::int32_t *overflow = nullptr, *full = nullptr, *not_finite = nullptr;
  std::uint32_t* arrived = nullptr;             // [P], of recall
  unsigned long long* score_tokens = nullptr;   // [P, rules::kScoreBins], of recall
  rules::ScoreCentre* score_centres = nullptr;  // [n_lanes], of recall
  std::uint32_t* attended = nullptr;            // [kAttentionCounters * G], of attention
  std::uint32_t* averaged = nullptr;            // [H], of the mean query
  const void** ring_keys = nullptr;             // of all layers
  // where keys set the flags: the event that is growing, and its keys' moments by channel
  kernels::KeySegmenterState* key_segmenter = nullptr;  // one, or [scopes]
  double *key_mean = nullptr, *key_variance = nullptr;
  // of the layers, or of the lanes that recall, for what is one launch over all of them
  kernels::RelevanceLayer* relevance_layers = nullptr;           // [n_layers]
  kernels::RepresentativeLayer* representative_lanes = nullptr;  // [lanes]
  kernels::CodeLayer* code_lanes = nullptr;                      // [lanes], or null
  kernels::EventBlockLayer* block_lanes = nullptr;               // [lanes]
  std::int32_t* lane_scopes = nullptr;                           // [lanes], or null
  void **blocks = nullptr, **step_blocks = nullptr;              // [lanes, ...]
  std::int64_t *closed_start = nullptr, *closed_end = nullptr, *closed_first = nullptr;
  std::int32_t* closed_count = nullptr;
  std::byte* all_slots = nullptr;  // [recalling (of files: lanes), n_slots, slot_bytes]
  std::byte* home = nullptr;  // of all events: in device memory, or with a host tier in host_home
  // the lists of a layer's exchange between the tiers
  kernels::DeviceEventId *missing = nullptr, *victims = nullptr;
  std::int32_t *n_missing = nullptr, *n_victims = nullptr, *given_slots = nullptr,
               *n_given = nullptr;
  kernels::CopyRun* copies = nullptr;
  // over files: the timelines before the open step's end, then the rest of end_state()
  std::byte* before_end = nullptr;
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;

  // With a host tier, copies over the host's link run beside the stream, a stream for each
  // direction. Who waits for whom: memory_step.cpp.
  device::SideStream write_stream, fetch_stream;
  /// Some layers' part of a step's closed events, on their way home.
  struct WriteOut {
    std::int64_t first, count;  // among the layers that recall
    device::Event written;
  };
  std::vector<WriteOut> write_outs;
  std::size_t awaited = 0;     // of write_outs: those that the stream is behind
  bool fetches_ahead = false;  // fetch_stream has something that the stream is not behind

  // the host's side of the sequence
  std::int64_t tokens = 0;
  // finished since the sequence began, those that were gone back behind too
  std::uint32_t n_steps = 0;
  bool open = false, far = false, recalls_now = true;
  bool has_angles = false;  // of the open step
  std::int64_t n = 0, next_layer = 0, steps_since_recall = 0, next_since_recall = 0;
  std::size_t lists_now = 0;  // which of the two lists the finished steps left
  bool recalled_in_step = false;
  // The recall lists came from outside (a snapshot, a memory of the host): their events may be in
  // no slot, so that the next step that reads them fetches them, though it recalls nothing.
  bool lists_are_written = false;
  bool far_in_last_step = false;
  std::int64_t last_first = 0, last_n = 0;
  // What was last handed out to be looked at.
  mutable std::optional<EventTable> inspected_events;
  mutable StepRecord inspected_step;
  // Snapshots: dead once a restore went back behind them, for their tokens may have been given
  // anew.
  std::int64_t generation = 0;
  device::KeptRows kept_rows;
  std::byte* state_copies = nullptr;  // [StateCopy::kPlaces, state_bytes()] of `spare`, else null
  std::shared_ptr<device::StateCopy::Places> places = std::make_shared<device::StateCopy::Places>();
  std::weak_ptr<device::StateCopy> state_now;  // of the state as it is; null: there is no copy
  struct Rewind {
    std::int64_t generation, tokens;  // begun with it, and gone back to
  };
  std::vector<Rewind> rewinds;
  std::optional<detail::Retention> retention;  // but what events received: that is on the device
  bool is_judged = true;  // it has seen the chunks that finished steps completed
  // Of each scope.
  std::vector<std::vector<EventId>> forgotten;  // in order of time
  bool has_forgotten = false;                   // in any scope
  std::vector<std::vector<bool>> pinned;        // of the first events; false for all behind them
  std::map<std::pair<std::int64_t, EventId>, bool> pin_changes;  // since the last load or save
  // The host's memory at the last load or save, and how much of that still holds.
  struct Twin {
    std::int64_t tokens = 0;
    std::vector<std::int64_t> events;  // of each scope
  } twin, shared;
  // Since the load, what was saved, step by step, as far as the sequence did not go back behind it:
  // of scopes that are heads, the host's store can be cut there and nowhere else.
  std::vector<Twin> saved;

  void check_settings() const;
  void list_layers();
  void plan();
  void plan_workspace();
  void plan_tiers();
  /// Of keys and values of events; of all else that is kept of them it is options.dtype.
  DType event_dtype() const { return is_code(config.kv_dtype) ? config.kv_dtype : options.dtype; }
  /// Scales of a lane's event: of each kv head's keys, then of each one's values. 0: it has none.
  std::int64_t scales_of_event() const { return is_code(event_dtype()) ? 2 * lanes.n_kv_heads : 0; }
  /// Of a lane that recalls.
  float* scales_of(std::int64_t lane) const {
    return event_scales ? event_scales + lane * max_events * scales_of_event() : nullptr;
  }
  StoreShape store_shape() const {
    return {lanes.n_lanes, lanes.n_kv_heads, shape.head_dim, event_dtype()};
  }
  /// Whether each kv head has events of its own.
  bool by_head() const { return config.scope == EventScope::head; }
  /// Of the lanes that recall.
  std::int64_t first_lane(const Layer& layer) const { return layer.place * lanes.per_layer; }
  /// Of lane p of a layer.
  std::int64_t scope_of(const Layer& layer, std::int64_t p) const {
    return by_head() ? (&layer - layers.data()) * lanes.per_layer + p : 0;
  }
  /// A lane by its number among those of all layers. \throws DataError
  std::pair<const Layer*, std::int64_t> lane_at(std::int64_t number) const;
  /// A lane by its number among those that recall.
  std::pair<const Layer*, std::int64_t> recalling_lane(std::int64_t lane) const;
  void check_scope(std::int64_t scope) const;
  /// Lanes that recall events of a scope, side by side.
  struct ScopeLanes {
    std::int64_t first = 0, count = 0;
  };
  ScopeLanes lanes_of(std::int64_t scope) const;
  /// What is pending is shorter than an event.
  std::int64_t most_closed_tokens() const { return config.chunk + config.max_block; }
  /// Whether the open step's end waits until files have kept what it closed: all that cannot be
  /// put back comes behind that (commit_end).
  bool keeps_in_files() const { return lower && may_close(); }
  /// What the end of a step changes before that, in device memory.
  struct Saved {
    void* of;
    std::int64_t bytes;
  };
  std::array<Saved, 9> end_state() const;
  std::int64_t saved_bytes() const;
  void copy_end_state(std::byte* at, bool back, cudaMemcpyKind kind);
  void take_back(std::span<const TimelineState> now);
  void commit_end();
  void keep_closed();
  void stage_scales(std::int64_t lane, std::int64_t first, std::int64_t count);
  void count();
  std::pair<std::int64_t, std::int64_t> measure(std::int64_t events_room);
  void set_spare(std::int64_t rows);
  void drop_tiers();
  void take_memory();
  void take_planned(const DeviceMemoryOptions& asked);
  void plan_again(const DeviceMemoryOptions& asked);
  /// What is small is taken at once: a granule more or less is much of it.
  bool grows() const { return granule > 0 && recalling > 0 && range_bytes >= 16 * granule; }
  std::int64_t planned_events() const;
  std::int64_t granules_of(std::int64_t event_rows) const;
  void make_room(std::int64_t next);
  void make_room_for(std::int64_t token_rows, std::int64_t event_rows);
  void take_home();
  void lock_home(std::int64_t token_rows);
  bool hold_rows(std::int64_t token_rows, std::int64_t event_rows);
  void read_report();
  void accept_report(std::span<const TimelineState> now);
  std::int64_t most_events(std::int64_t until) const;
  void prepare_events(std::int64_t first, std::int64_t end);
  const std::vector<EventId>& gone(std::int64_t scope) const {
    return forgotten[static_cast<std::size_t>(scope)];
  }
  bool is_forgotten(std::int64_t scope, EventId event) const;
  bool is_pinned(std::int64_t scope, EventId event) const {
    const std::vector<bool>& of_scope = pinned[static_cast<std::size_t>(scope)];
    return event < static_cast<EventId>(of_scope.size()) &&
           of_scope[static_cast<std::size_t>(event)];
  }
  void set_pinned(std::int64_t scope, EventId event, bool to);
  void check_event(std::int64_t scope, EventId event) const;
  void check_unpinned(std::int64_t scope, EventId event) const;
  /// Events of a table, sorted.
  struct ToForget {
    Impl* memory;
    std::int64_t scope;
    std::vector<EventId> events;
  };
  static void forget(std::span<const ToForget> all);
  static void send_forgotten(std::span<const ToForget> fresh);
  void drop_forgotten(std::int64_t scope, device::HostRecallLists& lists) const;
  std::optional<detail::Retention> make_retention() const;
  void apply_retention();
  static void forget_due(std::span<Impl* const> memories);
  std::vector<kernels::RecallCount> read_counts(std::int64_t scope, std::int64_t n_events) const {
    return read(recall_counts + scope * max_events, n_events);
  }
  detail::Retention::Received read_received(std::int64_t n_events) const;
  void write_received(const detail::Retention::Received& masses);
  void forget_again(std::int64_t scope, std::vector<EventId> events_of, std::int64_t n_events);
  void pin_again(std::int64_t scope, const std::vector<bool>& before, std::int64_t n_events);
  /// What a layer's recall is told of them: nothing while there are none in any scope, which is
  /// another kind of step.
  const std::uint8_t* maybe_marks(const Layer& layer) const {
    return has_forgotten ? marks + scope_of(layer, 0) * max_events : nullptr;
  }
  void check_closed(const char* call) const;
  bool has_host_tier() const { return n_slots > 0 && !on_disk; }
  void make_side_streams();
  void await_homes(std::int64_t place);
  void join_side_streams();
  /// What brings events that a layer attends into its slots: one launch after the other.
  struct Fetch {
    kernels::TouchParams touch;
    kernels::VictimParams room_for;
    kernels::OccupyParams occupy;
    kernels::CopyRunsParams runs;
  };
  Fetch fetch_params(const Layer& layer, const RecallLists& lists, bool ahead) const;
  void fetch(std::span<const Fetch> fetches, cudaStream_t on) const;
  /// What a step hands to its launches (device::emptied).
  struct LaunchLists {
    std::vector<kernels::RotaryAnglesParams> angles;
    std::vector<DeviceMemory*> without_angles;
    std::vector<kernels::TurnBackParams> turned;
    std::vector<SequenceStep> before_rotary;
    std::vector<kernels::AppendParams> appended;
    std::vector<kernels::MeanQueryParams> queries;
    std::vector<kernels::RecallParams> recalls, recalls_apart;
    std::vector<kernels::RowsParams> recalled_rows, rows_alone;
    std::vector<kernels::EventScoreParams> scores, scores_of_lists;
    std::vector<kernels::RecallTopParams> tops;
    std::vector<kernels::CopyRunsParams> read;
    std::vector<Impl*> apart, over_host;
    std::vector<Fetch> fetches;
    std::vector<kernels::TouchParams> touched;
    std::vector<kernels::VictimParams> room_for;
    std::vector<kernels::OccupyParams> occupied;
    std::vector<kernels::CopyRunsParams> runs;
    std::vector<kernels::AttentionParams> attention;
    std::vector<kernels::EventMassParams> masses;
    std::vector<kernels::ReceiveParams> step_masses;
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
    std::vector<device::GrowingPinned::Part> of_home;
    std::vector<float> ignored, thresholds;
    std::vector<Impl*> due;
  };
  mutable LaunchLists launched;
  void swap_in(std::int64_t layer, std::span<Impl* const> memories) const;
  void fetch_ahead(std::int64_t layer, std::span<Impl* const> memories) const;
  kernels::EventBlockParams block_params(std::int64_t first, std::int64_t count) const;
  void write_blocks_out();
  /// Whether the step's closed events are written home beside the stream. A step of one token
  /// closes little and may be captured: a graph must have joined what forked off it, so that
  /// nothing of this would run beside the next step.
  bool writes_beside() const { return !write_outs.empty() && n > 1; }
  void carve(device::Carver& fixed, device::Carver& growing, std::int64_t events_room);
  void upload_constants();
  /// Back to the empty sequence; with files below, their first events of each scope stay for who
  /// goes on with them.
  void clear(std::span<const std::int64_t> kept_events);
  void clear() { clear(std::vector<std::int64_t>(static_cast<std::size_t>(scopes), 0)); }
  void add_angles(std::int64_t n, std::vector<kernels::RotaryAnglesParams>& to) const;
  void rotation_angles(std::int64_t n);
  /// Whether the open step asks for the layer's mean query.
  bool wants_mean_query(const Layer& layer) const {
    return far && layer.place >= 0 && (recalls_now || weighs(layer));
  }
  bool weighs(const Layer& layer) const {
    return layer.place >= 0 && config.reweight == Reweighting::exact;
  }
  void check_turn(const char* call, std::int64_t layer) const;
  kernels::AppendParams append_params(const Layer& layer, std::int64_t n, const void* k,
                                      const void* v, std::int64_t k_row_stride,
                                      std::int64_t v_row_stride) const;

  // memory_snapshot.cpp
  void keep_rings();
  std::int64_t relevance_bytes() const;
  std::int64_t state_bytes() const;
  void copy_state(device::StateCopy& copy, bool back);
  std::shared_ptr<device::StateCopy> take_state();
  void put_state(const std::shared_ptr<device::StateCopy>& copy);

  // memory_state.cpp; these wait
  template <class T>
  std::vector<T> read(const T* from, std::int64_t count) const;
  template <class T>
  void write(T* to, const T* from, std::int64_t count);
  std::vector<TimelineState> read_timelines() const { return read(state, scopes); }
  device::HostKeySegmenter read_key_segmenter() const;
  void write_key_segmenter(const device::HostKeySegmenter& from);
  std::vector<TokenRange> read_events(std::int64_t scope, std::int64_t first,
                                      std::int64_t end) const;
  device::HostRecallLists read_lists(const Layer& layer, std::int64_t p) const;
  void write_lists(const Layer& layer, std::int64_t p, const device::HostRecallLists& lists);
  MemoryState read_state(const std::vector<TimelineState>& now) const;
  void go_on_from(const EpisodicMemory& from, const MemoryState& handed);
  void write_windows(const MemoryState& from);
  void write_events(const EpisodicMemory& from);
  void write_events(const EpisodicMemory& from, std::int64_t scope);
  class EventReader;
  void all_at_home(std::int64_t lane, const std::vector<TokenRange>& events);

  // null while sizes are counted and nothing has a place yet
  const std::int64_t* first_position() const { return state ? &state->tokens : nullptr; }
  const std::int64_t* event_count(std::int64_t scope = 0) const {
    return state ? &state[scope].n_events : nullptr;
  }
  // From scope to scope, where lanes have events of their own: of counts (in numbers) and of
  // tables.
  static constexpr std::int64_t kCountStride = sizeof(TimelineState) / sizeof(std::int64_t);
  std::int64_t count_stride() const { return by_head() ? kCountStride : 0; }
  std::int64_t table_stride() const { return by_head() ? max_events : 0; }
  const device::DeviceRotary& rotary(const Layer& layer) const { return rotaries[layer.rotary]; }
  std::int64_t width() const { return shape.n_heads * shape.head_dim; }
  /// Whether representatives have codes, which recall reads first: where a sequence may come to
  /// events enough, and recall is what reads them.
  bool keeps_codes() const {
    return codes_from() > 0 && recalling > 0 && !takes_top() && !keeps_each() &&
           max_events >= codes_from();
  }
  std::int64_t codes_from() const {
    return options.codes_from != DeviceMemoryOptions::kCodesWherePaid
               ? options.codes_from
               : kernels::codes_pay_from(lane_width(), lanes.per_layer, options.representatives);
  }
  /// Whether the individual representatives are kept too, by which events are scored then.
  bool keeps_each() const { return config.score == RepresentativeScore::max; }
  kernels::CodeParams code_params(std::int64_t most_new) const;
  void encode(std::int64_t most_new);
  std::int64_t lane_width() const { return lanes.width(shape.head_dim); }
  /// Bytes of a lane's representative vector.
  std::int64_t repr_row() const { return lane_width() * size_of(options.representatives); }
  /// Bytes of the individual ones of a lane's event, as many as it may have.
  std::int64_t each_row() const { return most_repr() * repr_row(); }
  /// Representatives of an event: none has more than tokens.
  std::int64_t most_repr() const { return std::min(config.n_repr, config.max_block); }
  /// That it has.
  std::int64_t count_of_each(const TokenRange& event) const {
    return std::min(config.n_repr, event.size());
  }
  /// Where keys set the flags.
  bool segments_by_keys() const { return reads_keys(config.segmenter); }
  /// That do, each of some channels.
  std::int64_t key_segmenters() const { return by_head() ? scopes : 1; }
  std::int64_t key_channels() const { return shape.n_layers * shape.n_kv_heads * shape.head_dim; }
  std::int64_t key_variances() const {  // numbers of key_variance
    return config.segmenter == SegmenterKind::gaussian ? key_channels() : 0;
  }
  kernels::KeySegmenterParams key_segmenter_params() const;
  kernels::RefineParams refine_params() const;
  kernels::AttentionParams attention_params(const Layer& layer, std::int64_t n_queries) const;
  kernels::AttentionParams attention_params(const Layer& layer, const LayerStep& step) const;
  kernels::RecallParams recall_params() const;
  kernels::RecallParams recall_params(const Layer& layer, const RecallLists& lists) const;
  kernels::RowsParams rows_params(const Layer& layer, const RecallLists& lists) const;
  kernels::MeanQueryParams mean_query_params(const Layer& layer, std::int64_t n_queries) const;
  kernels::EventMassParams mass_params(const Layer& layer,
                                       const kernels::AttentionParams& attention,
                                       const RecallLists& lists) const;
  kernels::ClosedEvents closed() const {
    return {closed_start, closed_end, closed_count, closed_first, max_closed, by_head()};
  }
  /// Of the open step: the one or other lists.
  std::size_t step_lists() const { return recalls_now ? 1 - lists_now : lists_now; }
  const RecallLists& lists_of_step(const Layer& layer) const { return layer.lists[step_lists()]; }
  /// All that the host knows of closing: nothing can before something has left the window.
  bool may_close() const { return recalling > 0 && tokens + n > config.n_local + config.n_init; }
  /// Reweighting that chooses the events by itself.
  bool takes_top() const {
    return config.reweight == Reweighting::narrow || config.reweight == Reweighting::broad;
  }
  std::int64_t most_of_top() const {
    return (config.reweight == Reweighting::broad ? 3 : 1) * config.reweight_top;
  }
  kernels::RecallTopParams top_params(const Layer& layer, const RecallLists& lists) const;
  kernels::EventScoreParams score_params(const Layer& layer, const RecallLists* maybe_listed) const;
  bool recalls_rows(const Layer& layer) const;
  void recall_apart(std::int64_t layer, std::span<Impl* const> apart) const;
  /// Whether what the layer's events receive is counted.
  bool counts_masses(const Layer& layer) const { return retention && far && layer.place >= 0; }
  bool shares_launches(const Impl& other) const;
  void check_view(const char* name, const TensorView& view, std::int64_t heads) const;
  void check_step(std::int64_t l, const LayerStep& step) const;
  std::span<const SequenceStep> before_rotary(std::int64_t l,
                                              std::span<const SequenceStep> steps) const;
  void recall(std::int64_t layer, std::span<const SequenceStep> steps);
  void attend(std::int64_t layer, std::span<const SequenceStep> steps);
  static void enqueue_ends(std::span<const EndOfStep> steps);
  kernels::RecallCountsParams recall_counts_params() const;
  kernels::ThresholdParams threshold_params(const float* of_step) const;
  void send_flags();
  void find_boundaries(std::span<const EndOfStep> steps);
  kernels::RelevanceParams relevance_params() const;
  kernels::CloseEventsParams close_params() const;
  kernels::PlaceEventsParams place_params() const;
  kernels::RepresentativeParams representative_params() const;
  void close(std::span<const EndOfStep> steps);
  void finish_step();
};

template <class T>
std::vector<T> DeviceMemory::Impl::read(const T* from, std::int64_t count) const {
  std::vector<T> host(static_cast<std::size_t>(count));
  if (count > 0)
    device::check(
        cudaMemcpyAsync(host.data(), from, host.size() * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "a copy from the device");
  device::check(cudaStreamSynchronize(stream), "the memory's kernels");
  return host;
}

template <class T>
void DeviceMemory::Impl::write(T* to, const T* from, std::int64_t count) {
  if (count > 0)
    device::check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                                  cudaMemcpyHostToDevice, stream),
                  "a copy to the device");
  device::check(cudaStreamSynchronize(stream), "a copy to the device");
}

}  // namespace episodic
