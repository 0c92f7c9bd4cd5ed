// SPDX-License-Identifier: Apache-2.0
#include "lower_tiers.hpp"

#include <algorithm>
#include <cstring>

namespace episodic::device {
LowerTiers::LowerTiers(const StoreShape& shape, const DiskStoreOptions& options,
                       const SlotArrays& arrays, std::int64_t most_recalled,
                       std::int64_t most_closed_tokens)
    : shape_(shape),
      arrays_(arrays),
      store_(make_disk_store(shape, options)),
      staging_layer_bytes_(most_closed_tokens * shape.token_bytes() / shape.n_lanes),
      closed_(shape.n_lanes * staging_layer_bytes_, "the staging of closed events",
              "lower chunk or max_block"),
      fetched_(most_recalled * arrays.slot_bytes, "the staging of recalled events",
               "lower n_mem or max_block"),
      pointers_(most_recalled * static_cast<std::int64_t>(sizeof(void*)), "the staging of pointers",
                "lower n_mem or raise min_block") {
  const auto layers = static_cast<std::size_t>(shape.n_lanes);
  slots_.assign(layers, std::vector<Slot>(static_cast<std::size_t>(arrays.n_slots)));
  slot_of_.resize(layers);
}

void LowerTiers::truncate(std::int64_t n_events) {
  store_->truncate(n_events);
  n_events_ = n_events;
  pinned_.resize(static_cast<std::size_t>(n_events), false);
  for (std::vector<std::int32_t>& map : slot_of_) map.resize(static_cast<std::size_t>(n_events));
  for (std::vector<Slot>& slots : slots_)
    for (Slot& slot : slots)
      if (slot.event >= n_events) slot = {};
}

void LowerTiers::forget(EventId event) {
  store_->forget(event);
  for (std::size_t layer = 0; layer < slots_.size(); ++layer) {
    std::int32_t& slot = slot_of_[layer][static_cast<std::size_t>(event)];
    if (slot >= 0) slots_[layer][static_cast<std::size_t>(slot)] = {};
    slot = -1;
  }
}

void LowerTiers::pin(EventId event, bool pinned) {
  store_->pin(event, pinned);
  pinned_[static_cast<std::size_t>(event)] = pinned;
  for (std::vector<Slot>& slots : slots_)
    for (Slot& slot : slots)
      if (slot.event == event) slot.pinned = pinned;
}

void LowerTiers::keep(std::span<const kernels::EventRange> closed) {
  if (closed.empty()) return;
  std::vector<TokenRange> ranges;
  for (const kernels::EventRange& e : closed) ranges.push_back({e.start, e.end});
  store_->append(ranges);
  const std::int64_t token_bytes = shape_.token_bytes() / shape_.n_lanes;
  for (std::int64_t layer = 0; layer < shape_.n_lanes; ++layer)
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const TokenRange& e = ranges[i];
      const std::byte* block =
          staging() + layer * staging_layer_bytes_ + (e.start - ranges.front().start) * token_bytes;
      // The elements come back to what they were when the store rounds them.
      store_->write(n_events_ + static_cast<EventId>(i), layer,
                    rings_.of(block, shape_.dtype, shape_.n_kv_heads, shape_.head_dim, e));
    }
  n_events_ += static_cast<std::int64_t>(ranges.size());
  pinned_.resize(static_cast<std::size_t>(n_events_), false);
  for (std::vector<std::int32_t>& map : slot_of_)
    map.resize(static_cast<std::size_t>(n_events_), -1);
}

std::int64_t LowerTiers::choose(std::span<const Slot> slots) const {
  std::int64_t best = -1;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    if (rules::is_free(slots[s])) return static_cast<std::int64_t>(s);
    if (!rules::may_leave(slots[s], clock_)) continue;
    if (best < 0 || rules::leaves_before(slots[s], slots[static_cast<std::size_t>(best)]))
      best = static_cast<std::int64_t>(s);
  }
  return best;
}

void LowerTiers::fetch(std::int64_t layer, std::span<const kernels::DeviceEventId> recalled,
                       cudaStream_t stream) {
  std::vector<Slot>& slots = slots_[static_cast<std::size_t>(layer)];
  std::vector<std::int32_t>& slot_of = slot_of_[static_cast<std::size_t>(layer)];
  missing_.clear();
  for (const kernels::DeviceEventId e : recalled) {
    const std::int32_t slot = slot_of[static_cast<std::size_t>(e)];
    if (slot < 0)
      missing_.push_back(e);
    else
      slots[static_cast<std::size_t>(slot)].last_recalled = clock_;
  }
  if (missing_.empty()) return;
  segments_.clear();
  store_->acquire(layer, missing_, segments_);
  if (layer + 1 < shape_.n_lanes) store_->prefetch(layer + 1, missing_);
  const std::int64_t element = size_of(shape_.dtype);
  copies_.clear();
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    const auto e = static_cast<std::size_t>(missing_[i]);
    // Those recalled in this attempt carry its stamp, and there are no more of them than slots:
    // what leaves is older.
    const std::int64_t s = choose(slots);
    Slot& slot = slots[static_cast<std::size_t>(s)];
    if (slot.event >= 0) slot_of[static_cast<std::size_t>(slot.event)] = -1;
    slot = {clock_, missing_[i], pinned_[e]};
    slot_of[e] = static_cast<std::int32_t>(s);
    const KvSegment& segment = segments_[i];
    const auto half =
        static_cast<std::size_t>(shape_.n_kv_heads * segment.length * shape_.head_dim * element);
    std::byte* const staged =
        fetched_.as<std::byte>() + static_cast<std::int64_t>(i) * arrays_.slot_bytes;
    std::memcpy(staged, segment.key, half);
    std::memcpy(staged + half, segment.value, half);
    std::byte* const to = arrays_.slots + (layer * arrays_.n_slots + s) * arrays_.slot_bytes;
    copies_.add(to, staged, 2 * half);
    void** const pointer = pointers_.as<void*>() + i;
    *pointer = to;
    copies_.add(arrays_.blocks + layer * arrays_.max_events + missing_[i], pointer, sizeof(void*));
  }
  check(kernels::copy_batch(copies_.to.data(), copies_.from.data(), copies_.bytes.data(),
                            copies_.to.size(), stream),
        "fetching events");
  store_->release(layer);
}

}  // namespace episodic::device
