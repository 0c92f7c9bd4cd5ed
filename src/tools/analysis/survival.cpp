// SPDX-License-Identifier: Apache-2.0
#include "survival.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "episodic/base/error.hpp"

namespace episodic::analysis {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

std::vector<Survivors> survivors_by_place(const std::vector<bool>& held, std::int64_t n_bins) {
  if (n_bins < 1) throw ConfigError("survivors: " + std::to_string(n_bins) + " parts; at least 1");
  const std::int64_t n = std::ssize(held), length = (n + n_bins - 1) / n_bins;
  std::vector<Survivors> parts;
  for (std::int64_t first = 0; first < n; first += length) {
    const std::int64_t end = std::min(n, first + length);
    parts.push_back({first, end, std::count(held.begin() + first, held.begin() + end, true)});
  }
  return parts;
}

std::vector<Contiguity> contiguity_of(const std::vector<bool>& held, std::int64_t most_lag,
                                      std::int64_t around) {
  if (most_lag < 1 || most_lag >= around)
    throw ConfigError("contiguity: lags to " + std::to_string(most_lag) + " within " +
                      std::to_string(around) + " events; lags must be >= 1 and below that");
  const std::int64_t n = std::ssize(held);
  std::vector<std::int64_t> before(at(n + 1));  // held ones below i
  for (std::int64_t i = 0; i < n; ++i) before[at(i + 1)] = before[at(i)] + held[at(i)];
  const auto between = [&](std::int64_t first, std::int64_t end) {
    return before[at(end)] - before[at(first)];
  };
  // Share of what lies around event i, but for those so near that they may hang together with it.
  const double surroundings = static_cast<double>(2 * (around - most_lag));
  const auto share = [&](std::int64_t i) {
    return static_cast<double>(between(i - around, i - most_lag) +
                               between(i + most_lag + 1, i + around + 1)) /
           surroundings;
  };
  const std::int64_t first = 2 * around, end = n - 2 * around;
  double variance = 0;
  for (std::int64_t i = first; i < end; ++i) {
    const double x = held[at(i)] - share(i);
    variance += x * x;
  }
  if (end > first) variance /= static_cast<double>(end - first);
  std::vector<Contiguity> all;
  for (std::int64_t lag = 1; lag <= most_lag; ++lag) {
    double both = 0, expected = 0, product = 0;
    for (std::int64_t i = first; i + lag < end; ++i) {
      const double here = share(i), there = share(i + lag);
      both += held[at(i)] && held[at(i + lag)];
      expected += here * there;
      product += (held[at(i)] - here) * (held[at(i + lag)] - there);
    }
    const auto pairs = static_cast<double>(std::max<std::int64_t>(1, end - first - lag));
    all.push_back({lag, expected > 0 ? both / expected : 0.0,
                   variance > 0 ? product / pairs / variance : 0.0});
  }
  return all;
}

std::vector<EdgesAtDistance> edges_by_distance(
    std::span<const std::int64_t> events,
    const std::function<double(std::int64_t, std::int64_t)>& edge) {
  std::vector<EdgesAtDistance> bins;
  for (std::size_t i = 0; i < events.size(); ++i)
    for (std::size_t j = i + 1; j < events.size(); ++j) {
      const std::int64_t distance = events[j] - events[i];
      const auto bin = at(std::bit_width(static_cast<std::uint64_t>(distance)) - 1);
      while (bins.size() <= bin) {
        const std::int64_t least = std::int64_t{1} << bins.size();
        bins.push_back({least, 2 * least - 1, 0, 0, 0});
      }
      for (const double weight : {edge(events[i], events[j]), edge(events[j], events[i])}) {
        ++bins[bin].pairs;
        bins[bin].linked += weight > 0;
        bins[bin].sum += weight;
      }
    }
  return bins;
}

double most_held(double alpha, double initial_lifespan, double recalled, double fresh) {
  return alpha * recalled + (initial_lifespan + 1) * fresh;
}

}  // namespace episodic::analysis
