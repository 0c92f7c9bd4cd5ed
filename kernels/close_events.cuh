// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/close_events.hpp.

#include <cstdint>

#include "close_events.hpp"
#include "device.cuh"

namespace episodic::kernels {

inline constexpr int kCloseThreads = 256;

/// The events of a timeline, as one thread appends to them.
struct EventList {
  EventRange* events;
  std::int64_t capacity, size, start;  // start: of what is pending
  bool full;

  /// Closes [start, end). \return false if there is no room
  __device__ bool close(std::int64_t end) {
    full = size >= capacity;
    if (full) return false;
    events[size].start = start;
    events[size].end = end;
    ++size;
    start = end;
    return true;
  }
  /// Closes pieces of max_block while they fit before `limit`.
  __device__ bool close_pieces(std::int64_t limit, std::int64_t max_block) {
    while (limit - start >= max_block)
      if (!close(start + max_block)) return false;
    return true;
  }
};

/// One block per timeline: all threads look for flags, thread 0 applies the rule.
__global__ void __launch_bounds__(kCloseThreads) CloseEventsKernel(CloseEventsParams p) {
  __shared__ unsigned found[kCloseThreads / kWarpSize];
  TimelineState& state = p.state[blockIdx.x];
  const std::uint8_t* flags = p.flags + blockIdx.x * p.flag_capacity;
  const std::int64_t limit = state.tokens + p.n - p.n_local;
  const std::int64_t n_before = state.n_events;
  EventList list{p.events + blockIdx.x * p.event_capacity, p.event_capacity, n_before,
                 state.pending_start, false};
  // A full table would let what is pending grow; the next event is within max_block in any case.
  std::int64_t last = limit;
  if (n_before >= p.event_capacity && limit - list.start > p.max_block)
    last = list.start + p.max_block;
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
          if (!list.close_pieces(b, p.max_block)) break;
          if (b - list.start >= p.min_block) list.close(b);  // else merged into the next event
        }
    }
    __syncthreads();  // `found` is written again; the state has been read
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  if (!list.full) list.close_pieces(limit, p.max_block);
  state.pending_start = list.start;
  state.n_events = list.size;
  state.n_closed = list.size - n_before;
  state.tokens += p.n;
  if (list.full) state.errors |= kEventTableIsFull;
}

}  // namespace episodic::kernels
