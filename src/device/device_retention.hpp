// SPDX-License-Identifier: Apache-2.0
#pragma once
// What becomes of events on a device: how often each was recalled, what attention it received, and
// which are forgotten or pinned.
//
// A forgotten event keeps its row in every table, so that numbers and addresses stay; a mark beside
// it keeps it out of every recall. Its vector stays as it is: codes of all slabs are relative to
// the mean of the first one's vectors. Marks are of tables: lanes over one share them, and where
// each head has a table of its own it has marks of its own.
//
// With Memoria's forgetting (section 3) what each event receives is computed and added up on the
// device, in an array by event; which events that makes the graph forget is decided on the host, by
// the class that the host's memory has (memory/detail/retention.hpp), whenever a step has reached
// the end of a chunk.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "device_layers.hpp"
#include "device_timeline.hpp"
#include "episodic/memory/detail/retention.hpp"
#include "kernels/event_mass.hpp"
#include "kernels/forgetting.hpp"
#include "kernels/recall_counts.hpp"
#include "memory_layout.hpp"
#include "memory_sizes.hpp"

namespace episodic::device {

class DeviceRetention {
 public:
  using Graph = episodic::detail::Retention;

  /// \param sizes, timeline, layers outlive it
  DeviceRetention(const MemorySizes& sizes, const DeviceTimeline& timeline,
                  const DeviceLayers& layers)
      : sizes_(sizes), timeline_(timeline), layers_(layers) {}

  // -- places -----------------------------------------------------------------------------------
  void lay_out_tables(MemoryLayout& layout);
  void lay_out_step(MemoryLayout& layout);
  /// What never changes. Waits.
  void upload(cudaStream_t stream) const;
  /// The empty sequence.
  void clear(cudaStream_t stream);
  /// What is read of events before it is written: none is forgotten, was recalled or has received
  /// attention.
  void prepare_events(std::int64_t first, std::int64_t end, cudaStream_t stream) const;

  // -- what a step's launches are told ------------------------------------------------------------
  /// What a layer's recall is told of forgotten events: nothing while there are none in any scope,
  /// which is another kind of step.
  const std::uint8_t* maybe_marks(std::int64_t scope) const {
    return has_forgotten_ ? marks_ + scope * sizes_.max_events : nullptr;
  }
  bool has_forgotten() const { return has_forgotten_; }
  /// Whether what the layer's events receive is counted in this step; then attention leaves `lse`.
  bool counts(const DeviceLayer& layer, const StepState& step) const {
    return has_graph() && step.far && layer.place >= 0;
  }
  float* lse() const { return lse_; }  // [chunk, H] of a layer's attention
  kernels::EventMassParams mass_params(const DeviceLayer& layer,
                                       const kernels::AttentionParams& attention,
                                       const RecallLists& lists, const Workspace& w) const;
  /// What the layers' events received in a step, over the one or other lists.
  kernels::ReceiveParams receive_params(std::size_t lists) const;
  /// Counts what the step attended, and keeps what it recalled for the next one.
  kernels::RecallCountsParams count_params(std::size_t lists,
                                           const std::int32_t* lane_scopes) const;

  // -- Memoria's graph ----------------------------------------------------------------------------
  bool has_graph() const { return graph_.has_value(); }
  /// But for what events received since some were closed last: that is on the device.
  const std::optional<Graph>& graph() const { return graph_; }
  void set_graph(const std::optional<Graph>& graph) { graph_ = graph; }
  /// A step was made of tokens [first, end).
  void after_step(std::int64_t first, std::int64_t end) {
    is_judged_ = !graph_ || !Graph::reaches(first, end, sizes_.config.chunk);
  }
  /// Whether it has seen the chunks that finished steps completed.
  bool is_judged() const { return is_judged_; }
  void set_judged() { is_judged_ = true; }
  /// Shows the graph the events that were closed since it was shown some. Waits.
  /// \param now of the only table \throws DataError where attention was no number
  void judge(const DeviceTimeline::State& now, std::int64_t tokens, cudaStream_t stream);
  /// What the graph gave up and may go, ascending; what is pinned stays.
  std::vector<EventId> take_due();
  /// Of the first n events, those that received something. Waits.
  Graph::Received read_received(std::int64_t n_events, cudaStream_t stream) const;
  /// After `clear`, which leaves zeros. Waits.
  void write_received(const Graph::Received& masses, cudaStream_t stream) const;
  /// The graph's part of a memory of the host. These wait.
  void load_graph(const MemoryState& from, std::int64_t n_events, cudaStream_t stream);
  void save_graph(std::int64_t n_events, MemoryState& to, cudaStream_t stream) const;

  // -- counts; these wait -------------------------------------------------------------------------
  unsigned long long read_recalled_events(cudaStream_t stream) const;
  void write_recalled_events(unsigned long long count, cudaStream_t stream) const;
  std::vector<kernels::RecallCount> read_counts(std::int64_t scope, std::int64_t n_events,
                                                cudaStream_t stream) const;
  void write_counts(std::int64_t scope, const std::vector<kernels::RecallCount>& counts,
                    cudaStream_t stream) const;

  /// What became of the first events of each scope in another memory of these sizes, on the stream.
  void copy(const DeviceRetention& from, const std::vector<std::int64_t>& n_events,
            cudaStream_t stream);

  // -- forgotten and pinned events ----------------------------------------------------------------
  /// In order of time.
  const std::vector<EventId>& forgotten(std::int64_t scope) const {
    return forgotten_[static_cast<std::size_t>(scope)];
  }
  std::vector<std::vector<EventId>> take_forgotten() { return std::move(forgotten_); }
  bool is_forgotten(std::int64_t scope, EventId event) const;
  void drop_forgotten(std::int64_t scope, HostRecallLists& lists) const;
  /// The list of events that are to be marked: at most chunk of a launch.
  DeviceEventId* to_forget() const { return to_forget_; }
  kernels::ForgetParams forget_params(std::int64_t first, std::int64_t count,
                                      std::int64_t scope) const;
  /// The host's side of that. \param events ascending, none of which was forgotten
  void note_forgotten(std::int64_t scope, const std::vector<EventId>& events);
  /// After `clear`, for the first events of what was forgotten before, which the tiers below still
  /// know as such. Waits.
  void forget_again(std::int64_t scope, std::vector<EventId> events, std::int64_t n_events,
                    cudaStream_t stream);
  bool is_pinned(std::int64_t scope, EventId event) const;
  void note_pinned(std::int64_t scope, EventId event, bool to);
  std::vector<std::vector<bool>> take_pinned() { return std::move(pinned_); }
  /// By calls, since the last load or save.
  std::map<std::pair<std::int64_t, EventId>, bool>& pin_changes() { return pin_changes_; }

 private:
  const MemorySizes& sizes_;
  const DeviceTimeline& timeline_;
  const DeviceLayers& layers_;
  kernels::RecallCount* recall_counts_ = nullptr;  // [scopes, max_events]
  unsigned long long* recalled_events_ = nullptr;  // [1] of all lanes and steps
  std::vector<double*> masses_;  // of each layer that recalls, [P, room]: of the open step
  double* received_ = nullptr;   // [max_events] since some were closed last
  std::array<kernels::LayerMasses*, 2> layer_masses_{};  // [recalling] over the one or other lists
  float* lse_ = nullptr;
  std::uint8_t* marks_ = nullptr;       // [scopes, max_events] 1 where an event was forgotten
  DeviceEventId* to_forget_ = nullptr;  // [chunk]
  std::optional<Graph> graph_;
  bool is_judged_ = true;
  // of each scope
  std::vector<std::vector<EventId>> forgotten_;
  bool has_forgotten_ = false;             // in any scope
  std::vector<std::vector<bool>> pinned_;  // of the first events; false for all behind them
  std::map<std::pair<std::int64_t, EventId>, bool> pin_changes_;
};

}  // namespace episodic::device
