// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where a boundary may move, how a split of its window is scored, and what counts as a tie (EM
/// 3.3, eqs. 2 to 4, algorithm 1).

#include <cmath>
#include <cstdint>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

/// Window [start, end) of a boundary and its candidates [from, b]; from > b: it stays.
struct BoundaryWindow {
  std::int64_t start = 0, end = 0, from = 0;
};

/// \param a the final boundary before b, b - a > min_block \param low, high the tokens at hand
/// \param first token of the step
EPISODIC_HOST_DEVICE inline BoundaryWindow boundary_window(std::int64_t a, std::int64_t b,
                                                           std::int64_t low, std::int64_t high,
                                                           std::int64_t first,
                                                           std::int64_t min_block) {
  const std::int64_t half = (b - a) / 2;
  const std::int64_t start = larger(low, a - half), end = smaller(high, b + half);
  return {start, end, larger(larger(start + 1, first), a + min_block)};
}

enum class Objective { modularity, conductance, intra_inter };

/// A(S,S), A(R,R) and A(S,R) of the two sides of a split.
struct SplitSums {
  double ss = 0.0, rr = 0.0, sr = 0.0;
};

/// A split's objective, larger is better, and how far it may be off: two ways to add the same
/// products differ in the last bits of sums as large as A(W,W), whatever is left of those sums in
/// the objective. A difference within the slack is rounding and not an order.
struct SplitScore {
  double value = 0.0, slack = 0.0;
};

/// Rounding of a sum of products, relative to the sum of their sizes.
constexpr double kSumRounding = 1e-13;

EPISODIC_HOST_DEVICE inline double nonzero(double denominator) {
  return denominator == 0.0 ? 1e-15 : denominator;
}

/// \param n_left, n_right tokens of the two sides
EPISODIC_HOST_DEVICE inline SplitScore split_score(Objective objective, SplitSums p,
                                                   std::int64_t n_left, std::int64_t n_right) {
  const double all = p.ss + 2.0 * p.sr + p.rr;  // |s + r|^2 = A(W, W) = 2m
  const double size = ::fmax(p.ss + p.rr, ::fabs(all));
  // what is below rounding is zero: sides without a common channel, keys of zeros
  const double rounding = kSumRounding * size;
  if (::fabs(p.sr) <= rounding) p.sr = 0.0;
  if (objective == Objective::modularity) {
    if (::fabs(all) <= rounding) return {0.0, 0.0};
    const double product = p.ss / all * (p.rr / all), cross = p.sr / all;
    const double relative = rounding / ::fabs(all);
    return {product - cross * cross, relative * (::fabs(product) + ::fabs(cross))};
  }
  if (objective == Objective::conductance) {
    const double denominator = nonzero(::fmin(p.ss, p.rr)), value = p.sr / denominator;
    if (p.sr == 0.0) return {0.0, 0.0};
    return {-value, rounding / ::fabs(denominator) * (1.0 + ::fabs(value))};
  }
  const double l = static_cast<double>(n_left), r = static_cast<double>(n_right);
  const double inter = nonzero(p.sr / (l * r));
  const double value = 0.5 * (p.ss / (l * l) / inter + p.rr / (r * r) / inter);
  const double relative = p.sr == 0.0 ? kSumRounding : rounding / ::fabs(p.sr) + kSumRounding;
  return {value, relative * ::fabs(value)};
}

/// Whether a split ties with the best one; of those that do the latest wins. One that is not a
/// number never does.
EPISODIC_HOST_DEVICE inline bool ties_with(const SplitScore& score, const SplitScore& best) {
  return score.value >= best.value - (score.slack + best.slack);
}

}  // namespace episodic::rules
