// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_memory.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "cuda.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "episodic/timeline/segmenter.hpp"
#include "kernels/attention.hpp"
#include "kernels/close_events.hpp"
#include "kernels/copies.hpp"
#include "kernels/place_events.hpp"
#include "kernels/recall.hpp"
#include "kernels/refine.hpp"
#include "kernels/relevance.hpp"
#include "kernels/residency.hpp"
#include "kernels/rows.hpp"
#include "kernels/threshold.hpp"
#include "kernels/window.hpp"
#include "lower_tiers.hpp"

namespace episodic {
namespace {

using device::Carver;
using device::DeviceBuffer;
using device::LowerTiers;
using device::PinnedBuffer;
using device::StagingRing;
using kernels::DeviceEventId;
using kernels::EventRange;
using kernels::KvRow;
using kernels::TimelineState;

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

/// What recall leaves in a layer. Two in turn: a step reads the queue of the one before, and a step
/// that is begun anew finds it untouched.
struct RecallLists {
  DeviceEventId* similarity = nullptr;
  DeviceEventId* contiguity = nullptr;
  DeviceEventId* recalled = nullptr;
  std::int32_t* sizes = nullptr;  // [3]
};

struct Layer {
  std::byte *ring_key = nullptr, *ring_turned = nullptr, *ring_value = nullptr;  // [G, capacity, d]
  std::byte *sink_key = nullptr, *sink_value = nullptr;                          // [G, n_init, d]
  float* relevance = nullptr;                                                    // [capacity, H]
  float* sums = nullptr;                 // [n_local + chunk - 1, H] of the open step
  std::int64_t slot = -1;                // among the layers that recall; -1: not one of them
  std::byte* representatives = nullptr;  // [max_events, H * d]
  std::array<RecallLists, 2> lists;
  // with a host tier: which events lie in slots of device memory
  kernels::ResidencyMap residency;
  std::byte* slots = nullptr;  // [n_slots, slot_bytes]
};

}  // namespace

struct DeviceMemory::Impl {
  MemoryConfig config;
  MemoryShape shape;
  DeviceMemoryOptions options;
  std::vector<std::int64_t> given;
  cudaStream_t stream = nullptr;

  DeviceMemoryBytes bytes;
  DeviceBuffer memory;
  PinnedBuffer host_home;    // the host tier: page-locked, which the device reads and writes
  std::int64_t n_slots = 0;  // of device memory in each layer; 0: all events are at home there
  std::int64_t slot_bytes = 0;
  bool on_disk = false;               // events are at home in a DiskStore
  std::unique_ptr<LowerTiers> lower;  // then; null otherwise
  std::int64_t pending_start = 0;     // then the host follows what is closed
  bool broken = false;                // then: a step's events could not be kept
  mutable StagingRing staging;
  PinnedBuffer found_wrong;              // uint32 [3]: what check copies, to wait once
  std::unique_ptr<Segmenter> segmenter;  // where surprise does not set the flags; on the host

  // sizes
  std::int64_t capacity = 0, head_stride = 0, element = 2;
  std::int64_t recalling = 0;  // layers
  std::int64_t max_events = 0, max_closed = 0, max_rows = 0, room = 0;
  std::int64_t layer_bytes = 0, token_bytes = 0;  // of events

  // device memory
  std::vector<Layer> layers;
  TimelineState* state = nullptr;
  EventRange* events = nullptr;
  float *recent = nullptr, *threshold = nullptr, *surprise = nullptr;
  std::int64_t recent_capacity = 0;
  std::uint8_t *raw = nullptr, *flags = nullptr;
  double* inverse_frequency = nullptr;
  float *cos = nullptr, *sin = nullptr, *fixed_cos = nullptr, *fixed_sin = nullptr;
  float* mean_query = nullptr;
  KvRow* rows = nullptr;
  std::int32_t *n_rows = nullptr, *overflow = nullptr, *full = nullptr;
  const void** refine_keys = nullptr;
  void **blocks = nullptr, **step_blocks = nullptr;
  std::int64_t *closed_start = nullptr, *closed_end = nullptr, *closed_first = nullptr;
  std::int32_t* closed_count = nullptr;
  std::byte* all_slots = nullptr;  // [recalling, n_slots, slot_bytes]
  std::byte* home = nullptr;  // of all events: in device memory, or with a host tier in host_home
  // the lists of a layer's exchange between the tiers
  DeviceEventId *missing = nullptr, *victims = nullptr;
  std::int32_t *n_missing = nullptr, *n_victims = nullptr, *given_slots = nullptr,
               *n_given = nullptr;
  kernels::CopyRun* copies = nullptr;
  std::byte* workspace = nullptr;
  std::int64_t workspace_bytes = 0;

  // the host's side of the sequence
  std::int64_t tokens = 0;
  bool open = false, far = false, recalls_now = true;
  std::int64_t n = 0, next_layer = 0, steps_since_recall = 0;
  std::size_t lists_now = 0;  // which of the two lists the finished steps left
  bool recalled_in_step = false;
  bool far_in_last_step = false;
  std::int64_t last_first = 0, last_n = 0;

  void check_settings() const;
  void plan();
  void plan_tiers();
  StoreShape store_shape() const {
    return {recalling, shape.n_kv_heads, shape.head_dim, options.dtype};
  }
  /// What is pending is shorter than an event.
  std::int64_t most_closed_tokens() const { return config.chunk + config.max_block; }
  void keep_closed();
  void count();
  void swap_in(const Layer& layer, const RecallLists& lists);
  void carve(Carver& carver);
  void upload_constants();
  void clear();
  template <class T>
  std::vector<T> read(const T* from, std::int64_t count) const;

  // null while sizes are counted and nothing has a place yet
  const std::int64_t* first_position() const { return state ? &state->tokens : nullptr; }
  const std::int64_t* event_count() const { return state ? &state->n_events : nullptr; }
  std::int64_t rotary_dim() const { return shape.rotary.rotary_dim(); }
  std::int64_t width() const { return shape.n_heads * shape.head_dim; }
  kernels::RefineParams refine_params() const;
  kernels::AttentionParams attention_params(std::int64_t n_queries) const;
  kernels::RecallParams recall_params() const;
  kernels::MeanQueryParams mean_query_params(std::int64_t n_queries) const;
  kernels::ClosedEvents closed() const {
    return {closed_start, closed_end, closed_count, closed_first, max_closed};
  }
  const RecallLists& lists_of_step(const Layer& layer) const {
    return layer.lists[recalls_now ? 1 - lists_now : lists_now];
  }
  /// All that the host knows of closing: nothing can before something has left the window.
  bool may_close() const { return recalling > 0 && tokens + n > config.n_local + config.n_init; }
  void recall(Layer& layer, const LayerStep& step);
  void finish_step();
};

void DeviceMemory::Impl::check_settings() const {
  config.validate();
  const auto refuse = [](const std::string& what) { throw ConfigError("CUDA memory: " + what); };
  if (options.dtype == DType::int8)
    refuse("dtype = int8; keys and values are kept as float32, float16 or bfloat16");
  if (config.kv_dtype != DType::float32 && config.kv_dtype != options.dtype)
    refuse(fmt::format("kv_dtype = {}; a device keeps events in the model's dtype, {}",
                       name_of(config.kv_dtype), name_of(options.dtype)));
  if (options.max_tokens < 1)
    refuse(fmt::format("max_tokens = {}, must be >= 1", options.max_tokens));
  if (config.score != RepresentativeScore::mean)
    refuse("score = max is not built for a device; use mean");
  if (config.index != IndexKind::exact)
    refuse("index = faiss; a device searches exactly, use exact");
  if (shape.head_dim % 8 != 0 || shape.head_dim > 256)
    refuse(fmt::format("head_dim = {}, must be a multiple of 8 up to 256", shape.head_dim));
  if (rotary_dim() % 16 != 0)
    refuse(fmt::format("rotary_dim = {}, must be a multiple of 16", rotary_dim()));
}

kernels::RefineParams DeviceMemory::Impl::refine_params() const {
  kernels::RefineParams p;
  p.objective = objective_of(config.refine);
  p.n_init = config.n_init;
  p.min_block = config.min_block;
  p.n = config.chunk;
  p.max_previous = config.chunk;
  p.state = state;
  p.raw = raw;
  p.flags = flags;
  p.flag_capacity = capacity;
  p.dtype = options.dtype;
  p.n_layers = shape.n_layers - config.refine_layers;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.keys = refine_keys;
  p.key_capacity = capacity;
  p.key_head_stride = head_stride;
  p.key_row_stride = shape.head_dim;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

kernels::AttentionParams DeviceMemory::Impl::attention_params(std::int64_t n_queries) const {
  kernels::AttentionParams p;
  p.dtype = options.dtype;
  p.n_queries = n_queries;
  p.n_heads = shape.n_heads;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.n_local = config.n_local;
  p.q_row_stride = width();
  p.first_position = first_position();
  p.rotary_dim = rotary_dim();
  p.query_cos = cos;
  p.query_sin = sin;
  p.fixed_cos = fixed_cos;
  p.fixed_sin = fixed_sin;
  p.rows = rows;
  p.n_rows = n_rows;
  p.max_rows = max_rows;
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

kernels::RecallParams DeviceMemory::Impl::recall_params() const {
  kernels::RecallParams p;
  p.n_events = event_count();
  p.events = events;
  p.max_events = max_events;
  p.n_init = config.n_init;
  p.tokens = first_position();
  p.n = 1;
  p.dtype = options.dtype;
  p.width = width();
  p.query = mean_query;
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

kernels::MeanQueryParams DeviceMemory::Impl::mean_query_params(std::int64_t n_queries) const {
  kernels::MeanQueryParams p;
  p.dtype = options.dtype;
  p.n = n_queries;
  p.n_heads = shape.n_heads;
  p.head_dim = shape.head_dim;
  p.rotary_dim = rotary_dim();
  p.q_row_stride = width();
  p.fixed_cos = fixed_cos;
  p.fixed_sin = fixed_sin;
  p.mean = mean_query;
  p.workspace = workspace;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes);
  return p;
}

/// Sizes of everything; then one pass over the arrays, which counts them.
void DeviceMemory::Impl::plan() {
  check_settings();
  element = size_of(options.dtype);
  capacity = ring_capacity(config);
  head_stride = capacity * shape.head_dim;
  recalling = recalling_layers(config, shape);
  const std::int64_t closable = std::max<std::int64_t>(0, options.max_tokens - config.n_init);
  max_events = closable / config.min_block + 1;
  max_closed = (config.chunk + config.max_block) / config.min_block + 1;
  // What left the window, and whole events up to both capacities.
  max_rows = config.n_init + capacity + most_recalled_tokens(config);
  token_bytes = 2 * shape.n_kv_heads * shape.head_dim * element;
  layer_bytes = closable * token_bytes;
  recent_capacity = config.effective_tau() + config.chunk;
  if (recalling > 0) {
    room = kernels::recall_room(recall_params());
    if (room == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: n_mem = {} of events of at least min_block = {} tokens are too many for a "
          "device's selection, or max_tokens = {} for its event numbers; raise min_block",
          config.n_mem, config.min_block, options.max_tokens));
  }
  workspace_bytes = 0;
  const auto needs = [&](std::size_t size) {
    workspace_bytes = std::max(workspace_bytes, static_cast<std::int64_t>(size));
  };
  for (const std::int64_t queries : {std::int64_t{1}, config.chunk}) {
    const std::size_t attention = kernels::attention_workspace_bytes(attention_params(queries));
    if (attention == 0)
      throw ConfigError(
          fmt::format("CUDA memory: no attention kernel for head_dim = {}, {} heads, {} kv heads",
                      shape.head_dim, shape.n_heads, shape.n_kv_heads));
    needs(attention);
    needs(kernels::mean_query_workspace_bytes(mean_query_params(queries)));
  }
  // Between one and chunk queries the split over keys may change.
  for (std::int64_t queries = 2; queries < std::min<std::int64_t>(config.chunk, 64); ++queries)
    needs(kernels::attention_workspace_bytes(attention_params(queries)));
  if (config.refine != Refinement::none) {
    const std::size_t refine = kernels::refine_workspace_bytes(refine_params());
    if (refine == 0)
      throw ConfigError(fmt::format(
          "CUDA memory: chunk = {} is too long for refinement on a device", config.chunk));
    needs(refine);
  }
  if (recalling > 0) needs(kernels::recall_workspace_bytes(recall_params()));
  count();
  plan_tiers();
}

void DeviceMemory::Impl::count() {
  Carver counter;
  carve(counter);
}

/// Where events are at home: in device memory if all of it fits device_bytes, else in host memory,
/// with as many slots on the device as the bound leaves room for.
void DeviceMemory::Impl::plan_tiers() {
  if (config.device_bytes == 0 || bytes.total() <= config.device_bytes) return;
  const std::int64_t all = bytes.total(), on_host = recalling * layer_bytes;
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
  std::int64_t fits = least_slots, too_many = std::max(max_events, least_slots) + 1;
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
    bytes.host = cache + recalling * most_closed_tokens() * token_bytes + room * slot_bytes;
  }
}

void DeviceMemory::Impl::carve(Carver& c) {
  const std::int64_t d = shape.head_dim, G = shape.n_kv_heads, H = shape.n_heads;
  const std::int64_t angles = rotary_dim() / 2;
  std::int64_t mark = 0;
  const auto since = [&] { return c.used() - std::exchange(mark, c.used()); };
  layers.resize(static_cast<std::size_t>(shape.n_layers));
  std::int64_t slot = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    Layer& layer = layers[static_cast<std::size_t>(l)];
    for (std::byte** ring : {&layer.ring_key, &layer.ring_turned, &layer.ring_value})
      *ring = c.take(G * head_stride * element);
    for (std::byte** sinks : {&layer.sink_key, &layer.sink_value})
      *sinks = c.take(G * std::max<std::int64_t>(1, config.n_init) * d * element);
    layer.relevance = c.take<float>(capacity * H);
    layer.sums = c.take<float>((config.n_local + config.chunk - 1) * H);
    const auto& named = config.recall_layers;
    const bool recalls =
        config.recall && (!named || std::find(named->begin(), named->end(), l) != named->end());
    layer.slot = recalls ? slot++ : -1;
  }
  bytes.window = since();

  if (n_slots == 0) home = c.take(recalling * layer_bytes);
  all_slots = n_slots > 0 ? c.take(recalling * n_slots * slot_bytes) : nullptr;
  for (Layer& layer : layers) {
    if (layer.slot < 0 || n_slots == 0 || on_disk) continue;
    if (all_slots) layer.slots = all_slots + layer.slot * n_slots * slot_bytes;
    layer.residency = {c.take<std::int32_t>(max_events), c.take<std::int64_t>(max_events),
                       c.take<DeviceEventId>(n_slots), max_events, n_slots};
  }
  bytes.events = since();

  state = c.take<TimelineState>(1);
  events = c.take<EventRange>(max_events);
  blocks = c.take<void*>(recalling * max_events);
  for (Layer& layer : layers) {
    if (layer.slot < 0) continue;
    layer.representatives = c.take(max_events * width() * element);
    for (RecallLists& lists : layer.lists) {
      lists.similarity = c.take<DeviceEventId>(room);
      lists.contiguity = c.take<DeviceEventId>(room);
      lists.recalled = c.take<DeviceEventId>(room);
      lists.sizes = c.take<std::int32_t>(3);
    }
  }
  bytes.representatives = since();

  recent = c.take<float>(recent_capacity);
  threshold = c.take<float>(config.chunk);
  surprise = c.take<float>(config.chunk);
  raw = c.take<std::uint8_t>(config.chunk);
  flags = c.take<std::uint8_t>(capacity);
  inverse_frequency = c.take<double>(angles);
  cos = c.take<float>(config.chunk * angles);
  sin = c.take<float>(config.chunk * angles);
  fixed_cos = c.take<float>(angles);
  fixed_sin = c.take<float>(angles);
  mean_query = c.take<float>(width());
  rows = c.take<KvRow>(max_rows);
  n_rows = c.take<std::int32_t>(1);
  overflow = c.take<std::int32_t>(1);
  full = c.take<std::int32_t>(1);
  refine_keys = c.take<const void*>(shape.n_layers);
  step_blocks = c.take<void*>(recalling * max_closed);
  closed_start = c.take<std::int64_t>(max_closed);
  closed_end = c.take<std::int64_t>(max_closed);
  closed_first = c.take<std::int64_t>(1);
  closed_count = c.take<std::int32_t>(1);
  if (n_slots > 0 && !on_disk) {
    missing = c.take<DeviceEventId>(room);
    victims = c.take<DeviceEventId>(room);
    given_slots = c.take<std::int32_t>(room);
    n_missing = c.take<std::int32_t>(1);
    n_victims = c.take<std::int32_t>(1);
    n_given = c.take<std::int32_t>(1);
    copies = c.take<kernels::CopyRun>(room);
  }
  workspace = c.take(workspace_bytes);
  bytes.workspace = since();
}

template <class T>
std::vector<T> DeviceMemory::Impl::read(const T* from, std::int64_t count) const {
  std::vector<T> host(static_cast<std::size_t>(count));
  if (count > 0)
    device::check(
        cudaMemcpyAsync(host.data(), from, host.size() * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "a copy from the device");
  device::check(cudaStreamSynchronize(stream), "the memory's kernels");
  return host;
}

/// What never changes: angles' frequencies, the fixed position, where refinement finds its keys.
void DeviceMemory::Impl::upload_constants() {
  RotaryAngles fixed;
  fixed.compute(shape.rotary, config.n_local - 1, 1);
  const auto send = [&](void* to, const void* from, std::size_t size) {
    if (size > 0)
      device::check(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, stream),
                    "a copy to the device");
  };
  send(inverse_frequency, shape.rotary.inverse_frequency.data(),
       shape.rotary.inverse_frequency.size() * sizeof(double));
  send(fixed_cos, fixed.cos.data(), fixed.cos.size() * sizeof(float));
  send(fixed_sin, fixed.sin.data(), fixed.sin.size() * sizeof(float));
  std::vector<const void*> keys;
  for (std::int64_t l = config.refine_layers; l < shape.n_layers; ++l)
    keys.push_back(layers[static_cast<std::size_t>(l)].ring_key);
  send(refine_keys, keys.data(), keys.size() * sizeof(void*));
  device::check(cudaStreamSynchronize(stream), "the memory's constants");
}

void DeviceMemory::Impl::clear() {
  const TimelineState empty = kernels::initial_timeline(config.n_init);
  device::check(cudaMemcpyAsync(state, &empty, sizeof(empty), cudaMemcpyHostToDevice, stream),
                "a copy to the device");
  const auto zero = [&](void* at, std::int64_t size) {
    device::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(size), stream), "clearing");
  };
  zero(n_rows, 4);
  zero(overflow, 4);
  zero(full, 4);
  zero(flags, capacity);
  const auto none = [&](void* at, std::int64_t size) {  // -1 in each element
    device::check(cudaMemsetAsync(at, 0xff, static_cast<std::size_t>(size), stream), "clearing");
  };
  for (Layer& layer : layers) {
    if (layer.slot < 0) continue;
    for (RecallLists& lists : layer.lists) zero(lists.sizes, 12);
    if (n_slots == 0 || on_disk) continue;
    static_assert(kernels::kNoSlot == -1 && kernels::kNoEvent == -1);
    none(layer.residency.slot_of_event, max_events * 4);
    none(layer.residency.last_recalled, max_events * 8);
    none(layer.residency.event_of_slot, n_slots * 4);
  }
  // `empty` must live until it is copied.
  device::check(cudaStreamSynchronize(stream), "clearing the memory");
  segmenter = config.segmenter == SegmenterKind::surprise ? nullptr : make_segmenter(config, given);
  tokens = steps_since_recall = last_first = last_n = 0;
  if (lower) lower->clear();
  pending_start = config.n_init;
  broken = false;
  lists_now = 0;
  open = far_in_last_step = false;
}

DeviceMemoryBytes DeviceMemory::bytes_needed(const MemoryConfig& config, const MemoryShape& shape,
                                             const DeviceMemoryOptions& options) {
  check_shape(config, shape);
  Impl impl;
  impl.config = config;
  impl.shape = shape;
  impl.options = options;
  impl.plan();
  return impl.bytes;
}

DeviceMemory::DeviceMemory(const MemoryConfig& config, const MemoryShape& shape,
                           const DeviceMemoryOptions& options, CUstream_st* stream,
                           std::vector<std::int64_t> given)
    : impl_(std::make_unique<Impl>()) {
  check_shape(config, shape);
  Impl& m = *impl_;
  m.config = config;
  m.shape = shape;
  m.options = options;
  m.given = std::move(given);
  m.stream = stream;
  m.plan();
  const std::int64_t total = m.bytes.total();
  m.memory = DeviceBuffer(total, "the memory", "lower the number of tokens, n_local or chunk");
  Carver carver(m.memory.data());
  m.carve(carver);
  if (m.on_disk) {
    DiskStoreOptions store;
    store.dir = config.disk_dir;
    store.host_bytes = config.host_bytes;
    store.disk_bytes = config.disk_bytes;
    store.max_block = config.max_block;
    store.lease_tokens = most_recalled_tokens(config);
    m.lower = std::make_unique<LowerTiers>(
        m.store_shape(), store,
        device::SlotArrays{m.all_slots, m.blocks, m.n_slots, m.slot_bytes, m.max_events}, m.room,
        m.most_closed_tokens());
    m.home = m.lower->staging();
  } else if (m.n_slots > 0) {
    m.host_home = PinnedBuffer(m.bytes.host, "page-locked host memory for events (host_bytes)");
    m.home = m.host_home.as<std::byte>();
  }
  m.staging = StagingRing(m.config.chunk * static_cast<std::int64_t>(sizeof(float)));
  m.found_wrong = PinnedBuffer(3 * sizeof(std::uint32_t), "host memory for errors");
  m.upload_constants();
  m.clear();
}

DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;

const MemoryConfig& DeviceMemory::config() const { return impl_->config; }
const MemoryShape& DeviceMemory::shape() const { return impl_->shape; }
const DeviceMemoryOptions& DeviceMemory::options() const { return impl_->options; }
const DeviceMemoryBytes& DeviceMemory::bytes() const { return impl_->bytes; }
std::int64_t DeviceMemory::tokens() const { return impl_->tokens; }
void DeviceMemory::reset() { impl_->clear(); }

void DeviceMemory::begin_step(std::int64_t n) {
  Impl& m = *impl_;
  if (n < 1 || n > m.config.chunk)
    throw DataError(
        fmt::format("begin_step: n = {} tokens, must be in [1, chunk = {}]; feed longer "
                    "texts in several steps",
                    n, m.config.chunk));
  if (m.tokens + n > m.options.max_tokens)
    throw BudgetError(fmt::format(
        "CUDA memory: it has room for max_tokens = {}, {} are there and {} more come; make it with "
        "more",
        m.options.max_tokens, m.tokens, n));
  if (m.broken)
    throw DataError(
        "CUDA memory: events of an earlier step could not be kept, as was said then; reset it");
  if (m.lower) m.lower->begin_step(m.tokens);
  m.open = true;
  m.n = n;
  m.next_layer = 0;
  m.far = m.tokens + n > m.config.n_local;
  m.recalls_now = n > 1 || m.steps_since_recall % m.config.recall_every == 0;
  m.recalled_in_step = m.far && m.recalls_now;
}

std::optional<std::uint32_t> DeviceMemory::step_kind() const {
  const Impl& m = *impl_;
  if (!m.open || m.segmenter || m.lower) return std::nullopt;
  const bool lists = m.far && m.recalling > 0;
  std::uint32_t kind = 0;
  for (const bool bit : {m.far, lists && m.recalls_now, lists && m.lists_now == 1, m.may_close()})
    kind = kind << 1 | static_cast<std::uint32_t>(bit);
  return kind;
}

/// Hands the events that this step has closed to the tier below.
void DeviceMemory::Impl::keep_closed() {
  const TimelineState now = read(state, 1)[0];
  try {
    lower->keep(read(events + now.n_events - now.n_closed, now.n_closed));
  } catch (...) {
    broken = true;  // the device has gone on
    open = false;
    throw;
  }
  pending_start = now.pending_start;
}

/// Brings the recalled events that lie in host memory alone to the device, in place of those
/// recalled longest ago. What finds no slot is attended where it is, over the link.
void DeviceMemory::Impl::swap_in(const Layer& layer, const RecallLists& lists) {
  // Tokens before the step serve as its number: they grow from step to step.
  const std::int64_t* step = first_position();
  device::check(kernels::touch_events({layer.residency, step, lists.recalled, lists.sizes + 2, room,
                                       missing, n_missing},
                                      stream),
                "residency");
  device::check(kernels::choose_victims({layer.residency, step, n_missing, room, given_slots,
                                         n_given, victims, n_victims},
                                        stream),
                "choosing what makes room");
  kernels::OccupyParams p;
  p.map = layer.residency;
  p.missing = missing;
  p.slots = given_slots;
  p.n_given = n_given;
  p.victims = victims;
  p.n_victims = n_victims;
  p.max_needed = room;
  p.events = events;
  p.n_init = config.n_init;
  p.home = reinterpret_cast<unsigned char*>(home + layer.slot * layer_bytes);
  p.token_bytes = token_bytes;
  p.slot_memory = reinterpret_cast<unsigned char*>(layer.slots);
  p.slot_bytes = slot_bytes;
  p.blocks = blocks + layer.slot * max_events;
  p.runs = copies;
  device::check(kernels::occupy_slots(p, stream), "residency");
  // Few blocks fill the host's link.
  constexpr std::int64_t kCopyBlocks = 32;
  device::check(kernels::copy_runs({copies, n_given, room, kCopyBlocks}, stream),
                "fetching events");
}

/// Queries, lists and rows of a step in which something lies outside the window.
void DeviceMemory::Impl::recall(Layer& layer, const LayerStep& step) {
  const RecallLists& lists = lists_of_step(layer);
  if (layer.slot >= 0 && recalls_now) {
    kernels::MeanQueryParams query = mean_query_params(n);
    query.q = step.q;
    query.q_row_stride = step.q_row_stride;
    device::check(kernels::mean_fixed_query(query, stream), "the mean query");
    kernels::RecallParams p = recall_params();
    p.n = n;
    p.representatives = layer.representatives;
    const RecallLists& before = layer.lists[lists_now];
    p.queue = before.contiguity;
    p.queue_size = before.sizes + 1;
    p.similarity = lists.similarity;
    p.contiguity_list = lists.contiguity;
    p.recalled = lists.recalled;
    p.sizes = lists.sizes;
    device::check(kernels::recall_events(p, stream), "recall");
    if (lower)
      // The one place where the host waits within a step: files are read by the host.
      lower->fetch(layer.slot, read(lists.recalled, read(lists.sizes, 3)[2]), stream);
    else if (n_slots > 0)
      swap_in(layer, lists);
  }
  kernels::RowsParams p;
  p.dtype = options.dtype;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.tokens = first_position();
  p.n = n;
  p.n_init = config.n_init;
  p.n_local = config.n_local;
  p.sink_key = layer.sink_key;
  p.sink_value = layer.sink_value;
  p.ring_key = layer.ring_key;
  p.ring_value = layer.ring_value;
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.n_events = event_count();
  p.events = events;
  if (layer.slot >= 0) {
    p.event_block = blocks + layer.slot * max_events;
    p.recalled = lists.recalled;
    p.n_recalled = lists.sizes + 2;
  }
  p.rows = rows;
  p.n_rows = n_rows;
  p.max_rows = max_rows;
  p.overflow = overflow;
  device::check(kernels::far_rows(p, stream), "far rows");
}

void DeviceMemory::attend(std::int64_t l, const LayerStep& step) {
  Impl& m = *impl_;
  if (!m.open || l != m.next_layer || l >= m.shape.n_layers)
    throw DataError(
        fmt::format("attend: layer {} out of turn; call begin_step, then attend for layers "
                    "0 to {} in order, then end_step",
                    l, m.shape.n_layers - 1));
  Layer& layer = m.layers[static_cast<std::size_t>(l)];
  if (l == 0 && m.rotary_dim() > 0)
    device::check(
        kernels::rotary_angles({m.n, m.rotary_dim() / 2, m.first_position(), m.inverse_frequency,
                                m.shape.rotary.attention_factor, m.cos, m.sin},
                               m.stream),
        "rotary angles");
  kernels::AppendParams append;
  append.dtype = m.options.dtype;
  append.n = m.n;
  append.n_kv_heads = m.shape.n_kv_heads;
  append.head_dim = m.shape.head_dim;
  append.rotary_dim = m.rotary_dim();
  append.first_position = m.first_position();
  append.k = step.k;
  append.v = step.v;
  append.k_row_stride = step.k_row_stride;
  append.v_row_stride = step.v_row_stride;
  append.cos = m.cos;
  append.sin = m.sin;
  append.ring_key = layer.ring_key;
  append.ring_turned_key = layer.ring_turned;
  append.ring_value = layer.ring_value;
  append.ring_capacity = m.capacity;
  append.ring_head_stride = m.head_stride;
  append.sink_key = layer.sink_key;
  append.sink_value = layer.sink_value;
  append.n_init = m.config.n_init;
  device::check(kernels::append_window(append, m.stream), "appending keys and values");
  if (m.far) m.recall(layer, step);

  kernels::AttentionParams p = m.attention_params(m.n);
  p.q = step.q;
  p.q_row_stride = step.q_row_stride;
  p.local_key = layer.ring_turned;
  p.local_value = layer.ring_value;
  p.out = step.out;
  p.maybe_column_sums = layer.sums;
  if (!m.far) p.max_rows = 0;
  device::check(kernels::segmented_attention(p, m.stream), "attention");
  ++m.next_layer;
}

void DeviceMemory::end_step(const float* surprise) {
  enqueue_end(surprise);
  impl_->finish_step();
}

void DeviceMemory::end_launched_step() {
  if (!step_kind())
    throw DataError(
        "end_launched_step: no step is open, or its segmenter runs on the host; use end_step");
  impl_->finish_step();
}

void DeviceMemory::enqueue_end(const float* surprise) {
  Impl& m = *impl_;
  if (!m.open || m.next_layer != m.shape.n_layers)
    throw DataError(
        fmt::format("end_step: layer {} is still to come; call attend for all {} layers first",
                    m.next_layer, m.shape.n_layers));
  // Raw flags: by surprise on the device, by the other segmenters on the host, which need nothing
  // from it. The step's surprise is kept for whoever asks.
  kernels::ThresholdParams raw;
  raw.window = m.config.window == episodic::ThresholdWindow::moving
                   ? kernels::ThresholdWindow::moving
                   : kernels::ThresholdWindow::chunked;
  raw.tau = m.config.effective_tau();
  raw.n_init = m.config.n_init;
  raw.gamma = m.config.gamma;
  raw.n = m.n;
  raw.state = m.state;
  raw.surprise = surprise;
  raw.recent = m.recent;
  raw.recent_capacity = m.recent_capacity;
  raw.threshold = m.threshold;
  raw.raw = m.raw;
  device::check(cudaMemcpyAsync(m.surprise, surprise, static_cast<std::size_t>(m.n) * sizeof(float),
                                cudaMemcpyDeviceToDevice, m.stream),
                "keeping the surprise");
  device::check(kernels::surprise_threshold(raw, m.stream), "thresholds");
  if (m.segmenter) {
    const auto count = static_cast<std::size_t>(m.n);
    // These segmenters look at token numbers alone.
    std::vector<float> ignored(count), thresholds(count);
    m.staging.send(m.raw, m.n, m.stream, [&](std::uint8_t* host) {
      m.segmenter->step(m.tokens, ignored, thresholds, {host, count});
    });
    m.staging.send(m.threshold, m.n, m.stream,
                   [&](float* host) { std::copy(thresholds.begin(), thresholds.end(), host); });
  }
  kernels::RefineParams refine = m.refine_params();
  refine.n = m.n;
  device::check(kernels::refine_boundaries(refine, m.stream), "refinement");
  for (const Layer& layer : m.layers)
    device::check(
        kernels::commit_relevance({m.n, m.shape.n_heads, m.config.n_local, m.first_position(),
                                   layer.sums, layer.relevance, m.capacity},
                                  m.stream),
        "relevance");
  kernels::CloseEventsParams close;
  close.n_local = m.config.n_local;
  close.min_block = m.config.min_block;
  close.max_block = m.config.max_block;
  close.n = m.n;
  close.state = m.state;
  close.flags = m.flags;
  close.flag_capacity = m.capacity;
  close.events = m.events;
  close.event_capacity = m.max_events;
  device::check(kernels::close_events(close, m.stream), "closing events");
  if (m.may_close()) {
    kernels::PlaceEventsParams place;
    place.state = m.state;
    place.events = m.events;
    place.max_events = m.max_events;
    // Above files, what the step closes goes to a staging area, from its start on.
    place.n_init = m.lower ? m.pending_start : m.config.n_init;
    place.home = reinterpret_cast<unsigned char*>(m.home);
    place.n_layers = m.recalling;
    place.layer_bytes = m.lower ? m.lower->staging_layer_bytes() : m.layer_bytes;
    place.token_bytes = m.token_bytes;
    place.blocks = m.blocks;
    place.max_count = m.max_closed;
    place.start = m.closed_start;
    place.end = m.closed_end;
    place.count = m.closed_count;
    place.first_id = m.closed_first;
    place.step_blocks = m.step_blocks;
    device::check(kernels::place_events(place, m.stream), "placing events");
    for (const Layer& layer : m.layers) {
      if (layer.slot < 0) continue;
      kernels::RepresentativeParams chosen;
      chosen.events = m.closed();
      chosen.key_dtype = chosen.repr_dtype = m.options.dtype;
      chosen.n_heads = m.shape.n_heads;
      chosen.n_kv_heads = m.shape.n_kv_heads;
      chosen.head_dim = m.shape.head_dim;
      chosen.n_repr = m.config.n_repr;
      chosen.ring_key = layer.ring_key;
      chosen.ring_capacity = m.capacity;
      chosen.ring_head_stride = m.head_stride;
      chosen.relevance = layer.relevance;
      chosen.mean = layer.representatives;
      chosen.capacity = m.max_events;
      chosen.full = m.full;
      device::check(kernels::select_representatives(chosen, m.stream), "representatives");
      kernels::EventBlockParams block;
      block.events = m.closed();
      block.dtype = m.options.dtype;
      block.n_kv_heads = m.shape.n_kv_heads;
      block.head_dim = m.shape.head_dim;
      block.ring_key = layer.ring_key;
      block.ring_value = layer.ring_value;
      block.ring_capacity = m.capacity;
      block.ring_head_stride = m.head_stride;
      block.block = m.step_blocks + layer.slot * m.max_closed;
      device::check(kernels::event_to_block(block, m.stream), "keeping events");
    }
    if (m.lower) m.keep_closed();
  }
}

/// The host's side of a step whose work is enqueued.
void DeviceMemory::Impl::finish_step() {
  last_first = tokens;
  last_n = n;
  tokens += n;
  steps_since_recall = n > 1 ? 0 : steps_since_recall + 1;
  if (recalled_in_step) lists_now = 1 - lists_now;
  far_in_last_step = far;
  open = false;
}

void DeviceMemory::check() const {
  const Impl& m = *impl_;
  auto* const found = m.found_wrong.as<std::uint32_t>();
  const void* const from[] = {&m.state->errors, m.overflow, m.full};
  for (std::size_t i = 0; i < 3; ++i)
    device::check(
        cudaMemcpyAsync(found + i, from[i], sizeof(*found), cudaMemcpyDeviceToHost, m.stream),
        "a copy from the device");
  device::check(cudaStreamSynchronize(m.stream), "the memory's kernels");
  const std::uint32_t errors = found[0];
  if (errors & kernels::kSurpriseIsNaN)
    throw DataError(
        "CUDA memory: a token's surprise is NaN: the logits before it, or the id itself, make no "
        "sense; reset the memory");
  if ((errors & (kernels::kEventTableIsFull | kernels::kStepsTooLong)) || found[1] != 0 ||
      found[2] != 0)
    throw DataError("CUDA memory: a table on the device overflowed; reset the memory");
}

StoreCounters DeviceMemory::lower_tiers() const {
  return impl_->lower ? impl_->lower->counters() : StoreCounters{};
}

EventTable DeviceMemory::events() const {
  const Impl& m = *impl_;
  const TimelineState state = m.read(m.state, 1)[0];
  const std::vector<EventRange> ranges = m.read(m.events, state.n_events);
  std::size_t next = 0;
  EventTable table(m.config.n_init, 1, m.config.max_block + 1);
  table.close_up_to(state.pending_start + 1, [&](std::int64_t token) {
    if (next == ranges.size() || ranges[next].end != token) return false;
    ++next;
    return true;
  });
  return table;
}

StepRecord DeviceMemory::last_step() const {
  const Impl& m = *impl_;
  StepRecord r;
  const TimelineState state = m.read(m.state, 1)[0];
  r.first = m.last_first;
  r.n = m.last_n;
  r.events_before = state.n_events - state.n_closed;
  r.surprise = m.read(m.surprise, m.last_n);
  r.threshold = m.read(m.threshold, m.last_n);
  r.raw_boundaries = m.read(m.raw, m.last_n);
  const std::vector<std::uint8_t> ring = m.read(m.flags, m.capacity);
  for (std::int64_t i = 0; i < m.last_n; ++i)
    r.final_boundaries.push_back(ring[static_cast<std::size_t>((r.first + i) % m.capacity)]);
  return r;
}

std::vector<EventId> DeviceMemory::recalled(std::int64_t l) const {
  const Impl& m = *impl_;
  const Layer& layer = m.layers.at(static_cast<std::size_t>(l));
  if (layer.slot < 0 || !m.far_in_last_step) return {};
  const RecallLists& lists = layer.lists[m.lists_now];
  const std::vector<DeviceEventId> ids = m.read(lists.recalled, m.read(lists.sizes, 3)[2]);
  return {ids.begin(), ids.end()};
}

std::vector<float> DeviceMemory::representative(std::int64_t l, EventId event) const {
  const Impl& m = *impl_;
  const Layer& layer = m.layers.at(static_cast<std::size_t>(l));
  if (layer.slot < 0 || event < 0 || event >= m.read(m.state, 1)[0].n_events)
    throw DataError(fmt::format("representative: layer {} has no event {}", l, event));
  const std::vector<std::byte> row =
      m.read(layer.representatives + event * m.width() * m.element, m.width() * m.element);
  std::vector<float> out(static_cast<std::size_t>(m.width()));
  for (std::size_t i = 0; i < out.size(); ++i) {
    if (m.options.dtype == DType::float32) {
      std::memcpy(&out[i], row.data() + 4 * i, 4);
    } else {
      std::uint16_t h;
      std::memcpy(&h, row.data() + 2 * i, 2);
      out[i] = m.options.dtype == DType::bfloat16 ? from_bfloat16(h) : from_float16(h);
    }
  }
  return out;
}

}  // namespace episodic
