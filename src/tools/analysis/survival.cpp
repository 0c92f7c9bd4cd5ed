// SPDX-License-Identifier: Apache-2.0
#include "survival.hpp"

#include <algorithm>
#include <bit>
#include <string>

#include "episodic/base/error.hpp"

namespace episodic::analysis {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

/// Means of what lies around each event of a sequence, but for those so near that they may hang
/// together with it, and the events that have whole surroundings.
class Surroundings {
 public:
  Surroundings(std::span<const double> numbers, std::int64_t most_lag, std::int64_t around)
      : before_(numbers.size() + 1), most_lag_(most_lag), around_(around) {
    if (most_lag < 1 || most_lag >= around)
      throw ConfigError("contiguity: lags to " + std::to_string(most_lag) + " within " +
                        std::to_string(around) + " events; lags must be >= 1 and below that");
    for (std::size_t i = 0; i < numbers.size(); ++i) before_[i + 1] = before_[i] + numbers[i];
  }

  std::int64_t first() const { return 2 * around_; }
  std::int64_t end() const { return std::ssize(before_) - 1 - 2 * around_; }
  double mean(std::int64_t i) const {
    return (between(i - around_, i - most_lag_) + between(i + most_lag_ + 1, i + around_ + 1)) /
           static_cast<double>(2 * (around_ - most_lag_));
  }

 private:
  double between(std::int64_t first, std::int64_t end) const {
    return before_[at(end)] - before_[at(first)];
  }

  std::vector<double> before_;  // sums of the numbers below i
  std::int64_t most_lag_, around_;
};

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
  const std::vector<double> numbers(held.begin(), held.end());
  const Surroundings around_it(numbers, most_lag, around);
  std::vector<Contiguity> all;
  for (std::int64_t lag = 1; lag <= most_lag; ++lag) {
    double both = 0, expected = 0;
    for (std::int64_t i = around_it.first(); i + lag < around_it.end(); ++i) {
      both += numbers[at(i)] * numbers[at(i + lag)];
      expected += around_it.mean(i) * around_it.mean(i + lag);
    }
    all.push_back({lag, expected > 0 ? both / expected : 0.0});
  }
  return all;
}

std::vector<double> autocorrelation_of(std::span<const double> numbers, std::int64_t most_lag,
                                       std::int64_t around) {
  const Surroundings around_it(numbers, most_lag, around);
  std::vector<double> x;
  double variance = 0;
  for (std::int64_t i = around_it.first(); i < around_it.end(); ++i) {
    x.push_back(numbers[at(i)] - around_it.mean(i));
    variance += x.back() * x.back();
  }
  std::vector<double> all(at(most_lag));
  if (!(variance > 0)) return all;
  variance /= static_cast<double>(x.size());
  for (std::size_t lag = 1; lag <= all.size() && lag < x.size(); ++lag) {
    double product = 0;
    for (std::size_t i = 0; i + lag < x.size(); ++i) product += x[i] * x[i + lag];
    all[lag - 1] = product / static_cast<double>(x.size() - lag) / variance;
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

std::vector<EdgesAtAge> edges_by_age(
    std::span<const std::int64_t> events, std::int64_t total,
    const std::function<double(std::int64_t, std::int64_t)>& edge) {
  std::vector<EdgesAtAge> bins;
  for (const std::int64_t from : events) {
    const std::int64_t age = total - from;
    const auto bin = at(std::bit_width(static_cast<std::uint64_t>(age)) - 1);
    while (bins.size() <= bin) {
      const std::int64_t least = std::int64_t{1} << bins.size();
      bins.push_back({least, 2 * least - 1, 0, 0, 0});
    }
    ++bins[bin].events;
    for (const std::int64_t to : events)
      if (const double weight = from == to ? 0 : edge(from, to); weight > 0) {
        ++bins[bin].linked;
        bins[bin].sum += weight;
      }
  }
  return bins;
}

}  // namespace episodic::analysis
