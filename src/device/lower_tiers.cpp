// SPDX-License-Identifier: Apache-2.0
#include "lower_tiers.hpp"

#include <algorithm>
#include <cstring>

namespace episodic::device {
namespace {

float widen(const std::byte* at, DType dtype) {
  if (dtype == DType::float32) {
    float x;
    std::memcpy(&x, at, 4);
    return x;
  }
  std::uint16_t h;
  std::memcpy(&h, at, 2);
  return dtype == DType::bfloat16 ? from_bfloat16(h) : from_float16(h);
}

}  // namespace

LowerTiers::LowerTiers(const StoreShape& shape, const DiskStoreOptions& options,
                       const SlotArrays& arrays, std::int64_t most_recalled,
                       std::int64_t most_closed_tokens)
    : shape_(shape),
      arrays_(arrays),
      store_(make_disk_store(shape, options)),
      staging_layer_bytes_(most_closed_tokens * shape.token_bytes() / shape.n_layers),
      closed_(shape.n_layers * staging_layer_bytes_, "page-locked host memory for closed events"),
      fetched_(most_recalled * arrays.slot_bytes, "page-locked host memory for recalled events"),
      pointers_(most_recalled * static_cast<std::int64_t>(sizeof(void*)),
                "page-locked host memory for pointers") {
  clear();
}

void LowerTiers::clear() {
  store_->truncate(0);
  n_events_ = 0;
  const auto layers = static_cast<std::size_t>(shape_.n_layers);
  slots_.assign(layers, std::vector<Slot>(static_cast<std::size_t>(arrays_.n_slots)));
  slot_of_.assign(layers, {});
}

void LowerTiers::keep(std::span<const kernels::EventRange> closed) {
  if (closed.empty()) return;
  std::vector<TokenRange> ranges;
  for (const kernels::EventRange& e : closed) ranges.push_back({e.start, e.end});
  store_->append(ranges);
  const std::int64_t G = shape_.n_kv_heads, d = shape_.head_dim, element = size_of(shape_.dtype);
  const std::int64_t token_bytes = 2 * G * d * element;
  for (std::int64_t layer = 0; layer < shape_.n_layers; ++layer)
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      const TokenRange& e = ranges[i];
      const std::int64_t n = e.size();
      const std::byte* block =
          staging() + layer * staging_layer_bytes_ + (e.start - ranges.front().start) * token_bytes;
      // The store reads rings of floats; one as long as the event holds it at token % n. The
      // elements come back to what they were when the store rounds them.
      keys_.resize(static_cast<std::size_t>(G * n * d));
      values_.resize(keys_.size());
      for (std::int64_t g = 0; g < G; ++g)
        for (std::int64_t t = 0; t < n; ++t)
          for (std::int64_t c = 0; c < d; ++c) {
            const std::int64_t from = (g * n + t) * d + c;
            const auto to = static_cast<std::size_t>((g * n + (e.start + t) % n) * d + c);
            keys_[to] = widen(block + from * element, shape_.dtype);
            values_[to] = widen(block + (G * n * d + from) * element, shape_.dtype);
          }
      store_->write(n_events_ + static_cast<EventId>(i), layer,
                    {keys_.data(), values_.data(), n, n * d, d});
    }
  n_events_ += static_cast<std::int64_t>(ranges.size());
  for (std::vector<std::int32_t>& map : slot_of_)
    map.resize(static_cast<std::size_t>(n_events_), -1);
}

std::int64_t LowerTiers::choose(std::span<const Slot> slots) const {
  std::int64_t best = -1;
  for (std::size_t s = 0; s < slots.size(); ++s) {
    if (slots[s].event < 0) return static_cast<std::int64_t>(s);
    const auto older = [&](const Slot& a, const Slot& b) {
      return a.last_recalled < b.last_recalled ||
             (a.last_recalled == b.last_recalled && a.event < b.event);
    };
    if (best < 0 || older(slots[s], slots[static_cast<std::size_t>(best)]))
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
  if (layer + 1 < shape_.n_layers) store_->prefetch(layer + 1, missing_);
  const std::int64_t element = size_of(shape_.dtype);
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    const auto e = static_cast<std::size_t>(missing_[i]);
    // Those recalled in this attempt carry its stamp, and there are no more of them than slots:
    // what leaves is older.
    const std::int64_t s = choose(slots);
    Slot& slot = slots[static_cast<std::size_t>(s)];
    if (slot.event >= 0) slot_of[static_cast<std::size_t>(slot.event)] = -1;
    slot = {static_cast<kernels::DeviceEventId>(e), clock_};
    slot_of[e] = static_cast<std::int32_t>(s);
    const KvSegment& segment = segments_[i];
    const auto half =
        static_cast<std::size_t>(shape_.n_kv_heads * segment.length * shape_.head_dim * element);
    std::byte* const staged =
        fetched_.as<std::byte>() + static_cast<std::int64_t>(i) * arrays_.slot_bytes;
    std::memcpy(staged, segment.key, half);
    std::memcpy(staged + half, segment.value, half);
    std::byte* const to = arrays_.slots + (layer * arrays_.n_slots + s) * arrays_.slot_bytes;
    check(cudaMemcpyAsync(to, staged, 2 * half, cudaMemcpyHostToDevice, stream),
          "fetching an event");
    void** const pointer = pointers_.as<void*>() + i;
    *pointer = to;
    check(cudaMemcpyAsync(arrays_.blocks + layer * arrays_.max_events + missing_[i], pointer,
                          sizeof(void*), cudaMemcpyHostToDevice, stream),
          "fetching an event");
  }
  store_->release(layer);
}

}  // namespace episodic::device
