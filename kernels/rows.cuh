// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/rows.hpp.

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "device.cuh"
#include "rows.hpp"

namespace episodic::kernels {

inline constexpr int kRowsThreads = 1024;

__device__ inline const void* offset_by(const void* base, std::int64_t elements, int element) {
  return static_cast<const unsigned char*>(base) + elements * element;
}

struct RowsShared {
  using Scan = cub::BlockScan<int, kRowsThreads>;
  typename Scan::TempStorage scan;
  int first_row[kRowsThreads + 1];  // of the events of a round
};

/// By one block of kRowsThreads. \param element bytes
__device__ inline void write_rows(const RowsParams& p, int element, RowsShared& shared) {
  auto& first_row = shared.first_row;
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t left = *p.tokens + p.n - p.n_local;  // tokens that some query no longer sees
  const std::int64_t outside = left > 0 ? left : 0;
  const std::int64_t events = *p.n_events;
  const std::int64_t pending = events > 0 ? p.events[events - 1].end : p.n_init;
  const std::int64_t sinks = outside < p.n_init ? outside : p.n_init;
  const std::int64_t waiting = outside > pending ? outside - pending : 0;
  const std::int64_t window_rows = sinks + waiting;
  const std::int64_t d = p.head_dim;

  for (std::int64_t i = thread; i < window_rows && i < p.max_rows; i += kRowsThreads) {
    KvRow row;
    if (i < sinks) {
      row.key = offset_by(p.sink_key, i * d, element);
      row.value = offset_by(p.sink_value, i * d, element);
      row.token = i;
      row.head_stride = static_cast<std::int32_t>(p.n_init * d);
    } else {
      row.token = pending + i - sinks;
      const std::int64_t at = row.token % p.ring_capacity * d;
      row.key = offset_by(p.ring_key, at, element);
      row.value = offset_by(p.ring_value, at, element);
      row.head_stride = static_cast<std::int32_t>(p.ring_head_stride);
    }
    p.rows[i] = row;
  }

  // Events in rounds of one a thread: where their rows begin, then all rows of the round.
  std::int64_t rows = window_rows;
  const int recalled = outside > 0 && p.recalled ? *p.n_recalled : 0;
  for (int round = 0; round < recalled; round += kRowsThreads) {
    const int in_round = recalled - round < kRowsThreads ? recalled - round : kRowsThreads;
    int length = 0;
    if (thread < in_round) {
      const DeviceEventId e = p.recalled[round + thread];
      length = static_cast<int>(p.events[e].end - p.events[e].start);
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
      const DeviceEventId e = p.recalled[round + low];
      const std::int64_t size = p.events[e].end - p.events[e].start;
      const std::int64_t inside = i - first_row[low];
      KvRow row;
      row.key = offset_by(p.event_block[e], inside * d, element);
      row.value = offset_by(p.event_block[e], (p.n_kv_heads * size + inside) * d, element);
      row.token = p.events[e].start + inside;
      row.head_stride = static_cast<std::int32_t>(size * d);
      row.value_weight = p.maybe_event_weight ? p.maybe_event_weight[e] : 1.0f;
      p.rows[rows + i] = row;
    }
    rows += total;
    __syncthreads();  // first_row is written anew
  }
  if (thread == 0) {
    *p.n_rows = static_cast<std::int32_t>(rows < p.max_rows ? rows : p.max_rows);
    if (rows > p.max_rows) *p.overflow = 1;
  }
}

}  // namespace episodic::kernels
