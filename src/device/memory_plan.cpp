// SPDX-License-Identifier: Apache-2.0
// The sizes of a DeviceMemory, what every launch is told of it, and where each array lies.
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::Carver;
using device::RecallLists;
using device::size_product;
using kernels::DeviceEventId;
using kernels::EventRange;
using kernels::KvRow;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

namespace {

/// Of what a launch counts in 32 bits; rows of its grid; tokens, whose bytes are counted in 64.
constexpr std::int64_t kMostCounted = std::int64_t{1} << 30, kMostRows = 65'535,
                       kMostTokens = std::int64_t{1} << 40,
                       kMostEvents = std::numeric_limits<std::int32_t>::max() - 1024;

kernels::RefineObjective objective_of(Refinement r) {
  switch (r) {
    case Refinement::none:
      return kernels::RefineObjective::none;
    case Refinement::modularity:
      return kernels::RefineObjective::modularity;
    case Refinement::conductance:
      return kernels::RefineObjective::conductance;
    case Refinement::intra_inter:
      return kernels::RefineObjective::intra_inter;
  }
  return kernels::RefineObjective::none;
}

}  // namespace

void DeviceMemory::Impl::check_settings() const {
  config.validate();
  const auto refuse = [](const std::string& what) { throw ConfigError("CUDA memory: " + what); };
  if (is_code(options.dtype))
    refuse(
        fmt::format("dtype = {}; a step's rows are float32, float16 or bfloat16, and kv_dtype "
                    "is what events are kept as",
                    name_of(options.dtype)));
  if (config.kv_dtype != DType::float32 && !is_code(config.kv_dtype) &&
      config.kv_dtype != options.dtype)
    refuse(
        fmt::format("kv_dtype = {}; a device keeps events in the model's dtype, {}, or as int8 "
                    "or fp8",
                    name_of(config.kv_dtype), name_of(options.dtype)));
  if (is_code(options.representatives))
    refuse(fmt::format("representatives = {}, must be float32, float16 or bfloat16",
                       name_of(options.representatives)));
  if (options.codes_from < DeviceMemoryOptions::kCodesWherePaid)
    refuse(fmt::format("codes_from = {}, must be >= 0, or -1 for where codes pay; 0 keeps no codes",
                       options.codes_from));
  // Tokens of a step, a window and an event are counted in 32 bits on a device, and sums of a few.
  const auto at_most = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value > most)
      refuse(fmt::format("{} = {}, must be at most {} on a device", name, value, most));
  };
  at_most("n_init", config.n_init, kMostCounted);
  at_most("n_local", config.n_local, kMostCounted);
  at_most("n_mem", config.n_mem, kMostCounted);
  at_most("tau", config.tau, kMostCounted);
  at_most("max_block", config.max_block, kMostCounted);
  if (segments_by_keys()) at_most("min_count", config.min_count, kMostCounted);
  at_most("n_repr", std::min(config.n_repr, config.max_block), kernels::kMostRepresentatives);
  if (options.max_tokens < 1 || options.max_tokens > kMostTokens)
    refuse(fmt::format("max_tokens = {}, must be >= 1 and <= {}", options.max_tokens, kMostTokens));
  at_most("n_local + max_block + 2 chunk", ring_capacity(config), kMostCounted);
  at_most("n_layers of the model", shape.n_layers, kMostRows);
  at_most("n_heads of the model", shape.n_heads, kMostRows);
  if (options.event_tokens != 0 &&
      (options.event_tokens < config.min_block || options.event_tokens > config.max_block))
    refuse(fmt::format("event_tokens = {}, must be 0 or from min_block = {} to max_block = {}",
                       options.event_tokens, config.min_block, config.max_block));
  if (config.index != IndexKind::exact)
    refuse("index = faiss; a device searches exactly, use exact");
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256)
    refuse(fmt::format("head_dim = {}, must be a multiple of 8 up to 256", shape.head_dim));
  const LaneShape of_lane = lane_shape(config, shape);
  at_most("the number of lanes", of_lane.n_lanes, kMostRows);
  if (by_head())
    at_most("key/value heads of all layers", shape.n_layers * shape.n_kv_heads, kMostRows);
  if (of_lane.width(shape.head_dim) > kernels::kMostRecallWidth)
    refuse(fmt::format("{} heads of {}, together at most {}", of_lane.n_heads, shape.head_dim,
                       kernels::kMostRecallWidth));
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    if (const std::int64_t dim = shape.layer(l).rotary.rotary_dim(); dim % 16 != 0)
      refuse(fmt::format("rotary_dim = {} of layer {}, must be a multiple of 16", dim, l));
}

/// What differs from layer to layer; tables that are the same are kept once.
void DeviceMemory::Impl::list_layers() {
  layers.clear();
  rotaries.clear();
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    LayerShape of = shape.layer(l);
    const auto at = std::find_if(rotaries.begin(), rotaries.end(),
                                 [&](const auto& r) { return r.table == of.rotary; });
    Layer layer;
    layer.rotary = static_cast<std::size_t>(at - rotaries.begin());
    layer.scale = of.scale;
    layer.soft_cap = of.softcap;
    if (at == rotaries.end()) rotaries.emplace_back().table = std::move(of.rotary);
    layers.push_back(layer);
  }
}

kernels::KeySegmenterParams DeviceMemory::Impl::key_segmenter_params() const {
  kernels::KeySegmenterParams p;
  p.signal = config.segmenter == SegmenterKind::gaussian ? kernels::KeySignal::gaussian
                                                         : kernels::KeySignal::similarity;
  p.per_head = by_head();
  p.gamma = config.gamma;
  p.min_count = config.effective_min_count();
  p.var_floor = config.var_floor;
  p.n = config.chunk;
  p.state = state;
  p.segmenter = key_segmenter;
  p.mean = key_mean;
  p.variance = key_variance;
  p.dtype = options.dtype;
  p.n_layers = shape.n_layers;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.keys = ring_keys;
  p.key_capacity = capacity;
  p.key_head_stride = head_stride;
  p.key_row_stride = shape.head_dim;
  p.raw = raw;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

kernels::RefineParams DeviceMemory::Impl::refine_params() const {
  kernels::RefineParams p;
  p.objective = objective_of(config.refine);
  p.n_init = config.n_init;
  p.min_block = config.min_block;
  p.n = config.chunk;
  p.max_previous = config.chunk;
  p.n_timelines = scopes;
  p.state = state;
  p.raw = raw;
  p.shared_raw = !(by_head() && segments_by_keys());
  p.flags = flags;
  p.flag_capacity = capacity;
  p.dtype = options.dtype;
  // Heads that are refined by themselves are so in every layer, as on the host.
  const std::int64_t first_layer = by_head() ? 0 : config.refine_layers;
  p.n_layers = shape.n_layers - first_layer;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.keys = ring_keys ? ring_keys + first_layer : nullptr;
  p.key_capacity = capacity;
  p.key_head_stride = head_stride;
  p.key_row_stride = shape.head_dim;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

kernels::AttentionParams DeviceMemory::Impl::attention_params(const Layer& layer,
                                                              std::int64_t n_queries) const {
  const device::DeviceRotary& angles = rotary(layer);
  kernels::AttentionParams p;
  p.dtype = options.dtype;
  p.n_queries = n_queries;
  p.n_heads = shape.n_heads;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.n_local = config.n_local;
  p.q_row_stride = width();
  p.first_position = first_position();
  p.scale = layer.scale;
  p.soft_cap = layer.soft_cap;
  p.rotary_dim = angles.dim();
  p.interleaved = angles.interleaved();
  p.query_cos = angles.cos;
  p.query_sin = angles.sin;
  p.fixed_cos = angles.fixed_cos;
  p.fixed_sin = angles.fixed_sin;
  p.rows = rows;
  p.n_rows = n_rows;
  p.max_rows = max_rows;
  p.n_lists = lanes.per_layer;
  if (scales_of_event() > 0) p.max_code_rows = max_event_rows;
  p.row_scales = row_scales;
  if (is_code(event_dtype())) p.code_dtype = event_dtype();
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.maybe_arrived = attended;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

kernels::RecallParams DeviceMemory::Impl::recall_params() const {
  kernels::RecallParams p;
  p.n_lanes = lanes.per_layer;
  p.n_events = event_count();
  p.events = events;
  p.count_stride = count_stride();
  p.table_stride = table_stride();
  p.max_events = max_events;
  p.n_init = config.n_init;
  p.tokens = first_position();
  p.n = 1;
  p.dtype = options.representatives;
  p.width = lane_width();
  p.query = mean_query;
  if (keeps_each()) {
    p.n_repr = most_repr();
    p.n_heads = lanes.n_heads;
  }
  p.codes_from = keeps_codes() ? codes_from() : 0;
  p.n_local = config.n_local;
  p.n_mem = config.n_mem;
  p.chunk = config.chunk;
  p.min_block = config.min_block;
  p.contiguity = config.contiguity;
  p.neighbours = config.neighbours;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

kernels::MeanQueryParams DeviceMemory::Impl::mean_query_params(const Layer& layer,
                                                               std::int64_t n_queries) const {
  const device::DeviceRotary& angles = rotary(layer);
  kernels::MeanQueryParams p;
  p.dtype = options.dtype;
  p.n = n_queries;
  p.n_heads = shape.n_heads;
  p.head_dim = shape.head_dim;
  p.rotary_dim = angles.dim();
  p.interleaved = angles.interleaved();
  p.q_row_stride = width();
  p.fixed_cos = angles.fixed_cos;
  p.fixed_sin = angles.fixed_sin;
  p.mean = mean_query;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  p.maybe_arrived = averaged;
  return p;
}

kernels::EventMassParams DeviceMemory::Impl::mass_params(const Layer& layer,
                                                         const kernels::AttentionParams& attention,
                                                         const RecallLists& lists) const {
  kernels::EventMassParams p;
  p.attention = attention;
  p.events = events;
  p.recalled = lists.recalled;
  p.n_recalled = lists.sizes + 2;
  p.list_capacity = room;
  p.mass = layer.masses;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

/// Sizes of everything; then one pass over the arrays, which counts them.
void DeviceMemory::Impl::plan() {
  check_settings();
  lanes = lane_shape(config, shape);
  scopes = by_head() ? shape.n_layers * shape.n_kv_heads : 1;
  list_layers();
  element = size_of(options.dtype);
  window_tokens = ring_capacity(config);
  const bool has_spare =
      options.room_for_snapshots && !is_out_of_room && window_tokens + config.chunk <= kMostCounted;
  set_spare(has_spare ? config.chunk : 0);
  recalling = recalling_layers(config, shape);
  const std::int64_t closable = std::max<std::int64_t>(0, options.max_tokens - config.n_init);
  max_events = closable / config.min_block + 1;
  if (max_events > kMostEvents)
    throw ConfigError(
        fmt::format("CUDA memory: max_tokens = {} may be {} events of min_block = {} tokens, a "
                    "device numbers {}; raise min_block or lower max_tokens",
                    options.max_tokens, max_events, config.min_block, kMostEvents));
  max_closed = (config.chunk + config.max_block) / config.min_block + 1;
  // What left the window, and whole events up to both capacities.
  const std::int64_t recalled = most_recalled_tokens(config);
  max_event_rows = takes_top() ? std::min(recalled, closable) : recalled;
  max_rows = config.n_init + window_tokens + max_event_rows;
  token_bytes = 2 * lanes.n_kv_heads * shape.head_dim * size_of(event_dtype());
  lane_bytes = size_product(closable, token_bytes);
  const std::int64_t of_step =
      size_product(lanes.n_lanes, size_product(max_event_rows + most_closed_tokens(), token_bytes));
  if (max_rows > kMostCounted || of_step >= device::kMostSize / 16)
    throw ConfigError(fmt::format(
        "CUDA memory: a query would attend {} tokens beside its window, a device {} at most; lower "
        "n_init, n_local, n_mem, reweight_top or max_block",
        max_rows, kMostCounted));
  recent_capacity = config.effective_tau() + config.chunk;
  if (recalling > 0) {
    room =
        takes_top() ? std::min(max_events, most_of_top()) : kernels::recall_room(recall_params());
    if (room == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: n_mem = {} of events of at least min_block = {} tokens are too many for a "
          "device's selection, or max_tokens = {} for its event numbers; raise min_block",
          config.n_mem, config.min_block, options.max_tokens));
  }
  plan_workspace();
  count();
  plan_tiers();
  if (fixed_bytes >= device::kMostSize || range_bytes >= device::kMostSize)
    throw BudgetError(fmt::format(
        "memory configuration: {} tokens need more than 2^60 bytes of device memory; lower the "
        "number of tokens, n_local, max_block or chunk",
        options.max_tokens));
}

void DeviceMemory::Impl::plan_workspace() {
  workspace_bytes = 0;
  const auto needs = [&](std::size_t size) {
    workspace_bytes = std::max(workspace_bytes, static_cast<std::int64_t>(size));
  };
  const std::size_t attention =
      kernels::largest_attention_workspace_bytes(attention_params(layers.front(), config.chunk));
  if (attention == 0)
    throw ConfigError(
        fmt::format("CUDA memory: no attention kernel for head_dim = {}, {} heads, {} kv heads",
                    shape.head_dim, shape.n_heads, shape.n_kv_heads));
  needs(attention);
  needs(kernels::mean_query_workspace_bytes(mean_query_params(layers.front(), config.chunk)));
  if (config.refine != Refinement::none) {
    const std::size_t refine = kernels::refine_workspace_bytes(refine_params());
    if (refine == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: chunk = {} is too long for refinement on a device", config.chunk));
    needs(refine);
  }
  if (config.retention) {
    kernels::EventMassParams masses;
    masses.attention = attention_params(layers.front(), config.chunk);
    needs(kernels::event_mass_workspace_bytes(masses));
  }
  if (recalling > 0 && !takes_top()) needs(kernels::recall_workspace_bytes(recall_params()));
  if (segments_by_keys()) {
    const std::size_t segment = kernels::key_segmenter_workspace_bytes(key_segmenter_params());
    if (segment == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: segmenter = {} over {} layers of {} heads is too much for a device's "
          "kernel in chunks of {} tokens; lower chunk",
          name_of(config.segmenter), shape.n_layers, shape.n_kv_heads, config.chunk));
    needs(segment);
  }
  // A window that is handed over comes in steps, keys and values.
  needs(static_cast<std::size_t>(2 * config.chunk * shape.n_kv_heads * shape.head_dim * element));
}

/// Events that budgets are divided for: all that may come, or those of the length that is expected,
/// with what a step may close beyond them.
std::int64_t DeviceMemory::Impl::planned_events() const {
  if (!grows() || options.event_tokens == 0) return max_events;
  const std::int64_t closable = std::max<std::int64_t>(0, options.max_tokens - config.n_init);
  return std::min(max_events, closable / options.event_tokens + max_closed);
}

void DeviceMemory::Impl::set_spare(std::int64_t rows) {
  spare = rows;
  capacity = window_tokens + spare;
  head_stride = capacity * shape.head_dim;
}

/// Counts the arrays for so many events, and what of them is for snapshots.
/// \return bytes of those that are there from the start, and of those that grow
std::pair<std::int64_t, std::int64_t> DeviceMemory::Impl::measure(std::int64_t events_room) {
  const std::int64_t planned_spare = spare;
  bytes.snapshots = 0;
  set_spare(0);
  Carver without, growing_without;
  carve(without, growing_without, events_room);
  const DeviceMemoryBytes needed = bytes;
  set_spare(planned_spare);
  Carver fixed, growing;
  carve(fixed, growing, events_room);
  const std::int64_t all = bytes.total();
  bytes = needed;
  bytes.snapshots = all - needed.total();
  return {fixed.used(), growing.used()};
}

void DeviceMemory::Impl::count() {
  const auto [fixed, growing] = measure(max_events);
  fixed_bytes = fixed;
  range_bytes = fixed_bytes + growing;
  bytes.taken = bytes.total();
  if (!grows()) return;
  // Memory comes in granules, and those of the whole sequence must be within device_bytes.
  const std::int64_t planned = planned_events(),
                     whole = (planned < max_events ? granules_of(planned)
                                                   : (range_bytes + granule - 1) / granule) *
                             granule;
  if (planned < max_events) measure(planned);
  bytes.workspace += std::max<std::int64_t>(0, whole - bytes.total());
  bytes.taken = (fixed_bytes + granule - 1) / granule * granule;
}

/// Those behind what is there from the start, all tokens and so many events. Arrays have their
/// places.
std::int64_t DeviceMemory::Impl::granules_of(std::int64_t event_rows) const {
  std::vector<std::pair<std::int64_t, std::int64_t>> parts = {{0, fixed_bytes}};
  for (const auto* of : {&of_tokens, &of_events})
    for (const device::GrowingArrays::Array& a : of->arrays)
      parts.emplace_back(fixed_bytes + a.begin,
                         fixed_bytes + a.begin +
                             (of == &of_events ? size_product(event_rows, a.row) : lane_bytes));
  std::sort(parts.begin(), parts.end());
  std::int64_t granules = 0, next = 0;  // the first that is not counted
  for (const auto& [begin, end] : parts) {
    const std::int64_t first = std::max(next, begin / granule),
                       last = (end + granule - 1) / granule;
    if (last <= first) continue;
    granules += last - first;
    next = last;
  }
  return granules;
}

void DeviceMemory::Impl::drop_tiers() {
  n_slots = slot_bytes = 0;
  on_disk = false;
}

/// Where events are at home: in device memory if all of it fits device_bytes, else in host memory,
/// with as many slots on the device as the bound leaves room for.
void DeviceMemory::Impl::plan_tiers() {
  if (config.device_bytes == 0 || bytes.total() <= config.device_bytes) return;
  if (const std::int64_t planned = spare; planned > 0) {
    // All events on the device save more than room for snapshots does.
    set_spare(0);
    count();
    if (bytes.total() <= config.device_bytes) return;
    set_spare(planned);
    count();
  }
  const std::int64_t all = bytes.total(), on_host = size_product(lanes.n_lanes, lane_bytes);
  slot_bytes = config.max_block * token_bytes;
  on_disk = recalling > 0 && !config.disk_dir.empty() &&
            (config.host_bytes == 0 || on_host > config.host_bytes);
  // The device reads page-locked memory itself, but no file: there all of a recall needs slots.
  const std::int64_t least_slots = on_disk ? room : 1;
  const auto with_slots = [&](std::int64_t slots) {
    n_slots = slots;
    count();
    return bytes.total();
  };
  const std::int64_t least = recalling > 0 ? with_slots(least_slots) : all;
  // Room for snapshots and codes save time and change no result: where room is short they go.
  if (least > config.device_bytes && spare > 0) {
    drop_tiers();
    set_spare(0);
    count();
    return plan_tiers();
  }
  if (least > config.device_bytes && keeps_codes()) {
    options.codes_from = 0;
    drop_tiers();
    plan_workspace();
    count();
    return plan_tiers();
  }
  if (least > config.device_bytes)
    throw BudgetError(
        fmt::format("memory configuration: device_bytes = {}, but {} tokens need {} ({} if events "
                    "lie in the tier "
                    "below; {} of it for representatives, {} for the window, {} for a step); raise "
                    "device_bytes or lower the number of tokens",
                    config.device_bytes, options.max_tokens, all, least, bytes.representatives,
                    bytes.window, bytes.workspace));
  if (!on_disk && config.host_bytes > 0 && on_host > config.host_bytes)
    throw BudgetError(fmt::format(
        "memory configuration: host_bytes = {}, but the events of {} tokens need {} and do not fit "
        "device_bytes = {}; raise one of them, name a disk_dir or lower the number of tokens",
        config.host_bytes, options.max_tokens, on_host, config.device_bytes));
  // Arrays are rounded up one by one: a bisection finds what fits.
  const std::int64_t most_slots = (on_disk ? 1 : lanes.per_layer) * max_events;
  if (!on_disk && most_slots > kMostEvents)
    throw ConfigError(fmt::format(
        "CUDA memory: {} lanes of a layer of {} events each are more than a device's table of "
        "slots numbers; raise device_bytes, raise min_block or lower max_tokens",
        lanes.per_layer, max_events));
  std::int64_t fits = least_slots, too_many = std::max(most_slots, least_slots) + 1;
  while (too_many - fits > 1) {
    const std::int64_t middle = fits + (too_many - fits) / 2;
    (with_slots(middle) <= config.device_bytes ? fits : too_many) = middle;
  }
  with_slots(fits);
  bytes.host = on_host;
  if (on_disk) {
    const std::int64_t cache =
        config.host_bytes > 0
            ? config.host_bytes
            : default_host_bytes(store_shape(), config.max_block, most_recalled_tokens(config));
    bytes.host = cache + size_product(lanes.n_lanes * most_closed_tokens(), token_bytes) +
                 size_product(room, slot_bytes);
    bytes.host_taken = bytes.host;
  }
}

/// Gives each array its place. \param c of what is there from the start
/// \param growing of what the sequence grows into, for `events_room` events
void DeviceMemory::Impl::carve(Carver& c, Carver& growing, std::int64_t events_room) {
  const std::int64_t d = shape.head_dim, G = shape.n_kv_heads, H = shape.n_heads;
  std::int64_t mark = 0;
  const auto since = [&] {
    const std::int64_t used = c.used() + growing.used();
    return used - std::exchange(mark, used);
  };
  const std::int64_t P = lanes.per_layer, n_lanes = lanes.n_lanes;
  of_events.arrays.clear();
  of_tokens.arrays.clear();
  /// [n_copies, events, row], where each of the copies grows by itself
  const auto by_event = [&]<class T>(T*& array, std::int64_t n_copies, std::int64_t row) {
    const std::int64_t row_bytes = size_product(row, static_cast<std::int64_t>(sizeof(T)));
    const std::int64_t copy_bytes = size_product(events_room, row_bytes);
    for (std::int64_t i = 0; i < n_copies; ++i)
      of_events.arrays.push_back({growing.used() + size_product(i, copy_bytes), row_bytes});
    array = growing.take<T>(size_product(n_copies, size_product(events_room, row)));
  };
  std::int64_t place = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    for (std::byte** ring : {&layer.ring_key, &layer.ring_rotated, &layer.ring_value})
      *ring = c.take(G * head_stride * element);
    for (std::byte** sinks : {&layer.sink_key, &layer.sink_value})
      *sinks = c.take(G * std::max<std::int64_t>(1, config.n_init) * d * element);
    layer.sums = c.take<float>((config.n_local + config.chunk - 1) * H);
    layer.stats = c.take<kernels::ColumnStats>(H);
    layer.place = recalls(config, l) ? place++ : -1;
  }
  for (Layer& layer : layers) layer.relevance = c.take<float>(capacity * H);  // in one piece
  state_copies = nullptr;
  if (spare > 0)
    state_copies = c.take(static_cast<std::int64_t>(device::StateCopy::kPlaces) * state_bytes());
  bytes.window = since();

  if (n_slots == 0) {
    for (std::int64_t lane = 0; lane < n_lanes; ++lane)
      of_tokens.arrays.push_back({growing.used() + size_product(lane, lane_bytes), token_bytes});
    home = growing.take(size_product(n_lanes, lane_bytes));
  }
  all_slots = n_slots > 0
                  ? c.take(size_product((on_disk ? n_lanes : recalling) * n_slots, slot_bytes))
                  : nullptr;
  for (Layer& layer : layers) {
    if (layer.place < 0 || !has_host_tier()) continue;
    if (all_slots) layer.slots = all_slots + layer.place * n_slots * slot_bytes;
    layer.residency = {
        nullptr, nullptr, c.take<DeviceEventId>(n_slots), c.take<std::int64_t>(1), P * max_events,
        n_slots, P};
    by_event(layer.residency.slot_of_event, P, 1);
    by_event(layer.residency.last_recalled, P, 1);
  }
  if (has_host_tier()) by_event(pins, scopes, 1);
  bytes.events = since();

  state = c.take<TimelineState>(scopes);
  by_event(events, scopes, 1);
  by_event(marks, scopes, 1);
  by_event(recall_counts, scopes, 1);
  by_event(blocks, n_lanes, 1);
  if (scales_of_event() > 0) by_event(event_scales, n_lanes, scales_of_event());
  for (Layer& layer : layers) {
    if (layer.place < 0) continue;
    by_event(layer.representatives, P, repr_row());
    if (keeps_each()) by_event(layer.each, P, each_row());
    if (keeps_codes()) {
      by_event(layer.codes, P, kernels::code_stride(lane_width()));
      by_event(layer.code_bounds, P, kernels::code_floats(lane_width()));
    }
    for (RecallLists& lists : layer.lists) {
      lists.similarity = c.take<DeviceEventId>(P * room);
      lists.contiguity = c.take<DeviceEventId>(P * room);
      lists.recalled = c.take<DeviceEventId>(P * room);
      lists.sizes = c.take<std::int32_t>(P * 3);
    }
    if (config.retention) layer.masses = c.take<double>(P * room);
  }
  if (config.retention) by_event(received, 1, 1);
  bytes.representatives = since();

  recent = c.take<float>(recent_capacity);
  threshold = c.take<float>(config.chunk);
  surprise = c.take<float>(config.chunk);
  raw = c.take<std::uint8_t>(scopes * config.chunk);
  flags = c.take<std::uint8_t>(scopes * capacity);
  for (device::DeviceRotary& r : rotaries) {
    const std::int64_t angles = r.dim() / 2;
    r.inverse_frequency = c.take<double>(angles);
    for (float** step : {&r.cos, &r.sin}) *step = c.take<float>(config.chunk * angles);
    for (float** fixed : {&r.fixed_cos, &r.fixed_sin}) *fixed = c.take<float>(angles);
  }
  mean_query = c.take<float>(width());
  if (options.turns_back) {
    const std::int64_t row = shape.head_dim * size_of(options.dtype);
    turned_q = c.take<std::byte>(config.chunk * shape.n_heads * row);
    turned_k = c.take<std::byte>(config.chunk * shape.n_kv_heads * row);
  }
  if (config.reweight != Reweighting::none) by_event(event_scores, P, 1);
  if (takes_top()) by_event(is_top, P, 1);
  recalled_events = c.take<unsigned long long>(1);
  forgetting = c.take<DeviceEventId>(config.chunk);
  for (kernels::LaneLists*& of : lane_lists) of = c.take<kernels::LaneLists>(n_lanes);
  if (config.retention) {
    lse = c.take<float>(config.chunk * H);
    for (kernels::LayerMasses*& of : layer_masses) of = c.take<kernels::LayerMasses>(recalling);
  }
  rows = c.take<KvRow>(P * max_rows);
  if (scales_of_event() > 0) row_scales = c.take<const float*>(P * max_rows);
  n_rows = c.take<std::int32_t>(P);
  overflow = c.take<std::int32_t>(1);
  full = c.take<std::int32_t>(1);
  not_finite = c.take<std::int32_t>(1);
  arrived = c.take<std::uint32_t>(P);
  score_tokens = c.take<unsigned long long>(P * rules::kScoreBins);
  score_centres = c.take<rules::ScoreCentre>(n_lanes);
  attended = c.take<std::uint32_t>(kernels::kAttentionCounters * G);
  averaged = c.take<std::uint32_t>(shape.n_heads);
  ring_keys = c.take<const void*>(shape.n_layers);
  if (segments_by_keys()) {
    key_segmenter = c.take<kernels::KeySegmenterState>(key_segmenters());
    key_mean = c.take<double>(key_channels());
    key_variance = c.take<double>(key_variances());
  }
  relevance_layers = c.take<kernels::RelevanceLayer>(shape.n_layers);
  representative_lanes = c.take<kernels::RepresentativeLayer>(n_lanes);
  if (keeps_codes()) code_lanes = c.take<kernels::CodeLayer>(n_lanes);
  block_lanes = c.take<kernels::EventBlockLayer>(n_lanes);
  step_blocks = c.take<void*>(n_lanes * max_closed);
  const std::int64_t tables = by_head() ? n_lanes : 1;
  if (by_head()) lane_scopes = c.take<std::int32_t>(tables);
  closed_start = c.take<std::int64_t>(tables * max_closed);
  closed_end = c.take<std::int64_t>(tables * max_closed);
  closed_first = c.take<std::int64_t>(tables);
  closed_count = c.take<std::int32_t>(tables);
  if (has_host_tier()) {
    missing = c.take<DeviceEventId>(P * room);
    victims = c.take<DeviceEventId>(P * room);
    given_slots = c.take<std::int32_t>(P * room);
    n_missing = c.take<std::int32_t>(1);
    n_victims = c.take<std::int32_t>(1);
    n_given = c.take<std::int32_t>(1);
    copies = c.take<kernels::CopyRun>(P * room);
  }
  before_end = on_disk ? c.take(saved_bytes()) : nullptr;
  workspace = c.take(workspace_bytes);
  bytes.workspace = since();
}

DeviceMemoryBytes DeviceMemory::bytes_needed(const MemoryConfig& config, const MemoryShape& shape,
                                             const DeviceMemoryOptions& options) {
  config.validate();
  check_shape(config, shape);
  Impl impl;
  impl.config = config;
  impl.shape = shape;
  impl.options = options;
  impl.plan();
  return impl.bytes;
}

}  // namespace episodic
