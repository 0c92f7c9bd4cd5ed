// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/mixture.hpp. A warp makes one number of a row: rows of a step that chose
/// the same expert find its weights in the second cache.

#include <cstdint>

#include "blocks.cuh"
#include "decoder.cuh"
#include "device.cuh"
#include "elements.cuh"
#include "mixture.hpp"

namespace episodic::kernels {

inline constexpr int kMixtureThreads = 256;
inline constexpr int kMixtureWarps = kMixtureThreads / kWarpSize;

/// The product of two rows of n elements, in every lane. Lanes take neighbours in turn.
template <class T, class U>
__device__ inline float warp_dot(const T* a, const U* b, std::int64_t n) {
  float sum = 0.0f;
  for (std::int64_t c = threadIdx.x % kWarpSize; c < n; c += kWarpSize)
    sum = fmaf(widen(a[c]), widen(b[c]), sum);
  return warp_reduce(sum, Sum{});
}

__device__ inline float sigmoid_of(float x) { return 1.0f / (1.0f + expf(-x)); }

/// NaN goes before all numbers, so that the row shows it.
__device__ inline bool goes_before(float s, float t) { return s > t || (isnan(s) && !isnan(t)); }

/// By one thread: a row has few experts, and fewer chosen. \param score [experts], changed
__device__ inline void choose_of_row(const ChooseExpertsParams& p, float* score,
                                     std::int32_t* expert, float* weight) {
  const auto n = static_cast<int>(p.experts), k = static_cast<int>(p.chosen);
  const bool probabilities = !p.sigmoid && p.maybe_choice;
  float most = score[0], sum = 0.0f;
  for (int e = 1; e < n; ++e) most = score[e] > most ? score[e] : most;
  for (int e = 0; e < n; ++e) {
    if (p.sigmoid) score[e] = sigmoid_of(score[e]);
    if (!p.sigmoid && (probabilities || !p.normalised)) {
      const float power = expf(score[e] - most);
      if (probabilities) score[e] = power;
      sum += power;
    }
  }
  for (int e = 0; probabilities && e < n; ++e) score[e] /= sum;
  int count = 0;
  for (int e = 0; e < n; ++e) {
    const float s = p.maybe_choice ? score[e] + p.maybe_choice[e] : score[e];
    if (count == k && !goes_before(s, weight[k - 1])) continue;
    int at = count < k ? count++ : k - 1;
    for (; at > 0 && goes_before(s, weight[at - 1]); --at) {
      weight[at] = weight[at - 1];
      expert[at] = expert[at - 1];
    }
    weight[at] = s;
    expert[at] = e;
  }
  const bool powers = !p.sigmoid && !probabilities;
  float of_chosen = 0.0f;
  for (int i = 0; i < k; ++i) {
    weight[i] = powers ? expf(score[expert[i]] - most) : score[expert[i]];
    of_chosen += weight[i];
  }
  // of scores that are all 0
  const float divisor =
      p.normalised ? (powers ? of_chosen : of_chosen + 1e-20f) : (powers ? sum : 1.0f);
  for (int i = 0; i < k; ++i) weight[i] = weight[i] / divisor * p.scaling;
  for (int i = 1; i < k; ++i) {  // into the order of their numbers
    const float w = weight[i];
    const std::int32_t e = expert[i];
    int at = i;
    for (; at > 0 && expert[at - 1] > e; --at) {
      weight[at] = weight[at - 1];
      expert[at] = expert[at - 1];
    }
    weight[at] = w;
    expert[at] = e;
  }
}

/// One block a row.
template <class T>
__global__ void __launch_bounds__(kMixtureThreads) ChooseExpertsKernel(ChooseExpertsParams p) {
  EPISODIC_DYNAMIC_SHARED(bytes);
  auto* const score = reinterpret_cast<float*>(bytes);  // [experts]
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const T* const x = static_cast<const T*>(p.x) + i * p.hidden;
    for (std::int64_t e = warp; e < p.experts; e += kMixtureWarps) {
      const float dot = warp_dot(x, p.router + e * p.hidden, p.hidden);
      if (lane == 0) score[e] = p.maybe_bias ? dot + p.maybe_bias[e] : dot;
    }
    if (warp == 0 && p.maybe_shared_router) {
      const float dot = warp_dot(x, p.maybe_shared_router, p.hidden);
      if (lane == 0) p.maybe_shared[i] = sigmoid_of(dot);
    }
    __syncthreads();
    if (threadIdx.x == 0) choose_of_row(p, score, p.expert + i * p.chosen, p.weight + i * p.chosen);
    __syncthreads();  // score is written again
  }
}

/// NaN stays: a comparison with it does not hold.
__device__ inline float clamped(float gate, float up, float slope, float limit) {
  const float g = gate > limit ? limit : gate;
  const float u = up > limit ? limit : up < -limit ? -limit : up;
  return __fdividef(g, 1.0f + __expf(-slope * g)) * (u + 1.0f);
}

/// What an expert's gate lets through of channel c.
template <class T>
__device__ inline void finish_gate(const ExpertGateParams& p, std::int64_t pair, std::int64_t c,
                                   float gate, float up) {
  if (p.maybe_bias) {
    const float* const bias = p.maybe_bias + std::int64_t{p.expert[pair]} * 2 * p.width;
    gate += bias[c];
    up += bias[p.width + c];
  }
  if (threadIdx.x % kWarpSize == 0)
    static_cast<T*>(p.inner)[pair * p.width + c] = narrow<T>(
        p.slope > 0.0f ? clamped(gate, up, p.slope, p.limit) : activated(p.activation, gate) * up);
}

/// Blocks y: rows' choices; x: channels, a warp each.
template <class T>
__global__ void __launch_bounds__(kMixtureThreads) ExpertGateKernel(ExpertGateParams p) {
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * kMixtureWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kMixtureWarps;
  for (std::int64_t pair = blockIdx.y; pair < p.n * p.chosen; pair += gridDim.y) {
    const T* const x = static_cast<const T*>(p.x) + pair / p.chosen * p.in;
    const T* const w = static_cast<const T*>(p.gate_up) +
                       static_cast<std::int64_t>(p.expert[pair]) * 2 * p.width * p.in;
    for (std::int64_t c = warp; c < p.width; c += warps)
      finish_gate<T>(p, pair, c, warp_dot(x, w + c * p.in, p.in),
                     warp_dot(x, w + (p.width + c) * p.in, p.in));
  }
}

/// Products of kOut rows of blocks with a rounded row, in every lane.
template <int kOut>
__device__ inline void warp_blocks(const BlockMatrix& of, const std::int64_t (&row)[kOut],
                                   const unsigned char* x, std::int64_t in, float (&sum)[kOut]) {
  float parts[1][kOut] = {};
  for_block_type(of.type, [&](auto type) {
    constexpr BlockType kType = decltype(type)::value;
    if constexpr (kType != BlockType::fp8) {
      BlockRow w[kOut];
      EPISODIC_UNROLL
      for (int o = 0; o < kOut; ++o) w[o] = block_row(kType, of, in, row[o]);
      add_units<kType, 1, kOut>(w, x, 1, in, parts);
    }
  });
  EPISODIC_UNROLL
  for (int o = 0; o < kOut; ++o) sum[o] = warp_reduce(parts[0][o], Sum{});
}

/// The same of weights in blocks. A block rounds the row that it reads.
template <class T>
__global__ void __launch_bounds__(kMixtureThreads, 2) BlockExpertGateKernel(ExpertGateParams p) {
  EPISODIC_DYNAMIC_SHARED(rounded);
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * kMixtureWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kMixtureWarps;
  for (std::int64_t pair = blockIdx.y; pair < p.n * p.chosen; pair += gridDim.y) {
    const T* const x = static_cast<const T*>(p.x) + pair / p.chosen * p.in;
    __syncthreads();  // the rows before are read
    round_row<kMixtureThreads>(p.in, rounded, [&](std::int64_t c) { return widen(x[c]); });
    __syncthreads();
    for (std::int64_t c = warp; c < p.width; c += warps) {
      const std::int64_t first = std::int64_t{p.expert[pair]} * 2 * p.width + c;
      const std::int64_t rows[2] = {first, first + p.width};
      float sum[2];
      warp_blocks<2>(p.blocks, rows, rounded, p.in, sum);
      finish_gate<T>(p, pair, c, sum[0], sum[1]);
    }
  }
}

/// What channel c of row i has before its experts are added.
__device__ inline float sum_before(const ExpertSumParams& p, std::int64_t i, std::int64_t c) {
  return p.adds ? (p.maybe_shared ? p.maybe_shared[i] : 1.0f) * p.sum[i * p.out + c] : 0.0f;
}

/// sum + what the j-th expert of row i gives to channel c, whose product is `dot`. \param row c
/// among all experts' rows
__device__ inline float with_expert(const ExpertSumParams& p, std::int64_t at, std::int64_t row,
                                    float dot, float sum) {
  return fmaf(p.weight[at], p.maybe_bias ? dot + p.maybe_bias[row] : dot, sum);
}

/// Blocks y: rows; x: channels, a warp each.
template <class T>
__global__ void __launch_bounds__(kMixtureThreads) ExpertSumKernel(ExpertSumParams p) {
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * kMixtureWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kMixtureWarps;
  for (std::int64_t i = blockIdx.y; i < p.n; i += gridDim.y) {
    const T* const inner = static_cast<const T*>(p.inner) + i * p.chosen * p.width;
    for (std::int64_t c = warp; c < p.out; c += warps) {
      float sum = sum_before(p, i, c);
      for (std::int64_t j = 0; j < p.chosen; ++j) {
        const std::int64_t row = p.expert[i * p.chosen + j] * p.out + c;
        const float dot =
            warp_dot(inner + j * p.width, static_cast<const T*>(p.down) + row * p.width, p.width);
        sum = with_expert(p, i * p.chosen + j, row, dot, sum);
      }
      if (threadIdx.x % kWarpSize == 0) p.sum[i * p.out + c] = sum;
    }
  }
}

/// The same of weights in blocks. A block rounds what all chosen experts of its row read.
template <class T>
__global__ void __launch_bounds__(kMixtureThreads) BlockExpertSumKernel(ExpertSumParams p) {
  EPISODIC_DYNAMIC_SHARED(rounded);
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * kMixtureWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kMixtureWarps;
  const std::int64_t row_bytes = rounded_row_bytes(p.width);
  for (std::int64_t i = blockIdx.y; i < p.n; i += gridDim.y) {
    const T* const inner = static_cast<const T*>(p.inner) + i * p.chosen * p.width;
    __syncthreads();  // the rows before are read
    for (std::int64_t j = 0; j < p.chosen; ++j)
      round_row<kMixtureThreads>(p.width, rounded + j * row_bytes,
                                 [&](std::int64_t c) { return widen(inner[j * p.width + c]); });
    __syncthreads();
    for (std::int64_t c = warp; c < p.out; c += warps) {
      float sum = sum_before(p, i, c);
      for (std::int64_t j = 0; j < p.chosen; ++j) {
        const std::int64_t rows[1] = {p.expert[i * p.chosen + j] * p.out + c};
        float dot[1];
        warp_blocks<1>(p.blocks, rows, rounded + j * row_bytes, p.width, dot);
        sum = with_expert(p, i * p.chosen + j, rows[0], dot[0], sum);
      }
      if (threadIdx.x % kWarpSize == 0) p.sum[i * p.out + c] = sum;
    }
  }
}

}  // namespace episodic::kernels
