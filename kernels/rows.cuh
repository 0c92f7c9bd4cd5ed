// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/rows.hpp.

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "device.cuh"
#include "ring_pages.cuh"
#include "rows.hpp"
#include "value_width.cuh"

namespace episodic::kernels {

inline constexpr int kRowsThreads = 1024;

__device__ inline const void* offset_by(const void* base, std::int64_t elements, int element) {
  return static_cast<const unsigned char*>(base) + elements * element;
}

/// What a lane's rows are made of, in shared memory, which nothing initialises.
struct RowsLane {
  const void *sink_key, *sink_value, *ring_key, *ring_value;  // of its first head
  const EventRange* events;
  const void* const* event_block;
  const float *maybe_event_scales, *maybe_event_weight;
  const DeviceEventId* recalled;
  KvRow* rows;
  const float** row_scales;
  std::int64_t n_events, n_kv_heads;
  std::int32_t n_recalled;
};

struct RowsShared {
  using Scan = cub::BlockScan<int, kRowsThreads>;
  typename Scan::TempStorage scan;
  int first_row[kRowsThreads + 1];  // of the events of a round
  RowsLane lane;
};

__device__ inline RowsLane rows_of_lane(const RowsParams& p, std::int64_t lane, int element) {
  RowsLane own;
  own.n_kv_heads = p.n_kv_heads / p.n_lanes;
  const std::int64_t head = lane * own.n_kv_heads, sinks = head * p.n_init;
  own.sink_key = offset_by(p.sink_key, sinks * p.head_dim, element);
  own.sink_value = offset_by(p.sink_value, sinks * p.value_dim, element);
  own.ring_key = offset_by(p.ring_key, head * p.ring_head_stride, element);
  own.ring_value = offset_by(p.ring_value, head * p.value_head_stride, element);
  own.events = p.events + lane * p.table_stride;
  own.n_events = p.n_events[lane * p.count_stride];
  own.event_block = p.event_block ? p.event_block + lane * p.max_events : nullptr;
  own.maybe_event_scales = p.maybe_event_scales
                               ? p.maybe_event_scales + lane * p.max_events * 2 * own.n_kv_heads
                               : nullptr;
  own.maybe_event_weight =
      p.maybe_event_weight ? p.maybe_event_weight + lane * p.max_events : nullptr;
  own.recalled = p.recalled ? p.recalled + lane * p.list_capacity : nullptr;
  own.n_recalled = p.recalled ? p.n_recalled[3 * lane] : 0;
  own.rows = p.rows + lane * p.max_rows;
  own.row_scales = p.row_scales ? p.row_scales + lane * p.max_rows : nullptr;
  return own;
}

/// By one block of kRowsThreads. \param p as with_value_width leaves them \param element bytes
__device__ inline void write_rows(const RowsParams& p, std::int64_t lane, int element,
                                  RowsShared& shared) {
  auto& first_row = shared.first_row;
  const RowsLane& own = shared.lane;
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) shared.lane = rows_of_lane(p, lane, element);
  __syncthreads();
  const std::int64_t left = *p.tokens + p.n - p.n_local;  // tokens that some query no longer sees
  const std::int64_t outside = left > 0 ? left : 0;
  const std::int64_t pending = own.n_events > 0 ? own.events[own.n_events - 1].end : p.n_init;
  const std::int64_t sinks = outside < p.n_init ? outside : p.n_init;
  const std::int64_t waiting = outside > pending ? outside - pending : 0;
  const std::int64_t window_rows = sinks + waiting;
  const std::int64_t d = p.head_dim, e = p.value_dim;

  for (std::int64_t i = thread; i < window_rows && i < p.max_rows; i += kRowsThreads) {
    KvRow row;
    if (i < sinks) {
      row.key = offset_by(own.sink_key, i * d, element);
      row.value = offset_by(own.sink_value, i * e, element);
      row.token = i;
      row.head_stride = static_cast<std::int32_t>(p.n_init * d);
    } else {
      row.token = pending + i - sinks;
      const std::int64_t slot = row.token % p.ring_capacity;
      row.key = offset_by(own.ring_key, ring_row(p.ring_pages, slot, d), element);
      row.value = offset_by(own.ring_value, ring_row(value_pages(p), slot, e), element);
      row.head_stride = static_cast<std::int32_t>(p.ring_head_stride);
    }
    own.rows[i] = row;
    if (own.row_scales) own.row_scales[i] = nullptr;
  }

  // Events in rounds of one a thread: where their rows begin, then all rows of the round.
  std::int64_t rows = window_rows;
  const int recalled = outside > 0 ? own.n_recalled : 0;
  for (int round = 0; round < recalled; round += kRowsThreads) {
    const int in_round = recalled - round < kRowsThreads ? recalled - round : kRowsThreads;
    int length = 0;
    if (thread < in_round) {
      const EventRange event = own.events[own.recalled[round + thread]];
      length = static_cast<int>(event.end - event.start);
    }
    int before, total;
    RowsShared::Scan(shared.scan).ExclusiveSum(length, before, total);
    first_row[thread] = before;
    if (thread == 0) first_row[in_round] = total;
    __syncthreads();
    for (int i = thread; i < total && rows + i < p.max_rows; i += kRowsThreads) {
      int low = 0, high = in_round;  // the last event that begins at or before row i
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (first_row[middle] <= i ? low : high) = middle;
      }
      const DeviceEventId id = own.recalled[round + low];
      const std::int64_t size = own.events[id].end - own.events[id].start;
      const std::int64_t inside = i - first_row[low];
      KvRow row;
      const int stored = own.maybe_event_scales ? 1 : element;
      row.key = offset_by(own.event_block[id], inside * d, stored);
      row.value = offset_by(own.event_block[id], own.n_kv_heads * size * d + inside * e, stored);
      row.token = own.events[id].start + inside;
      row.head_stride = static_cast<std::int32_t>(size * d);
      row.value_weight = own.maybe_event_weight ? own.maybe_event_weight[id] : 1.0f;
      own.rows[rows + i] = row;
      if (own.row_scales)
        own.row_scales[rows + i] =
            own.maybe_event_scales ? own.maybe_event_scales + std::int64_t{id} * 2 * own.n_kv_heads
                                   : nullptr;
    }
    rows += total;
    __syncthreads();  // first_row is written anew
  }
  if (thread == 0) {
    p.n_rows[lane] = static_cast<std::int32_t>(rows < p.max_rows ? rows : p.max_rows);
    if (rows > p.max_rows) *p.overflow = 1;
  }
}

}  // namespace episodic::kernels
