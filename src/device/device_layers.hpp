// SPDX-License-Identifier: Apache-2.0
#pragma once
// What is recalled and attended, on a device: the window of each layer, representatives of events,
// recall's lists, and what attention is told of them. The twin of `LayerBank`. It sees no token id
// and no surprise.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "cuda.hpp"
#include "device_timeline.hpp"
#include "episodic/memory/memory_state.hpp"
#include "head_place.hpp"
#include "kept_rows.hpp"
#include "kernels/attention.hpp"
#include "kernels/closed_events.hpp"
#include "kernels/codes.hpp"
#include "kernels/forgetting.hpp"
#include "kernels/recall.hpp"
#include "kernels/relevance.hpp"
#include "kernels/reweight.hpp"
#include "kernels/rows.hpp"
#include "kernels/turn_back.hpp"
#include "kernels/window.hpp"
#include "memory_layout.hpp"
#include "memory_sizes.hpp"

namespace episodic::device {

using kernels::DeviceEventId;

/// What recall leaves in a layer. Two: a step reads the queue of the steps before and fills lists
/// of its own, so that a step that is begun anew finds the first untouched. Its end copies them
/// there.
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
  std::size_t rotary = 0;
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
  std::array<RecallLists, 2> lists;  // StepState::kLeft, kOpen
};

/// Where attention finds the events of a layer's lanes.
struct EventPlaces {
  void** blocks = nullptr;              // [P, max_events]
  const float* maybe_scales = nullptr;  // [P, max_events, scales_of_event()]
};

class DeviceLayers {
 public:
  /// \param sizes, timeline outlive it
  DeviceLayers(const MemorySizes& sizes, const DeviceTimeline& timeline)
      : sizes_(sizes), timeline_(timeline) {}

  // -- places -----------------------------------------------------------------------------------
  /// What differs from layer to layer; tables that are the same are kept once.
  void list();
  void lay_out_windows(MemoryLayout& layout);
  void lay_out_tables(MemoryLayout& layout);
  void lay_out_step(MemoryLayout& layout);
  /// What never changes: angles' frequencies, the fixed position, where the arrays lie. Waits.
  void upload(cudaStream_t stream) const;
  /// No recall list has an event.
  void clear(cudaStream_t stream) const;
  std::vector<KeptRows::Ring> rings() const;
  std::vector<const void*> ring_keys() const;
  /// Relevance of all layers, which lies in one piece.
  std::int64_t relevance_bytes() const;
  std::byte* relevance() const { return reinterpret_cast<std::byte*>(layers_.front().relevance); }
  /// Set to 1 by kernels: rows left out; a table too small.
  const std::int32_t* overflow() const { return overflow_; }
  const std::int32_t* full() const { return full_; }

  // -- layers, their lanes and scopes -------------------------------------------------------------
  std::span<const DeviceLayer> all() const { return layers_; }
  const DeviceLayer& at(std::int64_t l) const { return layers_[static_cast<std::size_t>(l)]; }
  std::int64_t number(const DeviceLayer& layer) const { return &layer - layers_.data(); }
  /// The next one that recalls behind layer l, or null.
  const DeviceLayer* next_recalling(std::int64_t l) const;
  /// Of the lanes that recall.
  std::int64_t first_lane(const DeviceLayer& layer) const {
    return layer.place * sizes_.lanes.per_layer;
  }
  /// Of lane p of a layer.
  std::int64_t scope_of(const DeviceLayer& layer, std::int64_t p) const {
    return sizes_.by_head() ? number(layer) * sizes_.lanes.per_layer + p : 0;
  }
  /// A lane of a layer: p of P.
  struct Lane {
    const DeviceLayer* layer;
    std::int64_t p;
  };
  /// By its number among those of all layers. \throws DataError
  Lane lane(std::int64_t number) const;
  /// By its number among those that recall.
  Lane recalling_lane(std::int64_t lane) const;
  /// Lanes that recall events of a scope, side by side.
  struct ScopeLanes {
    std::int64_t first = 0, count = 0;
  };
  ScopeLanes lanes_of(std::int64_t scope) const;
  const DeviceRotary& rotary(const DeviceLayer& layer) const { return rotaries_[layer.rotary]; }
  /// Whether attention weighs the layer's events by their scores.
  bool weighs(const DeviceLayer& layer) const {
    return layer.place >= 0 && sizes_.config.reweight == Reweighting::exact;
  }
  /// Whether the open step asks for the layer's mean query.
  bool wants_mean_query(const DeviceLayer& layer, const StepState& step) const {
    return step.far && layer.place >= 0 && (step.recalls_now || weighs(layer));
  }
  /// [lanes] that recall, over StepState::kLeft or kOpen.
  const kernels::LaneLists* lane_lists(std::size_t lists) const { return lane_lists_[lists]; }

  // -- what a step's launches are told ------------------------------------------------------------
  /// cos and sin of the next n positions, by each table.
  void add_angles(std::int64_t n, std::vector<kernels::RotaryAnglesParams>& to) const;
  std::byte* turned_q() const { return turned_q_; }  // [chunk, H, d] of a layer, before rotary
  std::byte* turned_k() const { return turned_k_; }
  /// Where a layer takes the heads of a step's only token.
  HeadPlace head_place(const DeviceLayer& layer, const StepState& step) const;
  /// Keys and values of the next n tokens into the rings; their angles must be there.
  kernels::AppendParams append_params(const DeviceLayer& layer, std::int64_t n, const void* k,
                                      const void* v, std::int64_t k_row_stride,
                                      std::int64_t v_row_stride) const;
  kernels::MeanQueryParams mean_query_params(const DeviceLayer& layer, std::int64_t n,
                                             const Workspace& w) const;
  /// Of any layer: sizes alone.
  kernels::RecallParams recall_params(const Workspace& w) const;
  kernels::RecallParams recall_params(const DeviceLayer& layer, const StepState& step,
                                      const std::uint8_t* maybe_forgotten,
                                      const Workspace& w) const;
  /// Scores of a layer's events by the key-space reader: of all, or of those that are recalled.
  kernels::EventScoreParams score_params(const DeviceLayer& layer,
                                         const RecallLists* maybe_listed) const;
  /// What a layer recalls by its scores.
  kernels::RecallTopParams top_params(const DeviceLayer& layer, const RecallLists& lists,
                                      const std::uint8_t* maybe_forgotten) const;
  kernels::RowsParams rows_params(const DeviceLayer& layer, const StepState& step,
                                  const EventPlaces& places) const;
  /// Over what is in the rings and the rows, but for the arrays of a caller's step.
  kernels::AttentionParams attention_params(const DeviceLayer& layer, std::int64_t n,
                                            const Workspace& w) const;
  kernels::AttentionParams attention_params(const DeviceLayer& layer, const StepState& step,
                                            const DeviceMemory::LayerStep& of,
                                            const Workspace& w) const;
  kernels::RelevanceParams relevance_params(std::int64_t n, const Workspace& w) const;
  kernels::RepresentativeParams representative_params(const kernels::ClosedEvents& closed) const;
  kernels::CodeParams code_params(const kernels::ClosedEvents& closed) const;

  // -- these wait ---------------------------------------------------------------------------------
  HostRecallLists read_lists(const DeviceLayer& layer, std::int64_t p, cudaStream_t stream) const;
  /// The lists that finished steps left. \throws DataError for lists that have no room
  void write_lists(const DeviceLayer& layer, std::int64_t p, const HostRecallLists& from,
                   cudaStream_t stream) const;
  /// Of events [first, end) of a lane, [events, H / P * d].
  std::vector<float> read_representatives(const Lane& lane, EventId first, EventId end,
                                          cudaStream_t stream) const;
  /// The windows of a memory of the host. They are appended to as in a step: the rotated keys then
  /// are the very bits that a sequence that was never handed over would have.
  /// \param w of at least 2 chunk G d elements
  void write_windows(const MemoryState& from, const Workspace& w, cudaStream_t stream) const;
  void read_windows(std::int64_t tokens, MemoryState& to, cudaStream_t stream) const;

  /// The windows, and the lists that finished steps left, of another memory of these sizes, on the
  /// stream.
  void copy(const DeviceLayers& from, cudaStream_t stream) const;

 private:
  const MemorySizes& sizes_;
  const DeviceTimeline& timeline_;
  std::vector<DeviceLayer> layers_;
  std::vector<DeviceRotary> rotaries_;  // each table once
  float* mean_query_ = nullptr;
  std::byte *turned_q_ = nullptr, *turned_k_ = nullptr;
  float* event_scores_ = nullptr;   // [P, max_events] of a layer's recall, with reweighting
  std::uint8_t* is_top_ = nullptr;  // [P, max_events], with reweighting that chooses
  std::array<kernels::LaneLists*, 2> lane_lists_{};
  kernels::KvRow* rows_ = nullptr;      // [P, max_rows]
  const float** row_scales_ = nullptr;  // [P, max_rows] where events are codes
  std::int32_t* n_rows_ = nullptr;      // [P]
  std::int32_t *overflow_ = nullptr, *full_ = nullptr;
  std::uint32_t* arrived_ = nullptr;             // [P], of recall
  unsigned long long* score_tokens_ = nullptr;   // [P, rules::kScoreBins], of recall
  rules::ScoreCentre* score_centres_ = nullptr;  // [lanes], of recall
  std::uint32_t* averaged_ = nullptr;            // [H], of the mean query
  std::uint32_t* attended_ = nullptr;            // [kAttentionCounters * G], of attention
  // of the layers, or of the lanes that recall, for what is one launch over all of them
  kernels::RelevanceLayer* relevance_layers_ = nullptr;           // [n_layers]
  kernels::RepresentativeLayer* representative_lanes_ = nullptr;  // [lanes]
  kernels::CodeLayer* code_lanes_ = nullptr;                      // [lanes], or null
};

}  // namespace episodic::device
