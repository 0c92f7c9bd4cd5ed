// SPDX-License-Identifier: Apache-2.0
// Forgetting and pinning on a device (device_retention.hpp). A pinned event leaves device memory,
// and the tiers below, last.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

/// Marks events that are there, and takes them out of what was recalled last, of memories on one
/// stream and scopes of theirs.
void DeviceMemory::Impl::forget(std::span<const ToForget> all) {
  std::vector<ToForget> fresh;
  for (const ToForget& f : all) {
    fresh.push_back({f.memory, f.scope, {}});
    std::copy_if(f.events.begin(), f.events.end(), std::back_inserter(fresh.back().events),
                 [&](EventId e) { return !f.memory->retention.is_forgotten(f.scope, e); });
    if (fresh.back().events.empty()) fresh.pop_back();
  }
  send_forgotten(fresh);
  for (const ToForget& f : fresh) {
    for (const EventId e : f.events) f.memory->tiers.forget(f.scope, e);
    f.memory->retention.note_forgotten(f.scope, f.events);
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
        const auto count = std::min(m.sizes.config.chunk - static_cast<std::int64_t>(list.size()),
                                    static_cast<std::int64_t>(f.events.end() - from));
        launch.push_back(
            m.retention.forget_params(static_cast<std::int64_t>(list.size()), count, f.scope));
        list.insert(list.end(), from, from + count);
        sent[i] += static_cast<std::size_t>(count);
      }
      if (!list.empty())
        m.staging.send(
            m.retention.to_forget(), static_cast<std::int64_t>(list.size()), m.stream,
            [&](kernels::DeviceEventId* to) { std::copy(list.begin(), list.end(), to); });
    }
    device::launch_batch(kernels::forget_events_batch, launch, fresh[first].memory->stream,
                         "forgetting");
    while (first < fresh.size() && !is_left(first)) ++first;
  }
}

void DeviceMemory::Impl::check_closed(const char* call) const {
  if (step.open) throw DataError(fmt::format("{}: a step is open; call end_step first", call));
}

void DeviceMemory::Impl::check_event(std::int64_t scope, EventId event) const {
  check_scope(scope);
  const std::int64_t count = timeline.read_state(scope, stream).n_events;
  if (event < 0 || event >= count)
    throw DataError(fmt::format("event {} asked for, but the memory has {}", event, count));
}

void DeviceMemory::Impl::check_unpinned(std::int64_t scope, EventId event) const {
  if (retention.is_pinned(scope, event))
    throw DataError(fmt::format("event {} is pinned; unpin it before it is forgotten", event));
}

/// Events of heads whose layer does not recall lie in no tier: there is nothing to be pinned in.
void DeviceMemory::Impl::set_pinned(std::int64_t scope, EventId event, bool to) {
  if (tiers.pin(scope, event, to, stream)) retention.note_pinned(scope, event, to);
}

void DeviceMemory::pin(EventId event, bool pinned, std::int64_t scope) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::pin);
  m.check_event(scope, event);
  if (m.retention.is_forgotten(scope, event))
    throw DataError(fmt::format("event {} was forgotten; it cannot be pinned", event));
  m.tiers.join(m.stream);  // which may be choosing what leaves
  m.set_pinned(scope, event, pinned);
  m.retention.pin_changes()[{scope, event}] = pinned;
}

void DeviceMemory::forget(EventId event, std::int64_t scope) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::forget);
  m.check_closed("forget");
  m.tiers.join(m.stream);  // what was recalled last may be on its way to a slot
  m.check_event(scope, event);
  if (m.retention.is_forgotten(scope, event)) return;
  m.check_unpinned(scope, event);
  Impl::forget(std::array{Impl::ToForget{&m, scope, {event}}});
}

std::vector<EventId> DeviceMemory::forget(TokenRange tokens) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  require(Capability::forget);
  m.check_closed("forget");
  if (tokens.start < 0 || tokens.end <= tokens.start || tokens.end > m.step.tokens)
    throw DataError(fmt::format("forget: tokens {} to {}, but the memory has {}", tokens.start,
                                tokens.end, m.step.tokens));
  m.tiers.join(m.stream);
  const std::vector<kernels::TimelineState> now = m.timeline.read_states(m.stream);
  std::int64_t closed = m.step.tokens;  // up to here they are in closed events of every scope
  for (const kernels::TimelineState& of_scope : now)
    closed = std::min(closed, of_scope.pending_start);
  if (tokens.start < m.sizes.config.n_init || tokens.end > closed)
    throw DataError(
        fmt::format("forget: tokens {} to {} reach into the sinks or the window; only tokens {} to "
                    "{}, which lie in closed events, can be forgotten now",
                    tokens.start, tokens.end, m.sizes.config.n_init, closed));
  std::vector<Impl::ToForget> hit;
  for (std::size_t s = 0; s < now.size(); ++s) {
    const auto scope = static_cast<std::int64_t>(s);
    hit.push_back({&m, scope, {}});
    const std::vector<TokenRange> all = m.timeline.read_events(scope, 0, now[s].n_events, m.stream);
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
  return impl_->retention.forgotten(scope);
}

}  // namespace episodic
