// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Settings of association and forgetting (Memoria 3).

#include <cmath>
#include <cstdint>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Settings of a `Memoria`. Counts are in engrams, lifespans in steps.
struct MemoriaConfig {
  std::int64_t n_short = 5;               ///< N_stm, most recalled from the short-term memory
  std::int64_t n_long = 5;                ///< N_ltm, most recalled from the long-term memory
  std::int64_t short_term_capacity = 50;  ///< length of the short-term queue
  std::int64_t depth = 10;                ///< N_depth, steps of the search along the edges
  double initial_lifespan = 9.0;          ///< > 0, of a new engram
  double alpha = 8.0;                     ///< lifespan that a step gives out for each recalled one
  std::int64_t reset_period = 0;          ///< steps after which all is forgotten; 0: never

  /// \throws ConfigError naming the setting, as it is here and in a memory's settings, and its
  /// range
  void validate() const {
    constexpr std::int64_t kMost = std::int64_t{1} << 40;  // sums of counts then stay counts
    const auto least = [](const char* name, std::int64_t value, std::int64_t bound) {
      if (value < bound)
        throw ConfigError("memoria: " + std::string(name) + " = " + std::to_string(value) +
                          ", must be >= " + std::to_string(bound));
      if (value > kMost)
        throw ConfigError("memoria: " + std::string(name) + " = " + std::to_string(value) +
                          ", must be <= " + std::to_string(kMost));
    };
    least("n_short (N_stm)", n_short, 0);
    least("n_long (N_ltm)", n_long, 0);
    least("short_term_capacity (stm_capacity)", short_term_capacity, 1);
    least("depth (N_depth)", depth, 0);
    least("reset_period", reset_period, 0);
    if (!(initial_lifespan > 0) || !std::isfinite(initial_lifespan))
      throw ConfigError("memoria: initial_lifespan must be a positive number");
    if (!(alpha >= 0) || !std::isfinite(alpha))
      throw ConfigError("memoria: alpha must be a number >= 0");
  }

  bool operator==(const MemoriaConfig&) const = default;
};

/// Memoria as the policy of what a memory keeps: an engram is an event.
struct RetentionConfig {
  MemoriaConfig memoria;
  std::int64_t layer = -1;  ///< whose representatives are the engrams; -1: the middle one of those
                            ///< that recall
  bool operator==(const RetentionConfig&) const = default;
};

}  // namespace EPISODIC_NAMESPACE
