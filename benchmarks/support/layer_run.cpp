// SPDX-License-Identifier: Apache-2.0
#include "support/layer_run.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic::bench {
namespace {

constexpr std::uint64_t kGolden = 0x9e3779b97f4a7c15ull;
constexpr std::int64_t kQuantiles = 1 << 16;
constexpr std::int64_t kTokensPerTask = 16;

/// The finaliser of splitmix64: a well mixed hash of 64 bits.
std::uint64_t mix(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

std::uint64_t hash(std::uint64_t a, std::uint64_t b) { return mix(mix(a + kGolden) + b * kGolden); }

/// Newton's method outwards from the median, each quantile starting at its neighbour's.
std::vector<float> normal_quantiles() {
  std::vector<float> q(static_cast<std::size_t>(kQuantiles));
  double x = 0;
  for (std::int64_t i = kQuantiles / 2; i < kQuantiles; ++i) {
    const double above = 1.0 - (static_cast<double>(i) + 0.5) / kQuantiles;
    for (int round = 0; round < 8; ++round) {
      const double density = std::exp(-x * x / 2) / std::sqrt(2 * M_PI);
      x += (0.5 * std::erfc(x / std::sqrt(2.0)) - above) / density;
    }
    q[static_cast<std::size_t>(i)] = static_cast<float>(x);
    q[static_cast<std::size_t>(kQuantiles - 1 - i)] = static_cast<float>(-x);
  }
  return q;
}

}  // namespace

RandomInput::RandomInput(const LayerFlags& flags)
    : seed_(flags.seed),
      q_width_(flags.heads * flags.head_dim),
      kv_width_(flags.kv_heads * flags.head_dim),
      boundary_every_(flags.boundary_every),
      normal_(normal_quantiles()) {}

void RandomInput::fill(std::vector<float>& out, std::int64_t width, std::uint64_t stream,
                       std::int64_t first, std::int64_t n) const {
  out.resize(static_cast<std::size_t>(n * width));
  parallel_for((n + kTokensPerTask - 1) / kTokensPerTask, [&](std::int64_t task) {
    const std::int64_t end = std::min(n, (task + 1) * kTokensPerTask);
    for (std::int64_t i = task * kTokensPerTask; i < end; ++i) {
      const std::uint64_t row = hash(stream, static_cast<std::uint64_t>(first + i));
      float* x = out.data() + i * width;
      // 16 bits a number, four numbers a hash.
      for (std::int64_t c = 0; c < width; c += 4) {
        std::uint64_t bits = mix(row + static_cast<std::uint64_t>(c) * kGolden);
        for (std::int64_t j = c; j < std::min(c + 4, width); ++j, bits >>= 16)
          x[j] = normal_[bits & (kQuantiles - 1)];
      }
    }
  });
}

void RandomInput::draw(std::int64_t layer, std::int64_t first, std::int64_t n) {
  const std::uint64_t stream = hash(seed_, static_cast<std::uint64_t>(layer));
  fill(q, q_width_, stream + 1, first, n);
  fill(k, kv_width_, stream + 2, first, n);
  fill(v, kv_width_, stream + 3, first, n);
}

void RandomInput::draw_surprise(std::int64_t first, std::int64_t n) {
  surprise.resize(static_cast<std::size_t>(n));
  const std::uint64_t stream = hash(seed_, ~std::uint64_t{0});
  for (std::int64_t i = 0; i < n; ++i) {
    const std::uint64_t bits = hash(stream, static_cast<std::uint64_t>(first + i));
    const bool boundary = (bits >> 32) % static_cast<std::uint64_t>(boundary_every_) == 0;
    surprise[static_cast<std::size_t>(i)] =
        boundary ? 10.0f : static_cast<float>(bits & 0xffffff) / 16777216.0f;
  }
}

double StepWork::flops(const LayerFlags& f) const {
  return 4.0 * static_cast<double>(f.heads * f.head_dim) * keys_seen;
}

double StepWork::flops_listed(const LayerFlags& f) const {
  return 4.0 * static_cast<double>(f.heads * f.head_dim) * keys_listed;
}

double StepWork::kv_bytes(const LayerFlags& f) const {
  const double element = f.dtype == "bfloat16" ? 2 : 4;
  return 2.0 * static_cast<double>(f.kv_heads * f.head_dim) *
         (4.0 * (tokens_attended - event_tokens) + element * event_tokens);
}

LayerRun::LayerRun(const LayerFlags& flags, const MemoryConfig& config,
                   std::vector<std::int64_t> given)
    : flags_(flags), memory_(config, flags.shape(), std::move(given)), input_(flags) {}

double LayerRun::fill(std::int64_t tokens) {
  tools::ProgressBar bar("filling", flags_.common.quiet);
  const ProgressCallback progress = bar.callback();
  double seconds = 0;
  for (std::int64_t done = 0; done < tokens;) {
    const std::int64_t n = std::min(flags_.chunk, tokens - done);
    seconds += step(n).wall * static_cast<double>(flags_.layers);
    done += n;
    progress(done, tokens);
  }
  return seconds;
}

StepTimes LayerRun::step(std::int64_t n) {
  const std::int64_t first = memory_.tokens();
  std::vector<std::int64_t> pending;  // by scope, before the step
  std::int64_t events = 0;
  for (std::int64_t s = 0; s < memory_.scopes(); ++s) {
    pending.push_back(memory_.events(s).pending_start());
    events += memory_.events(s).size();
  }
  events /= memory_.scopes();
  const auto before = memory_.counters().seconds;
  out_.resize(static_cast<std::size_t>(n * flags_.heads * flags_.head_dim));
  input_.draw_surprise(first, n);
  StepTimes t;
  Laps laps;
  const auto count = [&](Laps::Times passed) {
    t.wall += passed.wall;
    t.cpu += passed.cpu;
  };
  memory_.begin_step(n);
  count(laps.lap());
  for (std::int64_t l = 0; l < flags_.layers; ++l) {
    input_.draw(l, first, n);
    laps.lap();
    memory_.attend(l, input_.q.data(), input_.k.data(), input_.v.data(), out_.data());
    count(laps.lap());
  }
  memory_.end_step(input_.surprise.data());
  count(laps.lap());

  const auto after = memory_.counters().seconds;
  const auto layers = static_cast<double>(flags_.layers);
  t.wall /= layers;
  t.cpu /= layers;
  t.recall = (after.recall - before.recall) / layers;
  t.attend = (after.attend - before.attend) / layers;
  t.append = (after.append - before.append) / layers;
  t.close = (after.close - before.close) / layers;
  t.refine = (after.refine - before.refine) / layers;
  t.store = (after.store - before.store) / layers;
  count_work(first, n, pending, events);
  const std::vector<std::uint8_t>& flags = memory_.last_step().raw_boundaries;
  for (std::size_t i = 0; i < flags.size(); ++i)
    if (flags[i]) raw_boundaries_.push_back(first + static_cast<std::int64_t>(i));
  return t;
}

void LayerRun::count_work(std::int64_t first, std::int64_t n,
                          const std::vector<std::int64_t>& pending_starts,
                          std::int64_t events_before) {
  // Tokens outside the window of the last query, hence seen at the fixed position by some query.
  const std::int64_t outside = std::max<std::int64_t>(0, first + n - flags_.n_local);
  const std::int64_t sinks = std::min(flags_.n_init, outside);
  const std::int64_t local = first + n - std::max<std::int64_t>(0, first + 1 - flags_.n_local);
  const std::int64_t window_start = std::max<std::int64_t>(0, first + 1 - flags_.n_local);
  work_ = {};
  for (std::int64_t lane = 0; lane < memory_.lanes(); ++lane) {
    const std::int64_t scope = memory_.scopes() > 1 ? lane : 0;
    const std::int64_t pending_start = pending_starts[static_cast<std::size_t>(scope)];
    const std::int64_t waiting = std::max<std::int64_t>(0, outside - pending_start);
    std::int64_t event_tokens = 0;
    for (const EventId e : memory_.recalled(lane).recalled()) {
      event_tokens += memory_.events(scope)[e].size();
      work_.recalled_events += 1;
    }
    double seen = 0;  // without events
    for (std::int64_t p = first; p < first + n; ++p) {
      const std::int64_t left = std::max<std::int64_t>(0, p + 1 - flags_.n_local);
      seen += static_cast<double>(std::min(p + 1, flags_.n_local) + std::min(flags_.n_init, left) +
                                  std::max<std::int64_t>(0, left - pending_start));
    }
    work_.event_tokens += static_cast<double>(event_tokens);
    work_.keys_seen += seen + static_cast<double>(n * event_tokens);
    work_.keys_listed += static_cast<double>(n * (sinks + waiting + local + event_tokens));
    // The window and what waits behind it are one run of tokens; sinks inside it count once.
    const std::int64_t from = waiting > 0 ? std::min(window_start, pending_start) : window_start;
    work_.tokens_attended +=
        static_cast<double>(first + n - from + std::min(sinks, from) + event_tokens);
  }
  // A lane's keys are those of its share of the heads.
  const auto lanes = static_cast<double>(memory_.lanes());
  for (double* mean :
       {&work_.event_tokens, &work_.keys_seen, &work_.keys_listed, &work_.tokens_attended})
    *mean /= lanes;
  work_.recalled_events /= lanes;
  work_.representative_bytes =
      static_cast<double>(events_before * flags_.heads * flags_.head_dim) * 4.0;
}

double LayerRun::mean_event_tokens() const {
  std::int64_t tokens = 0, events = 0;
  for (std::int64_t s = 0; s < memory_.scopes(); ++s) {
    tokens += memory_.events(s).tokens();
    events += memory_.events(s).size();
  }
  return events > 0 ? static_cast<double>(tokens) / static_cast<double>(events) : 0.0;
}

Json LayerRun::state_json() const {
  const MemoryCounters c = memory_.counters();
  const auto tokens = static_cast<double>(memory_.tokens());
  return {{"tokens", memory_.tokens()},
          {"events", c.events},
          {"mean_event_tokens", mean_event_tokens()},
          {"tokens_per_raw_boundary",
           raw_boundaries_.empty() ? 0.0 : tokens / static_cast<double>(raw_boundaries_.size())},
          {"recalled_events_per_layer_step", work_.recalled_events},
          {"keys_per_query", work_.keys_seen / static_cast<double>(memory_.last_step().n)},
          {"window_bytes", c.window_bytes},
          {"index_bytes", c.index_bytes},
          {"store_bytes_used", c.store.bytes_used},
          {"store_bytes_reserved", c.store.bytes_reserved},
          {"peak_resident_bytes", tools::peak_resident_bytes()}};
}

void LayerRun::check_output() const {
  for (const float x : out_)
    if (!std::isfinite(x))
      throw DataError(fmt::format("attention gave {} at {} tokens: the figures would mean nothing",
                                  x, memory_.tokens()));
}

Json parts_json(const std::vector<StepTimes>& steps) {
  Json parts;
  double known = 0;
  const auto add = [&](const char* name, double StepTimes::*member) {
    std::vector<double> values;
    for (const StepTimes& t : steps) values.push_back(t.*member);
    const double m = median(values);
    parts[name] = m;
    return m;
  };
  known += add("recall", &StepTimes::recall);
  known += add("attend", &StepTimes::attend);
  known += add("append", &StepTimes::append);
  known += add("close", &StepTimes::close);
  known += add("refine", &StepTimes::refine);
  known += add("store", &StepTimes::store);
  std::vector<double> walls;
  for (const StepTimes& t : steps) walls.push_back(t.wall);
  parts["other"] = std::max(0.0, median(walls) - known);
  return parts;
}

}  // namespace episodic::bench
