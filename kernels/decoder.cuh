// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/decoder.hpp. All of it is bound by bytes, and small beside the products.

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "decoder.hpp"
#include "device.cuh"

namespace episodic::kernels {

inline constexpr int kDecoderThreads = 256;

template <class T>
__global__ void __launch_bounds__(kDecoderThreads) EmbedKernel(EmbedParams p) {
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const std::int64_t id = p.ids[i];
    const bool known = id >= 0 && id < p.vocab;
    const T* row = static_cast<const T*>(p.table) + (known ? id : 0) * p.width;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
      p.hidden[i * p.width + c] = known ? widen(row[c]) : NAN;
  }
}

template <class T>
__global__ void __launch_bounds__(kDecoderThreads) RmsNormKernel(RmsNormParams p) {
  using Reduce = cub::BlockReduce<float, kDecoderThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(factor, float);
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const float* x = p.x + i * p.width;
    float squares = 0;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads) squares += x[c] * x[c];
    const float sum = Reduce(storage).Sum(squares);
    if (threadIdx.x == 0) factor = 1.0f / sqrtf(sum / static_cast<float>(p.width) + p.eps);
    __syncthreads();
    T* y = static_cast<T*>(p.y) + i * p.width;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
      y[c] = narrow<T>(x[c] * factor * p.weight[c]);
    __syncthreads();  // factor and storage serve the next row
  }
}

template <class T>
__global__ void __launch_bounds__(kDecoderThreads) SiluKernel(SiluParams p) {
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const T* gate = static_cast<const T*>(p.gate_up) + i * 2 * p.width;
    T* y = static_cast<T*>(p.y) + i * p.width;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads) {
      const float g = widen(gate[c]);
      y[c] = narrow<T>(g / (1.0f + __expf(-g)) * widen(gate[p.width + c]));
    }
  }
}

template <class T>
__global__ void __launch_bounds__(kDecoderThreads) BiasKernel(BiasParams p) {
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    T* y = static_cast<T*>(p.y) + i * p.width;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
      y[c] = narrow<T>(widen(y[c]) + p.bias[c]);
  }
}

}  // namespace episodic::kernels
