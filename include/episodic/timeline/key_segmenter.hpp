// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Boundaries from keys (HEM 2.2 to 2.4): an event ends where the keys that come are no
/// longer like those that it holds. Header-only.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <numbers>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "episodic/base/bytes.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// What is watched to fall: mean(event keys) . k, or the log-density of k under the event's
/// diagonal Gaussian.
enum class KeySignal : std::uint8_t { similarity, gaussian };

struct KeySegmenterSettings {
  KeySignal signal = KeySignal::similarity;
  double gamma = 1.0;
  /// Keys that an event holds before a key gives a value. `gaussian` needs several
  /// (MemoryConfig::effective_min_count).
  std::int64_t min_count = 1;
  double var_floor = 0.01;  ///< least variance of a channel, > 0; `gaussian` only
  std::int64_t n_init = 0;  ///< the token that opens the first event, without a flag
};

/// Decides, key by key, where events end. One unit: the whole sequence (keys of all layers and
/// heads side by side, the signal being their mean), or one key/value head of one layer. In
/// float64. A value: a copy is a snapshot.
class KeySegmenter {
 public:
  /// What a key said.
  struct Verdict {
    bool opens = false;                                           ///< the key opens the next event
    double signal = std::numeric_limits<double>::quiet_NaN();     ///< NaN where there is none
    double threshold = std::numeric_limits<double>::quiet_NaN();  ///< mean - gamma * deviation
  };

  KeySegmenter() = default;

  /// \param heads number of heads whose keys lie side by side; their signals are averaged
  /// \param head_dim channels of each \throws ConfigError
  KeySegmenter(const KeySegmenterSettings& settings, std::int64_t heads, std::int64_t head_dim)
      : settings_(settings), heads_(heads), mean_(size(heads, head_dim)) {
    if (!std::isfinite(settings.gamma)) throw ConfigError("key segmenter: gamma is not a number");
    if (settings.min_count < 0) throw ConfigError("key segmenter: min_count must be >= 0");
    if (settings.signal == KeySignal::gaussian) {
      if (!(settings.var_floor > 0) || !std::isfinite(settings.var_floor))
        throw ConfigError("key segmenter: var_floor must be a positive number");
      variance_.resize(mean_.size());
    }
  }

  /// The next token's keys, in order of time from token 0 on. \param key [heads * head_dim],
  /// unrotated \throws DataError for another number of channels or a key that is not finite
  Verdict next(std::span<const float> key) {
    if (key.size() != mean_.size())
      throw DataError("key segmenter: a key of " + std::to_string(key.size()) +
                      " channels, expected " + std::to_string(mean_.size()));
    Verdict verdict;
    const std::int64_t token = tokens_;
    if (token < settings_.n_init) {  // a sink: part of no event
      ++tokens_;
      return verdict;
    }
    if (count_ == 0) {
      open(key);
      ++tokens_;
      return verdict;
    }
    if (count_ >= settings_.min_count) {
      verdict.signal = signal(key);
      if (!std::isfinite(verdict.signal))
        throw DataError("key segmenter: the keys of token " + std::to_string(token) +
                        " are not finite");
      if (recorded_ >= 2) {
        const double deviation = std::sqrt(squares_ / static_cast<double>(recorded_ - 1));
        verdict.threshold = average_ - settings_.gamma * deviation;
        verdict.opens = verdict.signal < verdict.threshold;
      }
      if (verdict.opens) {
        open(key);
        ++tokens_;
        return verdict;
      }
      record(verdict.signal);
    }
    join(key);
    ++tokens_;
    return verdict;
  }

  std::int64_t tokens() const { return tokens_; }

  /// What is carried from token to token, for a memory that is kept. The settings are not part.
  void save(ByteWriter& to) const {
    to.put(tokens_);
    to.put(count_);
    to.put(recorded_);
    to.put(average_);
    to.put(squares_);
    to.put_vector(mean_);
    to.put_vector(variance_);
  }
  void load(ByteReader& from) {
    tokens_ = from.get<std::int64_t>();
    count_ = from.get<std::int64_t>();
    recorded_ = from.get<std::int64_t>();
    average_ = from.get<double>();
    squares_ = from.get<double>();
    mean_ = from.get_vector<double>(mean_.size(), "means of the key segmenter");
    variance_ = from.get_vector<double>(variance_.size(), "variances of the key segmenter");
    if (tokens_ < 0 || count_ < 0 || recorded_ < 0 || recorded_ > tokens_ || count_ > tokens_)
      throw FileError(from.where() + ": an impossible state of the key segmenter; damaged");
  }

 private:
  static constexpr std::size_t kParts = 8, kTogether = 8;

  static std::size_t size(std::int64_t heads, std::int64_t head_dim) {
    if (heads < 1 || head_dim < 1)
      throw ConfigError("key segmenter: heads and head_dim must be >= 1");
    return static_cast<std::size_t>(heads * head_dim);
  }

  /// Mean over the heads of the dot products or of the log-densities: sums over channels either
  /// way, so one loop over all channels and one division. In partial sums, so that no addition
  /// waits for the one before it.
  double signal(std::span<const float> key) const {
    const double sum =
        settings_.signal == KeySignal::similarity ? dot_product(key) : log_density(key);
    return sum / static_cast<double>(heads_);
  }

  double dot_product(std::span<const float> key) const {
    double parts[kParts] = {};
    const std::size_t n = key.size(), whole = n / kParts * kParts;
    for (std::size_t c = 0; c < whole; c += kParts)
      for (std::size_t i = 0; i < kParts; ++i) parts[i] += mean_[c + i] * key[c + i];
    for (std::size_t c = whole; c < n; ++c) parts[0] += mean_[c] * key[c];
    return std::accumulate(parts, parts + kParts, 0.0);
  }

  /// -1/2 sum over the channels of log(2 pi v) + d^2 / v. Sums of fractions are kept as a numerator
  /// and a denominator, whose logarithm is wanted as well: a division for kTogether channels, a
  /// logarithm for kParts * kTogether.
  double log_density(std::span<const float> key) const {
    const std::size_t n = key.size();
    double sum = 0;
    for (std::size_t first = 0; first < n; first += kParts * kTogether)
      sum += logs_and_squares(key, first, std::min(n, first + kParts * kTogether));
    return -0.5 * (static_cast<double>(n) * std::log(2 * std::numbers::pi) + sum);
  }

  /// Sum of log(v) + d^2 / v over channels [first, last), at most kParts * kTogether.
  double logs_and_squares(std::span<const float> key, std::size_t first, std::size_t last) const {
    double above[kParts] = {}, below[kParts], most[kParts] = {};
    std::fill(below, below + kParts, 1.0);
    const double least = settings_.var_floor;
    const double *const mean = mean_.data(), *const variance = variance_.data();
    const auto add = [&](std::size_t c, std::size_t i) {
      const double v = variance[c] > least ? variance[c] : least, d = key[c] - mean[c];
      above[i] = above[i] * v + d * d * below[i];
      below[i] *= v;
      most[i] = v > most[i] ? v : most[i];
    };
    const std::size_t whole = first + (last - first) / kParts * kParts;
    for (std::size_t c = first; c < whole; c += kParts)
      for (std::size_t i = 0; i < kParts; ++i) add(c + i, i);
    for (std::size_t c = whole; c < last; ++c) add(c, c - whole);
    double logs = 0, squares = 0;
    for (std::size_t i = 0; i < kParts; ++i) squares += above[i] / below[i];
    // Products of kTogether variances within these have all their digits.
    if (least > 1e-38 && *std::max_element(most, most + kParts) < 1e38 && std::isfinite(squares))
      return log_of_product(below, kParts) + squares;
    squares = 0;
    for (std::size_t c = first; c < last; ++c) {
      const double v = std::max(variance[c], least), d = key[c] - mean[c];
      logs += std::log(v);
      squares += d * d / v;
    }
    return logs + squares;
  }

  /// log(x[0] * x[1] ..) of up to 1,000 normal positive numbers, whatever their product is: one
  /// logarithm of their digits' product, and the sum of their powers of two.
  static double log_of_product(const double* x, std::size_t n) {
    constexpr std::uint64_t kDigits = (std::uint64_t{1} << 52) - 1, kBias = 1023;
    double digits = 1;
    std::int64_t powers = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const auto bits = std::bit_cast<std::uint64_t>(x[i]);
      powers += static_cast<std::int64_t>(bits >> 52) - static_cast<std::int64_t>(kBias);
      digits *= std::bit_cast<double>((bits & kDigits) | kBias << 52);
    }
    return std::log(digits) + static_cast<double>(powers) * std::numbers::ln2;
  }

  void open(std::span<const float> key) {
    mean_.assign(key.begin(), key.end());
    std::fill(variance_.begin(), variance_.end(), 0.0);
    count_ = 1;
    recorded_ = 0;
    average_ = squares_ = 0;
  }

  void join(std::span<const float> key) {
    const double before = static_cast<double>(count_);
    const double share = 1 / static_cast<double>(++count_);
    if (variance_.empty()) {
      for (std::size_t c = 0; c < key.size(); ++c) mean_[c] += (key[c] - mean_[c]) * share;
      return;
    }
    for (std::size_t c = 0; c < key.size(); ++c) {
      const double far = key[c] - mean_[c];
      mean_[c] += far * share;
      variance_[c] = (before * variance_[c] + far * (key[c] - mean_[c])) * share;
    }
  }

  /// Welford's update: what is seen in this event, without keeping the values.
  void record(double value) {
    ++recorded_;
    const double before = value - average_;
    average_ += before / static_cast<double>(recorded_);
    squares_ += before * (value - average_);
  }

  KeySegmenterSettings settings_;
  std::int64_t heads_ = 1;
  std::int64_t tokens_ = 0;
  std::int64_t count_ = 0;               // keys that the event holds
  std::int64_t recorded_ = 0;            // signals that it recorded
  double average_ = 0;                   // of those
  double squares_ = 0;                   // sum of their squared distances from it
  std::vector<double> mean_, variance_;  // of the event's keys, by channel
};

/// A threshold that gives about as many boundaries as wanted (HEM 2.4).
struct CalibratedGamma {
  double gamma = 0;
  std::int64_t boundaries = 0;  ///< that it gives
  /// Whether `wanted` lies between the fewest and the most boundaries of the gammas tried. If not,
  /// an end of the grid was hit, and the numbers of events compared are not equal.
  bool reached = false;
};

inline constexpr double kLeastGamma = -4, kMostGamma = 8;

/// Of gamma = 0, 0.01 .. 8.00 the one whose number of boundaries is nearest to `wanted`; ties: the
/// smallest. If all of them give fewer than wanted, gammas from `least` on are tried as well: a
/// threshold above the mean (T = mu + gamma sigma of HEM 2.3 allows either sign).
/// \param boundaries callable: double gamma -> number of boundaries
template <class Boundaries>
CalibratedGamma calibrate_gamma(std::int64_t wanted, Boundaries&& boundaries,
                                double least = kLeastGamma) {
  CalibratedGamma best;
  std::int64_t distance = std::numeric_limits<std::int64_t>::max();
  std::int64_t fewest = distance, most = 0;
  const auto try_all = [&](long first, long last) {
    for (long j = first; j <= last && distance != 0; ++j) {
      const double gamma = static_cast<double>(j) / 100;
      const std::int64_t n = boundaries(gamma);
      fewest = std::min(fewest, n), most = std::max(most, n);
      if (std::abs(n - wanted) >= distance) continue;
      distance = std::abs(n - wanted);
      best = {gamma, n};
    }
  };
  try_all(0, std::lround(kMostGamma * 100));
  if (most < wanted) try_all(std::lround(least * 100), -1);
  best.reached = fewest <= wanted && wanted <= most;
  return best;
}

}  // namespace EPISODIC_NAMESPACE
