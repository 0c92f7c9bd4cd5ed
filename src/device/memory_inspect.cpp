// SPDX-License-Identifier: Apache-2.0
// What the last step of a DeviceMemory left, for who looks at it. All of it waits for the device;
// none of it is part of a step.
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"
#include "transfers.hpp"

namespace episodic {

using device::HostRecallLists;
using kernels::DeviceEventId;
using kernels::TimelineState;

namespace {

std::vector<EventId> host_ids(const std::vector<DeviceEventId>& ids) {
  return {ids.begin(), ids.end()};
}

}  // namespace

std::string DeviceMemory::refusal(Capability capability) const {
  switch (capability) {
    case Capability::inspect:
    case Capability::snapshot:
    case Capability::forget:
    case Capability::pin:
      return {};
    default:
      return fmt::format(
          "{}: a memory on a device has no folder; load it from one that is kept in a folder, save "
          "into that and do it there",
          name_of(capability));
  }
}

void DeviceMemory::Impl::check_scope(std::int64_t scope) const {
  if (scope < 0 || scope >= sizes.scopes)
    throw DataError(fmt::format("scope {} asked for, but the memory has scopes 0 to {}", scope,
                                sizes.scopes - 1));
}

HostRecallLists DeviceMemory::Impl::read_lists(const Layer& layer, std::int64_t p) const {
  if (!step.far_in_last_step) return {};
  return layers.read_lists(layer, p, stream);
}

void DeviceMemory::Impl::write_lists(const Layer& layer, std::int64_t p,
                                     const HostRecallLists& from) {
  step.lists_are_written = true;
  layers.write_lists(layer, p, from, stream);
}

std::int64_t DeviceMemory::scopes() const { return impl_->sizes.scopes; }
std::int64_t DeviceMemory::lanes() const {
  return impl_->sizes.shape.n_layers * impl_->sizes.lanes.per_layer;
}

std::int64_t DeviceMemory::n_events() const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  std::int64_t sum = 0;
  for (const TimelineState& state : m.timeline.read_states(m.stream)) sum += state.n_events;
  return sum;
}

const EventTable& DeviceMemory::events(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  const MemoryConfig& config = m.sizes.config;
  EventTable table(config.n_init, config.min_block, config.max_block);
  const TimelineState state = m.timeline.read_state(scope, m.stream);
  for (const TokenRange& e : m.timeline.read_events(scope, 0, state.n_events, m.stream))
    table.append(e);
  return m.inspected_events.emplace(std::move(table));
}

const StepRecord& DeviceMemory::last_step(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  StepRecord& r = m.inspected_step = {};
  r.first = m.step.last_first;
  r.n = m.step.last_n;
  m.timeline.read_record(scope, r, m.stream);
  return r;
}

std::int64_t DeviceMemory::recalled_events() const {
  const device::CurrentDevice current(impl_->device);
  return static_cast<std::int64_t>(impl_->retention.read_recalled_events(impl_->stream));
}

std::vector<EventRecalls> DeviceMemory::recall_counts(std::int64_t scope) const {
  const Impl& m = *impl_;
  m.check_scope(scope);
  const device::CurrentDevice current(m.device);
  const std::int64_t count = m.timeline.read_state(scope, m.stream).n_events;
  std::vector<EventRecalls> out;
  for (const kernels::RecallCount& of : m.retention.read_counts(scope, count, m.stream))
    out.push_back({of.recalls, static_cast<std::int64_t>(of.last) - 1});
  return out;
}

std::vector<EventId> DeviceMemory::recalled(std::int64_t lane) const {
  const device::CurrentDevice current(impl_->device);
  const auto [layer, p] = impl_->layers.lane(lane);
  return host_ids(impl_->read_lists(*layer, p).recalled);
}

LaneRecall DeviceMemory::recall_lists(std::int64_t lane) const {
  const device::CurrentDevice current(impl_->device);
  const auto [layer, p] = impl_->layers.lane(lane);
  const HostRecallLists lists = impl_->read_lists(*layer, p);
  return {host_ids(lists.similarity), host_ids(lists.contiguity)};
}

std::vector<float> DeviceMemory::representative(std::int64_t lane, EventId event) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const device::DeviceLayers::Lane of = m.layers.lane(lane);
  const std::int64_t scope = m.layers.scope_of(*of.layer, of.p);
  if (of.layer->place < 0 || event < 0 || event >= m.timeline.read_state(scope, m.stream).n_events)
    throw DataError(fmt::format("representative: lane {} has no event {}", lane, event));
  if (m.retention.is_forgotten(scope, event))
    throw DataError(fmt::format("representative: event {} was forgotten", event));
  return m.layers.read_representatives(of, event, event + 1, m.stream);
}

std::vector<float> DeviceMemory::relevance(std::int64_t l, std::int64_t first,
                                           std::int64_t n) const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  const device::DeviceLayer& layer = m.layers.at(l);
  const std::int64_t H = m.sizes.shape.n_heads, capacity = m.sizes.capacity,
                     oldest = std::max<std::int64_t>(0, m.step.tokens - m.sizes.window_tokens);
  if (n < 0 || first < oldest || first + n > m.step.tokens)
    throw DataError(fmt::format("relevance: tokens {} to {}; it is there for tokens {} to {}",
                                first, first + n, oldest, m.step.tokens));
  const std::vector<float> ring = device::read(layer.relevance, capacity * H, m.stream);
  std::vector<float> out;
  for (std::int64_t t = first; t < first + n; ++t) {
    const auto row = ring.begin() + t % capacity * H;
    out.insert(out.end(), row, row + H);
  }
  return out;
}

}  // namespace episodic
