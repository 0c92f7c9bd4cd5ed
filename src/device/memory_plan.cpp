// SPDX-License-Identifier: Apache-2.0
// The sizes of a DeviceMemory, and where each array lies.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::MemoryLayout;
using device::size_product;
using device::SlotPlan;

namespace {

/// That a device's table of slots numbers.
constexpr std::int64_t kMostEvents = std::numeric_limits<std::int32_t>::max() - 1024;

}  // namespace

/// Sizes of everything; then one pass over the arrays, which counts them.
void DeviceMemory::Impl::plan() {
  sizes.check_settings();
  sizes.count(!is_out_of_room);
  layers.list();
  if (sizes.recalling > 0) {
    sizes.room = sizes.takes_top() ? std::min(sizes.max_events, sizes.most_of_top())
                                   : kernels::recall_room(layers.recall_params(workspace));
    if (sizes.room == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: n_mem = {} of events of at least min_block = {} tokens are too many for a "
          "device's selection, or max_tokens = {} for its event numbers; raise min_block",
          sizes.config.n_mem, sizes.config.min_block, sizes.options.max_tokens));
  }
  plan_workspace();
  count();
  plan_tiers();
  if (growth.fixed_bytes >= device::kMostSize || growth.range_bytes >= device::kMostSize)
    throw BudgetError(fmt::format(
        "memory configuration: {} tokens need more than 2^60 bytes of device memory; lower the "
        "number of tokens, n_local, max_block or chunk",
        sizes.options.max_tokens));
}

void DeviceMemory::Impl::plan_workspace() {
  const MemoryConfig& config = sizes.config;
  const MemoryShape& shape = sizes.shape;
  workspace.bytes = 0;
  const auto needs = [&](std::size_t size) {
    workspace.bytes = std::max(workspace.bytes, static_cast<std::int64_t>(size));
  };
  const Layer& layer = layers.at(0);
  const kernels::AttentionParams attention =
      layers.attention_params(layer, config.chunk, workspace);
  const std::size_t of_attention = kernels::largest_attention_workspace_bytes(attention);
  if (of_attention == 0)
    throw ConfigError(
        fmt::format("CUDA memory: no attention kernel for head_dim = {}, {} heads, {} kv heads",
                    shape.head_dim, shape.n_heads, shape.n_kv_heads));
  needs(of_attention);
  needs(kernels::mean_query_workspace_bytes(
      layers.mean_query_params(layer, config.chunk, workspace)));
  if (config.refine != Refinement::none) {
    const std::size_t refine =
        kernels::refine_workspace_bytes(timeline.refine_params(config.chunk, workspace));
    if (refine == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: chunk = {} is too long for refinement on a device", config.chunk));
    needs(refine);
  }
  if (config.retention) {
    kernels::EventMassParams masses;
    masses.attention = attention;
    needs(kernels::event_mass_workspace_bytes(masses));
  }
  if (sizes.recalling > 0 && !sizes.takes_top())
    needs(kernels::recall_workspace_bytes(layers.recall_params(workspace)));
  if (timeline.by_keys()) {
    const std::size_t segment = kernels::key_segmenter_workspace_bytes(
        timeline.key_segmenter_params(config.chunk, workspace));
    if (segment == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: segmenter = {} over {} layers of {} heads is too much for a device's "
          "kernel in chunks of {} tokens; lower chunk",
          name_of(config.segmenter), shape.n_layers, shape.n_kv_heads, config.chunk));
    needs(segment);
  }
  // A window that is handed over comes in steps, keys and values.
  needs(static_cast<std::size_t>(2 * config.chunk * shape.n_kv_heads * shape.head_dim *
                                 sizes.element));
}

/// Events that budgets are divided for: all that may come, or those of the length that is expected,
/// with what a step may close beyond them.
std::int64_t DeviceMemory::Impl::planned_events() const {
  if (!grows() || sizes.options.event_tokens == 0) return sizes.max_events;
  const std::int64_t closable =
      std::max<std::int64_t>(0, sizes.options.max_tokens - sizes.config.n_init);
  return std::min(sizes.max_events, closable / sizes.options.event_tokens + sizes.max_closed);
}

/// Counts the arrays for so many events, and what of them is for snapshots.
/// \return bytes of those that are there from the start, and of those that grow
std::pair<std::int64_t, std::int64_t> DeviceMemory::Impl::measure(std::int64_t events_room) {
  const std::int64_t planned_spare = sizes.spare;
  bytes.snapshots = 0;
  sizes.set_spare(0);
  MemoryLayout without({}, {}, events_room);
  lay_out(without);
  const DeviceMemoryBytes needed = bytes;
  sizes.set_spare(planned_spare);
  MemoryLayout layout({}, {}, events_room);
  lay_out(layout);
  const std::int64_t all = bytes.total();
  bytes = needed;
  bytes.snapshots = all - needed.total();
  return {layout.fixed_bytes(), layout.growing_bytes()};
}

void DeviceMemory::Impl::count() {
  const auto [fixed, growing] = measure(sizes.max_events);
  growth.fixed_bytes = fixed;
  growth.range_bytes = growth.fixed_bytes + growing;
  bytes.taken = bytes.total();
  if (!grows()) return;
  // Memory comes in granules, and those of the whole sequence must be within device_bytes.
  const std::int64_t planned = planned_events(),
                     whole = (planned < sizes.max_events
                                  ? granules_of(planned)
                                  : (growth.range_bytes + growth.granule - 1) / growth.granule) *
                             growth.granule;
  if (planned < sizes.max_events) measure(planned);
  bytes.workspace += std::max<std::int64_t>(0, whole - bytes.total());
  bytes.taken = (growth.fixed_bytes + growth.granule - 1) / growth.granule * growth.granule;
}

/// Those behind what is there from the start, all tokens and so many events. Arrays have their
/// places.
std::int64_t DeviceMemory::Impl::granules_of(std::int64_t event_rows) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts = {{0, growth.fixed_bytes}};
  for (const auto* of : {&growth.of_tokens, &growth.of_events})
    for (const device::GrowingArrays::Array& a : of->arrays)
      parts.emplace_back(
          growth.fixed_bytes + a.begin,
          growth.fixed_bytes + a.begin +
              (of == &growth.of_events ? size_product(event_rows, a.row) : sizes.lane_bytes));
  std::sort(parts.begin(), parts.end());
  std::int64_t granules = 0, next = 0;  // the first that is not counted
  for (const auto& [begin, end] : parts) {
    const std::int64_t first = std::max(next, begin / growth.granule),
                       last = (end + growth.granule - 1) / growth.granule;
    if (last <= first) continue;
    granules += last - first;
    next = last;
  }
  return granules;
}

/// Where events are at home: in device memory if all of it fits device_bytes, else in host memory,
/// with as many slots on the device as the bound leaves room for.
void DeviceMemory::Impl::plan_tiers() {
  if (sizes.config.device_bytes == 0 || bytes.total() <= sizes.config.device_bytes) return;
  if (const std::int64_t planned = sizes.spare; planned > 0) {
    // All events on the device save more than room for snapshots does.
    sizes.set_spare(0);
    count();
    if (bytes.total() <= sizes.config.device_bytes) return;
    sizes.set_spare(planned);
    count();
  }
  const std::int64_t all = bytes.total(),
                     on_host = size_product(sizes.lanes.n_lanes, sizes.lane_bytes);
  SlotPlan slots;
  slots.slot_bytes = sizes.config.max_block * sizes.token_bytes;
  slots.on_disk = sizes.recalling > 0 && !sizes.config.disk_dir.empty() &&
                  (sizes.config.host_bytes == 0 || on_host > sizes.config.host_bytes);
  // The device reads page-locked memory itself, but no file: there all of a recall needs slots.
  const std::int64_t least_slots = slots.on_disk ? sizes.room : 1;
  const auto with_slots = [&](std::int64_t n_slots) {
    slots.n_slots = n_slots;
    tiers.set_plan(slots);
    count();
    return bytes.total();
  };
  const std::int64_t least = sizes.recalling > 0 ? with_slots(least_slots) : all;
  // Room for snapshots and codes save time and change no result: where room is short they go.
  if (least > sizes.config.device_bytes && sizes.spare > 0) {
    drop_tiers();
    sizes.set_spare(0);
    count();
    return plan_tiers();
  }
  if (least > sizes.config.device_bytes && sizes.keeps_codes()) {
    sizes.options.codes_from = 0;
    drop_tiers();
    plan_workspace();
    count();
    return plan_tiers();
  }
  if (least > sizes.config.device_bytes)
    throw BudgetError(
        fmt::format("memory configuration: device_bytes = {}, but {} tokens need {} ({} if events "
                    "lie in the tier "
                    "below; {} of it for representatives, {} for the window, {} for a step); raise "
                    "device_bytes or lower the number of tokens",
                    sizes.config.device_bytes, sizes.options.max_tokens, all, least,
                    bytes.representatives, bytes.window, bytes.workspace));
  if (!slots.on_disk && sizes.config.host_bytes > 0 && on_host > sizes.config.host_bytes)
    throw BudgetError(fmt::format(
        "memory configuration: host_bytes = {}, but the events of {} tokens need {} and do not fit "
        "device_bytes = {}; raise one of them, name a disk_dir or lower the number of tokens",
        sizes.config.host_bytes, sizes.options.max_tokens, on_host, sizes.config.device_bytes));
  // Arrays are rounded up one by one: a bisection finds what fits.
  const std::int64_t most_slots = (slots.on_disk ? 1 : sizes.lanes.per_layer) * sizes.max_events;
  if (!slots.on_disk && most_slots > kMostEvents)
    throw ConfigError(fmt::format(
        "CUDA memory: {} lanes of a layer of {} events each are more than a device's table of "
        "slots numbers; raise device_bytes, raise min_block or lower max_tokens",
        sizes.lanes.per_layer, sizes.max_events));
  std::int64_t fits = least_slots, too_many = std::max(most_slots, least_slots) + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (with_slots(middle) <= sizes.config.device_bytes ? fits : too_many) = middle;
  }
  with_slots(fits);
  bytes.host = on_host;
  if (slots.on_disk) {
    const std::int64_t cache = sizes.config.host_bytes > 0
                                   ? sizes.config.host_bytes
                                   : default_host_bytes(sizes.store_shape(), sizes.config.max_block,
                                                        most_recalled_tokens(sizes.config));
    bytes.host = cache +
                 size_product(sizes.lanes.n_lanes * sizes.most_closed_tokens(), sizes.token_bytes) +
                 size_product(sizes.room, slots.slot_bytes);
    bytes.host_taken = bytes.host;
  }
}

/// Gives each array its place.
void DeviceMemory::Impl::lay_out(MemoryLayout& layout) {
  layers.lay_out_windows(layout);
  snapshots.state_copies = nullptr;
  if (sizes.spare > 0)
    snapshots.state_copies =
        layout.take(static_cast<std::int64_t>(device::StateCopy::kPlaces) * state_bytes());
  bytes.window = layout.since();
  tiers.lay_out_events(layout);
  bytes.events = layout.since();
  timeline.lay_out_tables(layout);
  retention.lay_out_tables(layout);
  tiers.lay_out_tables(layout);
  layers.lay_out_tables(layout);
  bytes.representatives = layout.since();
  timeline.lay_out_step(layout);
  layers.lay_out_step(layout);
  retention.lay_out_step(layout);
  tiers.lay_out_step(layout);
  before_end = tiers.plan().on_disk ? layout.take(timeline.saved_bytes()) : nullptr;
  workspace.data = layout.take(workspace.bytes);
  bytes.workspace = layout.since();
  growth.of_events.arrays = layout.of_events();
  growth.of_tokens.arrays = layout.of_tokens();
}

/// What never changes.
void DeviceMemory::Impl::upload_constants() {
  layers.upload(stream);
  timeline.upload(layers.ring_keys(), stream);
  tiers.upload(stream);
  retention.upload(stream);
}

DeviceMemoryBytes DeviceMemory::bytes_needed(const MemoryConfig& config, const MemoryShape& shape,
                                             const DeviceMemoryOptions& options) {
  config.validate();
  check_shape(config, shape);
  Impl impl;
  impl.sizes.config = config;
  impl.sizes.shape = shape;
  impl.sizes.options = options;
  impl.plan();
  return impl.bytes;
}

}  // namespace episodic
