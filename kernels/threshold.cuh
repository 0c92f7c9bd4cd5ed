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
/// `lane` takes every eighth, then all add the lanes in order. No addition is fused with a
/// product: the CPU twin fuses none. All 32 threads of the warp must
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
    for (int i = 0; i < kBatch; ++i) sum = rules::add(sum, term(x[i]));
  }
  for (; t < to; t += kThresholdLanes) sum = rules::add(sum, term(line.next()));

  const int base = static_cast<int>(threadIdx.x) % kWarpSize / kThresholdLanes * kThresholdLanes;
  double total = 0.0;
  EPISODIC_UNROLL
  for (int i = 0; i < kThresholdLanes; ++i)
    total = rules::add(total, __shfl_sync(kFullMask, sum, base + i));
  return total;
}

/// 8 threads per token. The y of the grid is sequences.
__global__ void __launch_bounds__(kThresholdThreads)
    ThresholdKernel(const Batch<ThresholdParams> batch) {
  const ThresholdParams& p = batch.of[blockIdx.y];
  constexpr std::int64_t kTokens = kThresholdThreads / kThresholdLanes;
  const std::int64_t first = p.state->tokens;
  const int lane = static_cast<int>(threadIdx.x) % kThresholdLanes;

  for (std::int64_t tile = blockIdx.x * kTokens; tile < p.n; tile += gridDim.x * kTokens) {
    const std::int64_t i = tile + threadIdx.x / kThresholdLanes;
    const bool valid = i < p.n;
    const rules::ThresholdSpan span = p.window == ThresholdWindow::moving
                                          ? rules::moving_span(first, i, p.tau)
                                          : rules::chunked_span(first, p.n, p.tau, p.n_init);
    const std::int64_t from = span.from, to = valid ? span.to : from, count = to - from;
    const SurpriseLine line(p, first, from + lane);
    const double mean =
        lane_sum(line, from, to, lane, [](float x) { return static_cast<double>(x); }) /
        static_cast<double>(count);
    const double squares = lane_sum(line, from, to, lane, [mean](float x) {
      const double diff = rules::add(static_cast<double>(x), -mean);
      return rules::multiply(diff, diff);
    });
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
