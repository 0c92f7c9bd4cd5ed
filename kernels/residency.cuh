// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/residency.hpp.

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "episodic/base/rules/eviction.hpp"
#include "event_lists.cuh"
#include "residency.hpp"

namespace episodic::kernels {

inline constexpr int kResidencyThreads = 256;

/// One block a sequence, so that the list keeps the order of the recalled events.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kResidencyThreads)
    TouchEventsKernel(KernelArgument<Batch<TouchParams, kMost>> batch) {
  const TouchParams p = batch.of[blockIdx.x];
  using Scan = cub::BlockScan<std::int32_t, kResidencyThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  const std::int64_t step = *p.step;
  const std::int64_t of_lane = p.map.max_events / p.map.n_lanes;
  std::int32_t listed = 0;
  for (std::int64_t lane = 0; lane < p.map.n_lanes; ++lane) {
    const std::int32_t recalled = p.count[3 * lane];
    const std::int64_t count = recalled < p.max_count ? recalled : p.max_count;
    const std::int64_t n_events =
        p.maybe_n_events ? p.maybe_n_events[lane * p.count_stride] : of_lane;
    for (std::int64_t group = 0; group < count; group += kResidencyThreads) {
      const std::int64_t i = group + threadIdx.x;
      const DeviceEventId own = i < count ? p.events[lane * p.max_count + i] : kNoEvent;
      const bool known = own >= 0 && own < n_events && own < of_lane;
      const std::int64_t event = lane * of_lane + own;
      if (known && p.is_recall) p.map.last_recalled[event] = step;
      const bool is_missing = known && p.map.slot_of_event[event] == kNoSlot;
      std::int32_t before, total;
      Scan(storage).ExclusiveSum(is_missing ? 1 : 0, before, total);
      if (is_missing) p.missing[listed + before] = static_cast<DeviceEventId>(event);
      listed += total;
      __syncthreads();  // the storage is used again for the next group
    }
  }
  if (threadIdx.x != 0) return;
  *p.n_missing = listed;
  if (p.is_recall) *p.map.newest = step;
}

/// What a slot holds, and whether that may leave. Lies in shared memory, which nothing initialises.
struct SlotState {
  std::int64_t last_recalled;
  DeviceEventId event;
  bool may_leave, pinned;

  __device__ rules::Resident held() const { return {last_recalled, event, pinned}; }
};

/// Rows of the grid are sequences. Each thread finds its slot's place among all: no list is built,
/// and none is sorted.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kResidencyThreads)
    ChooseVictimsKernel(KernelArgument<Batch<VictimParams, kMost>> batch) {
  const VictimParams p = batch.of[blockIdx.y];
  EPISODIC_SHARED(states, SlotState[kResidencyThreads]);
  const std::int64_t since = *p.since;
  // In 32 bits, which divide without a call: there are less than 2^31 events.
  const std::uint32_t of_lane =
      static_cast<std::uint32_t>(p.map.max_events) / static_cast<std::uint32_t>(p.map.n_lanes);
  const auto is_kept = [&](std::uint32_t lane, std::uint32_t event) {
    return p.maybe_kept && holds(p.maybe_kept + lane * p.kept_capacity, p.n_kept[3 * lane],
                                 static_cast<DeviceEventId>(event));
  };
  const auto needed =
      static_cast<std::int32_t>(*p.n_needed < p.max_needed ? *p.n_needed : p.max_needed);
  const auto n_slots = static_cast<std::int32_t>(p.map.n_slots);
  const bool is_first = blockIdx.x == 0 && threadIdx.x == 0;
  if (needed <= 0) {
    if (is_first) *p.n_given = *p.n_victims = 0;
    return;
  }
  const auto state_of = [&](std::int32_t slot) {
    const DeviceEventId event = p.map.event_of_slot[slot];
    if (event == kNoEvent) return SlotState{-1, kNoEvent, false, false};
    const std::int64_t recalled = p.map.last_recalled[event];
    const auto number = static_cast<std::uint32_t>(event);
    const std::uint32_t lane = number / of_lane, in_table = number % of_lane;
    return SlotState{recalled, event,
                     rules::may_leave({recalled, event}, since) && !is_kept(lane, in_table),
                     p.maybe_pinned && p.maybe_pinned[lane * p.pin_stride + in_table] != 0};
  };
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kResidencyThreads;
  for (std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kResidencyThreads;
       first < n_slots; first += stride) {
    const auto slot = static_cast<std::int32_t>(first + threadIdx.x);
    const bool is_slot = first + threadIdx.x < n_slots;
    const SlotState own = is_slot ? state_of(slot) : SlotState{-1, kNoEvent, false, false};
    std::int32_t free = 0, free_before = 0, leaving = 0, leaving_before = 0;
    for (std::int32_t group = 0; group < n_slots; group += kResidencyThreads) {
      const std::int32_t left = n_slots - group;
      if (static_cast<std::int32_t>(threadIdx.x) < left)
        states[threadIdx.x] = state_of(group + static_cast<std::int32_t>(threadIdx.x));
      __syncthreads();
      for (std::int32_t i = 0; i < left && i < kResidencyThreads; ++i) {
        const SlotState other = states[i];
        if (rules::is_free(other.held())) {
          ++free;
          free_before += group + i < slot ? 1 : 0;
        } else if (other.may_leave) {
          ++leaving;
          leaving_before += rules::leaves_before(other.held(), own.held()) ? 1 : 0;
        }
      }
      __syncthreads();  // the states are used again for the next group
    }
    const std::int32_t from_free = free < needed ? free : needed;
    const std::int32_t to_leave = leaving < needed - from_free ? leaving : needed - from_free;
    if (is_first && first == 0) {
      *p.n_given = from_free + to_leave;
      *p.n_victims = to_leave;
    }
    if (!is_slot) continue;
    if (rules::is_free(own.held())) {
      if (free_before < from_free) p.slots[free_before] = slot;
    } else if (own.may_leave && leaving_before < to_leave) {
      p.slots[from_free + leaving_before] = slot;
      p.victims[leaving_before] = own.event;
    }
  }
}

/// Rows of the grid are sequences. The victims are none of the missing: those have no slot.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kResidencyThreads)
    OccupySlotsKernel(KernelArgument<Batch<OccupyParams, kMost>> batch) {
  const OccupyParams p = batch.of[blockIdx.y];
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kResidencyThreads;
  const std::int64_t given = *p.n_given, leaving = *p.n_victims;
  const std::int64_t of_lane = p.map.max_events / p.map.n_lanes;
  const auto range_of = [&](DeviceEventId e) {
    return p.events[e / of_lane * p.table_stride + e % of_lane];
  };
  const auto at_home = [&](DeviceEventId e) {
    const std::int64_t start = range_of(e).start;
    return (start < p.base_end ? p.base_home : p.home) + e / of_lane * p.lane_bytes +
           (start - p.n_init) * p.token_bytes;
  };
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kResidencyThreads + threadIdx.x;
       i < p.max_needed; i += stride) {
    if (i < leaving) {
      p.map.slot_of_event[p.victims[i]] = kNoSlot;
      p.blocks[p.victims[i]] = at_home(p.victims[i]);
    }
    if (i < given) {
      const DeviceEventId e = p.missing[i];
      unsigned char* const slot = p.slot_memory + p.slots[i] * p.slot_bytes;
      p.map.slot_of_event[e] = p.slots[i];
      p.map.event_of_slot[p.slots[i]] = e;
      p.blocks[e] = slot;
      const EventRange range = range_of(e);
      p.runs[i] = {at_home(e), slot, (range.end - range.start) * p.token_bytes};
    }
  }
}

}  // namespace episodic::kernels
