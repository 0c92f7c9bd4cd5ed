// SPDX-License-Identifier: Apache-2.0
// What the header-only core decides. Compiled twice: with headers alone and nothing but the
// standard library (standard_only.hpp), and against the compiled library. check_decisions.py gives
// both the same cases and compares what they print, with each other and with what the case expects.
//
// usage: decisions < CASE
//   CASE: words and numbers, "NAME COUNT VALUE..." for each input; "kind 1 K" says which of the
//   functions below reads them. Prints "NAME VALUE..." lines; "~NAME": equal but for rounding.
#include <cstdio>
#include <iostream>
#include <span>
#include <string>
#include <vector>

#include "case.hpp"
#include "episodic/core.hpp"
#include "memory_cases.hpp"

namespace {

using namespace decisions;

// -- kind 0: given surprise or boundaries, step by step -------------------------------------------

void run_timeline(const Case& test) {
  MemoryConfig config;
  config.n_init = test.integer("n_init");
  config.n_local = test.integer("n_local");
  config.min_block = test.integer("min_block");
  config.max_block = test.integer("max_block");
  config.gamma = test.number("gamma");
  config.tau = test.integer("tau");
  config.window = test.integer("chunked") ? ThresholdWindow::chunked : ThresholdWindow::moving;
  const Ints given = test.integers("boundaries");
  config.segmenter = given.empty() ? SegmenterKind::surprise : SegmenterKind::given;
  config.validate();
  const Floats surprise = test.floats("surprise");
  Timeline timeline(config, {}, static_cast<std::int64_t>(surprise.size()), given);
  Ints raw, closed_before;
  std::int64_t first = 0;
  for (const std::int64_t n : test.integers("steps")) {
    timeline.begin(n, StepKind::decode);
    timeline.read(surprise.data() + first);
    timeline.decide({});
    timeline.commit();
    first += n;
    const StepRecord& step = timeline.last_step();
    raw.insert(raw.end(), step.raw_boundaries.begin(), step.raw_boundaries.end());
    closed_before.push_back(step.events_before);
  }
  print("raw_boundaries", raw);
  print("events_before", closed_before);
  print_events("events", timeline.events());
}

// -- kind 1: boundaries from keys (HEM 2.2, 2.4) --------------------------------------------------

void run_keys(const Case& test) {
  const Ints shape = test.integers("shape");  // tokens, layers, heads, channels
  const std::int64_t n = shape[0], layers = shape[1], heads = shape[2], d = shape[3];
  const Floats keys = test.floats("keys");
  MemoryConfig config;
  config.n_init = test.integer("n_init");
  config.min_block = test.integer("min_block");
  config.max_block = test.integer("max_block");
  config.gamma = test.number("gamma");
  config.min_count = test.integer("min_count");
  config.var_floor = test.number("var_floor");
  config.segmenter =
      test.integer("gaussian") ? SegmenterKind::gaussian : SegmenterKind::k_similarity;
  config.scope = test.integer("by_head") ? EventScope::head : EventScope::sequence;
  config.validate();
  Timeline timeline(config, {layers, heads, d}, n);
  std::vector<KeyRing> rings;
  for (std::int64_t l = 0; l < layers; ++l)
    rings.push_back({keys.data() + l * heads * d, n, d, layers * heads * d});
  const Floats surprise(static_cast<std::size_t>(n));  // looked at by no key segmenter
  std::vector<Ints> flags(static_cast<std::size_t>(timeline.scopes()));
  constexpr std::int64_t kStep = 24;
  for (std::int64_t first = 0; first < n; first += kStep) {
    timeline.begin(std::min(kStep, n - first), StepKind::prompt);
    timeline.read(surprise.data() + first);
    timeline.decide(rings);
    timeline.commit();
    for (std::int64_t s = 0; s < timeline.scopes(); ++s) {
      const auto& raw = timeline.last_step(s).raw_boundaries;
      Ints& all = flags[static_cast<std::size_t>(s)];
      all.insert(all.end(), raw.begin(), raw.end());
    }
  }
  for (std::size_t s = 0; s < flags.size(); ++s) {
    EventTable events(config.n_init, config.min_block, config.max_block);
    events.close_up_to(n, [&](std::int64_t t) { return flags[s][static_cast<std::size_t>(t)]; });
    print("boundaries" + std::to_string(s), flags[s]);
    print_events("events" + std::to_string(s), events);
  }
}

// -- kind 2: reweighted attention over events in place (EpMAN 3.2) --------------------------------

void run_reweighted(const Case& test) {
  const Ints shape = test.integers("shape");  // queries, heads, kv heads, channels
  const std::int64_t n = shape[0], heads = shape[1], kv_heads = shape[2], d = shape[3];
  const std::int64_t start = test.integer("start"), n_local = test.integer("n_local");
  const Floats q = test.floats("q"), k = test.floats("k"), v = test.floats("v");
  const Floats reader = test.floats("query_encoding"), encodings = test.floats("event_encodings");
  const Ints bounds = test.integers("events");

  Floats score;
  for (std::size_t at = 0; at < encodings.size(); at += reader.size())
    score.push_back(relevance_score(reader, std::span(encodings).subspan(at, reader.size())));
  const auto present =
      reweighted_events(static_cast<Reweight>(test.integer("mode")), test.integer("top_k"), score);

  const RotaryTable table = plain_rotary(d, test.number("rope_theta"));
  RotaryAngles all, fixed;
  all.compute(table, 0, start + n);
  fixed.compute_fixed(table, n_local);
  Floats rotated(k.size()), relative(q.size()), same(q.size());
  rotate(table, all.rows(), {k.data(), {start + n, kv_heads, d}},
         {rotated.data(), {start + n, kv_heads, d}});
  AttendWorkspace workspace;
  rotate_queries(table, all.rows(start, n), fixed.rows(), {q.data(), {n, heads, d}},
                 {relative.data(), same.data(), nullptr}, workspace);

  std::vector<KvSegment> list;
  const auto add = [&](std::int64_t begin, std::int64_t end, Position position, float weight) {
    KvSegment s;
    s.key = (position == Position::fixed ? k : rotated).data() + begin * kv_heads * d;
    s.value = v.data() + begin * kv_heads * d;
    s.length = end - begin;
    s.first_token = begin;
    s.head_stride = d;
    s.row_stride = kv_heads * d;
    s.position = position;
    s.value_weight = weight;
    list.push_back(s);
  };
  add(0, test.integer("n_init"), Position::fixed, 1.0f);
  Ints numbers;
  for (const WeightedEvent& e : present) {
    const auto at = static_cast<std::size_t>(2 * e.event);
    add(bounds[at], bounds[at + 1], Position::fixed, e.value_weight);
    numbers.push_back(e.event);
  }
  add(bounds.back(), start + n, Position::fixed, 1.0f);  // pending
  add(std::max<std::int64_t>(0, start - n_local + 1), start + n, Position::relative, 1.0f);

  const std::span<const KvSegment> lists[] = {list};
  Floats out(q.size()), mass(static_cast<std::size_t>(n * heads));
  AttendOutput output;
  const TensorSizes sizes{n, heads, d};
  output.out = {out.data(), sizes};
  output.weighted_mass = mass.data();
  attend({.n_queries = n,
          .n_heads = heads,
          .n_kv_heads = kv_heads,
          .head_dim = d,
          .first_position = start,
          .n_local = n_local},
         {{relative.data(), sizes}, {same.data(), sizes}, lists}, output, workspace);
  print("present", numbers);
  print("~score", score);
  print("~out", out);
  print("~mass", mass);
}

void run(const Case& test) {
  switch (test.integer("kind")) {
    case 0:
      return run_timeline(test);
    case 1:
      return run_keys(test);
    case 2:
      return run_reweighted(test);
    case 3:
      return run_sequence(test);
    case 4:
      return run_model(test);
    default:
      throw DataError("case: unknown kind");
  }
}

}  // namespace

int main() {
  try {
    run(Case(std::cin));
  } catch (const episodic::Error& e) {
    std::fprintf(stderr, "decisions: %s\n", e.what());
    return 1;
  }
  return 0;
}
