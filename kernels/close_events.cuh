// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/close_events.hpp.

#include <cstdint>

#include "batch.hpp"
#include "close_events.hpp"
#include "device.cuh"
#include "episodic/base/rules/closing.hpp"

namespace episodic::kernels {

inline constexpr int kCloseThreads = 256;

/// The events of a timeline, as one thread appends to them.
struct EventList {
  EventRange* events;
  std::int64_t capacity, size;
  bool full;

  /// \return false if there is no room
  __device__ bool operator()(std::int64_t start, std::int64_t end) {
    full = size >= capacity;
    if (full) return false;
    events[size].start = start;
    events[size].end = end;
    ++size;
    return true;
  }
};

/// One block per timeline, the grid's y for sequences: all threads look for flags, thread 0 applies
/// the rule.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kCloseThreads)
    CloseEventsKernel(KernelArgument<Batch<CloseEventsParams, kMost>> batch) {
  const CloseEventsParams& p = batch.of[blockIdx.y];
  if (blockIdx.x >= p.n_timelines) return;
  EPISODIC_SHARED(found, unsigned[kCloseThreads / kWarpSize]);
  TimelineState& state = p.state[blockIdx.x];
  const std::uint8_t* flags = p.flags + blockIdx.x * p.flag_capacity;
  const std::int64_t limit = state.tokens + p.n - p.n_local;
  const std::int64_t n_before = state.n_events;
  EventList list{p.events + blockIdx.x * p.event_capacity, p.event_capacity, n_before, false};
  rules::Pending pending{state.pending_start, p.min_block, p.max_block};
  // A full table would let what is pending grow; the next event is within max_block in any case.
  std::int64_t last = limit;
  if (n_before >= p.event_capacity && limit - pending.start > p.max_block)
    last = pending.start + p.max_block;
  for (std::int64_t at = state.pending_start + 1; at < last; at += kCloseThreads) {
    const std::int64_t own = at + threadIdx.x;
    const unsigned ballot =
        __ballot_sync(kFullMask, own < last && flags[own % p.flag_capacity] != 0);
    if (threadIdx.x % kWarpSize == 0) found[threadIdx.x / kWarpSize] = ballot;
    __syncthreads();
    if (threadIdx.x == 0 && !list.full) {
      for (int warp = 0; warp < kCloseThreads / kWarpSize && !list.full; ++warp)
        for (unsigned left = found[warp]; left != 0 && !list.full; left &= left - 1) {
          const std::int64_t b = at + warp * kWarpSize + __ffs(static_cast<int>(left)) - 1;
          rules::close_at_boundary(pending, b, list);
        }
    }
    __syncthreads();  // `found` is written again; the state has been read
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!list.full) rules::close_pieces(pending, limit, list);
  state.pending_start = pending.start;
  state.n_events = list.size;
  state.n_closed = list.size - n_before;
  state.tokens += p.n;
  ++state.steps;
  if (list.full) state.errors |= kEventTableIsFull;
}

}  // namespace episodic::kernels
