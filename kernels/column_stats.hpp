// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The share of a query in a local key, out of the key's score: one rule, wherever column sums are
/// made. The same code on host and device; C++17-clean.

#include <cmath>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::kernels {

/// Of one query head and query.
struct ColumnStats {
  float scale = 0.0f;    ///< |scale| * log2(e)
  float max = 0.0f;      ///< of the scaled scores of all keys; 0 where there are none
  float inverse = 0.0f;  ///< 1 / sum of 2^(scaled score - max)
};

/// \param score of a key, not scaled; -inf where the query does not see it: its share is 0
EPISODIC_HOST_DEVICE inline float column_share(float score, const ColumnStats& stats) {
  if (score == -HUGE_VALF) return 0.0f;
  return ::exp2f(::fmaf(score, stats.scale, -stats.max)) * stats.inverse;
}

}  // namespace episodic::kernels
