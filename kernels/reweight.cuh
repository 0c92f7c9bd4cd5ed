// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/reweight.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "device.cuh"
#include "elements.cuh"
#include "reweight.hpp"

namespace episodic::kernels {

inline constexpr std::int64_t kMostScoredWidth = 24 << 10;  // the query lies in shared memory
inline constexpr int kEventScoreThreads = 256;
inline constexpr int kEventScoreWarps = kEventScoreThreads / kWarpSize;
inline constexpr int kWeighThreads = 1024;
inline constexpr int kRadixBits = 8, kRadixBins = 1 << kRadixBits;

__device__ inline std::int64_t count_within(const std::int64_t* count, std::int64_t limit) {
  return *count < limit ? *count : limit;
}

/// A reader's score as attention takes it. NaN is not larger than 0.
__device__ inline float weight_of(float score) { return score > 0.0f ? score : 0.0f; }

/// A warp for each event; the query lies in shared memory.
template <class T, int kPack>
__global__ void __launch_bounds__(kEventScoreThreads) ScoreEventsKernel(EventScoreParams p) {
  EPISODIC_DYNAMIC_SHARED(bytes);  // [width] the query
  auto* const query = reinterpret_cast<float*>(bytes);
  using Reduce = cub::BlockReduce<double, kEventScoreThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(query_square, double);
  double own = 0.0;
  for (std::int64_t c = threadIdx.x; c < p.width; c += kEventScoreThreads) {
    query[c] = p.query[c];
    own += static_cast<double>(query[c]) * static_cast<double>(query[c]);
  }
  const double sum = Reduce(storage).Sum(own);
  if (threadIdx.x == 0) query_square = sum;
  __syncthreads();
  const unsigned lane = threadIdx.x % kWarpSize;
  const std::int64_t n = count_within(p.n_events, p.max_events);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kEventScoreWarps;
  for (std::int64_t event =
           static_cast<std::int64_t>(blockIdx.x) * kEventScoreWarps + threadIdx.x / kWarpSize;
       event < n; event += stride) {
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

inline __global__ void __launch_bounds__(kWeighThreads) WeighAllKernel(EventWeightParams p) {
  const std::int64_t n = count_within(p.n_events, p.max_events);
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kWeighThreads;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * kWeighThreads + threadIdx.x;
  if (first == 0) *p.count = static_cast<std::int32_t>(n > 0 ? n : 0);
  for (std::int64_t event = first; event < n; event += stride) {
    p.value_weight[event] = weight_of(p.score[event]);
    p.events[event] = event;
  }
}

/// Where the top_k end: all scores with larger bits, and the first `ties` of those with the same.
struct TopThreshold {
  unsigned bits;
  std::int32_t ties;
};

/// Bits of weights, which are not negative, are ordered as the weights are.
__device__ inline unsigned weight_bits(const EventWeightParams& p, std::int64_t event) {
  return __float_as_uint(weight_of(p.score[event]));
}

/// By a block: a radix select from the highest bits down. \param wanted 1 .. n
__device__ inline TopThreshold top_threshold(const EventWeightParams& p, std::int64_t n,
                                             std::int32_t wanted) {
  using Scan = cub::BlockScan<std::int32_t, kWeighThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  EPISODIC_SHARED(in_bin, std::int32_t[kRadixBins]);
  EPISODIC_SHARED(found, TopThreshold);
  unsigned prefix = 0;
  for (int shift = 32 - kRadixBits; shift >= 0; shift -= kRadixBits) {
    if (threadIdx.x < kRadixBins) in_bin[threadIdx.x] = 0;
    __syncthreads();
    for (std::int64_t event = threadIdx.x; event < n; event += kWeighThreads) {
      const unsigned bits = weight_bits(p, event);
      // shifted in two steps: no shift by 32
      if (bits >> shift >> kRadixBits == prefix)
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

/// One block: marks the top_k by weight 1, the others by 0; then lists those and, in broad, their
/// neighbours, which get their weight when no one looks at the marks any more.
inline __global__ void __launch_bounds__(kWeighThreads) WeighTopKernel(EventWeightParams p) {
  using Scan = cub::BlockScan<std::int32_t, kWeighThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  const std::int64_t n = count_within(p.n_events, p.max_events);
  if (n <= 0) {
    if (threadIdx.x == 0) *p.count = 0;
    return;
  }
  const TopThreshold last =
      top_threshold(p, n, static_cast<std::int32_t>(p.top_k < n ? p.top_k : n));
  std::int32_t ties = 0, listed = 0;
  for (std::int64_t group = 0; group < n; group += kWeighThreads) {
    const std::int64_t event = group + threadIdx.x;
    const unsigned bits = event < n ? weight_bits(p, event) : 0;
    const bool is_tie = event < n && bits == last.bits;
    std::int32_t before, total;
    Scan(storage).ExclusiveSum(is_tie ? 1 : 0, before, total);
    if (event < n) {
      const bool is_top = bits > last.bits || (is_tie && ties + before < last.ties);
      p.value_weight[event] = is_top ? 1.0f : 0.0f;
    }
    ties += total;
    __syncthreads();
  }
  const auto is_top = [&](std::int64_t event) {
    return event >= 0 && event < n && p.value_weight[event] == 1.0f;
  };
  for (std::int64_t group = 0; group < n; group += kWeighThreads) {
    const std::int64_t event = group + threadIdx.x;
    const bool takes_part =
        event < n &&
        (is_top(event) || (p.mode == Reweight::broad && (is_top(event - 1) || is_top(event + 1))));
    std::int32_t before, total;
    Scan(storage).ExclusiveSum(takes_part ? 1 : 0, before, total);
    if (takes_part) p.events[listed + before] = event;
    listed += total;
    __syncthreads();
  }
  for (std::int32_t i = static_cast<std::int32_t>(threadIdx.x); i < listed; i += kWeighThreads)
    p.value_weight[p.events[i]] = 1.0f;
  if (threadIdx.x == 0) *p.count = listed;
}

}  // namespace episodic::kernels
