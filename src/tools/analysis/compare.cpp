// SPDX-License-Identifier: Apache-2.0
#include "analysis/compare.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "analysis/agreement.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic::analysis {
namespace {

constexpr Refinement kRefinements[] = {Refinement::modularity, Refinement::conductance,
                                       Refinement::intra_inter};

/// M, C or I: how the papers' names of methods end.
char letter_of(Refinement objective) {
  switch (objective) {
    case Refinement::modularity:
      return 'M';
    case Refinement::conductance:
      return 'C';
    default:
      return 'I';
  }
}

/// Marks that boundaries are held against: those of listeners, or of raters.
struct Marks {
  Boundaries places;
  std::vector<double> density;
  std::optional<std::int64_t> tolerance;  ///< absent: weighted marks, which no pairs are made of
};

/// \param density of the boundaries, smoothed
std::optional<Agreement> agreement(const std::optional<Marks>& marks,
                                   std::span<const std::int64_t> boundaries,
                                   const std::vector<double>& density, TokenRange text) {
  if (!marks || boundaries.empty()) return std::nullopt;
  Agreement a;
  a.wasserstein = wasserstein_points(boundaries, marks->places);
  a.smoothed = wasserstein(density, marks->density);
  a.correlation = correlation(density, marks->density);
  a.log_density = mean_log_density(marks->density, text.start, boundaries);
  if (marks->tolerance) a.matched = f1(boundaries, marks->places, *marks->tolerance);
  return a;
}

/// Running mean and variance of a list of numbers at once (Welford).
class Moments {
 public:
  void add(const std::vector<double>& values) {
    mean_.resize(values.size());
    squares_.resize(values.size());
    ++n_;
    for (std::size_t i = 0; i < values.size(); ++i) {
      const double before = values[i] - mean_[i];
      mean_[i] += before / n_;
      squares_[i] += before * (values[i] - mean_[i]);
    }
  }
  const std::vector<double>& mean() const { return mean_; }
  std::vector<double> deviation() const {
    std::vector<double> d;
    for (const double s : squares_) d.push_back(n_ > 1 ? std::sqrt(s / (n_ - 1)) : 0.0);
    return d;
  }

 private:
  double n_ = 0;
  std::vector<double> mean_, squares_;
};

std::vector<double> values_of(const Cohesion& c) {
  return {c.modularity, c.conductance, c.ratio_of_sums, c.ratio_of_means};
}
Cohesion cohesion_from(const double* v) { return {v[0], v[1], v[2], v[3]}; }

std::vector<double> values_of(const Agreement& a) {
  return {a.wasserstein, a.smoothed, a.correlation, a.log_density, a.matched.value_or(0)};
}
Agreement agreement_from(const double* v, bool matched) {
  Agreement a{v[0], v[1], v[2], v[3], std::nullopt};
  if (matched) a.matched = v[4];
  return a;
}

class Comparison {
 public:
  Comparison(const StoryMaterial& story, const CompareOptions& options,
             const std::function<void(std::int64_t, std::int64_t)>& progress)
      : story_(story), options_(options), progress_(progress), sums_(story.keys) {
    story.keys.check();
    result_.name = story.name;
    result_.text = story.text;
    result_.people = story.people;
    if (!story.people.empty())
      people_ = Marks{story.people,
                      smoothed_density(mixture_of(story.people, options.deviation), story.text),
                      options.tolerance};
    if (!story.rated.empty()) {
      BoundaryMixture mixture = mixture_of(story.rated, options.deviation);
      mixture.weights = story.rated_changes;
      raters_ = Marks{story.rated, smoothed_density(mixture, story.text), std::nullopt};
    }
  }

  StoryResult run() {
    surprise_ =
        surprise_boundaries(story_.surprise, options_.config, options_.config.gamma, story_.text);
    const auto n_people = static_cast<std::int64_t>(story_.people.size());
    const auto n_surprise = static_cast<std::int64_t>(surprise_.size());
    parts_ = n_people > 0 ? 2 : 1;
    if (n_people > 0) {
      at_count("people", n_people, calibrated_surprise(n_people));
      add("people", "people", std::nullopt, story_.people);
      step();
    }
    at_count("surprise", n_surprise, {options_.config.gamma, surprise_});
    if (!story_.clauses.empty()) add("clauses", "own", std::nullopt, story_.clauses);
    step();
    if (people_)
      result_.people_density = people_->density;
    else if (raters_)
      result_.people_density = raters_->density;
    return std::move(result_);
  }

 private:
  struct Calibrated {
    double gamma = 0;
    Boundaries boundaries;
    std::optional<std::int64_t> missed = std::nullopt;
  };

  static std::optional<std::int64_t> missed(const CalibratedGamma& found, std::int64_t wanted) {
    return found.reached ? std::nullopt : std::optional(wanted);
  }

  void step() {
    if (progress_) progress_(++done_, parts_);
  }

  Calibrated calibrated_surprise(std::int64_t wanted) const {
    const auto at = [&](double gamma) {
      return surprise_boundaries(story_.surprise, options_.config, gamma, story_.text);
    };
    const CalibratedGamma found = calibrate_gamma(
        wanted, [&](double gamma) { return static_cast<std::int64_t>(at(gamma).size()); });
    return {found.gamma, at(found.gamma), missed(found, wanted)};
  }

  /// Empty where there is nothing to hold it against, or nothing to smooth.
  std::vector<double> density_of(const Boundaries& boundaries) const {
    if (boundaries.empty() || (!people_ && !raters_)) return {};
    return smoothed_density(mixture_of(boundaries, options_.deviation), story_.text);
  }

  void add(std::string method, std::string count, std::optional<double> gamma,
           Boundaries boundaries, std::optional<std::int64_t> missed = std::nullopt) {
    Segmented s;
    s.method = std::move(method);
    s.count = std::move(count);
    s.gamma = gamma;
    s.missed = missed;
    s.cohesion = cohesion_by_part(sums_, story_.keys.n_kv_heads, story_.text, boundaries);
    const std::vector<double> density = density_of(boundaries);
    s.people = agreement(people_, boundaries, density, story_.text);
    s.raters = agreement(raters_, boundaries, density, story_.text);
    s.random = random_level(static_cast<std::int64_t>(boundaries.size()));
    s.boundaries = std::move(boundaries);
    result_.sequence.push_back(std::move(s));
  }

  /// All methods at one number of boundaries. \param surprise those of S, and its gamma
  void at_count(const std::string& count, std::int64_t wanted, const Calibrated& surprise) {
    const Boundaries fixed = fixed_boundaries(wanted, story_.text);
    const auto refined = [&](const Boundaries& raw, Refinement objective) {
      return refined_boundaries(story_.keys, raw, options_.config, objective, options_.first_layer,
                                story_.text);
    };
    add("S", count, surprise.gamma, surprise.boundaries, surprise.missed);
    for (const Refinement r : kRefinements)
      add(std::string("S") + letter_of(r), count, surprise.gamma, refined(surprise.boundaries, r));
    add("F", count, std::nullopt, fixed);
    for (const Refinement r : kRefinements)
      add(std::string("F") + letter_of(r), count, std::nullopt, refined(fixed, r));
    for (const KeySignal signal : {KeySignal::similarity, KeySignal::gaussian}) {
      const std::string name = signal == KeySignal::similarity ? "K" : "G";
      Calibrated c = calibrated_keys(signal, wanted);
      add(name, count, c.gamma, std::move(c.boundaries), c.missed);
      heads_at_count(signal, name + "H", count, wanted, surprise.boundaries);
    }
    if (result_.surprise_density.empty() && !surprise.boundaries.empty())
      result_.surprise_density =
          smoothed_density(mixture_of(surprise.boundaries, options_.deviation), story_.text);
  }

  KeySegmenterSettings key_settings(KeySignal signal) const {
    KeySegmenterSettings s;
    s.signal = signal;
    s.min_count = least_keys(options_, signal);
    s.var_floor = options_.var_floor;
    return s;
  }

  Calibrated calibrated_keys(KeySignal signal, std::int64_t wanted) {
    // The keys of a token side by side, all layers and heads.
    const RecordedKeys& keys = story_.keys;
    const auto width = static_cast<std::size_t>(keys.n_layers * keys.row());
    if (side_by_side_.empty()) {
      side_by_side_.reserve(static_cast<std::size_t>(keys.n_tokens) * width);
      for (std::int64_t t = 0; t < keys.n_tokens; ++t)
        for (std::int64_t unit = 0; unit < keys.units(); ++unit) {
          const std::span<const float> key = keys.key(unit, t);
          side_by_side_.insert(side_by_side_.end(), key.begin(), key.end());
        }
    }
    std::unique_ptr<KeyCuts>& cuts = sequence_cuts_[signal];
    if (!cuts)
      cuts = std::make_unique<KeyCuts>(key_settings(signal), keys.units(), keys.head_dim,
                                       story_.text, [this, width](auto t) {
                                         return std::span<const float>(side_by_side_)
                                             .subspan(static_cast<std::size_t>(t) * width, width);
                                       });
    const CalibratedGamma found = calibrate_gamma(wanted, [&](double gamma) {
      return static_cast<std::int64_t>(cuts->boundaries(gamma).size());
    });
    return {found.gamma, cuts->boundaries(found.gamma), missed(found, wanted)};
  }

  /// One gamma for all heads, so that their mean number of boundaries is the wanted one and each
  /// head's own number is a result.
  void heads_at_count(KeySignal signal, const std::string& method, const std::string& count,
                      std::int64_t wanted, const Boundaries& surprise) {
    const RecordedKeys& keys = story_.keys;
    std::vector<KeyCuts>& cuts = head_cuts_[signal];
    if (cuts.empty())
      for (std::int64_t unit = 0; unit < keys.units(); ++unit)
        cuts.emplace_back(key_settings(signal), 1, keys.head_dim, story_.text,
                          [&keys, unit](std::int64_t t) { return keys.key(unit, t); });
    std::vector<Boundaries> found(cuts.size());
    const auto at = [&](double gamma) {
      parallel_for(keys.units(), [&](std::int64_t unit) {
        const auto u = static_cast<std::size_t>(unit);
        found[u] = cuts[u].boundaries(gamma);
      });
      std::int64_t sum = 0;
      for (const Boundaries& b : found) sum += static_cast<std::int64_t>(b.size());
      return sum;
    };
    const CalibratedGamma calibrated = calibrate_gamma(wanted * keys.units(), at);
    const double gamma = calibrated.gamma;
    at(gamma);
    for (std::int64_t unit = 0; unit < keys.units(); ++unit) {
      SegmentedHead h;
      h.method = method;
      h.count = count;
      h.gamma = gamma;
      h.missed = missed(calibrated, wanted);
      h.layer = unit / keys.n_kv_heads;
      h.head = unit % keys.n_kv_heads;
      h.boundaries = std::move(found[static_cast<std::size_t>(unit)]);
      const auto modularity = [&](const Boundaries& b) {
        return cohesion_of(event_sums(sums_, unit, story_.text, b)).modularity;
      };
      h.modularity = modularity(h.boundaries);
      h.modularity_fixed =
          modularity(fixed_boundaries(static_cast<std::int64_t>(h.boundaries.size()), story_.text));
      if (!h.boundaries.empty()) {
        if (!story_.people.empty()) h.to_people = wasserstein_points(h.boundaries, story_.people);
        if (!surprise.empty()) h.to_surprise = wasserstein_points(h.boundaries, surprise);
      }
      result_.heads.push_back(std::move(h));
    }
  }

  /// Means over random segmentations of so many boundaries; the same draws for the same number.
  const RandomLevel& random_level(std::int64_t count) {
    const auto [at, fresh] = random_.try_emplace(count);
    if (!fresh) return at->second;
    std::mt19937_64 random(options_.seed ^ static_cast<std::uint64_t>(count) << 32);
    Moments all, layers, people, raters;
    for (std::int64_t i = 0; i < options_.draws; ++i) {
      const Boundaries b = random_boundaries(count, story_.text, random);
      const CohesionByPart c = cohesion_by_part(sums_, story_.keys.n_kv_heads, story_.text, b);
      all.add(values_of(c.all));
      std::vector<double> by_layer;
      for (const Cohesion& layer : c.layers)
        for (const double x : values_of(layer)) by_layer.push_back(x);
      layers.add(by_layer);
      const std::vector<double> density = density_of(b);
      if (const auto a = agreement(people_, b, density, story_.text)) people.add(values_of(*a));
      if (const auto a = agreement(raters_, b, density, story_.text)) raters.add(values_of(*a));
    }
    RandomLevel& level = at->second;
    level.mean = cohesion_from(all.mean().data());
    level.deviation = cohesion_from(all.deviation().data());
    for (std::size_t l = 0; l + 4 <= layers.mean().size(); l += 4)
      level.layers.push_back(cohesion_from(layers.mean().data() + l));
    if (!people.mean().empty()) {
      level.people = agreement_from(people.mean().data(), true);
      level.people_deviation = agreement_from(people.deviation().data(), true);
    }
    if (!raters.mean().empty()) level.raters = agreement_from(raters.mean().data(), false);
    return level;
  }

  const StoryMaterial& story_;
  const CompareOptions& options_;
  const std::function<void(std::int64_t, std::int64_t)>& progress_;
  std::int64_t done_ = 0, parts_ = 0;
  KeySums sums_;
  std::optional<Marks> people_, raters_;
  Boundaries surprise_;  // at the configured gamma
  std::vector<float> side_by_side_;
  std::map<KeySignal, std::unique_ptr<KeyCuts>> sequence_cuts_;
  std::map<KeySignal, std::vector<KeyCuts>> head_cuts_;
  std::map<std::int64_t, RandomLevel> random_;
  StoryResult result_;
};

}  // namespace

std::int64_t least_keys(const CompareOptions& options, KeySignal signal) {
  MemoryConfig config;
  config.segmenter =
      signal == KeySignal::gaussian ? SegmenterKind::gaussian : SegmenterKind::k_similarity;
  config.min_count = options.min_count;
  return config.effective_min_count();
}

StoryResult compare(const StoryMaterial& story, const CompareOptions& options,
                    const std::function<void(std::int64_t, std::int64_t)>& progress) {
  return Comparison(story, options, progress).run();
}

}  // namespace episodic::analysis
