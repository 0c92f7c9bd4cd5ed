// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/threshold.hpp.

#include <cstdint>

#include "batch.hpp"
#include "device.cuh"
#include "episodic/base/rules/threshold.hpp"
#include "threshold.hpp"

namespace episodic::kernels {

using rules::kThresholdLanes;
inline constexpr int kThresholdThreads = 128;

/// Tokens of a block at a time, 8 threads each.
inline constexpr std::int64_t kThresholdTokens = kThresholdThreads / kThresholdLanes;
/// Values that one threshold is taken over, at most.
inline std::int64_t longest_span(const ThresholdParams& p) {
  const std::int64_t own = p.window == ThresholdWindow::chunked ? rules::smaller(p.n_init, p.n) : 0;
  return rules::larger(p.tau, own);
}
/// The longest spans that a block keeps, with those of all its tokens, in shared memory.
inline constexpr std::int64_t kMostStaged = 20'000;
inline constexpr std::size_t threshold_shared_bytes(std::int64_t span) {
  return static_cast<std::size_t>(span + kThresholdTokens) * sizeof(float);
}
static_assert(threshold_shared_bytes(kMostStaged) <= kSharedOfEveryDevice);
inline bool is_staged(const ThresholdParams& p) {
  return longest_span(p) <= kMostStaged && p.recent_capacity <= INT32_MAX;
}

/// Surprise of every eighth token from some token on, of what a block keeps in shared memory.
class StagedLine {
 public:
  __device__ explicit StagedLine(const float* at) : at_(at) {}
  __device__ float next() {
    const float x = *at_;
    at_ += kThresholdLanes;
    return x;
  }

 private:
  const float* at_;
};

/// The same out of the ring, then of this step, for spans that do not fit there. Slots wrap by
/// subtraction: a division for each value would cost more than the sums.
class SurpriseLine {
 public:
  __device__ SurpriseLine(const ThresholdParams& p, std::int64_t first, std::int64_t token)
      : step_(p.surprise),
        ring_(p.recent),
        left_(token - first),
        slot_(token % p.recent_capacity),
        stride_(kThresholdLanes % p.recent_capacity),
        capacity_(p.recent_capacity) {}

  __device__ float next() {
    const float x = left_ >= 0 ? step_[left_] : ring_[slot_];
    left_ += kThresholdLanes;
    slot_ += stride_;
    if (slot_ >= capacity_) slot_ -= capacity_;
    return x;
  }

 private:
  const float* step_;
  const float* ring_;
  std::int64_t left_;  // index in the step, negative while in the ring
  std::int64_t slot_, stride_, capacity_;
};

/// Sum of term(value) over `count` values by the 8 threads of a token: thread `lane` takes every
/// eighth, from its own on, then all add the lanes in order. No addition is fused with a product:
/// the CPU twin fuses none. All 32 threads of the warp must come here. \param line from the lane's
/// first value on
template <class Line, class Count, class Term>
__device__ double lane_sum(Line line, Count count, int lane, Term term) {
  constexpr int kBatch = 16;  // loads on their way at a time: the additions wait for one another
  double sum = 0.0;
  Count t = lane;
  for (; t + (kBatch - 1) * kThresholdLanes < count; t += kBatch * kThresholdLanes) {
    float x[kBatch];
    EPISODIC_UNROLL
    for (int i = 0; i < kBatch; ++i) x[i] = line.next();
    EPISODIC_UNROLL
    for (int i = 0; i < kBatch; ++i) sum = rules::add(sum, term(x[i]));
  }
  for (; t < count; t += kThresholdLanes) sum = rules::add(sum, term(line.next()));

  const int base = static_cast<int>(threadIdx.x) % kWarpSize / kThresholdLanes * kThresholdLanes;
  double total = 0.0;
  EPISODIC_UNROLL
  for (int i = 0; i < kThresholdLanes; ++i)
    total = rules::add(total, __shfl_sync(kFullMask, sum, base + i));
  return total;
}

/// The values of tokens [from, to), of which those before `first` are in the ring, side by side:
/// each is read from global memory once a block. to - from < longest_span + kThresholdTokens.
__device__ inline void stage_surprise(const ThresholdParams& p, std::int64_t first,
                                      std::int64_t from, std::int64_t to, float* staged) {
  const auto slot = static_cast<unsigned>(from % p.recent_capacity);
  const auto capacity = static_cast<unsigned>(p.recent_capacity);
  const int count = static_cast<int>(to - from);
  const int in_ring = static_cast<int>(first - from);
  for (int k = static_cast<int>(threadIdx.x); k < count; k += kThresholdThreads) {
    unsigned at = slot + static_cast<unsigned>(k);
    at = min(at, at - capacity);  // below the capacity, the difference wraps around
    staged[k] = k < in_ring ? p.recent[at] : p.surprise[k - in_ring];
  }
}

/// 8 threads per token. The y of the grid is sequences. \tparam kStaged whether spans fit into
/// shared memory (is_staged), whose indices are of 32 bits
template <bool kStaged, std::int64_t kMost>
__global__ void __launch_bounds__(kThresholdThreads)
    ThresholdKernel(KernelArgument<Batch<ThresholdParams, kMost>> batch) {
  const ThresholdParams& p = batch.of[blockIdx.y];
  const std::int64_t first = p.state->tokens;
  const int lane = static_cast<int>(threadIdx.x) % kThresholdLanes;
  const auto span_of = [&](std::int64_t i) {
    return p.window == ThresholdWindow::moving ? rules::moving_span(first, i, p.tau)
                                               : rules::chunked_span(first, p.n, p.tau, p.n_init);
  };

  for (std::int64_t tile = blockIdx.x * kThresholdTokens; tile < p.n;
       tile += gridDim.x * kThresholdTokens) {
    const std::int64_t i = tile + threadIdx.x / kThresholdLanes;
    const bool valid = i < p.n;
    const rules::ThresholdSpan span = span_of(i);
    const std::int64_t count = valid ? span.to - span.from : 0;
    double mean = 0.0, squares = 0.0;
    const auto add_all = [&](const auto& line, auto values) {
      mean = lane_sum(line, values, lane, [](float x) { return static_cast<double>(x); }) /
             static_cast<double>(count);
      squares = lane_sum(line, values, lane, [mean](float x) {
        const double diff = rules::add(static_cast<double>(x), -mean);
        return rules::multiply(diff, diff);
      });
    };
    if constexpr (kStaged) {
      EPISODIC_DYNAMIC_SHARED(bytes);
      auto* const staged = reinterpret_cast<float*>(bytes);
      const std::int64_t from = span_of(tile).from;  // spans begin and end later, token by token
      const std::int64_t last = tile + kThresholdTokens < p.n ? tile + kThresholdTokens : p.n;
      stage_surprise(p, first, from, span_of(last - 1).to, staged);
      __syncthreads();
      add_all(StagedLine(staged + (span.from - from) + lane), static_cast<int>(count));
      __syncthreads();  // the next tokens' values take their place
    } else {
      add_all(SurpriseLine(p, first, span.from + lane), count);
    }
    if (!valid || lane != 0) continue;
    const float threshold =
        first + i > 0 ? rules::threshold_of(mean, squares, count, p.gamma) : INFINITY;
    const float s = p.surprise[i];
    p.threshold[i] = threshold;
    p.raw[i] = s > threshold ? 1 : 0;
    if (p.maybe_kept) p.maybe_kept[i] = s;
    p.recent[(first + i) % p.recent_capacity] = s;
    if (isnan(s) && first + i > 0)
      atomicOr(&p.state->errors, static_cast<std::uint32_t>(kSurpriseIsNaN));
  }
}

}  // namespace episodic::kernels
