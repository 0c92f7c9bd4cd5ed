// SPDX-License-Identifier: Apache-2.0
#include "device_tiers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "episodic/base/error.hpp"
#include "transfers.hpp"

namespace episodic::device {

using Rows = MemoryLayout::Rows;
namespace {

const char* const kLocksLess =
    "lower host_bytes and name a disk_dir, raise device_bytes, lower the number of tokens, or "
    "raise the limit of locked memory";

}  // namespace

// -- places ---------------------------------------------------------------------------------------

void DeviceTiers::lay_out_events(MemoryLayout& layout) {
  const std::int64_t P = sizes_.lanes.per_layer, n_lanes = sizes_.lanes.n_lanes;
  if (plan_.n_slots == 0) home_ = layout.by_token(n_lanes, sizes_.lane_bytes, sizes_.token_bytes);
  const std::int64_t tables = plan_.on_disk ? n_lanes : sizes_.recalling;
  all_slots_ = plan_.n_slots > 0
                   ? layout.take(size_product(tables * plan_.n_slots, plan_.slot_bytes))
                   : nullptr;
  slots_.clear();
  for (std::int64_t place = 0; has_host_tier() && place < sizes_.recalling; ++place) {
    LayerSlots& of = slots_.emplace_back();
    if (all_slots_) of.memory = all_slots_ + place * plan_.n_slots * plan_.slot_bytes;
    of.residency = {nullptr,
                    nullptr,
                    layout.take<DeviceEventId>(plan_.n_slots),
                    layout.take<std::int64_t>(1),
                    P * sizes_.max_events,
                    plan_.n_slots,
                    P};
    kernels::ResidencyMap& map = of.residency;
    map.slot_of_event =
        layout.by_event<std::remove_reference_t<decltype(*map.slot_of_event)>>(P, 1, Rows::change);
    map.last_recalled =
        layout.by_event<std::remove_reference_t<decltype(*map.last_recalled)>>(P, 1, Rows::change);
  }
  pins_ = has_host_tier() ? layout.by_event<std::uint8_t>(sizes_.scopes, 1, Rows::change) : nullptr;
}

void DeviceTiers::lay_out_tables(MemoryLayout& layout) {
  const std::int64_t n_lanes = sizes_.lanes.n_lanes, scales = sizes_.scales_of_event();
  blocks_ = layout.by_event<void*>(n_lanes, 1, Rows::change);
  if (scales > 0) event_scales_ = layout.by_event<float>(n_lanes, scales, Rows::are_final);
}

void DeviceTiers::lay_out_step(MemoryLayout& layout) {
  const std::int64_t n_lanes = sizes_.lanes.n_lanes, most = sizes_.max_closed;
  not_finite_ = layout.take<std::int32_t>(1);
  block_lanes_ = layout.take<kernels::EventBlockLayer>(n_lanes);
  step_blocks_ = layout.take<void*>(n_lanes * most);
  const std::int64_t tables = sizes_.by_head() ? n_lanes : 1;
  if (sizes_.by_head()) lane_scopes_ = layout.take<std::int32_t>(tables);
  closed_.start = layout.take<std::int64_t>(tables * most);
  closed_.end = layout.take<std::int64_t>(tables * most);
  closed_.first = layout.take<std::int64_t>(tables);
  closed_.count = layout.take<std::int32_t>(tables);
  if (!has_host_tier()) return;
  const std::int64_t listed = sizes_.lanes.per_layer * sizes_.room;
  exchange_.missing = layout.take<DeviceEventId>(listed);
  exchange_.victims = layout.take<DeviceEventId>(listed);
  exchange_.given_slots = layout.take<std::int32_t>(listed);
  exchange_.n_missing = layout.take<std::int32_t>(1);
  exchange_.n_victims = layout.take<std::int32_t>(1);
  exchange_.n_given = layout.take<std::int32_t>(1);
  exchange_.copies = layout.take<kernels::CopyRun>(listed);
}

void DeviceTiers::open_files(const DiskStoreOptions& options) {
  files_ = std::make_unique<LowerTiers>(
      sizes_.store_shape(), options,
      SlotArrays{all_slots_, blocks_, plan_.n_slots, plan_.slot_bytes, sizes_.max_events},
      LaneTables{sizes_.lanes.per_layer, sizes_.by_head()}, sizes_.room,
      sizes_.most_closed_tokens(), sizes_.max_closed);
  home_ = files_->staging();
}

void DeviceTiers::take_home(std::int64_t bytes, int device, std::int64_t granule) {
  host_.bytes = bytes;
  host_.granule = granule;
  host_.device = device;
  make_home();
  make_side_streams();
}

void DeviceTiers::make_home() {
  const std::int64_t bytes = host_.bytes, granule = host_.granule;
  auto fresh = std::make_shared<GrowingPinned>();
  if (granule > 0 && bytes >= 16 * granule)
    if (auto range = GrowingPinned::reserve(bytes, host_.device, granule))
      *fresh = std::move(*range);
  if (!fresh->grows())
    *fresh = GrowingPinned(bytes, "the tier of events in host memory", kLocksLess);
  host_.memory = std::move(fresh);
  host_.tokens = {};
  if (host_.memory->grows()) {
    for (std::int64_t lane = 0; lane < sizes_.lanes.n_lanes; ++lane)
      host_.tokens.arrays.push_back({lane * sizes_.lane_bytes, sizes_.token_bytes, 1});
    host_.tokens.most = sizes_.lane_bytes / sizes_.token_bytes;
  }
  home_ = host_.memory->data();
}

void DeviceTiers::go_on_at_home(const DeviceTiers& from, std::int64_t shared_rows,
                                std::int64_t rows) {
  const bool has_base = from.host_.base != nullptr;
  host_.base = has_base ? from.host_.base : from.host_.memory;
  host_.base_end = has_base ? from.host_.base_end : sizes_.config.n_init + shared_rows;
  const std::int64_t base_rows = host_.base_end - sizes_.config.n_init;
  host_.tokens.held = std::min(host_.tokens.most, base_rows);  // those before are locked there
  lock_home(rows);
  for (std::int64_t lane = 0; lane < sizes_.lanes.n_lanes && base_rows < rows; ++lane)
    std::memcpy(home_of(lane, host_.base_end),
                from.home_ + lane * sizes_.lane_bytes + base_rows * sizes_.token_bytes,
                static_cast<std::size_t>((rows - base_rows) * sizes_.token_bytes));
}

void DeviceTiers::leave_shared_home() {
  if (!shares_home()) return;
  if (host_.memory.use_count() > 1) make_home();
  host_.base.reset();
  host_.base_end = 0;
  host_.tokens.held = 0;  // what is locked is found again
  ++host_.number;
}

/// Of tokens behind n_init.
std::byte* DeviceTiers::home_of(std::int64_t lane, std::int64_t token) const {
  std::byte* const home = token < host_.base_end ? host_.base->data() : home_;
  return home + lane * sizes_.lane_bytes + (token - sizes_.config.n_init) * sizes_.token_bytes;
}

void DeviceTiers::lock_home(std::int64_t token_rows) {
  if (!host_.memory->grows()) return;
  const auto to = [&](std::int64_t lane_rows) -> std::span<const GrowingPinned::Part> {
    parts_.clear();
    for (const GrowingArrays::Array& a : host_.tokens.arrays)
      parts_.push_back({a.begin + host_.tokens.held * a.row,
                        a.begin + std::min(host_.tokens.most, lane_rows) * a.row});
    return parts_;
  };
  const std::int64_t needed =
      std::clamp<std::int64_t>(token_rows, host_.tokens.held, host_.tokens.most);
  if (!host_.memory->hold(to(needed)))
    throw BudgetError(fmt::format(
        "CUDA memory: no page-locked host memory for {} tokens of each of {} lanes: {} bytes are "
        "locked, and the system locks no more; make room there and begin the step again, or {}",
        needed, sizes_.lanes.n_lanes, host_.memory->held(), kLocksLess));
  host_.tokens.held = needed;
  const std::int64_t ahead = host_.tokens.rows_ahead(host_.memory->piece());
  if (!host_.memory->holds(to(needed + ahead / 2))) host_.memory->hold_ahead(to(needed + ahead));
}

template <class F>
void DeviceTiers::for_lanes(F&& f) const {
  for (const DeviceLayer& layer : layers_.all())
    for (std::int64_t p = 0; layer.place >= 0 && p < sizes_.lanes.per_layer; ++p) f(layer, p);
}

void DeviceTiers::upload(cudaStream_t stream) const {
  std::vector<kernels::EventBlockLayer> rings;
  std::vector<std::int32_t> scopes;
  for_lanes([&](const DeviceLayer& layer, std::int64_t p) {
    const std::int64_t ring = p * sizes_.lanes.n_kv_heads * sizes_.head_stride * sizes_.element;
    rings.push_back(
        {layer.ring_key + ring, layer.ring_value + ring, scales_of(layers_.first_lane(layer) + p)});
    scopes.push_back(static_cast<std::int32_t>(layers_.scope_of(layer, p)));
  });
  send(block_lanes_, rings, stream);
  if (lane_scopes_) send(lane_scopes_, scopes, stream);
  check(cudaStreamSynchronize(stream), "the memory's constants");
}

void DeviceTiers::clear(cudaStream_t stream) {
  fill(not_finite_, 0, 1, stream);
  static_assert(kernels::kNoSlot == -1 && kernels::kNoEvent == -1);  // 0xff in each byte
  for (const LayerSlots& of : slots_) {
    fill(of.residency.event_of_slot, 0xff, plan_.n_slots, stream);
    fill(of.residency.newest, 0xff, 1, stream);
  }
}

void DeviceTiers::prepare_events(std::int64_t first, std::int64_t end, cudaStream_t stream) const {
  if (first >= end) return;
  for (std::int64_t s = 0; pins_ && s < sizes_.scopes; ++s)
    fill(pins_ + s * sizes_.max_events + first, 0, end - first, stream);
  for (const LayerSlots& of : slots_)
    for (std::int64_t p = 0; p < sizes_.lanes.per_layer; ++p) {
      const std::int64_t at = p * sizes_.max_events + first;
      fill(of.residency.slot_of_event + at, 0xff, end - first, stream);
      fill(of.residency.last_recalled + at, 0xff, end - first, stream);
    }
}

// -- what a step's launches are told --------------------------------------------------------------

EventPlaces DeviceTiers::places_of(const DeviceLayer& layer) const {
  if (layer.place < 0) return {};
  const std::int64_t lane = layers_.first_lane(layer);
  return {blocks_ + lane * sizes_.max_events, scales_of(lane)};
}

kernels::PlaceEventsParams DeviceTiers::place_params() const {
  kernels::PlaceEventsParams p;
  p.state = timeline_.states();
  p.events = timeline_.events();
  p.max_events = sizes_.max_events;
  p.n_init = sizes_.config.n_init;
  p.n_lanes = sizes_.lanes.n_lanes;
  p.of_each = sizes_.by_head();
  p.maybe_timeline = lane_scopes_;
  p.home = reinterpret_cast<unsigned char*>(home_);
  // Above files, what the step closes goes to a staging area.
  p.staged = files_ != nullptr;
  p.lane_bytes = files_ ? files_->staging_lane_bytes() : sizes_.lane_bytes;
  p.token_bytes = sizes_.token_bytes;
  p.blocks = blocks_;
  p.max_count = sizes_.max_closed;
  p.start = closed_.start;
  p.end = closed_.end;
  p.count = closed_.count;
  p.first_id = closed_.first;
  p.step_blocks = step_blocks_;
  return p;
}

/// To host memory beside the stream, from the end of the step on. The stream must not overtake it
///   in each layer of the next step, which may recall those events: there it waits (await_homes);
///   in writing to the rings: a step closes tokens from its first one - n_local - max_block on, and
///     what this step and the next append, 2 chunk at most, overwrites only older ones in rings of
///     at least n_local + max_block + 2 chunk (ring_capacity). The step behind those might
///     overwrite them;
///   in writing the lists of closed events, at the next step's end. All layers have waited by then:
///     a step of several tokens recalls in each, if an event was closed before it.
kernels::EventBlockParams DeviceTiers::block_params(std::int64_t first, std::int64_t count) const {
  kernels::EventBlockParams p;
  p.dtype = sizes_.options.dtype;
  p.block_dtype = sizes_.event_dtype();
  p.n_kv_heads = sizes_.lanes.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.ring_capacity = sizes_.capacity;
  p.ring_head_stride = sizes_.head_stride;
  p.not_finite = not_finite_;
  const std::int64_t lane = first * sizes_.lanes.per_layer;
  p.layers = block_lanes_ + lane;
  p.n_layers = count * sizes_.lanes.per_layer;
  p.block = step_blocks_ + lane * sizes_.max_closed;
  p.events = closed().of(lane);
  return p;
}

// -- over files -----------------------------------------------------------------------------------

/// Of the tables that files know: the only one, or each lane's.
std::vector<std::int64_t> DeviceTiers::of_tables(std::span<const std::int64_t> of_scopes) const {
  if (!sizes_.by_head()) return {of_scopes.begin(), of_scopes.end()};
  std::vector<std::int64_t> of_lanes;
  for_lanes([&](const DeviceLayer& layer, std::int64_t p) {
    of_lanes.push_back(of_scopes[static_cast<std::size_t>(layers_.scope_of(layer, p))]);
  });
  return of_lanes;
}

void DeviceTiers::truncate(std::span<const std::int64_t> n_events) {
  files_->truncate(of_tables(n_events));
}

void DeviceTiers::drop_closed(const std::vector<DeviceTimeline::State>& now) {
  std::vector<std::int64_t> before;
  for (const DeviceTimeline::State& s : now) before.push_back(s.n_events - s.n_closed);
  truncate(before);
}

void DeviceTiers::keep_closed(const std::vector<DeviceTimeline::State>& now, cudaStream_t stream) {
  const auto closed_of = [&](std::int64_t scope) {
    const DeviceTimeline::State& s = now[static_cast<std::size_t>(scope)];
    return timeline_.read_ranges(scope, s.n_events - s.n_closed, s.n_events, stream);
  };
  // Scales beside the codes, which the device wrote there itself: reading the ranges waits for
  // both.
  const std::int64_t of_event = sizes_.scales_of_event();
  for_lanes([&](const DeviceLayer& layer, std::int64_t p) {
    const auto& s = now[static_cast<std::size_t>(layers_.scope_of(layer, p))];
    const std::int64_t lane = layers_.first_lane(layer) + p;
    if (of_event == 0 || s.n_closed == 0) return;
    check(cudaMemcpyAsync(files_->staged_scales(lane),
                          scales_of(lane) + (s.n_events - s.n_closed) * of_event,
                          static_cast<std::size_t>(s.n_closed * of_event) * sizeof(float),
                          cudaMemcpyDeviceToHost, stream),
          "a copy from the device");
  });
  if (!sizes_.by_head()) return files_->keep(closed_of(0));
  for_lanes([&](const DeviceLayer& layer, std::int64_t p) {
    files_->keep(layers_.first_lane(layer) + p, closed_of(layers_.scope_of(layer, p)));
  });
}

// -- edits and copies -----------------------------------------------------------------------------

void DeviceTiers::forget(std::int64_t scope, EventId event) {
  const DeviceLayers::ScopeLanes of_scope = layers_.lanes_of(scope);
  if (files_ && of_scope.count > 0) files_->forget(of_scope.first, event);
}

bool DeviceTiers::pin(std::int64_t scope, EventId event, bool to, cudaStream_t stream) {
  const DeviceLayers::ScopeLanes of_scope = layers_.lanes_of(scope);
  if (sizes_.by_head() && of_scope.count == 0) return false;
  const std::uint8_t mark = to ? 1 : 0;
  if (pins_) write(pins_ + scope * sizes_.max_events + event, &mark, 1, stream);
  if (files_) files_->pin(of_scope.first, event, to);
  return true;
}

void DeviceTiers::all_at_home(std::int64_t lane, const std::vector<TokenRange>& events,
                              cudaStream_t stream) const {
  if (plan_.on_disk) return;  // what is recalled is fetched and pointed to then
  std::vector<void*> pointers;
  for (const TokenRange& e : events) pointers.push_back(home_of(lane, e.start));
  write(blocks_ + lane * sizes_.max_events, pointers.data(),
        static_cast<std::int64_t>(pointers.size()), stream);
}

void DeviceTiers::write_home(std::int64_t lane, std::int64_t first, const std::byte* from,
                             std::int64_t bytes, cudaStream_t stream) const {
  if (files_) return;
  std::byte* const to = home_of(lane, first);
  if (plan_.n_slots > 0)
    std::memcpy(to, from, static_cast<std::size_t>(bytes));
  else
    write(to, from, bytes, stream);
}

std::vector<std::byte> DeviceTiers::read_home(std::int64_t lane, std::int64_t first,
                                              std::int64_t bytes, cudaStream_t stream) const {
  const std::byte* const from = home_of(lane, first);
  if (plan_.n_slots == 0) return read(from, bytes, stream);
  const std::int64_t of_base =
      std::clamp<std::int64_t>((host_.base_end - first) * sizes_.token_bytes, 0, bytes);
  std::vector<std::byte> all(from, from + (of_base > 0 ? of_base : bytes));
  if (of_base > 0 && of_base < bytes) {
    const std::byte* const own = home_of(lane, host_.base_end);
    all.insert(all.end(), own, own + (bytes - of_base));
  }
  return all;
}

kernels::ClosedEvents DeviceTiers::write_closed(const std::vector<std::int32_t>& counts,
                                                cudaStream_t stream) const {
  const std::vector<std::int64_t> none(counts.size(), 0);
  write(closed_.first, none.data(), static_cast<std::int64_t>(none.size()), stream);
  write(closed_.count, counts.data(), static_cast<std::int64_t>(counts.size()), stream);
  kernels::ClosedEvents all = closed();
  all.max_count = *std::max_element(counts.begin(), counts.end());
  return all;
}

void DeviceTiers::keep(std::int64_t scope, std::span<const kernels::EventRange> events) {
  if (sizes_.by_head())
    files_->keep(layers_.lanes_of(scope).first, events);
  else
    files_->keep(events);
}

}  // namespace episodic::device
