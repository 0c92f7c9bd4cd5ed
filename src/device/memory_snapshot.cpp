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
  std::int64_t generation = 0, forks = 0;
  std::int64_t steps_since_recall = 0;
  bool far = false;
  std::shared_ptr<device::KeptRows::Mark> rows;
  std::shared_ptr<StateCopy> state;
  std::vector<TimelineState> timelines;  // of each scope
  std::vector<HostRecallLists> lists;    // of each lane
  std::optional<device::DeviceRetention::Graph> retention;
  device::DeviceRetention::Graph::Received received;
};

/// What a step changes in place: what its end changes, and relevance.
std::int64_t DeviceMemory::Impl::state_bytes() const {
  return timeline.saved_bytes() + layers.relevance_bytes();
}

/// Between its place and a copy, on the stream.
void DeviceMemory::Impl::copy_state(StateCopy& copy, bool back) {
  const bool on_device = copy.place >= 0;
  std::byte* at =
      on_device ? snapshots.state_copies + copy.place * state_bytes() : copy.host.data();
  const auto kind = on_device ? cudaMemcpyDeviceToDevice
                    : back    ? cudaMemcpyHostToDevice
                              : cudaMemcpyDeviceToHost;
  timeline.copy_saved(at, back, kind, stream);
  std::byte* const relevance = layers.relevance();
  at += timeline.saved_bytes();
  device::check(cudaMemcpyAsync(back ? relevance : at, back ? at : relevance,
                                static_cast<std::size_t>(layers.relevance_bytes()), kind, stream),
                "a snapshot");
  if (!on_device) device::check(cudaStreamSynchronize(stream), "a snapshot");
}

/// Copies of one state are one: no step was made between them.
std::shared_ptr<StateCopy> DeviceMemory::Impl::take_state() {
  if (std::shared_ptr<StateCopy> same = snapshots.state_now.lock()) return same;
  auto copy =
      std::make_shared<StateCopy>(sizes.spare > 0 ? snapshots.places : nullptr, state_bytes());
  copy_state(*copy, false);
  snapshots.state_now = copy;
  return copy;
}

void DeviceMemory::Impl::put_state(const std::shared_ptr<StateCopy>& copy) {
  copy_state(*copy, true);
  snapshots.state_now = copy;
}

std::shared_ptr<const MemorySnapshot> DeviceMemory::snapshot() const {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  check();
  m.apply_retention();
  auto s = std::make_shared<Snapshot>();
  s->owner = m.snapshots.places;
  s->generation = m.snapshots.generation;
  s->forks = m.snapshots.forks;
  s->steps_since_recall = m.step.steps_since_recall;
  s->far = m.step.far_in_last_step;
  s->state = m.take_state();
  s->timelines = m.timeline.read_states(m.stream);
  for (const Layer& layer : m.layers.all())
    for (std::int64_t p = 0; p < m.sizes.lanes.per_layer; ++p)
      s->lists.push_back(m.read_lists(layer, p));
  s->retention = m.retention.graph();
  if (s->retention)
    s->received = m.retention.read_received(s->timelines.front().n_events, m.stream);
  s->rows = m.snapshots.kept_rows.mark(m.step.tokens);
  return s;
}

void DeviceMemory::restore(const MemorySnapshot& snapshot) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const auto* const own = dynamic_cast<const Snapshot*>(&snapshot);
  if (!own || own->owner != m.snapshots.places)
    throw ConfigError("restore: the snapshot was taken of another memory");
  const Snapshot& s = *own;
  if (s.forks < m.snapshots.forks)
    throw ConfigError(
        "restore: the memory was forked since this snapshot, and what came before belongs to its "
        "forks too; take snapshots behind the last fork");
  for (const device::Snapshots::Rewind& rewind : m.snapshots.rewinds)
    if (rewind.generation > s.generation && rewind.tokens < s.tokens())
      throw ConfigError(fmt::format(
          "restore: the memory has meanwhile gone back to {} tokens, before this snapshot of {}",
          rewind.tokens, s.tokens()));
  std::vector<std::int64_t> n_events;
  for (const TimelineState& of_scope : s.timelines) n_events.push_back(of_scope.n_events);
  std::vector<std::vector<kernels::RecallCount>> counts;
  for (std::size_t i = 0; i < n_events.size(); ++i)
    counts.push_back(m.retention.read_counts(static_cast<std::int64_t>(i), n_events[i], m.stream));
  const auto recalled_events = m.retention.read_recalled_events(m.stream);
  const std::uint32_t n_steps = m.step.n_steps;
  device::HostTwin host = m.host;
  std::vector<device::HostTwin::At>& saved = host.saved;
  while (!saved.empty() && saved.back().tokens > s.tokens()) saved.pop_back();
  if (saved.empty()) saved.push_back({0, std::vector<std::int64_t>(n_events.size(), 0)});
  if (m.sizes.by_head())
    host.shared.events = saved.back().events;
  else
    host.shared.events.front() = std::min(host.shared.events.front(), n_events.front());
  host.shared.tokens = std::min(host.shared.tokens, s.tokens());
  auto rewinds = std::move(m.snapshots.rewinds);
  auto forgotten = m.retention.take_forgotten();
  const auto pinned = m.retention.take_pinned();
  auto pin_changes = std::move(m.retention.pin_changes());
  m.clear(n_events);
  // What was forgotten or pinned since stays so, and steps that were made have been.
  m.retention.write_recalled_events(recalled_events, m.stream);
  m.step.n_steps = n_steps;
  m.retention.set_graph(s.retention);
  m.retention.write_received(s.received, m.stream);
  for (std::size_t i = 0; i < n_events.size(); ++i) {
    const auto scope = static_cast<std::int64_t>(i);
    m.retention.forget_again(scope, std::move(forgotten[i]), n_events[i], m.stream);
    const std::size_t kept = std::min(pinned[i].size(), static_cast<std::size_t>(n_events[i]));
    for (std::size_t e = 0; e < kept; ++e)
      if (pinned[i][e]) m.set_pinned(scope, static_cast<EventId>(e), true);
    m.retention.write_counts(scope, counts[i], m.stream);
  }
  std::erase_if(pin_changes, [&](const auto& c) {
    const auto& [scope, event] = c.first;
    return event >= n_events[static_cast<std::size_t>(scope)];
  });
  m.retention.pin_changes() = std::move(pin_changes);
  m.snapshots.rewinds = std::move(rewinds);
  m.snapshots.rewinds.push_back({m.snapshots.generation, s.tokens()});
  m.host = std::move(host);
  m.snapshots.kept_rows.restore(*s.rows, m.stream);
  m.put_state(s.state);
  std::vector<TimelineState> timelines = s.timelines;
  for (TimelineState& of_scope : timelines) of_scope.steps = n_steps;
  m.timeline.write_states(timelines, m.stream);
  auto lists = s.lists.begin();
  for (const Layer& layer : m.layers.all())
    for (std::int64_t p = 0; p < m.sizes.lanes.per_layer; ++p) {
      HostRecallLists of_lane = *lists++;
      m.retention.drop_forgotten(m.layers.scope_of(layer, p), of_lane);
      m.write_lists(layer, p, of_lane);
    }
  if (m.tiers.has_host_tier()) {  // the slots are empty now
    for (std::int64_t i = 0; i < m.sizes.scopes; ++i) {
      const auto events =
          m.timeline.read_events(i, 0, n_events[static_cast<std::size_t>(i)], m.stream);
      const device::DeviceLayers::ScopeLanes of_scope = m.layers.lanes_of(i);
      for (std::int64_t lane = 0; lane < of_scope.count; ++lane)
        m.tiers.all_at_home(of_scope.first + lane, events, m.stream);
    }
  }
  m.step.tokens = s.tokens();
  m.accept_report(s.timelines);
  m.step.steps_since_recall = s.steps_since_recall;
  m.step.far_in_last_step = s.far;
}

}  // namespace episodic
