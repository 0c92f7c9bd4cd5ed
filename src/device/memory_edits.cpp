// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning on a device. A forgotten event keeps its row in every table, so that
// numbers and addresses stay; a mark beside it keeps it out of every recall. Its vector stays as it
// is: codes of all slabs are relative to the mean of the first one's vectors. A pinned event leaves
// device memory, and the tiers below, last. Marks are of tables: lanes over one share them, and
// where each head has a table of its own it has marks of its own.
#include <fmt/format.h>

#include <algorithm>

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

/// Marks events that are there, and takes them out of what was recalled last. \param events_of
/// sorted
void DeviceMemory::Impl::forget(std::int64_t scope, const std::vector<EventId>& events_of) {
  std::vector<EventId> fresh;
  for (const EventId e : events_of)
    if (!is_forgotten(scope, e)) fresh.push_back(e);
  if (fresh.empty()) return;
  const ScopeLanes of_scope = lanes_of(scope);
  std::vector<EventId> all;
  all.reserve(gone(scope).size() + fresh.size());
  std::merge(gone(scope).begin(), gone(scope).end(), fresh.begin(), fresh.end(),
             std::back_inserter(all));
  for (std::size_t first = 0; first < fresh.size();
       first += static_cast<std::size_t>(config.chunk)) {
    const auto count = std::min(config.chunk, static_cast<std::int64_t>(fresh.size() - first));
    staging.send(forgetting, count, stream, [&](kernels::DeviceEventId* to) {
      std::copy_n(fresh.begin() + static_cast<std::ptrdiff_t>(first), count, to);
    });
    const kernels::ForgetParams p{forgetting, count, marks + scope * max_events,
                                  lane_lists[lists_now] + of_scope.first, of_scope.count};
    device::check(kernels::forget_events(p, stream), "forgetting", p);
  }
  for (const EventId e : fresh) {
    if (lower && of_scope.count > 0) lower->forget(of_scope.first, e);
    if (retention) retention->forgotten(e);
  }
  forgotten[static_cast<std::size_t>(scope)] = std::move(all);
  has_forgotten = true;
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
  std::vector<bool>& of_events = pinned[static_cast<std::size_t>(scope)];
  const auto at = static_cast<std::size_t>(event);
  if (at >= of_events.size()) of_events.resize(at + 1, false);
  const std::uint8_t mark = to ? 1 : 0;
  if (has_host_tier()) write(pins + scope * max_events + event, &mark, 1);
  if (lower) lower->pin(of_scope.first, event, to);
  of_events[at] = to;
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
  m.forget(scope, {event});
}

std::vector<EventId> DeviceMemory::forget(TokenRange tokens) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::forget);
  m.check_closed("forget");
  if (tokens.start < 0 || tokens.size() < 1 || tokens.end > m.tokens)
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
  std::vector<std::vector<EventId>> hit(now.size());
  for (std::size_t s = 0; s < now.size(); ++s) {
    const auto scope = static_cast<std::int64_t>(s);
    const std::vector<TokenRange> all = m.read_events(scope, 0, now[s].n_events);
    for (std::size_t e = 0; e < all.size(); ++e) {
      if (all[e].start >= tokens.end || tokens.start >= all[e].end) continue;
      m.check_unpinned(scope, static_cast<EventId>(e));
      hit[s].push_back(static_cast<EventId>(e));
    }
  }
  for (std::size_t s = 0; s < hit.size(); ++s) m.forget(static_cast<std::int64_t>(s), hit[s]);
  return std::move(hit.front());
}

const std::vector<EventId>& DeviceMemory::forgotten(std::int64_t scope) const {
  impl_->check_scope(scope);
  return impl_->gone(scope);
}

}  // namespace episodic
