// SPDX-License-Identifier: Apache-2.0
#include "support/option_costs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "episodic/recall/representatives.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/timeline/key_segmenter.hpp"
#include "support/layer_run.hpp"

namespace episodic::bench {
namespace {

constexpr std::int64_t kCalibrationTokens = 1024;

/// What one row of the table compares.
struct Comparison {
  std::string option, beside;
  LayerFlags with, without;
  double limit = 0;          ///< largest ratio that the project allows itself; 0: none
  bool same_events = false;  ///< `without` is given the boundaries that `with` finds
};

/// Keys of `heads` heads of the run's tokens, side by side: [tokens, heads * d].
std::vector<float> keys_of(const LayerFlags& flags, std::int64_t heads, std::int64_t tokens) {
  RandomInput input(flags);
  const std::int64_t d = flags.head_dim;
  std::vector<float> keys(static_cast<std::size_t>(tokens * heads * d));
  for (std::int64_t h = 0; h < heads; ++h) {
    if (h % flags.kv_heads == 0) input.draw(h / flags.kv_heads, 0, tokens);
    for (std::int64_t t = 0; t < tokens; ++t)
      std::copy_n(input.k.begin() + (t * flags.kv_heads + h % flags.kv_heads) * d, d,
                  keys.begin() + (t * heads + h) * d);
  }
  return keys;
}

KeySegmenter segmenter_of(const LayerFlags& flags, std::int64_t heads, double gamma) {
  KeySegmenterSettings settings;
  settings.signal = flags.segmenter == "gaussian" ? KeySignal::gaussian : KeySignal::similarity;
  settings.gamma = gamma;
  return {settings, heads, flags.head_dim};
}

/// \return boundaries among the keys
std::int64_t read_keys(KeySegmenter& segmenter, const std::vector<float>& keys,
                       std::int64_t width) {
  std::int64_t n = 0;
  for (auto key = keys.begin(); key != keys.end(); key += width)
    n += segmenter.next(std::span(key, static_cast<std::size_t>(width))).opens;
  return n;
}

/// The gamma at which random keys give as many boundaries as surprise does (HEM 2.4, in steps of a
/// twentieth). \param heads whose keys are taken together
double gamma_of(const LayerFlags& flags, std::int64_t heads) {
  const std::vector<float> keys = keys_of(flags, heads, kCalibrationTokens);
  const std::int64_t wanted = std::max<std::int64_t>(1, kCalibrationTokens / flags.boundary_every);
  double best = 0;
  std::int64_t distance = std::numeric_limits<std::int64_t>::max();
  for (int step = 0; step <= 60; ++step) {
    KeySegmenter one = segmenter_of(flags, heads, 0.05 * step);
    const std::int64_t off = std::abs(read_keys(one, keys, heads * flags.head_dim) - wanted);
    if (off >= distance) continue;
    distance = off;
    best = 0.05 * step;
  }
  return best;
}

/// A memory as full as in every timed chunk.
std::unique_ptr<LayerRun> filled(const LayerFlags& flags, const MemoryConfig& config,
                                 std::vector<std::int64_t> given) {
  auto run = std::make_unique<LayerRun>(flags, config, std::move(given));
  run->fill(flags.context);
  run->step(flags.chunk);
  return run;
}

/// The other side of a segmenter that reads keys: the boundaries that it finds, given.
std::unique_ptr<LayerRun> given_the_same(const LayerFlags& flags, const MemoryConfig& config) {
  MemoryConfig finding = config;
  finding.recall = false;  // boundaries do not depend on it
  LayerRun found(flags, finding);
  found.fill(flags.context + (flags.chunks + 1) * flags.chunk);
  MemoryConfig given = config;
  given.segmenter = SegmenterKind::given;
  return filled(flags, given, found.raw_boundaries());
}

Json compare(const Comparison& c) {
  const std::unique_ptr<LayerRun> with = filled(c.with, c.with.config(), {});
  const std::unique_ptr<LayerRun> without = c.same_events
                                                ? given_the_same(c.without, c.without.config())
                                                : filled(c.without, c.without.config(), {});
  std::vector<double> wall, cpu, share, keys_seen, seconds_with, seconds_without;
  std::vector<StepTimes> steps_with, steps_without;
  // The segmenter by itself: a ratio of two chunks does not show so little.
  const std::int64_t heads = c.with.layers * c.with.kv_heads;
  const std::vector<float> keys =
      c.same_events ? keys_of(c.with, heads, c.with.chunk) : std::vector<float>();
  KeySegmenter segmenter = segmenter_of(c.with, heads, c.with.gamma);
  for (std::int64_t i = 0; i < c.with.chunks; ++i) {
    StepTimes a, b;
    // A B, then B A: what grows with the context falls on both alike.
    if (i % 2 == 0) a = with->step(c.with.chunk);
    b = without->step(c.without.chunk);
    if (i % 2 == 1) a = with->step(c.with.chunk);
    with->check_output();
    without->check_output();
    wall.push_back(a.wall / b.wall);
    cpu.push_back(a.cpu / b.cpu);
    seconds_with.push_back(a.wall);
    seconds_without.push_back(b.wall);
    keys_seen.push_back(with->work().keys_seen / without->work().keys_seen);
    steps_with.push_back(a);
    steps_without.push_back(b);
    const auto beside_attention = [](const StepTimes& t) { return t.recall + t.close + t.store; };
    if (c.with.reweight != c.without.reweight)
      share.push_back((beside_attention(a) - beside_attention(b)) / b.wall);
    if (!c.same_events) continue;
    Laps laps;
    read_keys(segmenter, keys, heads * c.with.head_dim);
    share.push_back(laps.lap().cpu / (b.cpu * static_cast<double>(c.with.layers)));
  }
  Json row{{"option", c.option},
           {"beside", c.beside},
           {"limit", c.limit},
           {"gamma", c.with.gamma},
           {"gamma_beside", c.without.gamma},
           {"ratio", summary_with_interval(wall)},
           {"ratio_cpu", summary_with_interval(cpu)},
           {"seconds_per_layer_chunk", summary(seconds_with)},
           {"seconds_beside", summary(seconds_without)},
           {"event_tokens", with->mean_event_tokens()},
           {"event_tokens_beside", without->mean_event_tokens()},
           {"parts", parts_json(steps_with)},
           {"parts_beside", parts_json(steps_without)},
           {"keys_ratio", summary(keys_seen)},
           {"memory", with->state_json()}};
  if (!share.empty()) row["own_share"] = summary(share);
  return row;
}

/// Vectors of unit length, as those of events are.
std::vector<float> random_engrams(std::mt19937_64& random, std::int64_t n, std::int64_t width) {
  std::normal_distribution<float> normal;
  std::vector<float> all(static_cast<std::size_t>(n * width));
  for (float& x : all) x = normal(random);
  for (std::int64_t i = 0; i < n; ++i)
    scale_to_unit(std::span(all).subspan(static_cast<std::size_t>(i * width),
                                         static_cast<std::size_t>(width)));
  return all;
}

/// A step of the graph, with all recalled engrams attended alike. \return seconds
Laps::Times graph_step(Memoria& graph, const std::vector<float>& vectors, std::int64_t n) {
  Laps laps;
  const Memoria::Recall& recall = graph.recall(vectors, n);
  const std::vector<double> attention(static_cast<std::size_t>(recall.size()), 1.0);
  graph.commit(attention);
  return laps.lap();
}

/// The graph beside a plain layer's chunk.
Json graph_costs(const LayerFlags& flags, std::int64_t engrams) {
  const std::unique_ptr<LayerRun> layer = filled(flags, flags.config(), {});
  const std::int64_t width = flags.heads * flags.head_dim;
  const std::int64_t per_step = std::max<std::int64_t>(
      1, std::llround(static_cast<double>(flags.chunk) / layer->mean_event_tokens()));
  MemoriaConfig config;
  config.initial_lifespan = static_cast<double>(engrams);  // steps: none is forgotten
  Memoria graph(config, width);
  std::mt19937_64 random(flags.seed);
  tools::ProgressBar bar("engrams", flags.common.quiet);
  const ProgressCallback progress = bar.callback();
  while (graph.size() < engrams) {
    graph_step(graph, random_engrams(random, per_step, width), per_step);
    progress(graph.size(), engrams);
  }
  std::vector<double> seconds, seconds_cpu, share, share_cpu;
  for (std::int64_t i = 0; i < flags.chunks; ++i) {
    const StepTimes chunk = layer->step(flags.chunk);
    const std::vector<float> vectors = random_engrams(random, per_step, width);
    const Laps::Times t = graph_step(graph, vectors, per_step);
    seconds.push_back(t.wall);
    seconds_cpu.push_back(t.cpu);
    share.push_back(1 + t.wall / chunk.wall);
    share_cpu.push_back(1 + t.cpu / chunk.cpu);
  }
  return {{"option", fmt::format("Memoria's graph, {} engrams", engrams)},
          {"beside", "one layer's chunk"},
          {"limit", 1.05},
          {"ratio", summary_with_interval(share)},
          {"ratio_cpu", summary_with_interval(share_cpu)},
          {"graph_seconds", summary(seconds)},
          {"graph_seconds_cpu", summary(seconds_cpu)},
          {"engrams_per_step", per_step},
          {"graph_bytes", graph.bytes()},
          {"event_tokens", layer->mean_event_tokens()}};
}

std::vector<Comparison> comparisons(const LayerFlags& flags) {
  LayerFlags base = flags;
  base.segmenter = "surprise";
  base.scope = "sequence";
  base.reweight = "none";
  base.retention = "none";
  const auto with = [&](std::string LayerFlags::*field, const char* value,
                        const LayerFlags& other) {
    LayerFlags changed = other;
    changed.*field = value;
    return changed;
  };
  std::vector<Comparison> all;
  all.push_back({"none (how far the figures can be trusted)", "none", base, base});
  std::vector<LayerFlags> segmented{base};
  for (const char* name : {"k_similarity", "gaussian"}) {
    LayerFlags keys = with(&LayerFlags::segmenter, name, base);
    keys.gamma = gamma_of(keys, flags.layers * flags.kv_heads);
    all.push_back(
        {fmt::format("segmenter {}", name), "the same boundaries, given", keys, keys, 1.03, true});
    segmented.push_back(keys);
  }
  for (const LayerFlags& sequence : segmented) {
    LayerFlags heads = with(&LayerFlags::scope, "head", sequence);
    if (sequence.segmenter != "surprise") heads.gamma = gamma_of(heads, 1);
    all.push_back({fmt::format("scope head, {}", sequence.segmenter), "scope sequence", heads,
                   sequence, 1.5});
  }
  LayerFlags alone = base;
  alone.contiguity = 0;  // narrow and broad choose the events themselves
  for (const char* how : {"exact", "narrow", "broad"})
    all.push_back({fmt::format("reweight {}", how), "reweight none",
                   with(&LayerFlags::reweight, how, alone), alone, 1.02});
  all.push_back({"retention memoria", "retention none",
                 with(&LayerFlags::retention, "memoria", base), base, 1.05});
  return all;
}

}  // namespace

Json option_costs(const LayerFlags& flags, std::int64_t engrams, const std::string& only) {
  Json rows = Json::array();
  const std::vector<Comparison> all = comparisons(flags);
  const auto wanted = [&](const std::string& option) {
    return option.find(only) != std::string::npos;
  };
  for (const Comparison& c : all) {
    if (&c != &all.front() && !wanted(c.option)) continue;
    if (!flags.common.quiet) fmt::print(stderr, "{}\n", c.option);
    rows.push_back(compare(c));
  }
  if (engrams > 0 && wanted("Memoria's graph"))
    rows.push_back(graph_costs(all.front().without, engrams));
  return {{"rows", rows}};
}

std::string option_table(const Json& costs) {
  std::string text =
      "| option | beside | wall, ratio | processor time, ratio | keys seen, ratio | by itself, "
      "share | limit | events, tokens (beside) |\n|---|---|---|---|---|---|---|---|\n";
  const auto range = [](const Json& s) {
    return fmt::format("{:.3f} ({:.3f} to {:.3f})", s["median"].get<double>(),
                       s["low"].get<double>(), s["high"].get<double>());
  };
  for (const Json& r : costs["rows"]) {
    const double limit = r["limit"].get<double>();
    std::string events = fmt::format("{:.1f}", r["event_tokens"].get<double>());
    if (r.contains("event_tokens_beside"))
      events += fmt::format(" ({:.1f})", r["event_tokens_beside"].get<double>());
    text += fmt::format(
        "| {} | {} | {} | {} | {} | {} | {} | {} |\n", r["option"].get<std::string>(),
        r["beside"].get<std::string>(), range(r["ratio"]), range(r["ratio_cpu"]),
        r.contains("keys_ratio") ? fmt::format("{:.3f}", r["keys_ratio"]["median"].get<double>())
                                 : "",
        r.contains("own_share")
            ? fmt::format("{:.2f} %", 100 * r["own_share"]["median"].get<double>())
            : "",
        limit > 0 ? fmt::format("{:.2f}", limit) : "", events);
  }
  return text;
}

}  // namespace episodic::bench
