// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Surprise and the thresholds over it (EM 3.2, eq. 1).

#include <cmath>
#include <cstdint>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

/// Surprise of a token in nats, not below 0; NaN where the row makes no sense: its log-sum-exp is
/// not finite (a NaN or +inf among the logits, or nothing but -inf), or the logit is NaN. A logit
/// of -inf beside finite ones gives +inf.
EPISODIC_HOST_DEVICE inline float surprise_of(double log_sum_exp, float logit) {
  const double surprise = log_sum_exp - static_cast<double>(logit);
  // rounding alone may make it -1e-16; what is not finite minus itself is NaN
  if (!(log_sum_exp - log_sum_exp == 0.0) || surprise != surprise) return NAN;
  return surprise > 0.0 ? static_cast<float>(surprise) : 0.0f;
}

/// Tokens [from, to) that a threshold is taken over.
struct ThresholdSpan {
  std::int64_t from = 0, to = 0;
  EPISODIC_HOST_DEVICE std::int64_t size() const { return to - from; }
};

/// First token that any threshold of a step behind `first` tokens looks back on: token 0 is in no
/// average.
EPISODIC_HOST_DEVICE inline std::int64_t oldest_in_threshold(std::int64_t first, std::int64_t tau) {
  return larger(first - tau, 1);
}

/// `moving`: of token first + i, the tau tokens before it.
EPISODIC_HOST_DEVICE inline ThresholdSpan moving_span(std::int64_t first, std::int64_t i,
                                                      std::int64_t tau) {
  const std::int64_t to = first + i;
  return {larger(oldest_in_threshold(first, tau), to - tau), to};
}

/// `chunked`: of all n tokens of a step, the tau - n before it; the first step has none before it
/// and takes its own first n_init.
EPISODIC_HOST_DEVICE inline ThresholdSpan chunked_span(std::int64_t first, std::int64_t n,
                                                       std::int64_t tau, std::int64_t n_init) {
  const std::int64_t oldest = oldest_in_threshold(first, tau);
  if (first == 0) return {oldest, smaller(n_init, n)};
  return {larger(oldest, first - larger(tau - n, 0)), first};
}

/// Sums over a span run in this many chains, which are added in order: a part of the result's
/// definition.
constexpr int kThresholdLanes = 8;

/// mu + gamma sigma; +inf for fewer than 2 values.
/// \param squares sum of (value - mean)^2 \param count values
EPISODIC_HOST_DEVICE inline float threshold_of(double mean, double squares, std::int64_t count,
                                               double gamma) {
  if (count < 2) return INFINITY;
  return static_cast<float>(
      add(mean, multiply(gamma, ::sqrt(squares / static_cast<double>(count - 1)))));
}

}  // namespace episodic::rules
