// SPDX-License-Identifier: Apache-2.0
#pragma once
// How near two segmentations of one text are (EM appendix B, Fig. 4B; HEM Tables 1 to 3).

#include <cstdint>
#include <span>
#include <vector>

#include "episodic/timeline/event_table.hpp"

namespace episodic::analysis {

/// Boundaries with how much each counts, as a mixture of Gaussians along the tokens of a text: what
/// many people's button presses make of an event's edge, which no two press at the same word.
struct BoundaryMixture {
  std::vector<double> places;   ///< token numbers
  std::vector<double> weights;  ///< > 0, of each; their sum does not matter
  double deviation = 1;         ///< tokens; > 0
};

/// All weights alike.
BoundaryMixture mixture_of(std::span<const std::int64_t> boundaries, double deviation);

/// The mixture's share of each token of the text: sums to 1 (what would lie outside is dealt out
/// within). \throws DataError for a mixture without places, with a weight that is not positive or a
/// place outside the text, ConfigError for a deviation that is not positive
std::vector<double> smoothed_density(const BoundaryMixture& mixture, TokenRange text);

/// Wasserstein-1 distance of two densities over the same tokens, in tokens: how far probability
/// must be moved on average. \throws DataError for other lengths
double wasserstein(std::span<const double> a, std::span<const double> b);

/// The same of two sets of points with equal weights, exact. \param a, b ascending, not empty
double wasserstein_points(std::span<const std::int64_t> a, std::span<const std::int64_t> b);

/// Pearson's correlation; 0 where one of them is constant.
double correlation(std::span<const double> a, std::span<const double> b);

/// Mean over the boundaries of log(density * tokens): 0 for boundaries that lie where chance puts
/// them, in nats. A density below 1e-12 counts as that.
double mean_log_density(std::span<const double> density, std::int64_t first_token,
                        std::span<const std::int64_t> boundaries);

/// Boundaries that agree: most pairs, each boundary in one at most, that lie no further apart than
/// `tolerance` tokens; as 2 * pairs / (both numbers). 1 for two empty sets.
double f1(std::span<const std::int64_t> a, std::span<const std::int64_t> b, std::int64_t tolerance);

}  // namespace episodic::analysis
