// SPDX-License-Identifier: Apache-2.0
#include "analysis/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "episodic/base/error.hpp"

namespace episodic::analysis {

BoundaryMixture mixture_of(std::span<const std::int64_t> boundaries, double deviation) {
  BoundaryMixture mixture;
  for (const std::int64_t b : boundaries) mixture.places.push_back(static_cast<double>(b));
  mixture.weights.assign(boundaries.size(), 1.0);
  mixture.deviation = deviation;
  return mixture;
}

std::vector<double> smoothed_density(const BoundaryMixture& mixture, TokenRange text) {
  if (!(mixture.deviation > 0) || !std::isfinite(mixture.deviation))
    throw ConfigError("boundary density: the deviation must be a positive number of tokens");
  if (mixture.places.empty() || mixture.places.size() != mixture.weights.size())
    throw DataError("boundary density: " + std::to_string(mixture.places.size()) + " places and " +
                    std::to_string(mixture.weights.size()) +
                    " weights; give at least one of each, as many of both");
  std::vector<double> density(static_cast<std::size_t>(std::max<std::int64_t>(0, text.size())));
  std::vector<double> part;
  for (std::size_t i = 0; i < mixture.places.size(); ++i) {
    const double place = mixture.places[i] - static_cast<double>(text.start);
    const double weight = mixture.weights[i];
    if (!(weight > 0) || !std::isfinite(weight))
      throw DataError("boundary density: weights must be positive numbers");
    if (!(place >= 0 && place < static_cast<double>(density.size())))
      throw DataError("boundary density: place " + std::to_string(mixture.places[i]) +
                      " lies outside the text");
    // Nothing that a sum in float64 would notice lies further away than nine deviations.
    const double reach = 9 * mixture.deviation + 1;
    const auto first = static_cast<std::size_t>(std::max(0.0, place - reach));
    const auto last =
        static_cast<std::size_t>(std::min(static_cast<double>(density.size()) - 1, place + reach));
    part.clear();
    double sum = 0;
    for (std::size_t t = first; t <= last; ++t) {
      const double z = (static_cast<double>(t) - place) / mixture.deviation;
      part.push_back(std::exp(-0.5 * z * z));
      sum += part.back();
    }
    for (std::size_t t = first; t <= last; ++t) density[t] += weight * part[t - first] / sum;
  }
  double sum = 0;
  for (const double x : density) sum += x;
  for (double& x : density) x /= sum;
  return density;
}

double wasserstein(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size())
    throw DataError("Wasserstein distance: densities over " + std::to_string(a.size()) + " and " +
                    std::to_string(b.size()) + " tokens; give two over the same");
  double ahead = 0, distance = 0;  // ahead: how much more of a than of b came so far
  for (std::size_t t = 0; t < a.size(); ++t) {
    ahead += a[t] - b[t];
    distance += std::abs(ahead);
  }
  return distance;
}

double wasserstein_points(std::span<const std::int64_t> a, std::span<const std::int64_t> b) {
  if (a.empty() || b.empty()) throw DataError("Wasserstein distance: a set without boundaries");
  double distance = 0;
  std::size_t i = 0, j = 0;
  std::int64_t at = std::min(a[0], b[0]);
  while (i < a.size() || j < b.size()) {
    const std::int64_t next = i == a.size() ? b[j] : j == b.size() ? a[i] : std::min(a[i], b[j]);
    const double ahead = static_cast<double>(i) / static_cast<double>(a.size()) -
                         static_cast<double>(j) / static_cast<double>(b.size());
    distance += std::abs(ahead) * static_cast<double>(next - at);
    at = next;
    while (i < a.size() && a[i] == at) ++i;
    while (j < b.size() && b[j] == at) ++j;
  }
  return distance;
}

double correlation(std::span<const double> a, std::span<const double> b) {
  if (a.size() != b.size() || a.empty())
    throw DataError("correlation: " + std::to_string(a.size()) + " and " +
                    std::to_string(b.size()) + " values; give as many of both, at least one");
  const auto n = static_cast<double>(a.size());
  double mean_a = 0, mean_b = 0;
  for (std::size_t i = 0; i < a.size(); ++i) mean_a += a[i] / n, mean_b += b[i] / n;
  double aa = 0, bb = 0, ab = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double x = a[i] - mean_a, y = b[i] - mean_b;
    aa += x * x, bb += y * y, ab += x * y;
  }
  return aa == 0 || bb == 0 ? 0.0 : ab / std::sqrt(aa * bb);
}

double mean_log_density(std::span<const double> density, std::int64_t first_token,
                        std::span<const std::int64_t> boundaries) {
  if (boundaries.empty()) throw DataError("log-density: no boundaries");
  const auto tokens = static_cast<double>(density.size());
  double sum = 0;
  for (const std::int64_t b : boundaries) {
    const std::int64_t at = b - first_token;
    if (at < 0 || at >= static_cast<std::int64_t>(density.size()))
      throw DataError("log-density: token " + std::to_string(b) + " lies outside the text");
    sum += std::log(std::max(density[static_cast<std::size_t>(at)], 1e-12) * tokens);
  }
  return sum / static_cast<double>(boundaries.size());
}

double f1(std::span<const std::int64_t> a, std::span<const std::int64_t> b,
          std::int64_t tolerance) {
  if (a.empty() && b.empty()) return 1.0;
  // Both ascend, and every tolerance is the same: to pair the earliest two that can be is best.
  std::size_t i = 0, j = 0, pairs = 0;
  while (i < a.size() && j < b.size()) {
    if (a[i] - b[j] > tolerance)
      ++j;
    else if (b[j] - a[i] > tolerance)
      ++i;
    else
      ++pairs, ++i, ++j;
  }
  return 2 * static_cast<double>(pairs) / static_cast<double>(a.size() + b.size());
}

}  // namespace episodic::analysis
