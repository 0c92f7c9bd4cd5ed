// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/threshold.hpp.

#include <cstdint>

#include "device.cuh"
#include "threshold.hpp"

namespace episodic::kernels {

/// Chains of one sum. A part of the result's definition: the CPU twin has as many.
inline constexpr int kThresholdLanes = 8;
inline constexpr int kThresholdThreads = 128;

/// Surprise of every eighth token from some token on: of the ring, then of this step. Slots wrap by
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

/// Sum of term(value) over the values of tokens [from, to) by the 8 threads of a token: thread
/// `lane` takes every eighth, then all add the lanes in order. Additions are written as intrinsics
/// so that none is fused with a product: the CPU twin fuses none. All 32 threads of the warp must
/// come here.
template <class Term>
__device__ double lane_sum(SurpriseLine line, std::int64_t from, std::int64_t to, int lane,
                           Term term) {
  constexpr int kBatch = 16;  // loads on their way at a time: the additions wait for one another
  double sum = 0.0;
  std::int64_t t = from + lane;
  for (; t + (kBatch - 1) * kThresholdLanes < to; t += kBatch * kThresholdLanes) {
    float x[kBatch];
    EPISODIC_UNROLL
    for (int i = 0; i < kBatch; ++i) x[i] = line.next();
    EPISODIC_UNROLL
    for (int i = 0; i < kBatch; ++i) sum = __dadd_rn(sum, term(x[i]));
  }
  for (; t < to; t += kThresholdLanes) sum = __dadd_rn(sum, term(line.next()));

  const int base = static_cast<int>(threadIdx.x) % kWarpSize / kThresholdLanes * kThresholdLanes;
  double total = 0.0;
  EPISODIC_UNROLL
  for (int i = 0; i < kThresholdLanes; ++i)
    total = __dadd_rn(total, __shfl_sync(kFullMask, sum, base + i));
  return total;
}

/// 8 threads per token.
__global__ void __launch_bounds__(kThresholdThreads) ThresholdKernel(ThresholdParams p) {
  constexpr std::int64_t kTokens = kThresholdThreads / kThresholdLanes;
  const std::int64_t first = p.state->tokens;
  const int lane = static_cast<int>(threadIdx.x) % kThresholdLanes;
  const std::int64_t oldest = first - p.tau > 1 ? first - p.tau : 1;  // token 0 is in no average

  for (std::int64_t tile = blockIdx.x * kTokens; tile < p.n; tile += gridDim.x * kTokens) {
    const std::int64_t i = tile + threadIdx.x / kThresholdLanes;
    const bool valid = i < p.n;
    std::int64_t from, to;  // the window
    if (p.window == ThresholdWindow::moving) {
      to = first + i;
      from = to - p.tau > oldest ? to - p.tau : oldest;
    } else if (first == 0) {
      from = oldest;
      to = p.n_init < p.n ? p.n_init : p.n;
    } else {
      const std::int64_t start = first - (p.tau > p.n ? p.tau - p.n : 0);
      from = start > oldest ? start : oldest;
      to = first;
    }
    if (!valid) to = from;
    const std::int64_t count = to - from;
    const SurpriseLine line(p, first, from + lane);
    const double mean =
        lane_sum(line, from, to, lane, [](float x) { return static_cast<double>(x); }) /
        static_cast<double>(count);
    const double squares = lane_sum(line, from, to, lane, [mean](float x) {
      const double diff = __dadd_rn(static_cast<double>(x), -mean);
      return __dmul_rn(diff, diff);
    });
    if (!valid || lane != 0) continue;
    float threshold = INFINITY;
    if (count >= 2 && first + i > 0)
      threshold = static_cast<float>(
          __dadd_rn(mean, __dmul_rn(p.gamma, sqrt(squares / static_cast<double>(count - 1)))));
    const float s = p.surprise[i];
    p.threshold[i] = threshold;
    p.raw[i] = s > threshold ? 1 : 0;
    p.recent[(first + i) % p.recent_capacity] = s;
    if (isnan(s) && first + i > 0)
      atomicOr(&p.state->errors, static_cast<std::uint32_t>(kSurpriseIsNaN));
  }
}

}  // namespace episodic::kernels
