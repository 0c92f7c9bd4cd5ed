// SPDX-License-Identifier: Apache-2.0
#include "analysis/segmentations.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/timeline/refine.hpp"
#include "episodic/timeline/surprise.hpp"

namespace episodic::analysis {

std::vector<TokenRange> events_between(TokenRange text, std::span<const std::int64_t> boundaries) {
  std::vector<TokenRange> events;
  std::int64_t start = text.start;
  for (const std::int64_t b : boundaries) {
    if (b <= start || b >= text.end)
      throw DataError("boundaries: token " + std::to_string(b) +
                      " is out of the text or out of order; give ascending tokens inside it");
    events.push_back({start, b});
    start = b;
  }
  events.push_back({start, text.end});
  return events;
}

Boundaries surprise_boundaries(std::span<const float> surprise, const MemoryConfig& config,
                               double gamma, TokenRange text) {
  if (static_cast<std::int64_t>(surprise.size()) < text.end)
    throw DataError("boundaries: surprise of " + std::to_string(surprise.size()) +
                    " tokens, but the text ends at " + std::to_string(text.end));
  SurpriseThreshold threshold(config.window, config.effective_tau(), gamma, config.n_init);
  std::vector<float> limits(static_cast<std::size_t>(text.end));
  for (std::int64_t first = 0; first < text.end; first += config.chunk)
    threshold.step(surprise.data() + first, std::min(config.chunk, text.end - first),
                   limits.data() + first);
  Boundaries found;
  for (std::int64_t t = text.start + 1; t < text.end; ++t)
    if (surprise[static_cast<std::size_t>(t)] > limits[static_cast<std::size_t>(t)])
      found.push_back(t);
  return found;
}

Boundaries refined_boundaries(const RecordedKeys& keys, std::span<const std::int64_t> raw,
                              const MemoryConfig& config, Refinement objective,
                              std::int64_t first_layer, TokenRange text) {
  std::vector<KeyRing> rings;  // the whole text lies in each
  for (std::int64_t l = first_layer; l < keys.n_layers; ++l)
    rings.push_back({keys.layers[static_cast<std::size_t>(l)].data(), keys.n_tokens, keys.head_dim,
                     keys.row()});
  BoundaryRefiner refiner(objective, text.start, config.min_block, keys.n_kv_heads, keys.head_dim);
  std::vector<std::uint8_t> flags(static_cast<std::size_t>(text.end)), moved(flags.size());
  for (const std::int64_t b : raw) flags[static_cast<std::size_t>(b)] = 1;
  for (std::int64_t first = 0; first < text.end; first += config.chunk) {
    const auto at = static_cast<std::size_t>(first);
    const auto n = static_cast<std::size_t>(std::min(config.chunk, text.end - first));
    refiner.step(rings, first, std::span(flags).subspan(at, n), std::span(moved).subspan(at, n));
  }
  Boundaries found;
  for (std::int64_t t = text.start + 1; t < text.end; ++t)
    if (moved[static_cast<std::size_t>(t)]) found.push_back(t);
  return found;
}

Boundaries fixed_boundaries(std::int64_t count, TokenRange text) {
  Boundaries found;
  const double step = static_cast<double>(text.size()) / static_cast<double>(count + 1);
  for (std::int64_t j = 1; j <= count; ++j) {
    const std::int64_t t = text.start + std::llround(step * static_cast<double>(j));
    if (t > (found.empty() ? text.start : found.back()) && t < text.end) found.push_back(t);
  }
  return found;
}

Boundaries random_boundaries(std::int64_t count, TokenRange text, std::mt19937_64& random) {
  Boundaries tokens(static_cast<std::size_t>(std::max<std::int64_t>(0, text.size() - 1)));
  std::iota(tokens.begin(), tokens.end(), text.start + 1);
  const std::size_t n =
      std::min(static_cast<std::size_t>(std::max<std::int64_t>(0, count)), tokens.size());
  // The first n of a shuffle. The remainder's bias is below 1e-15; std::shuffle may differ between
  // standard libraries, and a seed should not.
  for (std::size_t i = 0; i < n; ++i)
    std::swap(tokens[i], tokens[i + random() % (tokens.size() - i)]);
  tokens.resize(n);
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

/// What the keys after one token say of the event that began there.
struct KeyCuts::Path {
  struct Seen {
    double signal, average, deviation;
    bool judged;  // two values were recorded before it
  };
  KeySegmenter segmenter;
  std::vector<Seen> seen;  // of the tokens after the first, as far as anyone asked
  // Welford's update, as KeySegmenter::record has it.
  std::int64_t recorded = 0;
  double average = 0, squares = 0;

  void extend(std::span<const float> key) {
    const double deviation =
        recorded >= 2 ? std::sqrt(squares / static_cast<double>(recorded - 1)) : 0.0;
    const double signal = segmenter.next(key).signal;
    seen.push_back({signal, average, deviation, recorded >= 2});
    if (std::isnan(signal)) return;  // too few keys yet: it joined, and nothing was recorded
    ++recorded;
    const double before = signal - average;
    average += before / static_cast<double>(recorded);
    squares += before * (signal - average);
  }
};

KeyCuts::KeyCuts(const KeySegmenterSettings& settings, std::int64_t heads, std::int64_t head_dim,
                 TokenRange text, std::function<std::span<const float>(std::int64_t)> key)
    : settings_(settings),
      heads_(heads),
      head_dim_(head_dim),
      text_(text),
      key_(std::move(key)),
      paths_(static_cast<std::size_t>(std::max<std::int64_t>(0, text.size()))) {
  settings_.n_init = 0;
  settings_.gamma = 1e300;  // cuts where the values were all equal, and there any gamma would
}

KeyCuts::KeyCuts(KeyCuts&&) noexcept = default;
KeyCuts::~KeyCuts() = default;

Boundaries KeyCuts::boundaries(double gamma) {
  if (!std::isfinite(gamma)) throw ConfigError("key segmenter: gamma is not a number");
  Boundaries found;
  std::int64_t start = text_.start;
  while (start < text_.end) {
    std::unique_ptr<Path>& path = paths_[static_cast<std::size_t>(start - text_.start)];
    if (!path) {
      path = std::make_unique<Path>();
      path->segmenter = KeySegmenter(settings_, heads_, head_dim_);
      path->segmenter.next(key_(start));
    }
    std::int64_t t = start + 1;
    for (; t < text_.end; ++t) {
      const auto i = static_cast<std::size_t>(t - start - 1);
      if (i == path->seen.size()) path->extend(key_(t));
      const Path::Seen& s = path->seen[i];
      if (s.judged && s.signal < s.average - gamma * s.deviation) break;
    }
    if (t < text_.end) found.push_back(t);
    start = t;
  }
  return found;
}

}  // namespace episodic::analysis
