// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/key_segmenter.hpp.

#include <cstdint>

#include "batch.hpp"
#include "device.cuh"
#include "key_segmenter.hpp"
#include "ring_pages.cuh"

namespace episodic::kernels {

inline constexpr int kKeyThreads = 256;  // channels of a block
inline constexpr int kKeyWarps = kKeyThreads / kWarpSize;
inline constexpr int kKeyAhead = kWarpSize;  // tokens of a round

/// A round's tokens [next, next + n_tokens) of a timeline.
struct KeyRound {
  std::int64_t first, next, count;  // first: of the step; count: keys of the event so far
  int n_tokens;
};

/// Whether a key gives a value to an event of `count` keys.
__device__ inline bool gives_value(const KeySegmenterParams& p, std::int64_t count) {
  return count > 0 && count >= p.min_count;
}

/// This block's part of the signals of a round's tokens, as if all of them joined the event, to
/// sums [kKeyAhead]; the moments after all of them to memory.
template <class Key, KeySignal kSignal>
__device__ void look_ahead(const KeySegmenterParams& p, const KeyRound& round,
                           std::int64_t channels, double* sums) {
  EPISODIC_SHARED(of_warp, double[kKeyAhead][kKeyWarps]);
  constexpr bool kGaussian = kSignal == KeySignal::gaussian;
  constexpr double kTwoPi = 6.283185307179586476925286766559;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * kKeyThreads + threadIdx.x;
  const bool valid = channel < channels;
  const std::int64_t at = valid ? blockIdx.y * channels + channel : 0;  // over all timelines
  const std::int64_t head = at / p.head_dim;
  const Key* key = static_cast<const Key*>(p.keys[head / p.n_kv_heads]) +
                   head % p.n_kv_heads * p.key_head_stride + at % p.head_dim;

  double mean = 0.0, variance = 0.0;
  if (valid && round.count > 0) {
    mean = p.mean[at];
    if (kGaussian) variance = p.variance[at];
  }
  std::int64_t slot = round.next % p.key_capacity;
  std::int64_t count = round.count;
  constexpr int kBatch = 8;  // loads on their way at a time
  for (int i = 0; i < round.n_tokens; i += kBatch) {
    const int here = round.n_tokens - i < kBatch ? round.n_tokens - i : kBatch;
    double k[kBatch];
    EPISODIC_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      k[j] = valid && j < here
                 ? static_cast<double>(widen(key[ring_row(p.key_pages, slot, p.key_row_stride)]))
                 : 0.0;
      if (++slot == p.key_capacity) slot = 0;
    }
    EPISODIC_UNROLL
    for (int j = 0; j < kBatch; ++j) {
      if (j >= here) break;
      const double diff = k[j] - mean;
      double term = 0.0;
      if (valid && gives_value(p, count)) {
        if (kGaussian) {
          const double v = variance > p.var_floor ? variance : p.var_floor;
          term = -0.5 * (log(kTwoPi * v) + diff * diff / v);
        } else {
          term = mean * k[j];
        }
      }
      if (count == 0) {
        mean = k[j];
        variance = 0.0;
      } else {
        const double share = 1.0 / static_cast<double>(count + 1);
        mean += diff * share;
        if (kGaussian)
          variance = (static_cast<double>(count) * variance + diff * (k[j] - mean)) * share;
      }
      ++count;
      term = warp_reduce(term, Sum{});
      if (lane == 0) of_warp[i + j][warp] = term;
    }
  }
  if (valid) {
    p.mean[at] = mean;
    if (kGaussian) p.variance[at] = variance;
  }
  __syncthreads();
  if (static_cast<int>(threadIdx.x) < round.n_tokens) {
    double sum = 0.0;
    EPISODIC_UNROLL
    for (int i = 0; i < kKeyWarps; ++i) sum += of_warp[threadIdx.x][i];
    sums[threadIdx.x] = sum;
  }
}

/// The round's first cut, or none: one thread, from the signals' sums over heads.
__device__ inline void decide(const KeySegmenterParams& p, const KeyRound& round,
                              const double* sums, std::int64_t n_heads) {
  KeySegmenterState& segmenter = p.segmenter[blockIdx.y];
  KeySegmenterState s = segmenter;
  const std::int64_t row = blockIdx.y * p.n - round.first;  // of token 0 in the outputs
  for (int i = 0; i < round.n_tokens; ++i) {
    if (gives_value(p, s.count)) {
      const double signal = sums[i] / static_cast<double>(n_heads);
      double threshold = NAN;
      if (s.recorded >= 2)
        threshold = s.mean - p.gamma * sqrt(s.squares / static_cast<double>(s.recorded - 1));
      if (p.maybe_signal) p.maybe_signal[row + s.next] = static_cast<float>(signal);
      if (p.maybe_threshold) p.maybe_threshold[row + s.next] = static_cast<float>(threshold);
      if (signal < threshold) {
        p.raw[row + s.next] = 1;
        s.count = s.recorded = 0;  // this key starts the next event, in the next round
        s.mean = s.squares = 0.0;
        break;
      }
      ++s.recorded;
      const double diff = signal - s.mean;
      s.mean += diff / static_cast<double>(s.recorded);
      s.squares += diff * (signal - s.mean);
    }
    ++s.count;
    ++s.next;
  }
  s.arrived = 0;
  segmenter = s;
}

/// One block per 256 channels and timeline, z: sequences. Where that is one block, all rounds of
/// the step.
template <class Key, KeySignal kSignal, std::int64_t kMost>
__global__ void __launch_bounds__(kKeyThreads)
    KeySegmenterKernel(KernelArgument<Batch<KeySegmenterParams, kMost>> batch,
                       std::int64_t channels) {
  const KeySegmenterParams& p = batch.of[blockIdx.z];
  EPISODIC_SHARED(groups, double[kKeyAhead][kKeyWarps]);
  EPISODIC_SHARED(totals, double[kKeyAhead]);
  EPISODIC_SHARED(is_last, int);
  const std::int64_t first = p.state[blockIdx.y].tokens, end = first + p.n;
  double* sums = static_cast<double*>(p.workspace) +
                 static_cast<std::int64_t>(blockIdx.y) * gridDim.x * kKeyAhead;
  do {
    KeyRound round;
    round.first = first;
    round.next = p.segmenter[blockIdx.y].next;
    round.count = p.segmenter[blockIdx.y].count;
    if (round.next >= end) return;
    round.n_tokens = end - round.next < kKeyAhead ? static_cast<int>(end - round.next) : kKeyAhead;
    look_ahead<Key, kSignal>(p, round, channels, sums + blockIdx.x * kKeyAhead);
    __threadfence();  // the sums, before the block is counted
    __syncthreads();
    if (threadIdx.x == 0)
      is_last = atomicAdd(&p.segmenter[blockIdx.y].arrived, 1u) + 1 == gridDim.x;
    __syncthreads();
    if (!is_last) return;
    __threadfence();

    const int token = static_cast<int>(threadIdx.x) % kKeyAhead;
    const int group = static_cast<int>(threadIdx.x) / kKeyAhead;
    const volatile double* all = sums;  // written by other blocks: not from this one's cache
    double sum = 0.0;
    if (token < round.n_tokens)
      for (unsigned i = static_cast<unsigned>(group); i < gridDim.x; i += kKeyWarps)
        sum += all[i * kKeyAhead + token];
    groups[token][group] = sum;
    __syncthreads();
    if (threadIdx.x < kKeyAhead) {
      sum = 0.0;
      EPISODIC_UNROLL
      for (int i = 0; i < kKeyWarps; ++i) sum += groups[threadIdx.x][i];
      totals[threadIdx.x] = sum;
    }
    __syncthreads();
    if (threadIdx.x == 0) decide(p, round, totals, channels / p.head_dim);
    __syncthreads();
  } while (gridDim.x == 1);
}

}  // namespace episodic::kernels
