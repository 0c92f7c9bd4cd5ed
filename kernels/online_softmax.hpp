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

/// exp(x - max) for x <= max; 1 where they are equal, also if both are infinite.
EPISODIC_HOST_DEVICE inline float exp_below(float x, float max) {
  return x == max ? 1.0f : ::expf(x - max);
}

/// Adds one logit.
EPISODIC_HOST_DEVICE inline void add(OnlineSoftmax& state, float logit) {
  if (logit > state.max) {
    state.sum = state.sum * exp_below(state.max, logit) + 1.0f;
    state.max = logit;
  } else {
    state.sum += exp_below(logit, state.max);
  }
}

/// Adds several at once: one comparison and one change of the maximum for all of them.
template <int kCount>
EPISODIC_HOST_DEVICE inline void add(OnlineSoftmax& state, const float (&logits)[kCount]) {
  float max = state.max;
  for (const float x : logits) max = x > max ? x : max;  // never NaN
  state.sum *= exp_below(state.max, max);
  state.max = max;
  for (const float x : logits) state.sum += exp_below(x, max);
}

/// State of the union of two disjoint sets.
EPISODIC_HOST_DEVICE inline OnlineSoftmax merge(const OnlineSoftmax& a, const OnlineSoftmax& b) {
  const float max = b.max > a.max ? b.max : a.max;
  return {max, a.sum * exp_below(a.max, max) + b.sum * exp_below(b.max, max)};
}

/// Natural log of the sum of exp of all logits, in float64: no bit of the maximum is lost to it.
/// -inf for the empty set; +inf for a set with +inf in it.
EPISODIC_HOST_DEVICE inline double log_sum_exp(const OnlineSoftmax& state) {
  return static_cast<double>(state.max) + ::log(static_cast<double>(state.sum));
}

}  // namespace episodic::kernels
