// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/plan.hpp"
#include "episodic/retention/memoria.hpp"
#include "episodic/timeline/event_table.hpp"

using namespace episodic;

namespace {

EpisodicMemory filled(const MemoryConfig& config, const MemoryShape& shape, std::int64_t tokens) {
  EpisodicMemory memory(config, shape);
  const auto stream = driver::random_tokens(shape, tokens, 3);
  for (std::int64_t at = 0; at < tokens; at += config.chunk)
    driver::step(memory, stream, at, std::min(config.chunk, tokens - at));
  return memory;
}

}  // namespace

TEST_CASE("a plan says what a memory then takes", "[memory][plan]") {
  const TempDir temp;
  const MemoryShape shape = driver::small_shape(3, 4, 2, 16);
  for (const bool disk : {false, true})
    for (const DType dtype : {DType::float32, DType::bfloat16}) {
      MemoryConfig config = driver::small_config();
      config.kv_dtype = dtype;
      if (disk) config.disk_dir = temp.path().string();
      const EpisodicMemory memory = filled(config, shape, 2000);
      const MemoryCounters c = memory.counters();
      const MemoryPlan plan =
          plan_memory(config, shape, memory.tokens(), memory.events().size(), false);
      CHECK(plan.host.windows == c.window_bytes);
      CHECK(plan.host.representatives >= c.index_bytes);
      CHECK(plan.host.representatives < 2 * c.index_bytes);
      if (disk) {
        CHECK(plan.host.event_store >= c.store.bytes_reserved);
        CHECK(plan.disk.segments > 0);
      } else {
        CHECK(plan.host.event_store >= c.store.bytes_used);
        CHECK(plan.host.event_store < 1.1 * static_cast<double>(c.store.bytes_used) + 100 * 256);
        CHECK(plan.disk.total() == 0);
      }
    }
}

TEST_CASE("a plan counts what a state takes, not what its window takes in memory",
          "[memory][plan][kept]") {
  const TempDir temp;
  const MemoryShape shape = driver::small_shape(3, 4, 2, 64);
  int number = 0;
  const auto check = [&](std::int64_t tokens, DType dtype, RepresentativeScore score) {
    MemoryConfig config = driver::small_config();
    config.n_local = 400;
    config.kv_dtype = dtype;
    config.score = score;
    KeepOptions keep;
    keep.dir = temp / std::to_string(number++);
    EpisodicMemory memory = EpisodicMemory::create(keep, config, shape);
    const auto stream = driver::random_tokens(shape, tokens, 3);
    for (std::int64_t at = 0; at < tokens; at += config.chunk)
      driver::step(memory, stream, at, std::min(config.chunk, tokens - at));
    memory.commit();
    const auto bytes = static_cast<double>(memory.manifest().state.bytes);
    const MemoryPlan plan =
        plan_memory(config, shape, memory.tokens(), memory.events().size(), true, 0);
    INFO(tokens << " tokens of " << name_of(dtype) << ": " << bytes << " bytes, planned "
                << plan.disk.states);
    CHECK(static_cast<double>(plan.disk.states) > 0.95 * bytes - 3000);
    CHECK(static_cast<double>(plan.disk.states) < 1.1 * bytes + 2000);
  };
  for (const std::int64_t tokens : {20, 300, 2000})  // the window is full from some 400 on
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int8})
      check(tokens, dtype, RepresentativeScore::mean);
  check(2000, DType::float32, RepresentativeScore::max);  // its representatives lie in no file
}

TEST_CASE("a plan counts what each paper's options take", "[memory][plan]") {
  const MemoryShape shape = driver::small_shape(3, 4, 2, 16);
  const MemoryConfig plain = driver::small_config();
  const auto planned = [&](const MemoryConfig& config) {
    return plan_memory(config, shape, 2000, 200, false);
  };
  struct Case {
    const char* name;
    void (*change)(MemoryConfig&);
  };
  for (const Case& c : {
           Case{"surprise, refined", [](MemoryConfig& m) { m.refine = Refinement::modularity; }},
           Case{"k_similarity", [](MemoryConfig& m) { m.segmenter = SegmenterKind::k_similarity; }},
           Case{"gaussian in each head",
                [](MemoryConfig& m) {
                  m.segmenter = SegmenterKind::gaussian;
                  m.scope = EventScope::head;
                }},
           Case{"surprise in each head, refined",
                [](MemoryConfig& m) {
                  m.scope = EventScope::head;
                  m.refine = Refinement::conductance;
                }},
           Case{"groups of heads", [](MemoryConfig& m) { m.recall_groups = 2; }},
           Case{"exact", [](MemoryConfig& m) { m.reweight = Reweighting::exact; }},
           Case{"narrow", [](MemoryConfig& m) { m.reweight = Reweighting::narrow; }},
           Case{"broad", [](MemoryConfig& m) { m.reweight = Reweighting::broad; }},
           Case{"retention",
                [](MemoryConfig& m) {
                  m.retention.emplace().memoria.initial_lifespan = 4;
                  m.retention->memoria.n_short = m.retention->memoria.n_long = 2;
                  m.retention->memoria.alpha = 2;
                }},
       }) {
    INFO(c.name);
    MemoryConfig config = plain;
    c.change(config);
    const EpisodicMemory memory = filled(config, shape, 2000);
    const MemoryCounters counters = memory.counters();
    std::int64_t events = 0, most = 0;
    for (std::int64_t s = 0; s < memory.scopes(); ++s) {
      events += memory.events(s).size();
      most = std::max(most, memory.events(s).size());
    }
    const MemoryPlan plan = plan_memory(config, shape, memory.tokens(), most, false);
    CHECK(plan.host.windows == counters.window_bytes);
    CHECK(plan.host.representatives >= counters.index_bytes);
    CHECK(plan.host.event_store >= counters.store.bytes_used);
    CHECK(plan.host.timeline >= events * static_cast<std::int64_t>(sizeof(TokenRange)));
    CHECK(plan.host.timeline < 100 * (events + 200 * memory.scopes()) + 100'000);
    if (const Memoria* graph = memory.retention()) {
      CHECK(graph->size() < graph->total() / 2);  // it forgot
      CHECK(plan.host.graph >= graph->bytes());
      CHECK(plan.host.graph < 40 * graph->bytes());
      CHECK(plan.host.event_store < 4 * counters.store.bytes_used);
    } else {
      CHECK(plan.host.graph == 0);
    }
  }
  // What one option adds to another, by its definition: a mean and a variance of each channel.
  MemoryConfig config = plain;
  config.segmenter = SegmenterKind::k_similarity;
  const std::int64_t similarity = planned(config).host.timeline;
  config.segmenter = SegmenterKind::gaussian;
  CHECK(planned(config).host.timeline - similarity == 3 * 2 * 16 * 8);
  config = plain;
  config.scope = EventScope::head;  // six tables
  CHECK(planned(config).host.timeline == 6 * planned(plain).host.timeline);
  // A text that is longer than memory is: what is kept does not grow with it.
  config = plain;
  config.retention.emplace();
  const MemoryPlan shorter = plan_memory(config, shape, 1'000'000, 100'000, true);
  const MemoryPlan longer = plan_memory(config, shape, 4'000'000, 400'000, true);
  CHECK(longer.disk.segments == shorter.disk.segments);
  CHECK(longer.host.graph == shorter.host.graph);
  CHECK(longer.disk.tokens == 4 * shorter.disk.tokens);
}

TEST_CASE("a plan that cannot be kept is refused by the budget's name", "[memory][plan]") {
  const MemoryShape shape = driver::small_shape(3, 4, 2, 16);
  MemoryConfig config = driver::small_config();
  const auto said = [&](bool kept) {
    return refusal<BudgetError>([&] { plan_memory(config, shape, 100000, 10000, kept); });
  };
  CHECK(said(false) == "no error");
  config.host_bytes = 1 << 20;
  CHECK(mentions(said(false), "host_bytes"));
  CHECK(said(true) == "no error");
  config.host_bytes = 1000;
  CHECK(mentions(said(true), "host_bytes"));
  config.host_bytes = 0;
  config.disk_bytes = 1 << 20;
  CHECK(mentions(said(true), "disk_bytes"));
  config.disk_bytes = 0;
  config.repr_bytes = 1000;
  CHECK(mentions(said(true), "repr_bytes"));
}
