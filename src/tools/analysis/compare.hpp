// SPDX-License-Identifier: Apache-2.0
#pragma once
// One story: every segmentation of it, measured by the graph of its keys and beside what people
// marked (EM Table 2, Fig. 4; HEM 2.4 and Tables 1 to 3).

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "analysis/cohesion.hpp"
#include "analysis/keys.hpp"
#include "analysis/segmentations.hpp"
#include "episodic/base/config.hpp"
#include "episodic/timeline/key_segmenter.hpp"

namespace episodic::analysis {

struct CompareOptions {
  /// min_block, window, tau, chunk and gamma are looked at.
  MemoryConfig config;
  std::int64_t first_layer = 0;  ///< of the graph that refinement reads
  std::int64_t min_count = 0;    ///< of the key segmenters; 0: as a memory's (MemoryConfig)
  double var_floor = 0.01;
  double deviation = 20;        ///< tokens, of the Gaussian that a boundary is smoothed by
  std::int64_t tolerance = 10;  ///< tokens, of boundaries that agree
  std::int64_t draws = 100;     ///< of random segmentations at each number of events
  std::uint64_t seed = 1;
};

/// Keys of an event before the segmenter of this signal judges one.
std::int64_t least_keys(const CompareOptions& options, KeySignal signal);

/// What a model made of a story, and what people did.
struct StoryMaterial {
  std::string name;
  TokenRange text;              ///< tokens of the story: behind what the tokenizer puts first
  std::vector<float> surprise;  ///< of tokens 0 .. text.end - 1
  RecordedKeys keys;
  Boundaries people;   ///< that listeners marked; may be empty
  Boundaries clauses;  ///< tokens that begin a clause; may be empty
  /// Tokens that raters saw something change at, and in how many dimensions; may be empty.
  Boundaries rated;
  std::vector<double> rated_changes;
};

/// How near boundaries are to one kind of marks.
struct Agreement {
  double wasserstein = 0;         ///< of the points, tokens
  double smoothed = 0;            ///< of the smoothed densities, tokens
  double correlation = 0;         ///< of the smoothed densities
  double log_density = 0;         ///< of the boundaries in the marks' mixture, nats over chance
  std::optional<double> matched;  ///< f1 within the tolerance; not of weighted marks
};

/// A mean over random segmentations, and the deviation of one of them.
struct RandomLevel {
  Cohesion mean, deviation;
  std::vector<Cohesion> layers;  ///< means
  std::optional<Agreement> people, people_deviation, raters;
};

/// A segmentation of the whole sequence.
struct Segmented {
  std::string method;  ///< S, SM, SC, SI, F, FM, FC, FI, K, G, people, clauses
  std::string count;   ///< which number of events was wanted: "people", "surprise", "own"
  std::optional<double> gamma;
  /// The number of boundaries that was wanted, where no gamma gives so few or so many.
  std::optional<std::int64_t> missed;
  Boundaries boundaries;
  CohesionByPart cohesion;
  std::optional<Agreement> people, raters;
  RandomLevel random;  ///< at the same number of boundaries
};

/// One key/value head with boundaries of its own (HEM).
struct SegmentedHead {
  std::string method;  ///< KH or GH
  std::string count;
  double gamma = 0;                    ///< one for all heads
  std::optional<std::int64_t> missed;  ///< the mean number that was wanted, as in Segmented
  std::int64_t layer = 0, head = 0;
  Boundaries boundaries;
  double modularity = 0;                         ///< in the head's own graph
  double modularity_fixed = 0;                   ///< of as many events of equal length
  std::optional<double> to_people, to_surprise;  ///< Wasserstein distance of the points, tokens
};

struct StoryResult {
  std::string name;
  TokenRange text;
  Boundaries people;
  std::vector<Segmented> sequence;
  std::vector<SegmentedHead> heads;
  /// Over the text's tokens, for the plot: of people, or of raters where no one marked boundaries.
  std::vector<double> people_density, surprise_density;
};

/// \param progress told of parts done and of all; it cannot cancel
StoryResult compare(const StoryMaterial& story, const CompareOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& progress = {});

}  // namespace episodic::analysis
