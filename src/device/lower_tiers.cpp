// SPDX-License-Identifier: Apache-2.0
#include "lower_tiers.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

namespace episodic::device {
namespace {
constexpr const char* kLists = "lower n_mem or raise min_block";
}

LowerTiers::LowerTiers(const StoreShape& shape, const DiskStoreOptions& options,
                       const SlotArrays& arrays, const LaneTables& tables,
                       std::int64_t most_recalled, std::int64_t most_closed_tokens,
                       std::int64_t most_closed)
    : shape_(shape),
      arrays_(arrays),
      store_(make_disk_store(shape, options)),
      per_layer_(tables.per_layer),
      staging_lane_bytes_(most_closed_tokens * shape.token_bytes() / shape.n_lanes),
      staged_events_(most_closed),
      scales_of_event_(is_code(shape.dtype) ? 2 * shape.n_kv_heads : 0),
      closed_(shape.n_lanes * staging_lane_bytes_, "the staging of closed events",
              "lower chunk or max_block"),
      most_recalled_(most_recalled),
      asked_(tables.per_layer * (most_recalled + 3) *
                 static_cast<std::int64_t>(sizeof(kernels::DeviceEventId)),
             "the lists of recalled events", kLists),
      fetched_(tables.per_layer * most_recalled * arrays.slot_bytes,
               "the staging of recalled events", "lower n_mem or max_block"),
      pointers_(tables.per_layer * most_recalled * static_cast<std::int64_t>(sizeof(void*)),
                "the staging of pointers", kLists),
      runs_(2 * tables.per_layer * most_recalled *
                    static_cast<std::int64_t>(sizeof(kernels::CopyRun)) +
                static_cast<std::int64_t>(sizeof(std::int32_t)),
            "the list of copies", kLists),
      brought_(Event::create()) {
  if (scales_of_event_ > 0)
    scales_ =
        PinnedBuffer(shape.n_lanes * staged_events_ * scales_of_event_ *
                         static_cast<std::int64_t>(sizeof(float)),
                     "the staging of closed events' scales", "lower chunk or raise min_block");
  const std::size_t lanes = at(shape.n_lanes);
  slots_.assign(lanes, std::vector<Slot>(at(arrays.n_slots)));
  slot_of_.resize(lanes);
  for (std::int64_t lane = 0; lane < shape.n_lanes; lane += per_layer_)
    of_layers_.push_back({this, lane});
  if (!tables.of_each) return;
  numbers_.resize(lanes);
  last_.resize(lanes);
}

void LowerTiers::truncate(std::span<const std::int64_t> n_events) {
  await();
  n_events_ = numbers_.empty() ? n_events.front() : 0;
  for (std::size_t lane = 0; lane < numbers_.size(); ++lane) {
    std::vector<EventId>& numbers = numbers_[lane];
    numbers.resize(std::min(numbers.size(), at(n_events[lane])));
    n_events_ += static_cast<std::int64_t>(numbers.size());
  }
  store_->truncate(n_events_);
  pinned_.resize(at(n_events_), false);
  for (std::vector<EventId>& recalled : last_) recalled.clear();
  for (std::size_t lane = 0; lane < slots_.size(); ++lane) {
    const std::int64_t kept = n_events[numbers_.empty() ? 0 : lane];
    slot_of_[lane].resize(at(kept), -1);
    for (Slot& slot : slots_[lane])
      if (slot.event >= kept) slot = {};
  }
}

void LowerTiers::write(std::int64_t lane, EventId first, std::span<const TokenRange> ranges) {
  const std::int64_t token_bytes = shape_.token_bytes() / shape_.n_lanes;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    const TokenRange& e = ranges[i];
    const std::byte* block =
        staging() + lane * staging_lane_bytes_ + (e.start - ranges.front().start) * token_bytes;
    // The elements come back to what they were when the store rounds them.
    store_->write(stored(lane, first + static_cast<EventId>(i)), lane,
                  rings_.of(block, shape_.dtype, shape_.n_kv_heads, shape_.head_dim, e,
                            staged_scales(lane) + static_cast<std::int64_t>(i) * scales_of_event_));
  }
  slot_of_[at(lane)].resize(at(first) + ranges.size(), -1);
}

void LowerTiers::read(EventId event, std::int64_t lane, std::int64_t tokens, std::byte* to) {
  await();
  const std::int64_t before = keys_in_block(shape_);
  if (before == 0) return store_->read(stored(lane, event), lane, to);
  block_.resize(at(block_bytes(shape_, tokens)));
  store_->read(stored(lane, event), lane, block_.data());
  std::memcpy(to, block_.data() + before, at(tokens * shape_.token_bytes() / shape_.n_lanes));
}

void LowerTiers::forget(std::int64_t lane, EventId event) {
  await();
  store_->forget(stored(lane, event));
  if (!last_.empty()) std::erase(last_[at(lane)], stored(lane, event));  // not to be read ahead
  const auto [first, end] = lanes_beside(lane);
  for (std::size_t l = first; l < end; ++l) {
    std::int32_t& slot = slot_of_[l][at(event)];
    if (slot >= 0) slots_[l][at(slot)] = {};
    slot = -1;
  }
}

void LowerTiers::pin(std::int64_t lane, EventId event, bool pinned) {
  await();
  store_->pin(stored(lane, event), pinned);
  pinned_[at(stored(lane, event))] = pinned;
  const auto [first, end] = lanes_beside(lane);
  for (std::size_t l = first; l < end; ++l)
    for (Slot& slot : slots_[l])
      if (slot.event == event) slot.pinned = pinned;
}

void LowerTiers::keep(std::span<const kernels::EventRange> closed) {
  if (closed.empty()) return;
  await();
  std::vector<TokenRange> ranges;
  for (const kernels::EventRange& e : closed) ranges.push_back({e.start, e.end});
  store_->append(ranges);
  for (std::int64_t lane = 0; lane < shape_.n_lanes; ++lane)
    write(lane, static_cast<EventId>(n_events_), ranges);
  n_events_ += static_cast<std::int64_t>(ranges.size());
  pinned_.resize(at(n_events_), false);
}

void LowerTiers::keep(std::int64_t lane, std::span<const kernels::EventRange> closed) {
  if (closed.empty()) return;
  await();
  std::vector<TokenRange> ranges;
  for (const kernels::EventRange& e : closed) ranges.push_back({e.start, e.end});
  store_->append(ranges, {lane, 1});
  std::vector<EventId>& numbers = numbers_[at(lane)];
  const auto first = static_cast<EventId>(numbers.size());
  for (std::size_t i = 0; i < ranges.size(); ++i)
    numbers.push_back(static_cast<EventId>(n_events_++));
  write(lane, first, ranges);
  pinned_.resize(at(n_events_), false);
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

void LowerTiers::await() {
  if (is_bringing_) brought_.wait();
  is_bringing_ = false;
  failure_ = nullptr;
  // The host has given slots to a layer's events, and the copies into them were never launched.
  if (uncopied_ < 0) return;
  for (std::int64_t lane = uncopied_; lane < uncopied_ + per_layer_; ++lane) {
    slots_[at(lane)].assign(at(arrays_.n_slots), Slot{});
    std::fill(slot_of_[at(lane)].begin(), slot_of_[at(lane)].end(), -1);
  }
  uncopied_ = -1;
}

void LowerTiers::wait_and_rethrow() {
  if (is_bringing_) brought_.wait();
  is_bringing_ = false;
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

kernels::CopyRunsParams LowerTiers::fetch(std::int64_t first_lane,
                                          const kernels::DeviceEventId* recalled,
                                          const std::int32_t* sizes, cudaStream_t stream) {
  uncopied_ = first_lane;
  const std::int64_t most = per_layer_ * most_recalled_;
  auto* const asked = asked_.as<kernels::DeviceEventId>();
  void* const to[] = {asked, asked + most};
  const void* const from[] = {recalled, sizes};
  const std::size_t bytes[] = {at(most) * sizeof(*asked), at(3 * per_layer_) * sizeof(*sizes)};
  check(kernels::copy_batch(to, from, bytes, 2, stream), "lists of recalled events");
  check(cudaLaunchHostFunc(
            stream,
            [](void* data) {
              const Layer& layer = *static_cast<const Layer*>(data);
              layer.tiers->load_missing(layer.first_lane);
            },
            &of_layers_[at(first_lane / per_layer_)]),
        "fetching events");
  brought_.record(stream);
  is_bringing_ = true;
  kernels::CopyRunsParams copies;
  copies.runs = runs_.as<kernels::CopyRun>();
  copies.count = reinterpret_cast<const std::int32_t*>(copies.runs + 2 * most);
  copies.max_runs = 2 * most;
  return copies;
}

void LowerTiers::load_missing(std::int64_t first_lane) noexcept {
  n_fetched_ = n_pointers_ = 0;
  const std::int64_t most = per_layer_ * most_recalled_;
  const auto* const asked = asked_.as<kernels::DeviceEventId>();
  const std::int32_t* const sizes = asked + most;
  for (std::int64_t p = 0; p < per_layer_; ++p) {
    const std::span recalled(asked + p * most_recalled_, at(sizes[3 * p + 2]));
    try {
      if (!failure_) load_lane(first_lane + p, recalled);
    } catch (...) {
      failure_ = std::current_exception();
    }
    if (failure_) set_placeholders(first_lane + p, recalled);
  }
  auto* const runs = runs_.as<kernels::CopyRun>();
  *reinterpret_cast<std::int32_t*>(runs + 2 * most) =
      static_cast<std::int32_t>(n_fetched_ + n_pointers_);
}

void LowerTiers::set_block_address(std::int64_t lane, EventId event, std::int64_t s) {
  void** const pointer = pointers_.as<void*>() + n_pointers_;
  *pointer = slot(lane, s);
  runs_.as<kernels::CopyRun>()[n_fetched_ + n_pointers_] = {
      pointer, arrays_.blocks + lane * arrays_.max_events + event, sizeof(void*)};
  ++n_pointers_;
}

void LowerTiers::set_placeholders(std::int64_t lane,
                                  std::span<const kernels::DeviceEventId> recalled) {
  for (const kernels::DeviceEventId e : recalled)
    if (slot_of_[at(lane)][at(e)] < 0) set_block_address(lane, e, 0);
}

void LowerTiers::load_lane(std::int64_t lane, std::span<const kernels::DeviceEventId> recalled) {
  std::vector<Slot>& slots = slots_[at(lane)];
  std::vector<std::int32_t>& slot_of = slot_of_[at(lane)];
  missing_.clear();
  for (const kernels::DeviceEventId e : recalled) {
    const std::int32_t s = slot_of[at(e)];
    if (s < 0)
      missing_.push_back(e);
    else
      slots[at(s)].last_recalled = clock_;
  }
  if (!last_.empty()) {
    last_[at(lane)].clear();
    for (const kernels::DeviceEventId e : recalled) last_[at(lane)].push_back(stored(lane, e));
  }
  if (missing_.empty()) return;
  missing_stored_.clear();
  for (const EventId e : missing_) missing_stored_.push_back(stored(lane, e));
  segments_.clear();
  store_->acquire(lane, missing_stored_, segments_);
  // These heads of the next layer recall much the same; of events of their own, what they last did.
  if (const std::int64_t next = lane + per_layer_; next < shape_.n_lanes)
    store_->prefetch(next, last_.empty() ? missing_stored_ : last_[at(next)]);
  const std::int64_t element = size_of(shape_.dtype);
  for (std::size_t i = 0; i < missing_.size(); ++i) {
    // Those recalled in this attempt carry its stamp, and there are no more of them than slots:
    // what leaves is older.
    const std::int64_t s = choose(slots);
    Slot& taken = slots[at(s)];
    if (taken.event >= 0) slot_of[at(taken.event)] = -1;
    taken = {clock_, missing_[i], pinned_[at(missing_stored_[i])]};
    slot_of[at(missing_[i])] = static_cast<std::int32_t>(s);
    const KvSegment& segment = segments_[i];
    const auto half = at(shape_.n_kv_heads * segment.length * shape_.head_dim * element);
    std::byte* const staged = fetched_.as<std::byte>() + n_fetched_ * arrays_.slot_bytes;
    std::memcpy(staged, segment.key, half);
    std::memcpy(staged + half, segment.value, half);
    runs_.as<kernels::CopyRun>()[n_fetched_ + n_pointers_] = {staged, slot(lane, s),
                                                              static_cast<std::int64_t>(2 * half)};
    ++n_fetched_;
    set_block_address(lane, missing_[i], s);
  }
  store_->release(lane);
}

}  // namespace episodic::device
