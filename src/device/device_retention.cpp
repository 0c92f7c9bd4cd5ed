// SPDX-License-Identifier: Apache-2.0
#include "device_retention.hpp"

#include <algorithm>
#include <iterator>

#include "episodic/base/bytes.hpp"
#include "transfers.hpp"

namespace episodic::device {

// -- places ---------------------------------------------------------------------------------------

void DeviceRetention::lay_out_tables(MemoryLayout& layout) {
  marks_ = layout.by_event<std::uint8_t>(sizes_.scopes, 1, MemoryLayout::Rows::change);
  recall_counts_ =
      layout.by_event<kernels::RecallCount>(sizes_.scopes, 1, MemoryLayout::Rows::change);
  if (!sizes_.config.retention) return;
  masses_.clear();
  for (std::int64_t i = 0; i < sizes_.recalling; ++i)
    masses_.push_back(layout.take<double>(sizes_.lanes.per_layer * sizes_.room));
  received_ = layout.by_event<double>(1, 1, MemoryLayout::Rows::change);
}

void DeviceRetention::lay_out_step(MemoryLayout& layout) {
  recalled_events_ = layout.take<unsigned long long>(1);
  to_forget_ = layout.take<DeviceEventId>(sizes_.config.chunk);
  if (!sizes_.config.retention) return;
  lse_ = layout.take<float>(sizes_.config.chunk * sizes_.shape.n_heads);
  for (kernels::LayerMasses*& of : layer_masses_)
    of = layout.take<kernels::LayerMasses>(sizes_.recalling);
}

void DeviceRetention::upload(cudaStream_t stream) const {
  if (!sizes_.config.retention) return;
  std::array<std::vector<kernels::LayerMasses>, 2> masses;
  for (const DeviceLayer& layer : layers_.all())
    for (std::size_t i = 0; layer.place >= 0 && i < 2; ++i)
      masses[i].push_back({layer.lists[i].recalled, layer.lists[i].sizes + 2,
                           masses_[static_cast<std::size_t>(layer.place)]});
  for (std::size_t i = 0; i < 2; ++i) send(layer_masses_[i], masses[i], stream);
  check(cudaStreamSynchronize(stream), "the memory's constants");
}

void DeviceRetention::clear(cudaStream_t stream) {
  fill(recalled_events_, 0, 1, stream);
  graph_.reset();
  if (sizes_.config.retention) graph_.emplace(*sizes_.config.retention, sizes_.width());
  is_judged_ = true;
  forgotten_.assign(static_cast<std::size_t>(sizes_.scopes), {});
  has_forgotten_ = false;
  pinned_.assign(static_cast<std::size_t>(sizes_.scopes), {});
  pin_changes_.clear();
}

void DeviceRetention::prepare_events(std::int64_t first, std::int64_t end,
                                     cudaStream_t stream) const {
  if (first >= end) return;
  for (std::int64_t s = 0; s < sizes_.scopes; ++s) {
    fill(marks_ + s * sizes_.max_events + first, 0, end - first, stream);
    fill(recall_counts_ + s * sizes_.max_events + first, 0, end - first, stream);
  }
  if (received_) fill(received_ + first, 0, end - first, stream);
}

// -- what a step's launches are told --------------------------------------------------------------

kernels::EventMassParams DeviceRetention::mass_params(const DeviceLayer& layer,
                                                      const kernels::AttentionParams& attention,
                                                      const RecallLists& lists,
                                                      const Workspace& w) const {
  kernels::EventMassParams p;
  p.attention = attention;
  p.events = timeline_.events();
  p.recalled = lists.recalled;
  p.n_recalled = lists.sizes + 2;
  p.list_capacity = sizes_.room;
  p.mass = masses_[static_cast<std::size_t>(layer.place)];
  p.workspace = w.data;
  p.workspace_bytes = static_cast<std::size_t>(w.bytes);
  return p;
}

kernels::ReceiveParams DeviceRetention::receive_params(std::size_t lists) const {
  return {layer_masses_[lists], sizes_.recalling, sizes_.lanes.per_layer, sizes_.room, received_};
}

kernels::RecallCountsParams DeviceRetention::count_params(std::size_t lists,
                                                          const std::int32_t* lane_scopes) const {
  return {layers_.lane_lists(lists),
          sizes_.lanes.n_lanes,
          lane_scopes,
          sizes_.max_events,
          timeline_.steps(),
          recall_counts_,
          recalled_events_,
          lists == StepState::kOpen ? layers_.lane_lists(StepState::kLeft) : nullptr};
}

// -- Memoria's graph ------------------------------------------------------------------------------

void DeviceRetention::judge(const DeviceTimeline::State& now, std::int64_t tokens,
                            cudaStream_t stream) {
  const MemoryConfig& config = sizes_.config;
  const std::int64_t first = graph_->graph().total();
  const std::int64_t limit = Graph::limit(tokens, config.chunk, config.n_local);
  std::vector<EventId> fresh;
  EventId end = first;
  for (const TokenRange& range : timeline_.read_events(0, first, now.n_events, stream)) {
    if (range.end >= limit) break;
    if (!is_forgotten(0, end)) fresh.push_back(end);
    ++end;
  }
  if (fresh.empty()) return;
  // Vectors of all heads, whatever groups of them recall by themselves.
  const DeviceLayer& layer = layers_.at(retention_layer(config, sizes_.shape));
  const std::int64_t of_lane = sizes_.lane_width(), width = sizes_.width();
  std::vector<float> vectors(fresh.size() * static_cast<std::size_t>(width));
  for (std::int64_t p = 0; p < sizes_.lanes.per_layer; ++p) {
    const std::vector<float> vectors_of_lane =
        layers_.read_representatives({&layer, p}, first, end, stream);
    for (std::size_t i = 0; i < fresh.size(); ++i)
      std::copy_n(vectors_of_lane.begin() + (fresh[i] - first) * of_lane, of_lane,
                  vectors.begin() + static_cast<std::ptrdiff_t>(i) * width + p * of_lane);
  }
  graph_->set_received(read_received(now.n_events, stream));
  graph_->begin_step();
  graph_->prepare(fresh, end, std::move(vectors));
  graph_->commit();
  fill(received_, 0, now.n_events, stream);
}

std::vector<EventId> DeviceRetention::take_due() {
  std::vector<EventId> gone;
  if (!graph_) return gone;
  for (const EventId e : std::vector<EventId>(graph_->due()))
    if (is_pinned(0, e))  // it stays, though the graph has forgotten it
      graph_->forgotten(e);
    else
      gone.push_back(e);
  std::sort(gone.begin(), gone.end());
  return gone;
}

DeviceRetention::Graph::Received DeviceRetention::read_received(std::int64_t n_events,
                                                                cudaStream_t stream) const {
  Graph::Received masses;
  const std::vector<double> all = read(received_, n_events, stream);
  for (std::size_t e = 0; e < all.size(); ++e)
    if (all[e] != 0.0) masses.emplace_back(static_cast<EventId>(e), all[e]);
  return masses;
}

void DeviceRetention::write_received(const Graph::Received& masses, cudaStream_t stream) const {
  if (masses.empty()) return;
  std::vector<double> all(static_cast<std::size_t>(masses.back().first) + 1, 0.0);
  for (const auto& [event, mass] : masses) all[static_cast<std::size_t>(event)] = mass;
  write(received_, all.data(), static_cast<std::int64_t>(all.size()), stream);
}

void DeviceRetention::load_graph(const MemoryState& from, std::int64_t n_events,
                                 cudaStream_t stream) {
  if (!graph_) return;
  ByteReader of_retention(from.retention, "the memory's retention");
  graph_->load(of_retention, n_events);
  write_received(graph_->take_received(), stream);
}

void DeviceRetention::save_graph(std::int64_t n_events, MemoryState& to,
                                 cudaStream_t stream) const {
  if (!graph_) return;
  Graph whole = *graph_;
  whole.set_received(read_received(n_events, stream));
  ByteWriter bytes;
  whole.save(bytes);
  to.retention = bytes.take();
}

// -- counts ---------------------------------------------------------------------------------------

unsigned long long DeviceRetention::read_recalled_events(cudaStream_t stream) const {
  return read(recalled_events_, 1, stream)[0];
}

void DeviceRetention::write_recalled_events(unsigned long long count, cudaStream_t stream) const {
  write(recalled_events_, &count, 1, stream);
}

std::vector<kernels::RecallCount> DeviceRetention::read_counts(std::int64_t scope,
                                                               std::int64_t n_events,
                                                               cudaStream_t stream) const {
  return read(recall_counts_ + scope * sizes_.max_events, n_events, stream);
}

void DeviceRetention::write_counts(std::int64_t scope,
                                   const std::vector<kernels::RecallCount>& counts,
                                   cudaStream_t stream) const {
  write(recall_counts_ + scope * sizes_.max_events, counts.data(),
        static_cast<std::int64_t>(counts.size()), stream);
}

void DeviceRetention::copy(const DeviceRetention& from, const std::vector<std::int64_t>& n_events,
                           cudaStream_t stream) {
  for (std::int64_t s = 0; s < sizes_.scopes; ++s) {
    const std::int64_t at = s * sizes_.max_events, n = n_events[static_cast<std::size_t>(s)];
    move(marks_ + at, from.marks_ + at, n, stream);
    move(recall_counts_ + at, from.recall_counts_ + at, n, stream);
  }
  if (received_) move(received_, from.received_, n_events.front(), stream);
  move(recalled_events_, from.recalled_events_, 1, stream);
  graph_ = from.graph_;
  is_judged_ = from.is_judged_;
  forgotten_ = from.forgotten_;
  has_forgotten_ = from.has_forgotten_;
  pinned_ = from.pinned_;
}

// -- forgotten and pinned events ------------------------------------------------------------------

bool DeviceRetention::is_forgotten(std::int64_t scope, EventId event) const {
  return std::binary_search(forgotten(scope).begin(), forgotten(scope).end(), event);
}

void DeviceRetention::drop_forgotten(std::int64_t scope, HostRecallLists& lists) const {
  for (auto* list : {&lists.similarity, &lists.contiguity, &lists.recalled})
    std::erase_if(*list, [&](DeviceEventId e) { return is_forgotten(scope, e); });
}

kernels::ForgetParams DeviceRetention::forget_params(std::int64_t first, std::int64_t count,
                                                     std::int64_t scope) const {
  const DeviceLayers::ScopeLanes of_scope = layers_.lanes_of(scope);
  return {to_forget_ + first, count, marks_ + scope * sizes_.max_events,
          layers_.lane_lists(StepState::kLeft) + of_scope.first, of_scope.count};
}

void DeviceRetention::note_forgotten(std::int64_t scope, const std::vector<EventId>& events) {
  if (graph_)
    for (const EventId e : events) graph_->forgotten(e);
  std::vector<EventId>& of_scope = forgotten_[static_cast<std::size_t>(scope)];
  std::vector<EventId> now;
  std::merge(of_scope.begin(), of_scope.end(), events.begin(), events.end(),
             std::back_inserter(now));
  of_scope = std::move(now);
  has_forgotten_ = true;
}

void DeviceRetention::forget_again(std::int64_t scope, std::vector<EventId> events,
                                   std::int64_t n_events, cudaStream_t stream) {
  std::erase_if(events, [&](EventId e) { return e >= n_events; });
  if (events.empty()) return;
  std::vector<std::uint8_t> marked(static_cast<std::size_t>(n_events), 0);
  for (const EventId e : events) {
    marked[static_cast<std::size_t>(e)] = 1;
    if (graph_) graph_->forgotten(e);
  }
  write(marks_ + scope * sizes_.max_events, marked.data(), n_events, stream);
  forgotten_[static_cast<std::size_t>(scope)] = std::move(events);
  has_forgotten_ = true;
}

bool DeviceRetention::is_pinned(std::int64_t scope, EventId event) const {
  const std::vector<bool>& of_scope = pinned_[static_cast<std::size_t>(scope)];
  return event < static_cast<EventId>(of_scope.size()) && of_scope[static_cast<std::size_t>(event)];
}

void DeviceRetention::note_pinned(std::int64_t scope, EventId event, bool to) {
  std::vector<bool>& of_scope = pinned_[static_cast<std::size_t>(scope)];
  const auto at = static_cast<std::size_t>(event);
  if (at >= of_scope.size()) of_scope.resize(at + 1, false);
  of_scope[at] = to;
}

}  // namespace episodic::device
