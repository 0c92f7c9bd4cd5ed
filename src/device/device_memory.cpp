// SPDX-License-Identifier: Apache-2.0
#include "episodic/device/device_memory.hpp"

#include <fmt/format.h>

#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::PinnedBuffer;
using device::StagingRing;
using kernels::TimelineState;

void DeviceMemory::Impl::clear(std::span<const std::int64_t> kept_events) {
  tiers.join(stream);
  layers.clear(stream);
  tiers.clear(stream);
  retention.clear(stream);
  prepare_events(0, growth.of_events.held);
  const std::vector<TimelineState> empty = timeline.clear(given, stream);
  step.clear();
  if (tiers.files()) tiers.truncate(kept_events);
  accept_report(empty);
  broken = false;
  snapshots.state_now.reset();
  ++snapshots.generation;
  snapshots.rewinds.assign(1, {snapshots.generation, 0});
  host.shared = {0, std::vector<std::int64_t>(static_cast<std::size_t>(sizes.scopes), 0)};
  host.saved.assign(1, host.shared);
}

DeviceMemory::DeviceMemory(const MemoryConfig& config, const MemoryShape& shape,
                           const DeviceMemoryOptions& options, CUstream_st* stream,
                           std::vector<std::int64_t> given)
    : impl_(std::make_unique<Impl>()) {
  config.validate();
  check_shape(config, shape);
  Impl& m = *impl_;
  m.sizes.config = config;
  m.sizes.shape = shape;
  m.sizes.options = options;
  m.given = std::move(given);
  m.stream = stream;
  m.sizes.check_settings();
  const cudaError_t found = cudaGetDevice(&m.device);
  if (found != cudaSuccess) bytes_needed(config, shape, options);  // what none would take, first
  device::check(found, "asking for the current device");
  m.take_memory();
  m.open();
}

DeviceMemory::DeviceMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

void DeviceMemory::Impl::open() {
  const MemoryConfig& config = sizes.config;
  if (tiers.plan().on_disk) {
    DiskStoreOptions store;
    store.dir = config.disk_dir;
    store.host_bytes = config.host_bytes;
    store.disk_bytes = config.disk_bytes;
    store.max_block = config.max_block;
    store.lease_tokens = most_recalled_tokens(config);
    tiers.open_files(store);
  } else if (tiers.has_host_tier()) {
    tiers.take_home(bytes.host, device, memory.grows() ? memory.granule() : 0);
    bytes.host_taken = tiers.home_held();
  }
  staging = StagingRing(config.chunk * static_cast<std::int64_t>(sizeof(float)));
  found_wrong = PinnedBuffer(sizes.scopes * static_cast<std::int64_t>(sizeof(TimelineState)) + 12,
                             "the place for errors", "raise the limit of locked memory");
  left = device::Event::create();
  upload_constants();
  snapshots.kept_rows = device::KeptRows(layers.rings());
  clear();
  host.twin = host.shared;
}

/// What is enqueued reads and writes what is given back behind this, page-locked memory too.
DeviceMemory::Impl::~Impl() {
  if (memory.data()) static_cast<void>(cudaStreamSynchronize(stream));
}

DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;

const MemoryConfig& DeviceMemory::config() const { return impl_->sizes.config; }
const MemoryShape& DeviceMemory::shape() const { return impl_->sizes.shape; }
const DeviceMemoryOptions& DeviceMemory::options() const { return impl_->sizes.options; }
const DeviceMemoryBytes& DeviceMemory::bytes() const { return impl_->bytes; }
std::int64_t DeviceMemory::tokens() const { return impl_->step.tokens; }
std::int64_t DeviceMemory::open_tokens() const { return impl_->step.open ? impl_->step.n : 0; }
std::int64_t DeviceMemory::generation() const { return impl_->snapshots.generation; }
void DeviceMemory::reset() {
  const device::CurrentDevice current(impl_->device);
  impl_->snapshots.kept_rows.forget_marks();
  impl_->leave_shared();
  impl_->clear();
}

void DeviceMemory::use_stream(CUstream_st* stream) {
  Impl& m = *impl_;
  if (stream == m.stream) return;
  const device::CurrentDevice current(m.device);
  m.tiers.join(m.stream);
  m.left.record(m.stream);
  m.left.hold(stream);
  m.stream = stream;
}

void DeviceMemory::check() const {
  const Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  auto* const states = m.found_wrong.as<TimelineState>();
  auto* const found = reinterpret_cast<std::int32_t*>(states + m.sizes.scopes);
  const auto fetch = [&](void* to, const void* from, std::size_t size) {
    device::check(cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToHost, m.stream),
                  "a copy from the device");
  };
  fetch(states, m.timeline.states(), static_cast<std::size_t>(m.sizes.scopes) * sizeof(*states));
  fetch(found, m.layers.overflow(), sizeof(*found));
  fetch(found + 1, m.layers.full(), sizeof(*found));
  fetch(found + 2, m.tiers.not_finite(), sizeof(*found));
  device::check(cudaStreamSynchronize(m.stream), "the memory's kernels");
  std::uint32_t errors = 0;
  for (std::int64_t s = 0; s < m.sizes.scopes; ++s) errors |= states[s].errors;
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

bool DeviceMemory::over_files() const { return impl_->tiers.files() != nullptr; }

StoreCounters DeviceMemory::lower_tiers() const {
  return impl_->tiers.files() ? impl_->tiers.files()->counters() : StoreCounters{};
}

}  // namespace episodic
