// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/forgetting.hpp.

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "event_lists.cuh"
#include "forgetting.hpp"

namespace episodic::kernels {

inline constexpr int kForgetThreads = 256;

/// A block a lane, y: sequences: its three lists one after the other, in place. Marks are shared
/// out among the sequence's blocks.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kForgetThreads)
    ForgetKernel(KernelArgument<Batch<ForgetParams, kMost>> batch) {
  const ForgetParams p = batch.of[blockIdx.y];
  if (blockIdx.x >= p.n_lanes) return;
  using Scan = cub::BlockScan<std::int32_t, kForgetThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  const std::int64_t stride = p.n_lanes * kForgetThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kForgetThreads + threadIdx.x; i < p.n_events;
       i += stride)
    p.marks[p.events[i]] = 1;
  const auto n_events = static_cast<std::int32_t>(p.n_events);
  const LaneLists lane = p.lanes[blockIdx.x];
  DeviceEventId* const lists[] = {lane.similarity, lane.contiguity, lane.recalled};
  for (int l = 0; l < 3; ++l) {
    DeviceEventId* const list = lists[l];
    const std::int32_t size = lane.sizes[l];
    std::int32_t kept = 0;
    for (std::int32_t group = 0; group < size; group += kForgetThreads) {
      const std::int32_t at = group + static_cast<std::int32_t>(threadIdx.x);
      const DeviceEventId event = at < size ? list[at] : 0;
      const bool stays = at < size && !holds(p.events, n_events, event);
      std::int32_t before, total;
      Scan(storage).ExclusiveSum(stays ? 1 : 0, before, total);
      __syncthreads();  // all of the group are read, and the storage is used again
      if (stays) list[kept + before] = event;
      kept += total;
    }
    __syncthreads();  // all have read the size
    if (threadIdx.x == 0) lane.sizes[l] = kept;
  }
}

}  // namespace episodic::kernels
