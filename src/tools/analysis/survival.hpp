// SPDX-License-Identifier: Apache-2.0
#pragma once
// What a memory that forgets still holds, and how it is linked (Memoria 6, appendix B).

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace episodic::analysis {

/// Some consecutive events of a sequence, and how many of them are held.
struct Survivors {
  std::int64_t first = 0, end = 0;  ///< numbers of events
  std::int64_t held = 0;
  double share() const { return static_cast<double>(held) / static_cast<double>(end - first); }
};

/// The sequence in at most `n_bins` parts of equal length (the last may be shorter), oldest first:
/// more held in the first part than in the middle is primacy, in the last is recency. \param held
/// of each event \throws ConfigError for n_bins < 1
std::vector<Survivors> survivors_by_place(const std::vector<bool>& held, std::int64_t n_bins);

/// How survival at a distance hangs together.
struct Contiguity {
  std::int64_t lag = 0;  ///< in events
  double ratio = 0;      ///< pairs that are both held, over what chance gives; 1: independent
};

/// For lags 1 .. most_lag. What chance gives follows the share of held events within `around`
/// events on either side, the event itself and those within most_lag left out, so that primacy and
/// recency alone give a ratio of 1. The first and last 2 * around events are left out: what is held
/// because it is new, or was first, ends too suddenly for a share of the surroundings. \throws
/// ConfigError unless 1 <= most_lag < around
std::vector<Contiguity> contiguity_of(const std::vector<bool>& held, std::int64_t most_lag,
                                      std::int64_t around);

/// Autocorrelation of a number that each event has (how often it was recalled, how long it lived),
/// at lags 1 .. most_lag: the mean of x(i) x(i + lag) over that of x(i)^2, where x is the number
/// less the mean of its surroundings, as contiguity_of takes them and leaves out the ends. Neither
/// primacy nor recency shows in it, only what neighbours have in common. 0 where all x are alike or
/// there are too few events; by chance within about 2 / sqrt(events) of 0.
/// \throws ConfigError unless 1 <= most_lag < around
std::vector<double> autocorrelation_of(std::span<const double> numbers, std::int64_t most_lag,
                                       std::int64_t around);

/// Edges of the association graph between held events at a distance.
struct EdgesAtDistance {
  std::int64_t least = 0, most = 0;  ///< events between them, both included: 1, 2..3, 4..7, ..
  std::int64_t pairs = 0;            ///< ordered pairs of held events so far apart
  std::int64_t linked = 0;           ///< with an edge
  double sum = 0;                    ///< of their weights
  double mean_of_linked() const { return linked > 0 ? sum / static_cast<double>(linked) : 0.0; }
  double mean() const { return pairs > 0 ? sum / static_cast<double>(pairs) : 0.0; }
};

/// \param events held, ascending \param edge weight of the edge from one to another, 0: none
std::vector<EdgesAtDistance> edges_by_distance(
    std::span<const std::int64_t> events,
    const std::function<double(std::int64_t from, std::int64_t to)>& edge);

/// Edges of the association graph from held events of an age.
struct EdgesAtAge {
  std::int64_t least = 0, most = 0;  ///< in events, both included: 1 (the newest), 2..3, 4..7, ..
  std::int64_t events = 0;           ///< held, of that age
  std::int64_t linked = 0;           ///< edges from them to other held events
  double sum = 0;                    ///< of their weights
  double mean_of_linked() const { return linked > 0 ? sum / static_cast<double>(linked) : 0.0; }
  double linked_each() const {
    return events > 0 ? static_cast<double>(linked) / static_cast<double>(events) : 0.0;
  }
};

/// \param events held, ascending \param total events that there have been, > the last of `events`
/// \param edge as edges_by_distance takes it
std::vector<EdgesAtAge> edges_by_age(
    std::span<const std::int64_t> events, std::int64_t total,
    const std::function<double(std::int64_t from, std::int64_t to)>& edge);

}  // namespace episodic::analysis
