// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/turn_back.hpp.

#include <cstdint>

#include "batch.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "rotation.cuh"
#include "turn_back.hpp"

namespace episodic::kernels {

inline constexpr int kTurnBackThreads = 256;

/// What the kernel is given: `back` is 1 / attention_factor^2, for the angles have the factor too.
struct TurnBackArgs {
  TurnBackParams p;
  float back = 1.0f;
};

/// One thread for a pack of channels and the pack that rotates with it. Rows of the grid are
/// sequences.
template <class T, int kPack, std::int64_t kMost>
__global__ void __launch_bounds__(kTurnBackThreads)
    TurnBackKernel(KernelArgument<Batch<TurnBackArgs, kMost>> batch) {
  const TurnBackParams& p = batch.of[blockIdx.y].p;
  const float back = batch.of[blockIdx.y].back;
  const auto d = static_cast<unsigned>(p.head_dim), heads = static_cast<unsigned>(p.n_heads);
  const auto half = static_cast<unsigned>(p.rotary_dim / 2);
  const unsigned pairs = half / kPack, per_head = pairs + (d - 2 * half) / kPack;
  const unsigned items = static_cast<unsigned>(p.n) * heads * per_head;
  const T* const x = static_cast<const T*>(p.x);
  T* const y = static_cast<T*>(p.y);
  for (unsigned item = blockIdx.x * kTurnBackThreads + threadIdx.x; item < items;
       item += gridDim.x * kTurnBackThreads) {
    const unsigned part = item % per_head, h = item / per_head % heads, i = item / per_head / heads;
    const bool rotates = part < pairs;
    const unsigned first_angle = part * kPack;
    const unsigned c = !rotates        ? 2 * half + (part - pairs) * kPack
                       : p.interleaved ? 2 * first_angle
                                       : first_angle;
    // a pack that does not rotate is its own partner: written twice, the same
    const unsigned shift = !rotates ? 0 : p.interleaved ? kPack : half;
    const T* const from = x + i * p.row_stride + h * d + c;
    T* const to = y + (static_cast<std::int64_t>(i) * heads + h) * d + c;
    const Pack<T, kPack> x1 = load_pack<kPack>(from), x2 = load_pack<kPack>(from + shift);
    Pack<T, kPack> y1 = x1, y2 = x2;
    if (rotates) {
      const std::int64_t angle = static_cast<std::int64_t>(i) * half + first_angle;
      Pack<float, kPack> cos = load_pack<kPack>(p.cos + angle);
      Pack<float, kPack> sin = load_pack<kPack>(p.sin + angle);
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) {
        cos.at[j] *= back;
        sin.at[j] *= -back;
      }
      if (p.interleaved)
        rotate_interleaved(x1, x2, cos, sin, y1, y2);
      else
        rotate(x1, x2, cos, sin, y1, y2);
    }
    store_pack<kPack>(to, y1);
    store_pack<kPack>(to + shift, y2);
  }
}

}  // namespace episodic::kernels
