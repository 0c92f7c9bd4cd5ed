// SPDX-License-Identifier: Apache-2.0
// Snapshots of a DeviceMemory. What steps add to (the rings) stays where it is and is shared with
// the sequence that goes on (KeptRows). What they change in place is copied, within the device
// while a place for it is free there. The host keeps what it must know to go back: a few numbers of
// each timeline, and the lists of what was recalled.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::HostRecallLists;
using device::StateCopy;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

device::StateCopy::StateCopy(std::shared_ptr<Places> maybe_places, std::int64_t bytes)
    : places_(std::move(maybe_places)) {
  for (std::size_t i = 0; places_ && i < places_->taken.size() && place < 0; ++i)
    if (!places_->taken[i].exchange(true)) place = static_cast<std::int64_t>(i);
  if (place < 0) host.resize(static_cast<std::size_t>(bytes));
}

device::StateCopy::~StateCopy() {
  if (place >= 0) places_->taken[static_cast<std::size_t>(place)] = false;
}

class DeviceMemory::Snapshot final : public MemorySnapshot {
 public:
  std::int64_t tokens() const override { return timelines.front().tokens; }

  std::shared_ptr<StateCopy::Places> owner;  // the memory's own, and of no other one after it
  std::int64_t generation = 0;
  std::int64_t steps_since_recall = 0;
  bool far = false;
  std::shared_ptr<device::KeptRows::Mark> rows;
  std::shared_ptr<StateCopy> state;
  std::vector<TimelineState> timelines;  // of each scope
  std::vector<HostRecallLists> lists;    // of each lane
  std::optional<detail::Retention> retention;
  detail::Retention::Received received;
};

void DeviceMemory::Impl::keep_rings() {
  std::vector<device::KeptRows::Ring> rings;
  for (const Layer& layer : layers)
    for (std::byte* const ring : {layer.ring_key, layer.ring_rotated, layer.ring_value})
      rings.push_back({ring, shape.n_kv_heads, capacity, shape.head_dim * element, window_tokens});
  kept_rows = device::KeptRows(std::move(rings));
}

/// What a step changes in place: what its end changes, and relevance.
std::int64_t DeviceMemory::Impl::state_bytes() const { return saved_bytes() + relevance_bytes(); }

/// Relevance of all layers, which lies in one piece.
std::int64_t DeviceMemory::Impl::relevance_bytes() const {
  return device::Layout::aligned(capacity * shape.n_heads * std::int64_t{sizeof(float)}) *
         shape.n_layers;
}

/// Between its place and a copy, on the stream.
void DeviceMemory::Impl::copy_state(StateCopy& copy, bool back) {
  const bool on_device = copy.place >= 0;
  std::byte* at = on_device ? state_copies + copy.place * state_bytes() : copy.host.data();
  const auto kind = on_device ? cudaMemcpyDeviceToDevice
                    : back    ? cudaMemcpyHostToDevice
                              : cudaMemcpyDeviceToHost;
  copy_end_state(at, back, kind);
  auto* const relevance = reinterpret_cast<std::byte*>(layers.front().relevance);
  at += saved_bytes();
  device::check(cudaMemcpyAsync(back ? relevance : at, back ? at : relevance,
                                static_cast<std::size_t>(relevance_bytes()), kind, stream),
                "a snapshot");
  if (!on_device) device::check(cudaStreamSynchronize(stream), "a snapshot");
}

/// Copies of one state are one: no step was made between them.
std::shared_ptr<StateCopy> DeviceMemory::Impl::take_state() {
  if (std::shared_ptr<StateCopy> same = state_now.lock()) return same;
  auto copy = std::make_shared<StateCopy>(spare > 0 ? places : nullptr, state_bytes());
  copy_state(*copy, false);
  state_now = copy;
  return copy;
}

void DeviceMemory::Impl::put_state(const std::shared_ptr<StateCopy>& copy) {
  copy_state(*copy, true);
  state_now = copy;
}

std::shared_ptr<const MemorySnapshot> DeviceMemory::snapshot() const {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  check();
  m.apply_retention();
  auto s = std::make_shared<Snapshot>();
  s->owner = m.places;
  s->generation = m.generation;
  s->steps_since_recall = m.steps_since_recall;
  s->far = m.far_in_last_step;
  s->state = m.take_state();
  s->timelines = m.read_timelines();
  for (const Layer& layer : m.layers)
    for (std::int64_t p = 0; p < m.lanes.per_layer; ++p) s->lists.push_back(m.read_lists(layer, p));
  s->retention = m.retention;
  if (m.retention) s->received = m.read_received(s->timelines.front().n_events);
  s->rows = m.kept_rows.mark(m.tokens);
  return s;
}

void DeviceMemory::restore(const MemorySnapshot& snapshot) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const auto* const own = dynamic_cast<const Snapshot*>(&snapshot);
  if (!own || own->owner != m.places)
    throw ConfigError("restore: the snapshot was taken of another memory");
  const Snapshot& s = *own;
  for (const Impl::Rewind& rewind : m.rewinds)
    if (rewind.generation > s.generation && rewind.tokens < s.tokens())
      throw ConfigError(fmt::format(
          "restore: the memory has meanwhile gone back to {} tokens, before this snapshot of {}",
          rewind.tokens, s.tokens()));
  std::vector<std::int64_t> n_events;
  for (const TimelineState& of_scope : s.timelines) n_events.push_back(of_scope.n_events);
  std::vector<std::vector<kernels::RecallCount>> counts;
  for (std::int64_t i = 0; i < m.scopes; ++i)
    counts.push_back(m.read_counts(i, n_events[static_cast<std::size_t>(i)]));
  const auto recalled_events = m.read(m.recalled_events, 1);
  const std::uint32_t n_steps = m.n_steps;
  const Impl::Twin twin = m.twin;
  Impl::Twin shared = m.shared;
  auto saved = std::move(m.saved);
  while (!saved.empty() && saved.back().tokens > s.tokens()) saved.pop_back();
  if (saved.empty()) saved.push_back({0, std::vector<std::int64_t>(n_events.size(), 0)});
  if (m.by_head())
    shared.events = saved.back().events;
  else
    shared.events.front() = std::min(shared.events.front(), n_events.front());
  shared.tokens = std::min(shared.tokens, s.tokens());
  auto rewinds = std::move(m.rewinds);
  auto forgotten = std::move(m.forgotten);
  const auto pinned = std::move(m.pinned);
  auto pin_changes = std::move(m.pin_changes);
  m.clear(n_events);
  // What was forgotten or pinned since stays so, and steps that were made have been.
  m.write(m.recalled_events, recalled_events.data(), 1);
  m.n_steps = n_steps;
  m.retention = s.retention;
  m.write_received(s.received);
  for (std::size_t i = 0; i < n_events.size(); ++i) {
    const auto scope = static_cast<std::int64_t>(i);
    m.forget_again(scope, std::move(forgotten[i]), n_events[i]);
    m.pin_again(scope, pinned[i], n_events[i]);
    m.write(m.recall_counts + scope * m.max_events, counts[i].data(), n_events[i]);
  }
  std::erase_if(pin_changes, [&](const auto& c) {
    const auto& [scope, event] = c.first;
    return event >= n_events[static_cast<std::size_t>(scope)];
  });
  m.pin_changes = std::move(pin_changes);
  m.rewinds = std::move(rewinds);
  m.rewinds.push_back({m.generation, s.tokens()});
  m.twin = twin;
  m.shared = shared;
  m.saved = std::move(saved);
  m.kept_rows.restore(*s.rows, m.stream);
  m.put_state(s.state);
  std::vector<TimelineState> timelines = s.timelines;
  for (TimelineState& of_scope : timelines) of_scope.steps = n_steps;
  m.write(m.state, timelines.data(), m.scopes);
  auto lists = s.lists.begin();
  for (const Layer& layer : m.layers)
    for (std::int64_t p = 0; p < m.lanes.per_layer; ++p) {
      HostRecallLists of_lane = *lists++;
      m.drop_forgotten(m.scope_of(layer, p), of_lane);
      m.write_lists(layer, p, of_lane);
    }
  if (m.has_host_tier()) {  // the slots are empty now
    for (std::int64_t i = 0; i < m.scopes; ++i) {
      const auto events = m.read_events(i, 0, n_events[static_cast<std::size_t>(i)]);
      const Impl::ScopeLanes of_scope = m.lanes_of(i);
      for (std::int64_t lane = 0; lane < of_scope.count; ++lane)
        m.all_at_home(of_scope.first + lane, events);
    }
  }
  m.tokens = s.tokens();
  m.accept_report(s.timelines);
  m.steps_since_recall = s.steps_since_recall;
  m.far_in_last_step = s.far;
}

}  // namespace episodic
