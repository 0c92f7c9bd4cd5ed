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

/// Which long-term engrams a step may recall: those that the search along the edges finds (Memoria
/// 3.2), or all of them, the paper's ablation (Table 6, "Full LTM Search").
enum class LongTermSearch : std::uint8_t { graph, full };

/// Which pairs a step links: all that fire together (Memoria 3.4), or as many pairs of one that
/// fires and a long-term engram drawn at random, the paper's other ablation ("Random Wire").
enum class Wiring : std::uint8_t { hebbian, random };

/// Settings of a `Memoria`. Counts are in engrams, lifespans in steps. Defaults are the paper's for
/// language modelling (D.2), where a step brings N_wm = 50 engrams. Its Table 5 without a kind of
/// memory: n_long = 0, or n_short = n_long = 0.
struct MemoriaConfig {
  std::int64_t n_short = 50;               ///< N_stm, most recalled from the short-term memory
  std::int64_t n_long = 50;                ///< N_ltm, most recalled from the long-term memory
  std::int64_t short_term_capacity = 400;  ///< length of the short-term queue
  std::int64_t depth = 10;                 ///< N_depth, steps of the search along the edges
  LongTermSearch search = LongTermSearch::graph;
  Wiring wiring = Wiring::hebbian;
  double initial_lifespan = 9.0;  ///< > 0, of a new engram
  double alpha = 8.0;             ///< lifespan that a step gives out for each recalled one
  std::int64_t reset_period = 0;  ///< steps after which all is forgotten; 0: never

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

/// What a memory's step counts as recalled, and so what attention extends the lives of.
/// `graph`: the engrams that Memoria's own search recalls (3.2), attended or not.
/// `attended`: the events that received the most attention, N_stm of the short-term and N_ltm of
/// the long-term memory. In the paper the two are the same: its model attends to what the graph
/// recalls. Here the layers choose what they attend to.
enum class EngramRecall : std::uint8_t { graph, attended };

/// Memoria as the policy of what a memory keeps: an engram is an event. Its step is `chunk` tokens
/// of the text, however a caller cuts it.
struct RetentionConfig {
  MemoriaConfig memoria;
  EngramRecall recall = EngramRecall::graph;
  std::int64_t layer = -1;  ///< whose representatives are the engrams; -1: the middle one of those
                            ///< that recall
  bool operator==(const RetentionConfig&) const = default;
};

}  // namespace EPISODIC_NAMESPACE
