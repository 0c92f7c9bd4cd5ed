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

using device::Layout;
using device::GrowingArrays;
using device::GrowingBuffer;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

namespace {

const char* const kTakesLess = "lower the number of tokens, n_local, tau or chunk";
const char* const kLocksLess =
    "lower host_bytes and name a disk_dir, raise device_bytes, lower the number of tokens, or "
    "raise the limit of locked memory";

/// Rows that are taken beyond those needed: a sixteenth of what is there, so that most steps take
/// none, a granule of the widest array at least, 16 at most.
std::int64_t rows_ahead(const GrowingArrays& of, std::int64_t granule) {
  std::int64_t row = 1;
  for (const GrowingArrays::Array& a : of.arrays) row = std::max(row, a.row);
  return std::clamp(of.held * row / 16, granule, 16 * granule) / row;
}

}  // namespace

/// Plans, and takes the memory or the addresses for it: without room for snapshots, if the device
/// has none for that.
void DeviceMemory::Impl::take_memory() {
  const DeviceMemoryOptions asked = options;
  granule = GrowingBuffer::granule_of(device);
  plan();
  try {
    take_planned(asked);
  } catch (const BudgetError&) {
    if (spare == 0) throw;
    is_out_of_room = true;
    memory = GrowingBuffer();
    plan_again(asked);
    take_planned(asked);
  }
}

void DeviceMemory::Impl::plan_again(const DeviceMemoryOptions& asked) {
  options = asked;
  drop_tiers();
  bytes = {};
  plan();
}

/// \throws BudgetError
void DeviceMemory::Impl::take_planned(const DeviceMemoryOptions& asked) {
  if (grows()) {
    if (auto range = GrowingBuffer::reserve(range_bytes, device, granule)) {
      memory = std::move(*range);
    } else {
      granule = 0;  // all at once, which other sizes may be planned for
      plan_again(asked);
    }
  }
  if (!memory.grows()) memory = GrowingBuffer(range_bytes, "the memory", kTakesLess);
  Layout fixed(memory.data()), growing(memory.data() + fixed_bytes);
  const DeviceMemoryBytes planned = bytes;  // places are those of the most events there may be
  lay_out(fixed, growing, max_events);
  bytes = planned;
  of_events.most = max_events;
  of_tokens.most = of_tokens.arrays.empty() ? 0 : lane_bytes / token_bytes;
  of_events.held = memory.grows() ? 0 : of_events.most;
  of_tokens.held = memory.grows() ? 0 : of_tokens.most;
  if (!memory.grows()) return;
  const GrowingBuffer::Part first{0, fixed_bytes};
  if (!memory.hold({&first, 1}, config.device_bytes)) {
    std::size_t free = 0, total = 0;
    device::check(cudaMemGetInfo(&free, &total), "asking for free device memory");
    throw BudgetError(
        fmt::format("CUDA: the memory needs {} bytes of device memory before its first token, {} "
                    "of {} are free; {}, or device_bytes",
                    bytes.taken, free, total, kTakesLess));
  }
  report = device::PinnedBuffer(scopes * static_cast<std::int64_t>(sizeof(TimelineState)),
                                "the place for what is closed", "raise the limit of locked memory");
  reported = device::Event::create();
  bytes.taken = memory.held();
}

/// The host tier: all of it, or addresses, where device memory grows too.
void DeviceMemory::Impl::take_home() {
  of_home = {};
  if (memory.grows() && bytes.host >= 16 * memory.granule())
    if (auto range = device::GrowingPinned::reserve(bytes.host, device, memory.granule()))
      host_home = std::move(*range);
  if (host_home.grows()) {
    for (std::int64_t lane = 0; lane < lanes.n_lanes; ++lane)
      of_home.arrays.push_back({lane * lane_bytes, token_bytes});
    of_home.most = lane_bytes / token_bytes;
  } else {
    host_home = device::GrowingPinned(bytes.host, "the tier of events in host memory", kLocksLess);
  }
  home = host_home.data();
  bytes.host_taken = host_home.held();
}

/// Room at home for so many tokens of each lane, and the next ones' on a thread, while the steps
/// before them compute. \throws BudgetError
void DeviceMemory::Impl::lock_home(std::int64_t token_rows) {
  if (!host_home.grows()) return;
  const auto to = [&](std::int64_t lane_rows) -> std::span<const device::GrowingPinned::Part> {
    auto& parts = device::emptied(launched.of_home);
    for (const GrowingArrays::Array& a : of_home.arrays)
      parts.push_back(
          {a.begin + of_home.held * a.row, a.begin + std::min(of_home.most, lane_rows) * a.row});
    return parts;
  };
  const std::int64_t needed = std::clamp<std::int64_t>(token_rows, of_home.held, of_home.most);
  const bool has_room = host_home.hold(to(needed));
  bytes.host_taken = host_home.held();
  if (!has_room)
    throw BudgetError(fmt::format(
        "CUDA memory: no page-locked host memory for {} tokens of each of {} lanes: {} bytes are "
        "locked, and the system locks no more; make room there and begin the step again, or {}",
        needed, lanes.n_lanes, bytes.host_taken, kLocksLess));
  of_home.held = needed;
  const std::int64_t ahead = rows_ahead(of_home, host_home.piece());
  if (!host_home.holds(to(needed + ahead / 2))) host_home.hold_ahead(to(needed + ahead));
}

/// What is known of a sequence that came from elsewhere, whatever the device was asked.
void DeviceMemory::Impl::accept_report(std::span<const TimelineState> now) {
  last_told.assign(now.begin(), now.end());
  is_asked = false;
}

/// Most events that tokens before `until` may be cut into in any scope: none is shorter than
/// min_block.
std::int64_t DeviceMemory::Impl::most_events(std::int64_t until) const {
  std::int64_t most = 0;
  for (const TimelineState& told : last_told) {
    const std::int64_t since = std::max<std::int64_t>(0, until - told.pending_start);
    most = std::max(most, told.n_events + since / config.min_block);
  }
  return std::min(of_events.most, most);
}

/// Takes over what the device has said.
void DeviceMemory::Impl::read_report() {
  accept_report({report.as<TimelineState>(), static_cast<std::size_t>(scopes)});
}

/// What is read of events before it is written: none is forgotten or pinned, was recalled, has
/// received attention or lies in a slot.
void DeviceMemory::Impl::prepare_events(std::int64_t first, std::int64_t end) {
  if (first >= end) return;
  const auto fill = [&](auto* array, int byte) {
    if (array)
      device::check(cudaMemsetAsync(array + first, byte,
                                    static_cast<std::size_t>(end - first) * sizeof(*array), stream),
                    "clearing");
  };
  for (std::int64_t s = 0; s < scopes; ++s) {
    fill(marks + s * max_events, 0);
    fill(recall_counts + s * max_events, 0);
    if (pins) fill(pins + s * max_events, 0);
  }
  fill(received, 0);
  for (const Layer& layer : layers)
    for (std::int64_t p = 0; layer.place >= 0 && has_host_tier() && p < lanes.per_layer; ++p) {
      fill(layer.residency.slot_of_event + p * max_events, 0xff);  // -1 in each
      fill(layer.residency.last_recalled + p * max_events, 0xff);
    }
}

/// \return false where there is no room for so many rows: all is as it was, but that some memory
/// may have been taken already
bool DeviceMemory::Impl::hold_rows(std::int64_t token_rows, std::int64_t event_rows) {
  std::vector<GrowingBuffer::Part> parts;
  const std::pair<GrowingArrays*, std::int64_t> all[] = {{&of_tokens, token_rows},
                                                         {&of_events, event_rows}};
  for (const auto& [of, count] : all)
    for (const GrowingArrays::Array& a : of->arrays)
      if (count > of->held)
        parts.push_back(
            {fixed_bytes + a.begin + of->held * a.row, fixed_bytes + a.begin + count * a.row});
  const bool has_room = memory.hold(parts, config.device_bytes);
  bytes.taken = memory.held();
  if (!has_room) return false;
  prepare_events(of_events.held, event_rows);
  of_tokens.held = std::max(of_tokens.held, token_rows);
  of_events.held = std::max(of_events.held, event_rows);
  return true;
}

/// \throws BudgetError where neither more than that nor as much can be had
void DeviceMemory::Impl::make_room_for(std::int64_t token_rows, std::int64_t event_rows) {
  if (!memory.grows()) return;
  lock_home(token_rows);
  token_rows = std::clamp<std::int64_t>(token_rows, 0, of_tokens.most);
  const bool more_tokens = token_rows > of_tokens.held, more_events = event_rows > of_events.held;
  if (!more_tokens && !more_events) return;
  const auto ahead = [&](const GrowingArrays& of, std::int64_t needed, bool more) {
    return more ? std::min(of.most, std::max(needed, of.held + rows_ahead(of, memory.granule())))
                : of.held;
  };
  if (hold_rows(ahead(of_tokens, token_rows, more_tokens),
                ahead(of_events, event_rows, more_events)) ||
      hold_rows(std::max(token_rows, of_tokens.held), std::max(event_rows, of_events.held)))
    return;
  std::size_t free = 0, total = 0;
  device::check(cudaMemGetInfo(&free, &total), "asking for free device memory");
  throw BudgetError(fmt::format(
      "CUDA memory: no device memory for {} tokens in up to {} events: {} bytes are taken, "
      "device_bytes = {}, {} of {} are free on the device; make room there and begin the step "
      "again, or go on in a memory with larger device_bytes",
      token_rows, event_rows, memory.held(), config.device_bytes, free, total));
}

/// Room for what a step of `next` tokens may close, before anything of it is enqueued.
void DeviceMemory::Impl::make_room(std::int64_t next) {
  if (!memory.grows()) return;
  const std::int64_t end = tokens + next - config.n_local;  // what is closed ends there
  const auto bound = [&] { return most_events(end); };
  if (bound() > of_events.held && is_asked && reported.passed()) read_report();
  try {
    make_room_for(end - config.n_init, bound());
  } catch (const BudgetError&) {
    // Where the bound is too much, what there is may be less.
    const std::int64_t too_many = bound();
    accept_report(read_timelines());
    if (bound() == too_many) throw;
    make_room_for(end - config.n_init, bound());
  }
  // It may have the answer by the time that a step of as many tokens needs more.
  if (is_asked || most_events(end + next) <= of_events.held) return;
  device::check(cudaMemcpyAsync(report.as<void>(), state,
                                static_cast<std::size_t>(scopes) * sizeof(TimelineState),
                                cudaMemcpyDeviceToHost, stream),
                "a copy from the device");
  reported.record(stream);
  is_asked = true;
}

}  // namespace episodic
