// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of timeline/surprise.hpp; how they become functions: base/inline.hpp.
#include <algorithm>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/timeline/surprise.hpp"

namespace EPISODIC_NAMESPACE {
namespace surprise_threshold_detail {

/// mu + gamma * sigma of v[0..n), +inf for n < 2. Two passes: the one-pass form cancels. A function
/// of the n values in their order alone, so a stream gives the same bits however it is cut.
inline float threshold_of(const float* v, std::int64_t n, double gamma) {
  if (n < 2) return std::numeric_limits<float>::infinity();
  constexpr std::int64_t kLanes = 8;  // independent chains: one chain would wait for every addition
  const auto sum = [&](auto&& term) {
    double lane[kLanes] = {};
    std::int64_t i = 0;
    for (; i + kLanes <= n; i += kLanes)
      for (std::int64_t j = 0; j < kLanes; ++j) lane[j] += term(v[i + j]);
    for (std::int64_t j = 0; i + j < n; ++j) lane[j] += term(v[i + j]);
    double total = 0.0;
    for (const double x : lane) total += x;
    return total;
  };
  const double mean = sum([](float x) { return static_cast<double>(x); }) / static_cast<double>(n);
  const double squares = sum([mean](float x) {
    const double diff = static_cast<double>(x) - mean;
    return diff * diff;
  });
  return static_cast<float>(mean + gamma * std::sqrt(squares / static_cast<double>(n - 1)));
}

}  // namespace surprise_threshold_detail

EPISODIC_INLINE SurpriseThreshold::SurpriseThreshold(ThresholdWindow window, std::int64_t tau,
                                                     double gamma, std::int64_t n_init)
    : window_(window), tau_(tau), n_init_(n_init), gamma_(gamma) {
  if (tau < 1)
    throw ConfigError("surprise threshold: tau = " + std::to_string(tau) + ", must be at least 1");
}

EPISODIC_INLINE void SurpriseThreshold::prepare(const float* surprise, std::int64_t n,
                                                float* threshold) {
  coming_.assign(surprise, surprise + std::max<std::int64_t>(0, n));
  if (n <= 0) return;
  const std::int64_t first = tokens_;
  // All values a threshold of this step may look back on, in order of time: token t at t - base.
  const std::int64_t base = std::max<std::int64_t>(1, first - tau_);  // token 0 is in no average
  line_.clear();
  for (std::int64_t t = base; t < first; ++t)
    line_.push_back(recent_[static_cast<std::size_t>(t % tau_)]);
  line_.insert(line_.end(), surprise + (first == 0 ? 1 : 0), surprise + n);

  if (window_ == ThresholdWindow::moving) {
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t from = std::max(base, first + i - tau_);
      threshold[i] = surprise_threshold_detail::threshold_of(line_.data() + (from - base),
                                                             first + i - from, gamma_);
    }
  } else {
    // One window for the step: the tau - n tokens before it; the first step has none before it and
    // takes its own first n_init tokens.
    const std::int64_t from =
        first == 0 ? base : std::max(base, first - std::max<std::int64_t>(0, tau_ - n));
    const std::int64_t to = first == 0 ? std::min(n_init_, n) : first;
    std::fill(
        threshold, threshold + n,
        surprise_threshold_detail::threshold_of(line_.data() + (from - base), to - from, gamma_));
  }
  if (first == 0) threshold[0] = std::numeric_limits<float>::infinity();

  // Room for commit. Places that no token has had yet are never read.
  if (static_cast<std::int64_t>(recent_.size()) < std::min(tau_, first + n))
    recent_.resize(static_cast<std::size_t>(std::min(tau_, first + n)));
}

EPISODIC_INLINE void SurpriseThreshold::commit() noexcept {
  const auto n = static_cast<std::int64_t>(coming_.size());
  for (std::int64_t i = std::max<std::int64_t>(0, n - tau_); i < n; ++i)
    recent_[static_cast<std::size_t>((tokens_ + i) % tau_)] = coming_[static_cast<std::size_t>(i)];
  tokens_ += n;
  coming_.clear();
}

EPISODIC_INLINE std::vector<float> SurpriseThreshold::recent() const {
  std::vector<float> values;
  for (std::int64_t t = std::max<std::int64_t>(0, tokens_ - tau_); t < tokens_; ++t)
    values.push_back(recent_[static_cast<std::size_t>(t % tau_)]);
  return values;
}

EPISODIC_INLINE void SurpriseThreshold::resume(std::int64_t tokens, std::span<const float> recent) {
  const std::int64_t count = std::min(tokens, tau_);
  if (tokens < 0 || static_cast<std::int64_t>(recent.size()) != count)
    throw DataError("surprise threshold: " + std::to_string(recent.size()) +
                    " values of recent surprise for " + std::to_string(tokens) +
                    " tokens, must be " + std::to_string(std::max<std::int64_t>(0, count)));
  recent_.resize(recent.size());
  for (std::int64_t t = tokens - count; t < tokens; ++t)
    recent_[static_cast<std::size_t>(t % tau_)] =
        recent[static_cast<std::size_t>(t - (tokens - count))];
  coming_.clear();
  tokens_ = tokens;
}

}  // namespace EPISODIC_NAMESPACE
