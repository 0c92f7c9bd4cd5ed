// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/state.hpp.

#include <cmath>
#include <cstdint>

#include "device.cuh"
#include "state.hpp"

namespace episodic::kernels {

inline constexpr int kMergeStateThreads = 256;
inline constexpr int kStatesPerBlock = kMergeStateThreads / kWarpSize;

/// share_a * a + share_b * b, rounded as the host does it: each product by itself.
__device__ inline float of_both(float share_a, float a, float share_b, float b) {
  return __fadd_rn(__fmul_rn(share_a, a), __fmul_rn(share_b, b));
}

/// A warp a row, y: sequences.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kMergeStateThreads)
    MergeStatesKernel(KernelArgument<Batch<MergeStatesParams, kMost>> batch) {
  const MergeStatesParams& p = batch.of[blockIdx.y];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kStatesPerBlock;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kStatesPerBlock +
                          static_cast<std::int64_t>(threadIdx.x) / kWarpSize;
       row < p.n_rows; row += stride) {
    const float a = p.lse[row], b = p.part_lse[row];
    if (b == -HUGE_VALF) continue;
    __syncwarp();  // all have read it
    const bool alone = a == -HUGE_VALF;
    float share_a = 0.0f, share_b = 1.0f, lse = b;
    if (!alone) {
      // the higher part's mass is exp(0) = 1: one exponential serves both
      const double highest = a > b ? a : b, lowest = a > b ? b : a;
      const double of_lowest = ::exp(lowest - highest), total = 1.0 + of_lowest;
      const float share_high = static_cast<float>(1.0 / total);
      const float share_low = static_cast<float>(of_lowest / total);
      share_a = a > b ? share_high : share_low;
      share_b = a > b ? share_low : share_high;
      lse = static_cast<float>(highest + ::log(total));
    }
    float* const out = p.out + row * p.value_dim;
    const float* const part = p.part_out + row * p.value_dim;
    for (std::int64_t c = lane; c < p.value_dim; c += kWarpSize)
      out[c] = alone ? part[c] : of_both(share_a, out[c], share_b, part[c]);
    if (lane != 0) continue;
    p.lse[row] = lse;
    if (!p.maybe_weighted_mass) continue;
    float& mass = p.maybe_weighted_mass[row];
    const float other = p.maybe_part_weighted_mass[row];
    mass = alone ? other : of_both(share_a, mass, share_b, other);
  }
}

/// A thread an element of the sums, then of the masses; y: sequences.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kMergeStateThreads)
    RescaleSumsKernel(KernelArgument<Batch<RescaleSumsParams, kMost>> batch) {
  const RescaleSumsParams& p = batch.of[blockIdx.y];
  const std::int64_t sums = p.n_keys * p.n_heads, count = sums + p.n_events * p.n_heads;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kMergeStateThreads;
  for (std::int64_t at = static_cast<std::int64_t>(blockIdx.x) * kMergeStateThreads + threadIdx.x;
       at < count; at += stride) {
    const std::int64_t head = at % p.n_heads;  // of both: sums end with a whole row
    const float part = p.part_lse[head];
    // without a key in the part its sums are zero already; -inf less -inf would make them NaN
    const double share =
        part == -HUGE_VALF ? 0.0 : ::exp(static_cast<double>(part) - p.whole_lse[head]);
    if (at < sums)
      p.maybe_sums[at] = static_cast<float>(static_cast<double>(p.maybe_sums[at]) * share);
    else
      p.maybe_masses[at - sums] *= share;
  }
}

}  // namespace episodic::kernels
