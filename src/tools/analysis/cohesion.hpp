// SPDX-License-Identifier: Apache-2.0
#pragma once
// How well a segmentation cuts the graph of keys (EM 3.3, eqs. 2 to 5; Table 2, Fig. 4A): whole
// segmentations, where refinement (timeline/refine.hpp) scores one split.

#include <cstdint>
#include <span>
#include <vector>

#include "analysis/keys.hpp"
#include "analysis/segmentations.hpp"

namespace episodic::analysis {

/// Of one event c in the graph A_ij = k_i . k_j over the tokens of the text.
struct EventSums {
  std::int64_t tokens = 0;
  double inside = 0;   ///< A(c, c)
  double across = 0;   ///< A(c, all others)
  double outside = 0;  ///< A(all others, all others)
};

struct Cohesion {
  /// (1/4m) sum over events of A(c, c) - deg(c)^2 / 2m, 2m = A(all, all) (eq. 3). Larger is better.
  double modularity = 0;
  /// Mean over events of A(c, others) / min(A(c, c), A(others, others)) (eq. 4). Smaller is better.
  double conductance = 0;
  /// Intra/inter similarity of eq. 5, larger is better, the mean over events of
  /// A(c, c) / A(c, others): sums as the equation has them, so it grows with an event's length ...
  double ratio_of_sums = 0;
  /// ... and of mean A(c, c) / mean A(c, others), as refinement compares them (EM 3.3).
  double ratio_of_means = 0;
};

/// \param unit key/value head \param text the tokens of the graph
/// \param boundaries tokens that open an event, ascending, inside the text
std::vector<EventSums> event_sums(const KeySums& keys, std::int64_t unit, TokenRange text,
                                  std::span<const std::int64_t> boundaries);

/// A zero denominator counts as 1e-15 here. A segmentation without boundaries has one event and
/// nothing to compare: modularity and conductance 0, ratios 0.
Cohesion cohesion_of(std::span<const EventSums> events);

/// Of each unit alone, of each layer (its heads added up to one graph) and of all of them.
struct CohesionByPart {
  std::vector<Cohesion> units, layers;
  Cohesion all;
};
CohesionByPart cohesion_by_part(const KeySums& keys, std::int64_t heads_of_a_layer, TokenRange text,
                                std::span<const std::int64_t> boundaries);

/// Of all units alone: what random draws are measured by.
Cohesion cohesion_of_all(const KeySums& keys, TokenRange text,
                         std::span<const std::int64_t> boundaries);

}  // namespace episodic::analysis
