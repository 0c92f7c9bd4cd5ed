// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/short_convolution.hpp.

#include <cstdint>

#include "batch.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "short_convolution.hpp"

namespace episodic::kernels {

inline constexpr int kConvolutionThreads = 256;

/// Rows of the grid are sequences. u of the step's own tokens is computed where it is read, so that
/// no thread waits for another; u of tokens before them comes from the ring.
template <class T, std::int64_t kMost>
__global__ void __launch_bounds__(kConvolutionThreads)
    ShortConvolutionKernel(KernelArgument<Batch<ShortConvolutionParams, kMost>> batch) {
  const ShortConvolutionParams& p = batch.of[blockIdx.y];
  const auto width = static_cast<unsigned>(p.width);
  const unsigned items = static_cast<unsigned>(p.n) * width;
  const std::int64_t first = *p.first_position;
  const T* const rows = static_cast<const T*>(p.rows);
  for (unsigned item = blockIdx.x * kConvolutionThreads + threadIdx.x; item < items;
       item += gridDim.x * kConvolutionThreads) {
    const unsigned c = item % width, i = item / width;
    // part 0, 1, 2: B, C, x
    const auto row = [&](std::int64_t token, unsigned part) {
      const std::int64_t at = token * 3 * width + part * width + c;
      const float bias = p.maybe_rows_bias ? p.maybe_rows_bias[part * width + c] : 0.0f;
      return widen(rows[at]) + bias;
    };
    float sum = p.maybe_bias ? p.maybe_bias[c] : 0.0f, own = 0.0f;
    for (std::int64_t k = 0; k < p.taps; ++k) {
      const std::int64_t token = i - p.taps + 1 + k, position = first + token;
      float u = 0.0f;
      if (token >= 0)
        u = row(token, 0) * row(token, 2);
      else if (position >= 0)
        u = p.ring[position % p.ring_capacity * width + c];
      sum += p.tap[c * p.taps + k] * u;
      own = u;
    }
    p.ring[(first + i) % p.ring_capacity * width + c] = own;
    static_cast<T*>(p.out)[item] = narrow<T>(row(i, 1) * sum);
  }
}

}  // namespace episodic::kernels
