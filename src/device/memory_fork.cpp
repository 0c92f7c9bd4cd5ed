// SPDX-License-Identifier: Apache-2.0
// Forks of a DeviceMemory. Its arrays have the same places in a fork, in addresses of its own. Of
// what is kept of closed events most is final: behind those places lies the same memory
// (GrowingBuffer::share). What the pieces of memory at the arrays' ends hold is copied, and so is
// all that steps change. Events at home in page-locked memory stay in the first memory's home,
// which lives as long as one of its forks (DeviceTiers::go_on_at_home).
#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"
#include "transfers.hpp"

namespace episodic {

using device::GrowingArrays;
using device::GrowingBuffer;
using kernels::TimelineState;

/// The same sizes and places as another memory has, and what device memory they take.
/// \throws BudgetError
void DeviceMemory::Impl::take_as(const Impl& from) {
  sizes = from.sizes;
  given = from.given;
  device = from.device;
  stream = from.stream;
  is_out_of_room = from.is_out_of_room;
  bytes = from.bytes;
  workspace.bytes = from.workspace.bytes;
  growth.granule = from.growth.granule;
  growth.fixed_bytes = from.growth.fixed_bytes;
  growth.range_bytes = from.growth.range_bytes;
  layers.list();
  tiers.set_plan(from.tiers.plan());
  if (from.memory.grows()) {
    auto range = GrowingBuffer::reserve(growth.range_bytes, device, growth.granule);
    if (!range)
      throw BudgetError(
          "fork: the device has no addresses left for another memory of this length; end one, or "
          "lower max_tokens");
    memory = std::move(*range);
  }
  place_arrays();
}

/// Final rows of closed events: shared as far as that goes, else copied.
void DeviceMemory::Impl::share_events(Impl& from, const std::vector<TimelineState>& now) {
  struct Rows {
    std::int64_t of_all = device::kMostSize;  // that every scope has
    std::int64_t most = 0;
    void add(std::int64_t count) {
      of_all = std::min(of_all, count);
      most = std::max(most, count);
    }
  } token_rows, event_rows;
  for (const TimelineState& of_scope : now) {
    token_rows.add(std::max<std::int64_t>(0, of_scope.pending_start - sizes.config.n_init));
    event_rows.add(of_scope.n_events);
  }
  const std::pair<const GrowingArrays*, const Rows*> all[] = {{&growth.of_tokens, &token_rows},
                                                              {&growth.of_events, &event_rows}};
  std::vector<GrowingBuffer::Part> final_parts, shared;
  for (const auto& [of, rows] : all)
    for (const GrowingArrays::Array& a : of->arrays)
      if (a.final_by > 0)
        final_parts.push_back(
            {growth.fixed_bytes + a.begin,
             growth.fixed_bytes + a.begin + rows->of_all / a.final_by * a.final_by * a.row});
  shared = memory.share(from.memory, std::move(final_parts));
  if (tiers.has_host_tier()) {
    tiers.go_on_at_home(from.tiers, token_rows.of_all, token_rows.most);
    bytes.host_taken = tiers.home_held();
  }
  if (memory.grows()) make_room_for(token_rows.most, event_rows.most);
  for (const auto& [of, rows] : all)
    for (const GrowingArrays::Array& a : of->arrays) {
      if (a.final_by == 0) continue;
      const std::int64_t begin = growth.fixed_bytes + a.begin, end = begin + rows->most * a.row;
      // A run may begin in the array before, where that is full.
      auto next = std::partition_point(shared.begin(), shared.end(),
                                       [&](const auto& run) { return run.end <= begin; });
      for (std::int64_t at = begin; at < end;) {
        const bool is_left = next != shared.end() && next->begin < end;
        const std::int64_t until = is_left ? std::max(at, next->begin) : end;
        device::move(memory.data() + at, from.memory.data() + at, until - at, stream);
        at = is_left ? next->end : end;
        if (is_left) ++next;
      }
    }
}

/// All else that the sequence is made of.
void DeviceMemory::Impl::go_on_as(Impl& from) {
  const std::vector<TimelineState> now = from.timeline.read_states(stream);
  share_events(from, now);
  std::vector<std::int64_t> n_events;
  for (const TimelineState& of_scope : now) n_events.push_back(of_scope.n_events);
  timeline.copy(from.timeline, stream);
  layers.copy(from.layers, stream);
  retention.copy(from.retention, n_events, stream);
  for (std::int64_t s = 0; s < sizes.scopes && sizes.recalling > 0; ++s) {
    const device::DeviceLayers::ScopeLanes of_scope = layers.lanes_of(s);
    if (of_scope.count == 0) continue;
    const auto events = timeline.read_events(s, 0, n_events[static_cast<std::size_t>(s)], stream);
    for (std::int64_t lane = 0; lane < of_scope.count; ++lane)
      tiers.all_at_home(of_scope.first + lane, events, stream);
  }
  step.tokens = from.step.tokens;
  step.n_steps = from.step.n_steps;
  step.steps_since_recall = from.step.steps_since_recall;
  step.far_in_last_step = from.step.far_in_last_step;
  step.last_first = from.step.last_first;
  step.last_n = from.step.last_n;
  accept_report(now);
}

/// Before closed events are written anew: what forks have too stays as it is, in their memory.
void DeviceMemory::Impl::leave_shared() {
  if (!memory.has_shared() && !tiers.shares_home()) return;
  tiers.join(stream);
  device::check(cudaStreamSynchronize(stream), "the memory's kernels");
  tiers.leave_shared_home();
  bytes.host_taken = tiers.home_held();
  if (!memory.grows()) return;
  memory.drop_shared();
  bytes.taken = memory.held();
  growth.of_tokens.held = growth.of_events.held = 0;  // what is left is found again
}

std::int64_t DeviceMemory::fork_bytes(std::int64_t tokens) const {
  const Impl& m = *impl_;
  if (!m.memory.grows()) return m.growth.range_bytes;
  const auto rows = [](const GrowingArrays& of, std::int64_t count) {
    std::int64_t bytes = 0;
    for (const GrowingArrays::Array& a : of.arrays) bytes += std::min(of.most, count) * a.row;
    return bytes;
  };
  return std::min(m.growth.range_bytes,
                  m.growth.fixed_bytes + rows(m.growth.of_tokens, tokens) +
                      rows(m.growth.of_events, tokens / m.sizes.config.min_block + 1));
}

DeviceMemory DeviceMemory::fork() {
  Impl& from = *impl_;
  const device::CurrentDevice current(from.device);
  if (from.step.open) throw DataError("fork: a step is open; call end_step first");
  if (from.tiers.files())
    throw ConfigError(
        "fork: this memory's events are at home in files, which belong to one memory; raise "
        "device_bytes or host_bytes, so that memory holds them, or go back with snapshot and "
        "restore");
  from.tiers.join(from.stream);  // what was closed last may be on its way home
  check();
  from.apply_retention();
  auto impl = std::make_unique<Impl>();
  impl->take_as(from);
  impl->open();
  impl->go_on_as(from);
  ++from.snapshots.forks;
  from.snapshots.kept_rows.forget_marks();
  return DeviceMemory(std::move(impl));
}

}  // namespace episodic
