// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_memory.hpp"

#include <fmt/format.h>

#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::LowerTiers;
using device::PinnedBuffer;
using device::RecallLists;
using device::StagingRing;
using kernels::DeviceEventId;
using kernels::EventRange;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

/// What never changes: angles' frequencies, the fixed position, where the layers' arrays lie.
void DeviceMemory::Impl::upload_constants() {
  const auto send = [&](void* to, const void* from, std::size_t size) {
    if (size > 0)
      device::check(cudaMemcpyAsync(to, from, size, cudaMemcpyHostToDevice, stream),
                    "a copy to the device");
  };
  std::vector<RotaryAngles> fixed(rotaries.size());  // which must live until they are copied
  for (std::size_t i = 0; i < rotaries.size(); ++i) {
    const device::DeviceRotary& r = rotaries[i];
    fixed[i].compute_fixed(r.table, config.n_local);
    send(r.inverse_frequency, r.table.inverse_frequency.data(),
         r.table.inverse_frequency.size() * sizeof(double));
    send(r.fixed_cos, fixed[i].cos.data(), fixed[i].cos.size() * sizeof(float));
    send(r.fixed_sin, fixed[i].sin.data(), fixed[i].sin.size() * sizeof(float));
  }
  std::vector<const void*> keys;
  for (const Layer& layer : layers) keys.push_back(layer.ring_key);
  send(ring_keys, keys.data(), keys.size() * sizeof(void*));
  std::vector<kernels::RelevanceLayer> relevance;
  std::vector<kernels::RepresentativeLayer> representatives;
  std::vector<kernels::CodeLayer> codes;
  std::vector<kernels::EventBlockLayer> rings;
  std::vector<std::int32_t> scopes_of_lanes;
  std::array<std::vector<kernels::LayerMasses>, 2> masses;
  std::array<std::vector<kernels::LaneLists>, 2> lists;
  for (const Layer& layer : layers) {
    relevance.push_back({layer.sums, layer.relevance, layer.stats});
    for (std::size_t i = 0; config.retention && layer.place >= 0 && i < 2; ++i)
      masses[i].push_back({layer.lists[i].recalled, layer.lists[i].sizes + 2, layer.masses});
    for (std::int64_t p = 0; layer.place >= 0 && p < lanes.per_layer; ++p) {
      const std::int64_t ring = p * lanes.n_kv_heads * head_stride * element;
      std::byte* const vectors = layer.representatives + p * max_events * repr_row();
      std::byte* const each = layer.each ? layer.each + p * max_events * each_row() : nullptr;
      representatives.push_back(
          {layer.ring_key + ring, layer.relevance + p * lanes.n_heads, vectors, each});
      rings.push_back(
          {layer.ring_key + ring, layer.ring_value + ring, scales_of(first_lane(layer) + p)});
      for (std::size_t i = 0; i < 2; ++i) {
        const RecallLists& of = layer.lists[i];
        lists[i].push_back({of.similarity + p * room, of.contiguity + p * room,
                            of.recalled + p * room, of.sizes + 3 * p});
      }
      scopes_of_lanes.push_back(static_cast<std::int32_t>(scope_of(layer, p)));
      if (!keeps_codes()) continue;
      codes.push_back({vectors, layer.codes + p * max_events * kernels::code_stride(lane_width()),
                       layer.code_bounds + p * max_events * kernels::code_floats(lane_width())});
    }
  }
  send(relevance_layers, relevance.data(), relevance.size() * sizeof(relevance[0]));
  send(representative_lanes, representatives.data(),
       representatives.size() * sizeof(representatives[0]));
  if (keeps_codes()) send(code_lanes, codes.data(), codes.size() * sizeof(codes[0]));
  send(block_lanes, rings.data(), rings.size() * sizeof(rings[0]));
  for (std::size_t i = 0; i < 2; ++i)
    send(lane_lists[i], lists[i].data(), lists[i].size() * sizeof(kernels::LaneLists));
  for (std::size_t i = 0; i < 2; ++i)
    send(layer_masses[i], masses[i].data(), masses[i].size() * sizeof(kernels::LayerMasses));
  if (lane_scopes) send(lane_scopes, scopes_of_lanes.data(), scopes_of_lanes.size() * 4);
  device::check(cudaStreamSynchronize(stream), "the memory's constants");
}

void DeviceMemory::Impl::clear(std::span<const std::int64_t> kept_events) {
  join_side_streams();
  const std::vector<TimelineState> empty(static_cast<std::size_t>(scopes),
                                         kernels::initial_timeline(config.n_init));
  device::check(cudaMemcpyAsync(state, empty.data(), empty.size() * sizeof(empty[0]),
                                cudaMemcpyHostToDevice, stream),
                "a copy to the device");
  const auto zero = [&](void* at, std::int64_t size) {
    device::check(cudaMemsetAsync(at, 0, static_cast<std::size_t>(size), stream), "clearing");
  };
  const std::int64_t P = lanes.per_layer;
  zero(n_rows, 4 * P);
  zero(overflow, 4);
  zero(full, 4);
  zero(not_finite, 4);
  zero(recalled_events, sizeof(*recalled_events));
  zero(arrived, 4 * P);
  zero(score_tokens, std::int64_t{sizeof(*score_tokens)} * P * rules::kScoreBins);
  zero(score_centres, std::int64_t{sizeof(*score_centres)} * lanes.n_lanes);
  zero(attended, 4 * kernels::kAttentionCounters * shape.n_kv_heads);
  zero(averaged, 4 * shape.n_heads);
  zero(flags, scopes * capacity);
  const auto none = [&](void* at, std::int64_t size) {  // -1 in each element
    device::check(cudaMemsetAsync(at, 0xff, static_cast<std::size_t>(size), stream), "clearing");
  };
  for (Layer& layer : layers) {
    if (layer.place < 0) continue;
    for (RecallLists& lists : layer.lists) zero(lists.sizes, 12 * P);
    if (!has_host_tier()) continue;
    static_assert(kernels::kNoSlot == -1 && kernels::kNoEvent == -1);
    none(layer.residency.event_of_slot, n_slots * 4);
    none(layer.residency.newest, 8);
  }
  prepare_events(0, of_events.held);
  // `empty` must live until it is copied.
  device::check(cudaStreamSynchronize(stream), "clearing the memory");
  const bool by_numbers = config.segmenter != SegmenterKind::surprise && !segments_by_keys();
  segmenter = by_numbers ? make_segmenter(config, given) : nullptr;
  if (segments_by_keys())
    write_key_segmenter(
        {std::vector<kernels::KeySegmenterState>(static_cast<std::size_t>(key_segmenters()),
                                                 kernels::initial_key_segmenter(config.n_init)),
         {},
         {}});
  tokens = steps_since_recall = last_first = last_n = 0;
  n_steps = 0;
  if (lower) {
    std::vector<std::int64_t> kept(kept_events.begin(), kept_events.end());
    if (by_head()) {  // those of the scopes that are in the store
      kept.clear();
      for (const Layer& layer : layers)
        for (std::int64_t p = 0; layer.place >= 0 && p < P; ++p)
          kept.push_back(kept_events[static_cast<std::size_t>(scope_of(layer, p))]);
    }
    lower->truncate(kept);
  }
  accept_report(empty);
  state_now.reset();
  retention = make_retention();
  is_judged = true;
  broken = false;
  lists_now = 0;
  open = far_in_last_step = false;
  ++generation;
  rewinds.assign(1, Rewind{generation, 0});
  shared = {0, std::vector<std::int64_t>(static_cast<std::size_t>(scopes), 0)};
  saved.assign(1, shared);
  forgotten.assign(static_cast<std::size_t>(scopes), {});
  has_forgotten = false;
  pinned.assign(static_cast<std::size_t>(scopes), {});
  pin_changes.clear();
}

DeviceMemory::DeviceMemory(const MemoryConfig& config, const MemoryShape& shape,
                           const DeviceMemoryOptions& options, CUstream_st* stream,
                           std::vector<std::int64_t> given)
    : impl_(std::make_unique<Impl>()) {
  config.validate();
  check_shape(config, shape);
  Impl& m = *impl_;
  m.config = config;
  m.shape = shape;
  m.options = options;
  m.given = std::move(given);
  m.stream = stream;
  m.check_settings();
  const cudaError_t found = cudaGetDevice(&m.device);
  if (found != cudaSuccess) bytes_needed(config, shape, options);  // what none would take, first
  device::check(found, "asking for the current device");
  m.take_memory();
  if (m.on_disk) {
    DiskStoreOptions store;
    store.dir = config.disk_dir;
    store.host_bytes = config.host_bytes;
    store.disk_bytes = config.disk_bytes;
    store.max_block = config.max_block;
    store.lease_tokens = most_recalled_tokens(config);
    m.lower = std::make_unique<LowerTiers>(
        m.store_shape(), store,
        device::SlotArrays{m.all_slots, m.blocks, m.n_slots, m.slot_bytes, m.max_events},
        device::LaneTables{m.lanes.per_layer, m.by_head()}, m.room, m.most_closed_tokens(),
        m.max_closed);
    m.home = m.lower->staging();
  } else if (m.n_slots > 0) {
    m.take_home();
    m.make_side_streams();
  }
  m.staging = StagingRing(m.config.chunk * static_cast<std::int64_t>(sizeof(float)));
  m.found_wrong = PinnedBuffer(m.scopes * static_cast<std::int64_t>(sizeof(TimelineState)) + 12,
                               "the place for errors", "raise the limit of locked memory");
  m.left = device::Event::create();
  m.upload_constants();
  m.keep_rings();
  m.clear();
  m.twin = m.shared;
}

/// What is enqueued reads and writes what is given back behind this, page-locked memory too.
DeviceMemory::Impl::~Impl() {
  if (memory.data()) static_cast<void>(cudaStreamSynchronize(stream));
}

DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;

const MemoryConfig& DeviceMemory::config() const { return impl_->config; }
const MemoryShape& DeviceMemory::shape() const { return impl_->shape; }
const DeviceMemoryOptions& DeviceMemory::options() const { return impl_->options; }
const DeviceMemoryBytes& DeviceMemory::bytes() const { return impl_->bytes; }
std::int64_t DeviceMemory::tokens() const { return impl_->tokens; }
std::int64_t DeviceMemory::open_tokens() const { return impl_->open ? impl_->n : 0; }
std::int64_t DeviceMemory::generation() const { return impl_->generation; }
void DeviceMemory::reset() {
  const device::CurrentDevice current(impl_->device);
  impl_->kept_rows.forget_marks();
  impl_->clear();
}

void DeviceMemory::use_stream(CUstream_st* stream) {
  Impl& m = *impl_;
  if (stream == m.stream) return;
  const device::CurrentDevice current(m.device);
  m.join_side_streams();
  m.left.record(m.stream);
  m.left.hold(stream);
  m.stream = stream;
}

void DeviceMemory::check() const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  auto* const states = m.found_wrong.as<TimelineState>();
  auto* const found = reinterpret_cast<std::int32_t*>(states + m.scopes);
  const auto fetch = [&](void* to, const void* from, std::size_t size) {
    device::check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, m.stream),
                  "a copy from the device");
  };
  fetch(states, m.state, static_cast<std::size_t>(m.scopes) * sizeof(*states));
  fetch(found, m.overflow, sizeof(*found));
  fetch(found + 1, m.full, sizeof(*found));
  fetch(found + 2, m.not_finite, sizeof(*found));
  device::check(cudaStreamSynchronize(m.stream), "the memory's kernels");
  std::uint32_t errors = 0;
  for (std::int64_t s = 0; s < m.scopes; ++s) errors |= states[s].errors;
  if (errors & kernels::kSurpriseIsNaN)
    throw DataError(
        "CUDA memory: a token's surprise is NaN: the logits before it, or the id itself, make no "
        "sense; reset the memory");
  if (found[2] != 0)
    throw DataError(
        "CUDA memory: a key or value of a closed event is NaN or infinite, which has no 8-bit "
        "code; look for what made it in the model's weights or input, or set kv_dtype to "
        "\"float32\" to keep it as it is; reset the memory");
  if ((errors & (kernels::kEventTableIsFull | kernels::kStepsTooLong)) || found[0] != 0 ||
      found[1] != 0)
    throw DataError("CUDA memory: a table on the device overflowed; reset the memory");
}

bool DeviceMemory::over_files() const { return impl_->lower != nullptr; }

StoreCounters DeviceMemory::lower_tiers() const {
  return impl_->lower ? impl_->lower->counters() : StoreCounters{};
}

}  // namespace episodic
