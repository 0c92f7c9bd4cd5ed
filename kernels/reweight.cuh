// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/reweight.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "reweight.hpp"

namespace episodic::kernels {

inline constexpr std::int64_t kMostScoredWidth = 24 << 10;  // the query lies in shared memory
inline constexpr int kEventScoreThreads = 256;
inline constexpr int kEventScoreWarps = kEventScoreThreads / kWarpSize;
inline constexpr int kRecallTopThreads = 1024;
inline constexpr int kRadixBits = 8, kRadixBins = 1 << kRadixBits;

template <class Count>
__device__ inline std::int64_t count_within(const Count* count, std::int64_t limit) {
  return *count < limit ? *count : limit;
}

/// A reader's score as attention takes it. NaN is not larger than 0.
__device__ inline float weight_of(float score) { return score > 0.0f ? score : 0.0f; }

/// What one lane has of all lanes' arrays.
__device__ inline RecallTopParams of_lane(RecallTopParams p, std::int64_t lane) {
  p.score += lane * p.max_events;
  p.n_events += lane * p.count_stride;
  if (p.maybe_forgotten) p.maybe_forgotten += lane * p.mark_stride;
  p.is_top += lane * p.max_events;
  p.similarity += lane * p.list_capacity;
  p.contiguity_list += lane * p.list_capacity;
  p.recalled += lane * p.list_capacity;
  p.sizes += 3 * lane;
  return p;
}

/// Rows of the grid are lanes, its z sequences. A warp for each event; the query lies in shared
/// memory.
template <class T, int kPack, std::int64_t kMost>
__global__ void __launch_bounds__(kEventScoreThreads)
    ScoreEventsKernel(KernelArgument<Batch<EventScoreParams, kMost>> batch) {
  const EventScoreParams& p = batch.of[blockIdx.z];
  EPISODIC_DYNAMIC_SHARED(bytes);  // [width] the query
  auto* const query = reinterpret_cast<float*>(bytes);
  using Reduce = cub::BlockReduce<double, kEventScoreThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(query_square, double);
  const std::int64_t of_lanes = blockIdx.y;  // the lane
  double own = 0.0;
  for (std::int64_t c = threadIdx.x; c < p.width; c += kEventScoreThreads) {
    query[c] = p.query[of_lanes * p.width + c];
    own += static_cast<double>(query[c]) * static_cast<double>(query[c]);
  }
  const double sum = Reduce(storage).Sum(own);
  if (threadIdx.x == 0) query_square = sum;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarpSize;
  // Counted in 32 bits, for the registers' sake: there are less than 2^31 events.
  const auto n = static_cast<unsigned>(
      p.maybe_listed ? count_within(p.n_listed + of_lanes * p.listed_stride, p.max_listed)
                     : count_within(p.n_events + of_lanes * p.count_stride, p.max_events));
  for (unsigned i = blockIdx.x * kEventScoreWarps + threadIdx.x / kWarpSize; i < n;
       i += gridDim.x * kEventScoreWarps) {
    // its row in all lanes' arrays
    const std::int64_t event = of_lanes * p.max_events +
                               (p.maybe_listed ? p.maybe_listed[of_lanes * p.max_listed + i] : i);
    const T* row = static_cast<const T*>(p.representative) + event * p.width;
    float dot = 0.0f, square = 0.0f;
    EPISODIC_UNROLL
    for (std::int64_t c = lane * kPack; c < p.width; c += kWarpSize * kPack) {
      const Pack<T, kPack> pack = load_pack<kPack>(row + c);
      const Pack<float, kPack> q = load_pack<kPack>(query + c);
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) {
        const float x = widen(pack.at[j]);
        dot = fmaf(x, q.at[j], dot);
        square = fmaf(x, x, square);
      }
    }
    const double all_dot = warp_reduce(static_cast<double>(dot), Sum{});
    const double all_square = warp_reduce(static_cast<double>(square), Sum{});
    if (lane != 0) continue;
    const double cosine = all_dot / sqrt(query_square * all_square);  // 0 / 0 is NaN
    p.score[event] = weight_of(isfinite(cosine) ? static_cast<float>(cosine) : 0.0f);
  }
}

/// Where the top_k end: all scores with larger bits, and the first `ties` of those with the same.
struct TopThreshold {
  unsigned bits;
  std::int32_t ties;
};

/// Bits of weights, which are not negative, are ordered as the weights are.
__device__ inline unsigned weight_bits(const RecallTopParams& p, std::int64_t event) {
  return __float_as_uint(weight_of(p.score[event]));
}

__device__ inline bool is_kept(const RecallTopParams& p, std::int64_t event) {
  return !p.maybe_forgotten || p.maybe_forgotten[event] == 0;
}

/// By a block: a radix select from the highest bits down. \param wanted 1 .. n
__device__ inline TopThreshold top_threshold(const RecallTopParams& p, std::int64_t n,
                                             std::int32_t wanted) {
  using Scan = cub::BlockScan<std::int32_t, kRecallTopThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  EPISODIC_SHARED(in_bin, std::int32_t[kRadixBins]);
  EPISODIC_SHARED(found, TopThreshold);
  unsigned prefix = 0;
  for (int shift = 32 - kRadixBits; shift >= 0; shift -= kRadixBits) {
    if (threadIdx.x < kRadixBins) in_bin[threadIdx.x] = 0;
    __syncthreads();
    for (std::int64_t event = threadIdx.x; event < n; event += kRecallTopThreads) {
      const unsigned bits = weight_bits(p, event);
      // shifted in two steps: no shift by 32
      if (bits >> shift >> kRadixBits == prefix && is_kept(p, event))
        atomicAdd(&in_bin[bits >> shift & (kRadixBins - 1u)], 1);
    }
    __syncthreads();
    const unsigned bin = kRadixBins - 1 - threadIdx.x;  // largest first
    const std::int32_t own = threadIdx.x < kRadixBins ? in_bin[bin] : 0;
    std::int32_t before;
    Scan(storage).ExclusiveSum(own, before);
    if (before < wanted && wanted <= before + own)
      found = {prefix << kRadixBits | bin, wanted - before};
    __syncthreads();
    prefix = found.bits;
    wanted = found.ties;
    __syncthreads();  // bins, storage and what was found are used again
  }
  return {prefix, wanted};
}

/// The members of a group of events, one a thread, that belong to a list, behind those it has. All
/// threads of the block; \return how many it has then
template <class Scan>
__device__ inline std::int32_t append_to_list(typename Scan::TempStorage& storage, bool belongs,
                                              std::int64_t event, DeviceEventId* list,
                                              std::int32_t listed) {
  std::int32_t before, total;
  Scan(storage).ExclusiveSum(belongs ? 1 : 0, before, total);
  if (belongs) list[listed + before] = static_cast<DeviceEventId>(event);
  __syncthreads();  // the storage is used again
  return listed + total;
}

/// One block a lane, y: sequences: marks the top_k, then lists those and their neighbours.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kRecallTopThreads)
    RecallTopKernel(KernelArgument<Batch<RecallTopParams, kMost>> batch) {
  const RecallTopParams p = of_lane(batch.of[blockIdx.y], blockIdx.x);
  using Scan = cub::BlockScan<std::int32_t, kRecallTopThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  const std::int64_t n = count_within(p.n_events, p.max_events);
  std::int64_t kept = n;
  if (p.maybe_forgotten) {
    kept = 0;
    for (std::int64_t group = 0; group < n; group += kRecallTopThreads) {
      const std::int64_t event = group + threadIdx.x;
      std::int32_t before, total;
      Scan(storage).ExclusiveSum(event < n && is_kept(p, event) ? 1 : 0, before, total);
      kept += total;
      __syncthreads();  // the storage is used again
    }
  }
  if (kept <= 0) {
    if (threadIdx.x < 3) p.sizes[threadIdx.x] = 0;
    return;
  }
  const TopThreshold last =
      top_threshold(p, n, static_cast<std::int32_t>(p.top_k < kept ? p.top_k : kept));
  std::int32_t ties = 0;
  for (std::int64_t group = 0; group < n; group += kRecallTopThreads) {
    const std::int64_t event = group + threadIdx.x;
    const unsigned bits = event < n ? weight_bits(p, event) : 0;
    const bool counts = event < n && is_kept(p, event);
    const bool is_tie = counts && bits == last.bits;
    std::int32_t before, total;
    Scan(storage).ExclusiveSum(is_tie ? 1 : 0, before, total);
    if (event < n)
      p.is_top[event] = counts && (bits > last.bits || (is_tie && ties + before < last.ties));
    ties += total;
    __syncthreads();
  }
  const auto is_top = [&](std::int64_t event) {
    return event >= 0 && event < n && p.is_top[event] != 0;
  };
  std::int32_t top = 0, beside = 0, all = 0;
  for (std::int64_t group = 0; group < n; group += kRecallTopThreads) {
    const std::int64_t event = group + threadIdx.x;
    const bool of_top = is_top(event);
    const bool of_neighbours = p.neighbours && event < n && !of_top && is_kept(p, event) &&
                               (is_top(event - 1) || is_top(event + 1));
    top = append_to_list<Scan>(storage, of_top, event, p.similarity, top);
    beside = append_to_list<Scan>(storage, of_neighbours, event, p.contiguity_list, beside);
    all = append_to_list<Scan>(storage, of_top || of_neighbours, event, p.recalled, all);
  }
  if (threadIdx.x == 0) {
    p.sizes[0] = top;
    p.sizes[1] = beside;
    p.sizes[2] = all;
  }
}

}  // namespace episodic::kernels
