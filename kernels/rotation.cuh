// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rotary embedding of channels in registers, and elements in float64: what several kernels do
/// alike, to the bit.

#include "device.cuh"
#include "elements.cuh"

namespace episodic::kernels {

/// Channels c (x1) and c + rotary_dim / 2 (x2) rotated together, rounded once.
template <class T, int kPack>
__device__ inline void rotate(const Pack<T, kPack>& x1, const Pack<T, kPack>& x2,
                              const Pack<float, kPack>& cos, const Pack<float, kPack>& sin,
                              Pack<T, kPack>& y1, Pack<T, kPack>& y2) {
  EPISODIC_UNROLL
  for (int j = 0; j < kPack; ++j) {
    const float a = widen(x1.at[j]), b = widen(x2.at[j]);
    y1.at[j] = narrow<T>(fmaf(-b, sin.at[j], a * cos.at[j]));
    y2.at[j] = narrow<T>(fmaf(a, sin.at[j], b * cos.at[j]));
  }
}

/// The same of pairs that lie side by side: x1 and the pack behind it hold kPack of them.
template <class T, int kPack>
__device__ inline void rotate_interleaved(const Pack<T, kPack>& x1, const Pack<T, kPack>& x2,
                                          const Pack<float, kPack>& cos,
                                          const Pack<float, kPack>& sin, Pack<T, kPack>& y1,
                                          Pack<T, kPack>& y2) {
  const auto in = [&](int i) { return widen(i < kPack ? x1.at[i] : x2.at[i - kPack]); };
  const auto out = [&](int i) -> T& { return i < kPack ? y1.at[i] : y2.at[i - kPack]; };
  EPISODIC_UNROLL
  for (int j = 0; j < kPack; ++j) {
    const float a = in(2 * j), b = in(2 * j + 1);
    out(2 * j) = narrow<T>(fmaf(-b, sin.at[j], a * cos.at[j]));
    out(2 * j + 1) = narrow<T>(fmaf(a, sin.at[j], b * cos.at[j]));
  }
}

__device__ inline double wide(double x) { return x; }
template <class T>
__device__ inline double wide(T x) {
  return static_cast<double>(widen(x));
}

}  // namespace episodic::kernels
