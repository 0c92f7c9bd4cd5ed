// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/codes.hpp.

#include <cstdint>

#include "batch.hpp"
#include "codes.hpp"
#include "device.cuh"
#include "elements.cuh"

namespace episodic::kernels {

inline constexpr int kCodeThreads = 256;
inline constexpr int kCodeWarps = kCodeThreads / kWarpSize;
/// Channels of a block that a lane codes, one 4-byte store.
inline constexpr int kCodesOfLane = static_cast<int>(kCodeBlock) / kWarpSize;

/// Sums over the channels that a warp codes, of each row of the slab.
struct CodeSums {
  double square[kCodeWarps][kCodeSlab];  ///< of the vectors; infinite where one cannot be bounded
  double coded[kCodeWarps][kCodeSlab];   ///< of the codes times their scales
  double rest[kCodeWarps][kCodeSlab];    ///< of what they leave
  double mean[kCodeWarps];               ///< of the slab's mean
};

/// Whether an element may be part of a mean and of codes; false for NaN.
__device__ inline bool codable(float x) { return (x < 0.0f ? -x : x) < kMostCodedNorm && x == x; }

/// One block for a slab, a row of the grid for a layer, its z for sequences; a warp for each
/// kCodeBlock channels of it, in turn.
template <class T, std::int64_t kMost>
__global__ void __launch_bounds__(kCodeThreads)
    EncodeKernel(KernelArgument<Batch<CodeParams, kMost>> batch) {
  const CodeParams& p = batch.of[blockIdx.z];
  EPISODIC_SHARED(sums, CodeSums);
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t stride = code_stride(p.width), floats = code_floats(p.width);
  const auto l = static_cast<std::int64_t>(blockIdx.y);
  const CodeLayer layer = p.layers[l];
  const ClosedEvents closed = p.events.of(l);
  const std::int64_t count = *closed.count < closed.max_count ? *closed.count : closed.max_count;
  const std::int64_t events = *closed.first_id + count;
  const std::int64_t first_slab = *closed.first_id / kCodeSlab;
  const std::int64_t slabs =
      (events < p.capacity ? events : p.capacity) / kCodeSlab - first_slab;  // may be negative
  for (std::int64_t slab = blockIdx.x; slab < slabs; slab += gridDim.x) {
    const std::int64_t first_row = (first_slab + slab) * kCodeSlab;
    const auto* const vectors = static_cast<const T*>(layer.representatives);
    for (int row = lane; row < kCodeSlab; row += kWarpSize)
      sums.square[warp][row] = sums.coded[warp][row] = sums.rest[warp][row] = 0.0;
    double mean_square = 0.0;
    __syncwarp();
    for (std::int64_t b = warp; b < code_blocks(p.width); b += kCodeWarps) {
      const std::int64_t channel = b * kCodeBlock + lane * kCodesOfLane;
      const bool inside = channel < p.width;  // all of the lane's channels, or none
      const auto row_at = [&](std::int64_t row) {
        return load_pack<kCodesOfLane>(vectors + row * p.width + channel);
      };
      double total[kCodesOfLane] = {};
      float mean[kCodesOfLane];
      for (std::int64_t row = 0; inside && row < kCodeSlab; ++row) {
        const Pack<T, kCodesOfLane> x = row_at(row);
        EPISODIC_UNROLL
        for (int j = 0; j < kCodesOfLane; ++j) {
          const float value = widen(x.at[j]);
          total[j] += codable(value) ? static_cast<double>(value) : 0.0;
        }
      }
      EPISODIC_UNROLL
      for (int j = 0; j < kCodesOfLane; ++j) {
        mean[j] = static_cast<float>(total[j] / static_cast<double>(kCodeSlab));
        mean_square += static_cast<double>(mean[j]) * static_cast<double>(mean[j]);
      }
      for (std::int64_t r = 0; r < kCodeSlab; ++r) {
        float value[kCodesOfLane] = {}, difference[kCodesOfLane] = {}, largest = 0.0f;
        bool sound = true;
        if (inside) {
          const Pack<T, kCodesOfLane> x = row_at(first_row + r);
          EPISODIC_UNROLL
          for (int j = 0; j < kCodesOfLane; ++j) {
            value[j] = widen(x.at[j]);
            sound = sound && codable(value[j]);
            difference[j] = value[j] - mean[j];
            const float size = difference[j] < 0.0f ? -difference[j] : difference[j];
            largest = size > largest ? size : largest;
          }
        }
        largest = warp_reduce(largest, Largest{});
        sound = __all_sync(kFullMask, sound) != 0;
        float scale = largest / 127.0f;
        if (!sound || scale < 1.17549435e-38f) scale = 0.0f;  // no codes, or of denormal steps
        const float inverse = scale > 0.0f ? 127.0f / largest : 0.0f;
        Pack<std::int8_t, kCodesOfLane> codes = {};
        double square = 0.0, coded = 0.0, rest = 0.0;
        EPISODIC_UNROLL
        for (int j = 0; j < kCodesOfLane; ++j) {
          const float y = scale > 0.0f ? difference[j] * inverse : 0.0f;
          const int code = static_cast<int>(y + (y < 0.0f ? -0.5f : 0.5f));
          codes.at[j] = static_cast<std::int8_t>(code);
          const double x = value[j];
          const double kept = static_cast<double>(scale) * code;
          const double left = x - static_cast<double>(mean[j]) - kept;
          square += x * x;
          coded += kept * kept;
          rest += left * left;
        }
        square = warp_reduce(square, Sum{});
        coded = warp_reduce(coded, Sum{});
        rest = warp_reduce(rest, Sum{});
        if (lane == 0) {
          layer.bounds[(first_row + r) * floats + b] = scale;
          sums.square[warp][r] += sound ? square : INFINITY;
          sums.coded[warp][r] += coded;
          sums.rest[warp][r] += sound ? rest : 0.0;
        }
        if (channel < stride) store_pack(layer.codes + (first_row + r) * stride + channel, codes);
      }
    }
    mean_square = warp_reduce(mean_square, Sum{});
    if (lane == 0) sums.mean[warp] = mean_square;
    __syncthreads();
    for (std::int64_t r = threadIdx.x; r < kCodeSlab; r += kCodeThreads) {
      double square = 0.0, coded = 0.0, rest = 0.0, mean = 0.0;
      for (int w = 0; w < kCodeWarps; ++w) {
        square += sums.square[w][r];
        coded += sums.coded[w][r];
        rest += sums.rest[w][r];
        mean += sums.mean[w];
      }
      layer.bounds[(first_row + r) * floats + floats - 1] =
          rules::code_reach(sqrt(square), sqrt(mean), sqrt(coded), sqrt(rest), p.width);
    }
    __syncthreads();  // the sums serve the next slab
  }
}

}  // namespace episodic::kernels
