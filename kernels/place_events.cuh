// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/place_events.hpp.

#include <cstdint>

#include "batch.hpp"
#include "device.cuh"
#include "place_events.hpp"

namespace episodic::kernels {

inline constexpr int kPlaceThreads = 256;

/// The grid's y is sequences.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kPlaceThreads)
    PlaceKernel(KernelArgument<Batch<PlaceEventsParams, kMost>> batch) {
  const PlaceEventsParams& p = batch.of[blockIdx.y];
  const std::int64_t table = blockIdx.x;
  const std::int64_t timeline = p.of_each && p.maybe_timeline ? p.maybe_timeline[table] : table;
  const TimelineState& state = p.state[timeline];
  const std::int64_t closed = state.n_closed < p.max_count ? state.n_closed : p.max_count;
  const std::int64_t first = state.n_events - state.n_closed;
  const EventRange* const events = p.events + timeline * p.max_events + first;
  if (threadIdx.x == 0) {
    p.count[table] = static_cast<std::int32_t>(closed);
    p.first_id[table] = first;
  }
  for (std::int64_t i = threadIdx.x; i < closed; i += kPlaceThreads) {
    p.start[table * p.max_count + i] = events[i].start;
    p.end[table * p.max_count + i] = events[i].end;
  }
  const std::int64_t first_lane = p.of_each ? table : 0, lanes = p.of_each ? 1 : p.n_lanes;
  for (std::int64_t j = threadIdx.x; j < closed * lanes; j += kPlaceThreads) {
    const std::int64_t lane = first_lane + j / closed, i = j % closed;
    const std::int64_t origin = p.staged ? events[0].start : p.n_init;
    const bool fits = (events[i].end - origin) * p.token_bytes <= p.lane_bytes;
    void* const block =
        fits ? p.home + lane * p.lane_bytes + (events[i].start - origin) * p.token_bytes : nullptr;
    p.blocks[lane * p.max_events + first + i] = block;
    p.step_blocks[lane * p.max_count + i] = block;
  }
}

}  // namespace episodic::kernels
