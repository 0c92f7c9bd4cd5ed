// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/recall_counts.hpp.

#include <cstdint>

#include "device.cuh"
#include "recall_counts.hpp"

namespace episodic::kernels {

inline constexpr int kCountThreads = 128;

/// A block a lane, y: sequences. Lanes over one table add to the same counts: sums of integers,
/// whose order does not show, and one number of a step.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kCountThreads)
    CountRecallsKernel(KernelArgument<Batch<RecallCountsParams, kMost>> batch) {
  const RecallCountsParams& p = batch.of[blockIdx.y];
  const LaneLists lane = p.lanes[blockIdx.x];
  const std::int32_t size = lane.sizes[2];
  const std::int64_t table = p.maybe_timeline ? p.maybe_timeline[blockIdx.x] : 0;
  RecallCount* const counts = p.counts + table * p.max_events;
  const std::uint32_t step = *p.steps + 1;
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < size; i += kCountThreads) {
    RecallCount& of_event = counts[lane.recalled[i]];
    atomicAdd(&of_event.recalls, 1u);
    atomicExch(&of_event.last, step);
  }
  if (threadIdx.x == 0) atomicAdd(p.total, static_cast<unsigned long long>(size));
  if (!p.maybe_kept) return;
  const LaneLists kept = p.maybe_kept[blockIdx.x];
  const DeviceEventId* const from[] = {lane.similarity, lane.contiguity, lane.recalled};
  DeviceEventId* const to[] = {kept.similarity, kept.contiguity, kept.recalled};
  for (int list = 0; list < 3; ++list) {
    const std::int32_t count = lane.sizes[list];
    for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < count; i += kCountThreads)
      to[list][i] = from[list][i];
    if (threadIdx.x == 0) kept.sizes[list] = count;
  }
}

}  // namespace episodic::kernels
