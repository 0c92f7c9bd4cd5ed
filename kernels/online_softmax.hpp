// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Log-sum-exp in one pass: a partial state, and the one rule that adds to it and merges two. The
/// same code on host and device; C++17-clean.

#include <cmath>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::kernels {

/// Log-sum-exp of a set of logits so far. Default: of the empty set, which changes nothing it is
/// merged with. A NaN among the logits makes `sum` NaN for good.
struct OnlineSoftmax {
  float max = -HUGE_VALF;
  float sum = 0.0f;  ///< of exp(logit - max)
};

/// What exponents are taken beside: the maximum, and 0 where it is infinite, so that no infinity is
/// subtracted from itself. Then nothing of a sum needs a choice.
EPISODIC_HOST_DEVICE inline float finite_max(float max) { return max - max == 0.0f ? max : 0.0f; }

/// exp(x - max), max of finite_max: 1 where they are equal, 0 for -inf, infinite for +inf. To 2 ulp
/// and the rounding of (x - max) log2(e); on a device one instruction makes the power of 2.
EPISODIC_HOST_DEVICE inline float exp_below(float x, float max) {
  const float exponent = (x - max) * 1.44269504f;
#if defined(__CUDA_ARCH__)
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(exponent));
  return power;
#else
  return ::exp2f(exponent);
#endif
}

/// Adds several logits at once: one maximum and one change of the sum for all of them.
template <int kCount>
EPISODIC_HOST_DEVICE inline void add(OnlineSoftmax& state, const float (&logits)[kCount]) {
  float max = state.max;
  for (const float x : logits) max = x > max ? x : max;  // never NaN
  const float finite = finite_max(max);
  state.sum *= exp_below(state.max, finite);
  state.max = max;
  for (const float x : logits) state.sum += exp_below(x, finite);
}

/// Adds one logit.
EPISODIC_HOST_DEVICE inline void add(OnlineSoftmax& state, float logit) {
  const float one[1] = {logit};
  add(state, one);
}

/// State of the union of two disjoint sets.
EPISODIC_HOST_DEVICE inline OnlineSoftmax merge(const OnlineSoftmax& a, const OnlineSoftmax& b) {
  const float max = b.max > a.max ? b.max : a.max, finite = finite_max(max);
  return {max, a.sum * exp_below(a.max, finite) + b.sum * exp_below(b.max, finite)};
}

/// Natural log of the sum of exp of all logits, in float64: no bit of the maximum is lost to it.
/// -inf for the empty set; +inf for a set with +inf in it.
EPISODIC_HOST_DEVICE inline double log_sum_exp(const OnlineSoftmax& state) {
  return static_cast<double>(state.max) + ::log(static_cast<double>(state.sum));
}

}  // namespace episodic::kernels
