// SPDX-License-Identifier: Apache-2.0
// How a DeviceMemory brings a memory of the host up to its own state.
#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include "convert.hpp"
#include "episodic/base/error.hpp"
#include "memory_impl.hpp"
#include "transfers.hpp"

namespace episodic {

using device::HostRecallLists;
using kernels::TimelineState;

namespace {

std::vector<EventId> event_ids(const std::vector<kernels::DeviceEventId>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

MemoryState DeviceMemory::Impl::read_state(const std::vector<TimelineState>& now) const {
  MemoryState s;
  s.tokens = step.tokens;
  s.steps = step.n_steps;
  s.recalled_events = static_cast<std::int64_t>(retention.read_recalled_events(stream));
  s.steps_since_recall = step.steps_since_recall;
  timeline.read(now, step.tokens, s, stream);
  retention.save_graph(now.front().n_events, s, stream);
  layers.read_windows(step.tokens, s, stream);
  for (std::size_t l = 0; l < s.layers.size(); ++l)
    for (std::int64_t p = 0; p < sizes.lanes.per_layer; ++p) {
      const HostRecallLists lists = read_lists(layers.at(static_cast<std::int64_t>(l)), p);
      s.layers[l].lanes.push_back({event_ids(lists.similarity), event_ids(lists.contiguity)});
    }
  return s;
}

/// Reads closed events off the device, of each lane a group at a time.
class DeviceMemory::Impl::EventReader {
 public:
  /// \param events of each scope, from number first_ids of it on
  EventReader(const Impl& memory, const std::vector<std::vector<TokenRange>>& events,
              const std::vector<std::int64_t>& first_ids)
      : m_(memory),
        events_(events),
        first_ids_(first_ids),
        groups_(static_cast<std::size_t>(memory.sizes.lanes.n_lanes)) {}

  RingView read(EventId event, std::int64_t lane, float* representative, float* each) {
    const auto [layer, p] = m_.layers.recalling_lane(lane);
    const auto scope = static_cast<std::size_t>(m_.layers.scope_of(*layer, p));
    const std::vector<TokenRange>& events = events_[scope];
    const auto at = static_cast<std::size_t>(event - first_ids_[scope]);
    Group& group = groups_[static_cast<std::size_t>(lane)];
    if (at >= group.end) fetch(group, *layer, p, at);
    device::widen(group.representatives.data() +
                      static_cast<std::int64_t>(at - group.begin) * m_.sizes.repr_row(),
                  m_.sizes.lane_width(), m_.sizes.options.representatives, representative);
    const std::int64_t of_each =
        m_.sizes.keeps_each() ? m_.sizes.count_of_each(events[at]) * m_.sizes.lane_width() : 0;
    if (of_each > 0)
      device::widen(
          group.each.data() + static_cast<std::int64_t>(at - group.begin) * m_.sizes.each_row(),
          of_each, m_.sizes.options.representatives, each);
    std::byte* const block =
        group.blocks.data() + (events[at].start - events[group.begin].start) * m_.sizes.token_bytes;
    float* const scales = group.scales.data() +
                          static_cast<std::int64_t>(at - group.begin) * m_.sizes.scales_of_event();
    if (m_.retention.is_forgotten(
            m_.layers.scope_of(*layer, p),
            event)) {  // the host forgets it at once; nothing of it goes to a file
      std::fill_n(representative, m_.sizes.lane_width(), 0.0f);
      std::fill_n(each, of_each, 0.0f);
      std::fill_n(block, events[at].size() * m_.sizes.token_bytes, std::byte{0});
      std::fill_n(scales, m_.sizes.scales_of_event(), 0.0f);
    }
    return rings_.of(block, m_.sizes.event_dtype(), m_.sizes.lanes.n_kv_heads,
                     m_.sizes.shape.head_dim, events[at], scales);
  }

 private:
  struct Group {  // of a lane's events, those that are here
    std::size_t begin = 0, end = 0;
    std::vector<std::byte> blocks, representatives, each;
    std::vector<float> scales;  // of events of codes
  };

  void fetch(Group& group, const Layer& layer, std::int64_t p, std::size_t begin) {
    const auto scope = static_cast<std::size_t>(m_.layers.scope_of(layer, p));
    const std::vector<TokenRange>& events = events_[scope];
    group.begin = begin;
    group.end = begin + 1;
    while (group.end < events.size() &&
           events[group.end].end - events[begin].start <= m_.sizes.most_closed_tokens())
      ++group.end;
    const std::int64_t first = events[begin].start, row = m_.sizes.repr_row();
    const std::int64_t bytes = (events[group.end - 1].end - first) * m_.sizes.token_bytes;
    const std::int64_t id = first_ids_[scope] + static_cast<std::int64_t>(begin);
    group.representatives =
        device::read(layer.representatives + (p * m_.sizes.max_events + id) * row,
                     static_cast<std::int64_t>(group.end - begin) * row, m_.stream);
    if (m_.sizes.keeps_each())
      group.each = device::read(layer.each + (p * m_.sizes.max_events + id) * m_.sizes.each_row(),
                                static_cast<std::int64_t>(group.end - begin) * m_.sizes.each_row(),
                                m_.stream);
    const std::int64_t lane = m_.layers.first_lane(layer) + p;
    if (const std::int64_t of_event = m_.sizes.scales_of_event(); of_event > 0)
      group.scales =
          device::read(m_.tiers.scales_of(lane) + id * of_event,
                       static_cast<std::int64_t>(group.end - begin) * of_event, m_.stream);
    device::LowerTiers* const files = m_.tiers.files();
    if (!files) {
      group.blocks = m_.tiers.read_home(lane, first, bytes, m_.stream);
      return;
    }
    group.blocks.resize(static_cast<std::size_t>(bytes));
    for (std::size_t e = begin; e < group.end; ++e)
      if (const EventId of_lane = id + static_cast<EventId>(e - begin);
          !m_.retention.is_forgotten(static_cast<std::int64_t>(scope), of_lane))
        files->read(of_lane, lane, events[e].size(),
                    group.blocks.data() + (events[e].start - first) * m_.sizes.token_bytes);
  }

  const Impl& m_;
  const std::vector<std::vector<TokenRange>>& events_;
  const std::vector<std::int64_t>& first_ids_;
  std::vector<Group> groups_;
  device::EventRings rings_;
};

void DeviceMemory::save(EpisodicMemory& to, std::span<const std::int64_t> ids,
                        std::span<const float> last_logits) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.tiers.join(m.stream);  // what was closed last may be on its way home
  check();
  if (m.step.open) throw DataError("save: a step is open; call end_step first");
  m.apply_retention();
  const auto counts = [&] {
    std::vector<std::int64_t> of_scopes;
    for (std::int64_t s = 0; s < to.scopes(); ++s) of_scopes.push_back(to.events(s).size());
    return of_scopes;
  };
  if (!to.config().same_results(m.sizes.config) || to.tokens() != m.host.twin.tokens ||
      counts() != m.host.twin.events) {
    const auto sum = [](const std::vector<std::int64_t>& of_scopes) {
      return std::accumulate(of_scopes.begin(), of_scopes.end(), std::int64_t{0});
    };
    throw ConfigError(
        fmt::format("CUDA memory: to be saved to the memory that it was loaded from, of {} tokens "
                    "in {} events, but this one has {} in {} or other settings",
                    m.host.twin.tokens, sum(m.host.twin.events), to.tokens(), sum(counts())));
  }
  const std::vector<TimelineState> now = m.timeline.read_states(m.stream);
  MemoryAdvance advance;
  advance.state = m.read_state(now);
  advance.state.last_logits.assign(last_logits.begin(), last_logits.end());
  advance.shared_events = m.host.shared.events;
  advance.shared_tokens = m.host.shared.tokens;
  std::vector<std::int64_t> n_events;
  for (std::int64_t s = 0; s < m.sizes.scopes; ++s) {
    n_events.push_back(now[static_cast<std::size_t>(s)].n_events);
    advance.events.push_back(m.timeline.read_events(
        s, m.host.shared.events[static_cast<std::size_t>(s)], n_events.back(), m.stream));
  }
  for (std::int64_t s = 0; s < m.sizes.scopes; ++s) advance.recalls.push_back(recall_counts(s));
  advance.ids.assign(ids.begin(), ids.end());
  Impl::EventReader reader(m, advance.events, m.host.shared.events);
  advance.read = [&](EventId e, std::int64_t lane, float* representative, float* each) {
    return reader.read(e, lane, representative, each);
  };
  try {
    to.advance(advance);
  } catch (...) {
    m.host.twin.events = counts();  // less, if this memory had gone back behind some
    throw;
  }
  m.host.twin = m.host.shared = {m.step.tokens, n_events};
  m.host.saved.push_back(m.host.shared);
  if (to.can(Capability::pin))
    for (const auto& [of, pinned] : m.retention.pin_changes()) {
      const auto& [scope, event] = of;
      const std::vector<EventId>& gone = to.forgotten(scope);
      if (!std::binary_search(gone.begin(), gone.end(), event)) to.pin(event, pinned, scope);
    }
  m.retention.pin_changes().clear();
  for (std::int64_t s = 0; s < m.sizes.scopes; ++s)
    for (const EventId e : m.retention.forgotten(s)) to.forget(e, s);
}

}  // namespace episodic
