// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/episodic_memory.hpp"

#include <algorithm>
#include <utility>

#include "impl.hpp"

namespace episodic {

DiskShares disk_shares(const MemoryConfig& config, const MemoryShape& shape) {
  if (config.disk_bytes == 0) return {};
  const LaneShape lanes = lane_shape(config, shape);
  const std::int64_t vectors =
      index_bytes(config, lanes.n_heads, shape.head_dim, 1000000).total() / 1000000;
  const std::int64_t event =
      block_bytes({1, lanes.n_kv_heads, shape.head_dim, config.kv_dtype}, config.min_block);
  DiskShares shares;
  shares.vectors = static_cast<std::int64_t>(static_cast<double>(config.disk_bytes) *
                                             static_cast<double>(vectors) /
                                             static_cast<double>(vectors + event));
  shares.segments = config.disk_bytes - shares.vectors;
  return shares;
}

DiskStoreOptions EpisodicMemory::Impl::disk_options() const {
  DiskStoreOptions o;
  o.dir = directory ? directory->dir() : std::filesystem::path(config.disk_dir);
  o.keep = directory && mode == OpenMode::write;
  if (o.keep && directory->has_manifest())
    for (const auto& file : directory->manifest().files) o.counted[file.name] = file.bytes;
  o.host_bytes = config.host_bytes;
  o.disk_bytes = disk_shares(config, shape).segments;
  o.max_block = config.max_block;
  o.lease_tokens = most_leased_tokens(config, shape);
  o.calls = directory ? &directory->calls() : nullptr;
  // Blocks on a tier come by calls that may take long: those of threads, meanwhile.
  if (on_tier) o.engine = ReadEngine::threads, o.direct = DirectIo::off;
  return o;
}

VectorTierOptions EpisodicMemory::Impl::vector_options() const {
  const DiskStoreOptions disk_tier = disk_options();
  VectorTierOptions o;
  o.dir = disk_tier.dir;
  o.keep = disk_tier.keep;
  o.counted = disk_tier.counted;
  o.disk_bytes = disk_shares(config, shape).vectors;
  o.calls = disk_tier.calls;
  return o;
}

detail::Tiers EpisodicMemory::Impl::make_tiers() const {
  if (!directory && config.disk_dir.empty()) return MemoryCore::make_tiers();
  detail::Tiers tiers;
  if (on_tier) tiers.calls = {on_tier, &on_tier->calls()};
  const StoreShape s = store_shape(config, shape);
  if (s.n_lanes == 0) return tiers;
  tiers.vectors =
      make_vector_tier(lane_shape(config, shape).width(shape.head_dim), vector_options());
  std::unique_ptr<DiskStore> made = make_disk_store(s, disk_options());
  tiers.disk = made.get();
  tiers.store = std::move(made);
  return tiers;
}

void EpisodicMemory::Impl::reserve_ids(std::int64_t n_tokens) {
  if (directory) ids.reserve(n_tokens);
}

void EpisodicMemory::Impl::push_ids(const std::int64_t* step_ids, std::int64_t n_tokens) noexcept {
  if (directory) ids.push(step_ids, n_tokens);
}

void EpisodicMemory::Impl::went_back(std::int64_t tokens) noexcept {
  if (directory) ids.truncate(tokens);
  gone_back_to = std::min(gone_back_to, tokens);
}

EpisodicMemory::EpisodicMemory(std::unique_ptr<Impl> impl) : HostMemory(std::move(impl)) {}

EpisodicMemory::EpisodicMemory(const MemoryConfig& config, const MemoryShape& shape,
                               std::vector<std::int64_t> given)
    : HostMemory(std::make_unique<Impl>()) {
  core_->configure(config, shape, std::move(given));
  core_->build();
}

EpisodicMemory::~EpisodicMemory() = default;
EpisodicMemory::EpisodicMemory(EpisodicMemory&&) noexcept = default;
EpisodicMemory& EpisodicMemory::operator=(EpisodicMemory&&) noexcept = default;

}  // namespace episodic
