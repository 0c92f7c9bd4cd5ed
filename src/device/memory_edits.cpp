// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning on a device. A forgotten event keeps its row in every table, so that
// numbers and addresses stay; a mark beside it keeps it out of every recall. Its vector stays as it
// is: codes of all slabs are relative to the mean of the first one's vectors. A pinned event leaves
// device memory, and the tiers below, last. Marks are of tables: lanes over one share them, and
// where each head has a table of its own it has marks of its own.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::HostRecallLists;
using Layer = device::DeviceLayer;

bool DeviceMemory::Impl::is_forgotten(std::int64_t scope, EventId event) const {
  return std::binary_search(gone(scope).begin(), gone(scope).end(), event);
}

DeviceMemory::Impl::ScopeLanes DeviceMemory::Impl::lanes_of(std::int64_t scope) const {
  if (!by_head()) return {0, lanes.n_lanes};
  const Layer& layer = layers[static_cast<std::size_t>(scope / lanes.per_layer)];
  if (layer.place < 0) return {};
  return {first_lane(layer) + scope % lanes.per_layer, 1};
}

/// Marks events that are there, and takes them out of what was recalled last, of memories on one
/// stream and scopes of theirs.
void DeviceMemory::Impl::forget(std::span<const ToForget> all) {
  std::vector<ToForget> fresh;
  for (const ToForget& f : all) {
    fresh.push_back({f.memory, f.scope, {}});
    std::copy_if(f.events.begin(), f.events.end(), std::back_inserter(fresh.back().events),
                 [&](EventId e) { return !f.memory->is_forgotten(f.scope, e); });
    if (fresh.back().events.empty()) fresh.pop_back();
  }
  send_forgotten(fresh);
  for (const ToForget& f : fresh) {
    Impl& m = *f.memory;
    const ScopeLanes of_scope = m.lanes_of(f.scope);
    for (const EventId e : f.events) {
      if (m.lower && of_scope.count > 0) m.lower->forget(of_scope.first, e);
      if (m.retention) m.retention->forgotten(e);
    }
    const std::vector<EventId>& before = m.gone(f.scope);
    std::vector<EventId> now;
    std::merge(before.begin(), before.end(), f.events.begin(), f.events.end(),
               std::back_inserter(now));
    m.forgotten[static_cast<std::size_t>(f.scope)] = std::move(now);
    m.has_forgotten = true;
  }
}

/// To the device: of each memory as many at a time as its list has room for, of all in one launch.
void DeviceMemory::Impl::send_forgotten(std::span<const ToForget> fresh) {
  std::vector<std::size_t> sent(fresh.size(), 0);
  const auto is_left = [&](std::size_t i) { return sent[i] < fresh[i].events.size(); };
  for (std::size_t first = 0; first < fresh.size();) {
    std::vector<kernels::ForgetParams> launch;
    for (std::size_t i = first; i < fresh.size();) {
      Impl& m = *fresh[i].memory;
      std::vector<kernels::DeviceEventId> list;
      for (; i < fresh.size() && fresh[i].memory == &m; ++i) {
        const ToForget& f = fresh[i];
        const auto from = f.events.begin() + static_cast<std::ptrdiff_t>(sent[i]);
        const auto count = std::min(m.config.chunk - static_cast<std::int64_t>(list.size()),
                                    static_cast<std::int64_t>(f.events.end() - from));
        const ScopeLanes of_scope = m.lanes_of(f.scope);
        launch.push_back({m.forgetting + list.size(), count, m.marks + f.scope * m.max_events,
                          m.lane_lists[m.lists_now] + of_scope.first, of_scope.count});
        list.insert(list.end(), from, from + count);
        sent[i] += static_cast<std::size_t>(count);
      }
      if (!list.empty())
        m.staging.send(
            m.forgetting, static_cast<std::int64_t>(list.size()), m.stream,
            [&](kernels::DeviceEventId* to) { std::copy(list.begin(), list.end(), to); });
    }
    device::launch_batch(kernels::forget_events_batch, launch, fresh[first].memory->stream,
                         "forgetting");
    while (first < fresh.size() && !is_left(first)) ++first;
  }
}

void DeviceMemory::Impl::drop_forgotten(std::int64_t scope, HostRecallLists& lists) const {
  for (auto* list : {&lists.similarity, &lists.contiguity, &lists.recalled})
    std::erase_if(*list, [&](kernels::DeviceEventId e) { return is_forgotten(scope, e); });
}

/// After `clear`, for the first events of what was forgotten before, which the tiers below still
/// know as such.
void DeviceMemory::Impl::forget_again(std::int64_t scope, std::vector<EventId> events_of,
                                      std::int64_t n_events) {
  std::erase_if(events_of, [&](EventId e) { return e >= n_events; });
  if (events_of.empty()) return;
  std::vector<std::uint8_t> marked(static_cast<std::size_t>(n_events), 0);
  for (const EventId e : events_of) {
    marked[static_cast<std::size_t>(e)] = 1;
    if (retention) retention->forgotten(e);
  }
  write(marks + scope * max_events, marked.data(), n_events);
  forgotten[static_cast<std::size_t>(scope)] = std::move(events_of);
  has_forgotten = true;
}

void DeviceMemory::Impl::check_closed(const char* call) const {
  if (open) throw DataError(fmt::format("{}: a step is open; call end_step first", call));
}

void DeviceMemory::Impl::check_event(std::int64_t scope, EventId event) const {
  check_scope(scope);
  if (const std::int64_t count = read(state + scope, 1)[0].n_events; event < 0 || event >= count)
    throw DataError(fmt::format("event {} asked for, but the memory has {}", event, count));
}

void DeviceMemory::Impl::check_unpinned(std::int64_t scope, EventId event) const {
  if (is_pinned(scope, event))
    throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", event));
}

/// Events of heads whose layer does not recall lie in no tier: there is nothing to be pinned in.
void DeviceMemory::Impl::set_pinned(std::int64_t scope, EventId event, bool to) {
  const ScopeLanes of_scope = lanes_of(scope);
  if (by_head() && of_scope.count == 0) return;
  std::vector<bool>& marks_of_scope = pinned[static_cast<std::size_t>(scope)];
  const auto at = static_cast<std::size_t>(event);
  if (at >= marks_of_scope.size()) marks_of_scope.resize(at + 1, false);
  const std::uint8_t mark = to ? 1 : 0;
  if (has_host_tier()) write(pins + scope * max_events + event, &mark, 1);
  if (lower) lower->pin(of_scope.first, event, to);
  marks_of_scope[at] = to;
}

/// As forget_again.
void DeviceMemory::Impl::pin_again(std::int64_t scope, const std::vector<bool>& before,
                                   std::int64_t n_events) {
  const std::size_t kept = std::min(before.size(), static_cast<std::size_t>(n_events));
  for (std::size_t e = 0; e < kept; ++e)
    if (before[e]) set_pinned(scope, static_cast<EventId>(e), true);
}

void DeviceMemory::pin(EventId event, bool pinned, std::int64_t scope) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::pin);
  m.check_event(scope, event);
  if (m.is_forgotten(scope, event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  m.join_side_streams();  // which may be choosing what leaves
  m.set_pinned(scope, event, pinned);
  m.pin_changes[{scope, event}] = pinned;
}

void DeviceMemory::forget(EventId event, std::int64_t scope) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::forget);
  m.check_closed("forget");
  m.join_side_streams();  // what was recalled last may be on its way to a slot
  m.check_event(scope, event);
  if (m.is_forgotten(scope, event)) return;
  m.check_unpinned(scope, event);
  Impl::forget(std::array{Impl::ToForget{&m, scope, {event}}});
}

std::vector<EventId> DeviceMemory::forget(TokenRange tokens) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::forget);
  m.check_closed("forget");
  if (tokens.start < 0 || tokens.end <= tokens.start || tokens.end > m.tokens)
    throw DataError(fmt::format("forget: tokens {} to {}, but the memory has {}", tokens.start,
                                tokens.end, m.tokens));
  m.join_side_streams();
  const std::vector<kernels::TimelineState> now = m.read_timelines();
  std::int64_t closed = m.tokens;  // up to here they are in closed events of every scope
  for (const kernels::TimelineState& of_scope : now)
    closed = std::min(closed, of_scope.pending_start);
  if (tokens.start < m.config.n_init || tokens.end > closed)
    throw DataError(
        fmt::format("forget: tokens {} to {} reach into the sinks or the window; only tokens {} to "
                    "{}, which lie in closed events, can be forgotten now",
                    tokens.start, tokens.end, m.config.n_init, closed));
  std::vector<Impl::ToForget> hit;
  for (std::size_t s = 0; s < now.size(); ++s) {
    const auto scope = static_cast<std::int64_t>(s);
    hit.push_back({&m, scope, {}});
    const std::vector<TokenRange> all = m.read_events(scope, 0, now[s].n_events);
    for (std::size_t e = 0; e < all.size(); ++e) {
      if (all[e].start >= tokens.end || tokens.start >= all[e].end) continue;
      m.check_unpinned(scope, static_cast<EventId>(e));
      hit.back().events.push_back(static_cast<EventId>(e));
    }
  }
  Impl::forget(hit);
  return std::move(hit.front().events);
}

const std::vector<EventId>& DeviceMemory::forgotten(std::int64_t scope) const {
  impl_->check_scope(scope);
  return impl_->gone(scope);
}

}  // namespace episodic
