// SPDX-License-Identifier: Apache-2.0
#pragma once
// Largest errors that see NaN: std::max(worst, NaN) is worst, and a test that took it would pass.

#include <cmath>
#include <limits>

/// The larger of two errors; NaN if one of them is, which no bound admits.
inline double worse_of(double worst, double error) {
  if (std::isnan(worst) || std::isnan(error)) return std::numeric_limits<double>::quiet_NaN();
  return worst < error ? error : worst;
}
