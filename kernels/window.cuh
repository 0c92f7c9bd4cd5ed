// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/window.hpp.

#include <cstdint>

#include "batch.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "last_arrival.cuh"
#include "ring_pages.cuh"
#include "rotation.cuh"
#include "value_width.cuh"
#include "window.hpp"

namespace episodic::kernels {

inline constexpr int kWindowThreads = 256;

// Rows of these kernels' grids are sequences.

/// One thread for a pack of a key's channels and the pack that rotates with it, or for a pack of a
/// value's.
template <class T, int kPack, std::int64_t kMost>
__global__ void __launch_bounds__(kWindowThreads)
    AppendWindowKernel(KernelArgument<Batch<AppendParams, kMost>> batch) {
  const AppendParams& p = batch.of[blockIdx.y];
  const auto d = static_cast<unsigned>(p.head_dim), heads = static_cast<unsigned>(p.n_kv_heads);
  const auto half = static_cast<unsigned>(p.rotary_dim / 2);
  const unsigned pairs = half / kPack, per_row = pairs + (d - 2 * half) / kPack;
  const auto e = static_cast<unsigned>(p.value_dim), packs_of_value = e / kPack;
  const unsigned rows = static_cast<unsigned>(p.n) * heads, key_items = rows * per_row;
  const unsigned items = key_items + rows * packs_of_value;
  const std::int64_t first = *p.first_position, first_slot = first % p.ring_capacity;
  const T* k = static_cast<const T*>(p.k);
  const T* v = static_cast<const T*>(p.v);
  for (unsigned item = blockIdx.x * kWindowThreads + threadIdx.x; item < items;
       item += gridDim.x * kWindowThreads) {
    const bool is_key = item < key_items;
    const unsigned at = is_key ? item : item - key_items, parts = is_key ? per_row : packs_of_value;
    const unsigned part = at % parts, g = at / parts % heads, i = at / parts / heads;
    std::int64_t slot = first_slot + i;
    if (slot >= p.ring_capacity) slot -= p.ring_capacity;
    const bool sinks = first + i < p.n_init;
    if (!is_key) {
      const unsigned c = part * kPack;
      const Pack<T, kPack> value = load_pack<kPack>(v + i * p.v_row_stride + g * e + c);
      const std::int64_t to =
          g * p.value_head_stride + ring_row<std::int64_t>(value_pages(p), slot, e) + c;
      store_pack<kPack>(static_cast<T*>(p.ring_value) + to, value);
      const std::int64_t to_sink = (g * p.n_init + first + i) * e + c;
      if (sinks) store_pack<kPack>(static_cast<T*>(p.sink_value) + to_sink, value);
      continue;
    }
    const bool rotates = part < pairs;
    const unsigned first_angle = part * kPack;
    const unsigned c = !rotates        ? 2 * half + (part - pairs) * kPack
                       : p.interleaved ? 2 * first_angle
                                       : first_angle;
    // a pack that does not rotate is its own partner: written twice, the same
    const unsigned shift = !rotates ? 0 : p.interleaved ? kPack : half;
    const T* const key = k + i * p.k_row_stride + g * d + c;
    const Pack<T, kPack> key1 = load_pack<kPack>(key), key2 = load_pack<kPack>(key + shift);
    const auto store = [&](void* array, std::int64_t at, const Pack<T, kPack>& pack1,
                           const Pack<T, kPack>& pack2) {
      store_pack<kPack>(static_cast<T*>(array) + at, pack1);
      store_pack<kPack>(static_cast<T*>(array) + at + shift, pack2);
    };
    const std::int64_t to =
        g * p.ring_head_stride + ring_row<std::int64_t>(p.ring_pages, slot, d) + c;
    if (p.ring_key) store(p.ring_key, to, key1, key2);
    if (sinks) store(p.sink_key, (g * p.n_init + first + i) * d + c, key1, key2);
    Pack<T, kPack> rotated1 = key1, rotated2 = key2;
    if (rotates) {
      const std::int64_t angle = static_cast<std::int64_t>(i) * half + first_angle;
      const Pack<float, kPack> cos = load_pack<kPack>(p.cos + angle);
      const Pack<float, kPack> sin = load_pack<kPack>(p.sin + angle);
      if (p.interleaved)
        rotate_interleaved(key1, key2, cos, sin, rotated1, rotated2);
      else
        rotate(key1, key2, cos, sin, rotated1, rotated2);
    }
    store(p.ring_rotated_key, to, rotated1, rotated2);
  }
}

/// The angle of position 64 a + b is that of 64 a rotated by that of b, as in the CPU's twin, so
/// that both round the same numbers.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kWindowThreads)
    RotaryAnglesKernel(KernelArgument<Batch<RotaryAnglesParams, kMost>> batch) {
  const RotaryAnglesParams& p = batch.of[blockIdx.y];
  constexpr std::int64_t kAnchor = 64;
  const std::int64_t first = *p.first_position, count = p.n * p.n_frequencies;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kWindowThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kWindowThreads + threadIdx.x;
       at < count; at += stride) {
    const std::int64_t position = first + at / p.n_frequencies;
    const double frequency = p.inverse_frequency[at % p.n_frequencies];
    const std::int64_t within = position % kAnchor;
    double anchor_sin, anchor_cos, step_sin, step_cos;
    sincos(static_cast<double>(position - within) * frequency, &anchor_sin, &anchor_cos);
    sincos(static_cast<double>(within) * frequency, &step_sin, &step_cos);
    anchor_sin *= p.attention_factor;
    anchor_cos *= p.attention_factor;
    p.cos[at] = static_cast<float>(anchor_cos * step_cos - anchor_sin * step_sin);
    p.sin[at] = static_cast<float>(anchor_sin * step_cos + anchor_cos * step_sin);
  }
}

// ---- mean query --------------------------------------------------------------------------------

/// Rows of which one split of the queries has at least so many, but for the last one.
inline constexpr std::int64_t kMeanSplitRows = 32;
inline constexpr std::int64_t kMeanMaxSplits = 64;
inline constexpr int kMeanRowLanes = kWindowThreads / kWarpSize;

/// How the queries are cut, by their number alone, so that the order of the sum is always the same.
struct MeanSplits {
  std::int64_t rows;  // of one split
  std::int64_t count;
};
inline MeanSplits mean_splits(std::int64_t n) {
  const std::int64_t wanted = (n + kMeanMaxSplits - 1) / kMeanMaxSplits;
  const std::int64_t rows = wanted > kMeanSplitRows ? wanted : kMeanSplitRows;
  return {rows, (n + rows - 1) / rows};
}

/// A call's queries, or the sums of their splits.
struct MeanQueryArgs {
  MeanQueryParams p;
  const void* rows = nullptr;
  std::int64_t row_stride = 0, n_rows = 0;
  MeanSplits splits;
  /// Tiles of SumQueriesKernel that hold whole heads together, of which the last block to be done
  /// turns them; 0: another launch does.
  std::int64_t group_tiles = 0;
};

/// mean = rotated(sum of the rows / n) of heads [first_head, end_head), by `threads` threads, each
/// for a channel and the one that rotates with it.
template <class Row>
__device__ inline void turn_heads(const MeanQueryParams& p, const Row* rows,
                                  std::int64_t row_stride, std::int64_t n_rows,
                                  std::int64_t first_head, std::int64_t end_head,
                                  std::int64_t thread, std::int64_t threads) {
  const std::int64_t half = p.rotary_dim / 2, per_head = p.head_dim - half;
  for (std::int64_t item = first_head * per_head + thread; item < end_head * per_head;
       item += threads) {
    const std::int64_t c = item % per_head, head = item / per_head * p.head_dim;
    const bool rotates = c < half;
    const std::int64_t first = head + (!rotates ? c + half : p.interleaved ? 2 * c : c);
    const std::int64_t second = !rotates ? first : p.interleaved ? first + 1 : first + half;
    double x = 0.0, y = 0.0;
    for (std::int64_t i = 0; i < n_rows; ++i) {
      x += wide(rows[i * row_stride + first]);
      y += wide(rows[i * row_stride + second]);
    }
    x /= static_cast<double>(p.n);
    y /= static_cast<double>(p.n);
    if (!rotates) {
      p.mean[first] = static_cast<float>(x);
      continue;
    }
    const auto cos = static_cast<double>(p.fixed_cos[c]), sin = static_cast<double>(p.fixed_sin[c]);
    p.mean[first] = static_cast<float>(x * cos - y * sin);
    p.mean[second] = static_cast<float>(y * cos + x * sin);
  }
}

/// partial[split, channel] = sum over the split's queries. A block takes 32 packs of channels; its
/// warps take the rows in turn and are added in their order. Then the last block of a group of
/// tiles makes the mean of the heads in them.
template <class T, int kPack, std::int64_t kMost>
__global__ void __launch_bounds__(kWindowThreads, 4)
    SumQueriesKernel(KernelArgument<Batch<MeanQueryArgs, kMost>> batch) {
  const MeanQueryArgs& a = batch.of[blockIdx.y];
  const T* const q = static_cast<const T*>(a.p.q);
  double* const partial = static_cast<double*>(a.p.workspace);
  const std::int64_t n = a.p.n, width = a.p.n_heads * a.p.head_dim, row_stride = a.p.q_row_stride;
  const MeanSplits splits = a.splits;
  EPISODIC_SHARED(sums, double[kMeanRowLanes][kWarpSize * kPack]);
  const unsigned lane = threadIdx.x % kWarpSize, row_lane = threadIdx.x / kWarpSize;
  constexpr std::int64_t kTile = kWarpSize * kPack;
  const std::int64_t tiles = (width + kTile - 1) / kTile;
  const std::int64_t split = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const std::int64_t first_channel = tile * kTile;
  if (split >= splits.count) return;  // of a longer sequence
  const std::int64_t channel = first_channel + lane * kPack;
  const std::int64_t begin = split * splits.rows;
  const std::int64_t end = begin + splits.rows < n ? begin + splits.rows : n;
  double sum[kPack] = {};
  if (channel < width) {
    EPISODIC_UNROLL
    for (std::int64_t i = begin + row_lane; i < end; i += kMeanRowLanes) {
      const Pack<T, kPack> row = load_pack<kPack>(q + i * row_stride + channel);
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) sum[j] += static_cast<double>(widen(row.at[j]));
    }
  }
  // by pack elements, not by lanes: neighbouring lanes write neighbouring words
  EPISODIC_UNROLL
  for (int j = 0; j < kPack; ++j)
    sums[row_lane][static_cast<unsigned>(j) * kWarpSize + lane] = sum[j];
  __syncthreads();
  for (unsigned c = threadIdx.x; c < kTile && first_channel + c < width; c += kWindowThreads) {
    const unsigned at = c % kPack * kWarpSize + c / kPack;
    double total = 0.0;
    EPISODIC_UNROLL
    for (int r = 0; r < kMeanRowLanes; ++r) total += sums[r][at];
    partial[split * width + first_channel + c] = total;
  }
  if (a.group_tiles == 0) return;
  const std::int64_t group = tile / a.group_tiles, first_tile = group * a.group_tiles;
  const std::int64_t in_group =
      tiles - first_tile < a.group_tiles ? tiles - first_tile : a.group_tiles;
  if (!is_last_arrival(a.p.maybe_arrived + group, static_cast<unsigned>(in_group * splits.count)))
    return;
  const std::int64_t heads = a.group_tiles * kTile / a.p.head_dim, first_head = group * heads;
  const std::int64_t end_head = first_head + heads;
  turn_heads(a.p, static_cast<const double*>(a.p.workspace), width, splits.count, first_head,
             end_head < a.p.n_heads ? end_head : a.p.n_heads, threadIdx.x, kWindowThreads);
}

/// The mean of rows that are the queries themselves, where they are few, or the splits' sums.
template <class Row, std::int64_t kMost>
__global__ void __launch_bounds__(kWindowThreads)
    TurnMeanKernel(KernelArgument<Batch<MeanQueryArgs, kMost>> batch) {
  const MeanQueryArgs& a = batch.of[blockIdx.y];
  turn_heads(a.p, static_cast<const Row*>(a.rows), a.row_stride, a.n_rows, 0, a.p.n_heads,
             static_cast<std::int64_t>(blockIdx.x) * kWindowThreads + threadIdx.x,
             static_cast<std::int64_t>(gridDim.x) * kWindowThreads);
}

}  // namespace episodic::kernels
