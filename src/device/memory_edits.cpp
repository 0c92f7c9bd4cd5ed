// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning on a device. A forgotten event keeps its row in every table, so that
// numbers and addresses stay; a mark beside it keeps it out of every recall. Its vector stays as it
// is: codes of all slabs are relative to the mean of the first one's vectors. A pinned event leaves
// device memory, and the tiers below, last. Lanes over one table share its marks; where each head
// has a table of its own there are none, and both are refused.
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::HostRecallLists;
using Layer = device::DeviceLayer;

bool DeviceMemory::Impl::is_forgotten(EventId event) const {
  return std::binary_search(forgotten.begin(), forgotten.end(), event);
}

/// Marks events that are there, and takes them out of what was recalled last. \param events_of
/// sorted
void DeviceMemory::Impl::forget(const std::vector<EventId>& events_of) {
  std::vector<EventId> fresh;
  for (const EventId e : events_of)
    if (!is_forgotten(e)) fresh.push_back(e);
  if (fresh.empty()) return;
  std::vector<EventId> all;
  all.reserve(forgotten.size() + fresh.size());
  std::merge(forgotten.begin(), forgotten.end(), fresh.begin(), fresh.end(),
             std::back_inserter(all));
  for (std::size_t first = 0; first < fresh.size();
       first += static_cast<std::size_t>(config.chunk)) {
    const auto count = std::min(config.chunk, static_cast<std::int64_t>(fresh.size() - first));
    staging.send(forgetting, count, stream, [&](kernels::DeviceEventId* to) {
      std::copy_n(fresh.begin() + static_cast<std::ptrdiff_t>(first), count, to);
    });
    const kernels::ForgetParams p{forgetting, count, marks, lane_lists[lists_now], lanes.n_lanes};
    device::check(kernels::forget_events(p, stream), "forgetting", p);
  }
  for (const EventId e : fresh) {
    if (lower) lower->forget(e);
    if (retention) retention->forgotten(e);
  }
  forgotten = std::move(all);
}

/// \return whether there was any
bool DeviceMemory::Impl::drop_forgotten(HostRecallLists& lists) const {
  std::size_t dropped = 0;
  for (auto* list : {&lists.similarity, &lists.contiguity, &lists.recalled})
    dropped += std::erase_if(*list, [&](kernels::DeviceEventId e) { return is_forgotten(e); });
  return dropped > 0;
}

/// After `clear`, for the first events of what was forgotten before, which the tiers below still
/// know as such.
void DeviceMemory::Impl::forget_again(std::vector<EventId> events_of, std::int64_t n_events) {
  std::erase_if(events_of, [&](EventId e) { return e >= n_events; });
  forgotten = std::move(events_of);
  std::vector<std::uint8_t> marked(static_cast<std::size_t>(n_events), 0);
  for (const EventId e : forgotten) {
    marked[static_cast<std::size_t>(e)] = 1;
    if (retention) retention->forgotten(e);
  }
  if (!forgotten.empty()) write(marks, marked.data(), n_events);
}

void DeviceMemory::Impl::check_closed(const char* call) const {
  if (open) throw DataError(fmt::format("{}: a step is open; call end_step first", call));
}

void DeviceMemory::Impl::check_event(EventId event) const {
  if (const std::int64_t count = read_timelines().front().n_events; event < 0 || event >= count)
    throw DataError(fmt::format("event {} asked for, but the memory has {}", event, count));
}

void DeviceMemory::Impl::check_unpinned(EventId event) const {
  if (is_pinned(event))
    throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", event));
}

void DeviceMemory::Impl::set_pinned(EventId event, bool to) {
  const auto at = static_cast<std::size_t>(event);
  if (at >= pinned.size()) pinned.resize(at + 1, false);
  const std::uint8_t mark = to ? 1 : 0;
  if (has_host_tier()) write(pins + event, &mark, 1);
  if (lower) lower->pin(event, to);
  pinned[at] = to;
}

/// As forget_again.
void DeviceMemory::Impl::pin_again(const std::vector<bool>& before, std::int64_t n_events) {
  const std::size_t kept = std::min(before.size(), static_cast<std::size_t>(n_events));
  for (std::size_t e = 0; e < kept; ++e)
    if (before[e]) set_pinned(static_cast<EventId>(e), true);
}

void DeviceMemory::pin(EventId event, bool pinned, std::int64_t scope) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::pin);
  m.check_scope(scope);
  m.check_event(event);
  if (m.is_forgotten(event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  m.join_side_streams();  // which may be choosing what leaves
  m.set_pinned(event, pinned);
  m.pin_changes[event] = pinned;
}

void DeviceMemory::forget(EventId event, std::int64_t scope) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::forget);
  m.check_closed("forget");
  m.join_side_streams();  // what was recalled last may be on its way to a slot
  m.check_scope(scope);
  m.check_event(event);
  if (m.is_forgotten(event)) return;
  m.check_unpinned(event);
  m.forget({event});
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
  const kernels::TimelineState now = m.read_timelines().front();
  if (tokens.start < m.config.n_init || tokens.end > now.pending_start)
    throw DataError(
        fmt::format("forget: tokens {} to {} reach into the sinks or the window; only tokens {} to "
                    "{}, which lie in closed events, can be forgotten now",
                    tokens.start, tokens.end, m.config.n_init, now.pending_start));
  std::vector<EventId> hit;
  const std::vector<TokenRange> all = m.read_events(0, 0, now.n_events);
  for (std::size_t e = 0; e < all.size(); ++e) {
    if (all[e].start >= tokens.end || tokens.start >= all[e].end) continue;
    m.check_unpinned(static_cast<EventId>(e));
    hit.push_back(static_cast<EventId>(e));
  }
  m.forget(hit);
  return hit;
}

const std::vector<EventId>& DeviceMemory::forgotten() const { return impl_->forgotten; }

}  // namespace episodic
