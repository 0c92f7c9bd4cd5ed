// SPDX-License-Identifier: Apache-2.0
// How a DeviceMemory's device memory grows with its sequence. Addresses for the longest one are
// there from the start, so that kernels' parameters and captured graphs stay what they are; memory
// is mapped behind those that the next step may write.
//
// The host knows the tokens before a step and so, exactly, how many may be in closed events behind
// it. Of events it knows a bound: those that the device last told of, and as many as the tokens
// since then can be cut into; of heads with events of their own the largest of their bounds, to
// which the arrays of all of them grow. The device is asked, by a copy that nobody waits for, when
// the bound comes near what is there; were it not, short events would be reckoned with and memory
// taken that a sequence of longer ones never fills.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "episodic/base/error.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::GrowingArrays;
using device::GrowingBuffer;
using kernels::TimelineState;

namespace {

const char* const kTakesLess = "lower the number of tokens, n_local, tau or chunk";

}  // namespace

/// Plans, and takes the memory or the addresses for it: without room for snapshots, if the device
/// has none for that.
void DeviceMemory::Impl::take_memory() {
  const DeviceMemoryOptions asked = sizes.options;
  growth.granule = GrowingBuffer::granule_of(device);
  plan();
  try {
    take_planned(asked);
  } catch (const BudgetError&) {
    if (sizes.spare == 0) throw;
    is_out_of_room = true;
    memory = GrowingBuffer();
    plan_again(asked);
    take_planned(asked);
  }
}

void DeviceMemory::Impl::plan_again(const DeviceMemoryOptions& asked) {
  sizes.options = asked;
  drop_tiers();
  bytes = {};
  plan();
}

/// \throws BudgetError
void DeviceMemory::Impl::take_planned(const DeviceMemoryOptions& asked) {
  if (grows()) {
    if (auto range = GrowingBuffer::reserve(growth.range_bytes, device, growth.granule)) {
      memory = std::move(*range);
    } else {
      growth.granule = 0;  // all at once, which other sizes may be planned for
      plan_again(asked);
    }
  }
  place_arrays();
}

/// In the addresses that are there, or else in all the memory at once. \throws BudgetError
void DeviceMemory::Impl::place_arrays() {
  if (!memory.grows()) memory = GrowingBuffer(growth.range_bytes, "the memory", kTakesLess);
  // Places are those of the most events there may be.
  device::MemoryLayout layout(device::Layout(memory.data()),
                              device::Layout(memory.data() + growth.fixed_bytes), sizes.max_events);
  const DeviceMemoryBytes planned = bytes;
  lay_out(layout);
  bytes = planned;
  growth.of_events.most = sizes.max_events;
  growth.of_tokens.most =
      growth.of_tokens.arrays.empty() ? 0 : sizes.lane_bytes / sizes.token_bytes;
  growth.of_events.held = memory.grows() ? 0 : growth.of_events.most;
  growth.of_tokens.held = memory.grows() ? 0 : growth.of_tokens.most;
  if (!memory.grows()) return;
  const GrowingBuffer::Part first{0, growth.fixed_bytes};
  if (!memory.hold({&first, 1}, sizes.config.device_bytes)) {
    std::size_t free = 0, total = 0;
    device::check(cudaMemGetInfo(&free, &total), "asking for free device memory");
    throw BudgetError(
        fmt::format("CUDA: the memory needs {} bytes of device memory before its first token, {} "
                    "of {} are free; {}, or device_bytes",
                    bytes.taken, free, total, kTakesLess));
  }
  growth.report =
      device::PinnedBuffer(sizes.scopes * static_cast<std::int64_t>(sizeof(TimelineState)),
                           "the place for what is closed", "raise the limit of locked memory");
  growth.reported = device::Event::create();
  bytes.taken = memory.held();
}

void DeviceMemory::Impl::lock_home(std::int64_t token_rows) {
  if (!tiers.has_host_tier()) return;
  try {
    tiers.lock_home(token_rows);
  } catch (...) {
    bytes.host_taken = tiers.home_held();
    throw;
  }
  bytes.host_taken = tiers.home_held();
}

/// What is known of a sequence that came from elsewhere, whatever the device was asked.
void DeviceMemory::Impl::accept_report(std::span<const TimelineState> now) {
  growth.last_told.assign(now.begin(), now.end());
  growth.is_asked = false;
}

/// Most events that tokens before `until` may be cut into in any scope: none is shorter than
/// min_block.
std::int64_t DeviceMemory::Impl::most_events(std::int64_t until) const {
  std::int64_t most = 0;
  for (const TimelineState& told : growth.last_told) {
    const std::int64_t since = std::max<std::int64_t>(0, until - told.pending_start);
    most = std::max(most, told.n_events + since / sizes.config.min_block);
  }
  return std::min(growth.of_events.most, most);
}

/// Takes over what the device has said.
void DeviceMemory::Impl::read_report() {
  accept_report({growth.report.as<TimelineState>(), static_cast<std::size_t>(sizes.scopes)});
}

/// What is read of events before it is written.
void DeviceMemory::Impl::prepare_events(std::int64_t first, std::int64_t end) {
  retention.prepare_events(first, end, stream);
  tiers.prepare_events(first, end, stream);
}

/// \return false where there is no room for so many rows: all is as it was, but that some memory
/// may have been taken already
bool DeviceMemory::Impl::hold_rows(std::int64_t token_rows, std::int64_t event_rows) {
  std::vector<GrowingBuffer::Part> parts;
  const std::pair<GrowingArrays*, std::int64_t> all[] = {{&growth.of_tokens, token_rows},
                                                         {&growth.of_events, event_rows}};
  for (const auto& [of, count] : all)
    for (const GrowingArrays::Array& a : of->arrays)
      if (count > of->held)
        parts.push_back({growth.fixed_bytes + a.begin + of->held * a.row,
                         growth.fixed_bytes + a.begin + count * a.row});
  const bool has_room = memory.hold(parts, sizes.config.device_bytes);
  bytes.taken = memory.held();
  if (!has_room) return false;
  prepare_events(growth.of_events.held, event_rows);
  growth.of_tokens.held = std::max(growth.of_tokens.held, token_rows);
  growth.of_events.held = std::max(growth.of_events.held, event_rows);
  return true;
}

/// \throws BudgetError where neither more than that nor as much can be had
void DeviceMemory::Impl::make_room_for(std::int64_t token_rows, std::int64_t event_rows) {
  if (!memory.grows()) return;
  lock_home(token_rows);
  token_rows = std::clamp<std::int64_t>(token_rows, 0, growth.of_tokens.most);
  const bool more_tokens = token_rows > growth.of_tokens.held,
             more_events = event_rows > growth.of_events.held;
  if (!more_tokens && !more_events) return;
  const auto ahead = [&](const GrowingArrays& of, std::int64_t needed, bool more) {
    return more ? std::min(of.most, std::max(needed, of.held + of.rows_ahead(memory.granule())))
                : of.held;
  };
  if (hold_rows(ahead(growth.of_tokens, token_rows, more_tokens),
                ahead(growth.of_events, event_rows, more_events)) ||
      hold_rows(std::max(token_rows, growth.of_tokens.held),
                std::max(event_rows, growth.of_events.held)))
    return;
  std::size_t free = 0, total = 0;
  device::check(cudaMemGetInfo(&free, &total), "asking for free device memory");
  throw BudgetError(fmt::format(
      "CUDA memory: no device memory for {} tokens in up to {} events: {} bytes are taken, "
      "device_bytes = {}, {} of {} are free on the device; make room there and begin the step "
      "again, or go on in a memory with larger device_bytes",
      token_rows, event_rows, memory.held(), sizes.config.device_bytes, free, total));
}

/// Room for what a step of `next` tokens may close, before anything of it is enqueued.
void DeviceMemory::Impl::make_room(std::int64_t next) {
  if (!memory.grows()) return;
  const std::int64_t end = step.tokens + next - sizes.config.n_local;  // what is closed ends there
  const auto bound = [&] { return most_events(end); };
  if (bound() > growth.of_events.held && growth.is_asked && growth.reported.passed()) read_report();
  try {
    make_room_for(end - sizes.config.n_init, bound());
  } catch (const BudgetError&) {
    // Where the bound is too much, what there is may be less.
    const std::int64_t too_many = bound();
    accept_report(timeline.read_states(stream));
    if (bound() == too_many) throw;
    make_room_for(end - sizes.config.n_init, bound());
  }
  // It may have the answer by the time that a step of as many tokens needs more.
  if (growth.is_asked || most_events(end + next) <= growth.of_events.held) return;
  device::check(cudaMemcpyAsync(growth.report.as<void>(), timeline.states(),
                                static_cast<std::size_t>(sizes.scopes) * sizeof(TimelineState),
                                cudaMemcpyDeviceToHost, stream),
                "a copy from the device");
  growth.reported.record(stream);
  growth.is_asked = true;
}

}  // namespace episodic
