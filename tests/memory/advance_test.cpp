// SPDX-License-Identifier: Apache-2.0
// What another memory computed, taken over: a second memory of the host stands for the one
// elsewhere.
#include <algorithm>
#include <cstring>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/retention/memoria.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;

namespace advance_test {

void feed(EpisodicMemory& memory, const std::vector<driver::Token>& tokens, std::int64_t end) {
  while (memory.tokens() < end)
    driver::step(memory, tokens, memory.tokens(),
                 std::min(memory.config().chunk, end - memory.tokens()));
}

/// Closed events of each scope.
std::vector<std::int64_t> counts(const EpisodicMemory& memory) {
  std::vector<std::int64_t> all;
  for (std::int64_t s = 0; s < memory.scopes(); ++s) all.push_back(memory.events(s).size());
  return all;
}

/// All that `from` has behind the shared part.
MemoryAdvance advance_of(const EpisodicMemory& from, const std::vector<std::int64_t>& shared_events,
                         std::int64_t shared_tokens) {
  MemoryAdvance a;
  a.state = from.state();
  a.shared_events = shared_events;
  a.shared_tokens = shared_tokens;
  for (std::int64_t s = 0; s < from.scopes(); ++s) {
    const auto& all = from.events(s).all();
    a.events.emplace_back(all.begin() + shared_events[static_cast<std::size_t>(s)], all.end());
  }
  a.read = [&from, block = std::vector<std::byte>(), keys = std::vector<float>(),
            values = std::vector<float>()](EventId e, std::int64_t slot, float* mean,
                                           float* each) mutable -> RingView {
    const MemoryShape& s = from.shape();
    const std::int64_t per_layer = from.lanes() / s.n_layers, heads = s.n_kv_heads / per_layer;
    const auto& layers = from.config().recall_layers;
    const std::int64_t place = slot / per_layer;
    const std::int64_t lane =
        (layers ? (*layers)[static_cast<std::size_t>(place)] : place) * per_layer +
        slot % per_layer;
    const std::int64_t scope = from.scopes() > 1 ? lane : 0;
    const TokenRange range = from.events(scope)[e];
    const std::int64_t n = range.size(), d = s.head_dim, half = heads * n * d;
    block.assign(static_cast<std::size_t>(2 * half * 4), std::byte{0});
    const auto& gone = from.forgotten(scope);
    const bool is_gone = std::binary_search(gone.begin(), gone.end(), e);
    if (!is_gone) from.read_events(e, e + 1, slot, [&](EventId) { return block.data(); });
    keys.resize(static_cast<std::size_t>(half));
    values.resize(keys.size());
    for (std::int64_t g = 0; g < heads; ++g)
      for (std::int64_t t = 0; t < n; ++t) {
        const auto to = static_cast<std::size_t>((g * n + (range.start + t) % n) * d);
        const auto at = static_cast<std::size_t>(((g * n + t) * d) * 4);
        std::memcpy(&keys[to], &block[at], static_cast<std::size_t>(d) * 4);
        std::memcpy(&values[to], &block[at + static_cast<std::size_t>(half) * 4],
                    static_cast<std::size_t>(d) * 4);
      }
    if (is_gone) {
      std::fill_n(mean, s.n_heads / per_layer * d, 0.0f);
    } else {
      const std::vector<float> r = from.representative(lane, e);
      std::copy(r.begin(), r.end(), mean);
      const std::vector<float> all = from.individual_representatives(lane, e);
      CHECK((each != nullptr) == !all.empty());
      std::copy(all.begin(), all.end(), each);
    }
    return {keys.data(), values.data(), n, n * d, d};
  };
  return a;
}

KeepOptions in(const std::filesystem::path& dir) {
  KeepOptions keep;
  keep.dir = dir;
  keep.identity = {"tiny", "w", "t"};
  return keep;
}

TEST_CASE("a memory that takes over a twin's steps is as if it had made them",
          "[memory][advance]") {
  std::vector<MemoryConfig> configs(11, small_config());
  configs[1].contiguity = 0.3;
  configs[1].refine = Refinement::modularity;
  configs[2].segmenter = SegmenterKind::fixed;
  configs[3].recall_layers = {{1}};
  configs[4].recall = false;
  configs[5].recall_groups = 2;
  configs[6].scope = EventScope::head;
  configs[6].refine = Refinement::modularity;
  configs[7].scope = EventScope::head;
  configs[7].segmenter = SegmenterKind::gaussian;
  configs[7].gamma = 0.5;
  configs[7].recall_layers = {{1}};
  configs[8].retention.emplace().memoria.initial_lifespan = 4;
  configs[8].retention->memoria.short_term_capacity = 6;
  configs[9].score = RepresentativeScore::max;
  configs[9].n_repr = 5;  // more than some events have tokens
  configs[10].score = RepresentativeScore::max;
  configs[10].scope = EventScope::head;
  const auto tokens = random_tokens(small_shape(), 400, 3);
  for (const MemoryConfig& config : configs) {
    const TempDir temp;
    EpisodicMemory twin(config, small_shape());
    EpisodicMemory kept = EpisodicMemory::create(in(temp / "kept"), config, small_shape());
    EpisodicMemory itself = EpisodicMemory::create(in(temp / "itself"), config, small_shape());
    std::vector<std::int64_t> events(static_cast<std::size_t>(twin.scopes()), 0);
    std::int64_t read = 0;
    for (const std::int64_t end : {1, 12, 150, 151, 300}) {
      feed(twin, tokens, end);
      feed(itself, tokens, end);
      kept.advance(advance_of(twin, events, read));
      for (const EventId e : config.retention ? twin.forgotten() : std::vector<EventId>())
        kept.forget(e);
      kept.commit();
      if (config.retention) itself.commit();  // which forgets what is due
      CHECK(kept.tokens() == end);
      CHECK(kept.digest() == itself.digest());
      events = counts(twin), read = end;
    }
    // and it goes on by itself, also opened anew
    const std::uint64_t digest = kept.digest();
    { EpisodicMemory gone = std::move(kept); }
    EpisodicMemory again = EpisodicMemory::open(in(temp / "kept"), OpenMode::write);
    CHECK(again.digest() == digest);
    feed(again, tokens, 400);
    feed(itself, tokens, 400);
    CHECK(again.digest() == itself.digest());
  }
}

TEST_CASE("a twin may have gone back behind what was taken over", "[memory][advance]") {
  const auto tokens = random_tokens(small_shape(), 400, 3),
             other = random_tokens(small_shape(), 400, 4);
  const TempDir temp;
  EpisodicMemory twin(small_config(), small_shape());
  EpisodicMemory kept = EpisodicMemory::create(in(temp / "kept"), small_config(), small_shape());
  feed(twin, tokens, 96);
  const auto snapshot = twin.snapshot();
  const std::vector<std::int64_t> events = counts(twin);
  feed(twin, tokens, 200);
  kept.advance(advance_of(twin, {0}, 0));
  kept.commit();
  twin.restore(*snapshot);
  feed(twin, other, 240);
  kept.advance(advance_of(twin, events, 96));
  kept.commit();
  EpisodicMemory itself =
      EpisodicMemory::create(in(temp / "itself"), small_config(), small_shape());
  feed(itself, tokens, 96);
  feed(itself, other, 240);
  CHECK(kept.digest() == itself.digest());
  // The state at 200 tokens tells of what was given up; nothing brings it back.
  for (const auto& s : kept.manifest().checkpoints) CHECK(s.tokens <= 96);
  CHECK(verify_memory(temp / "kept").damages.empty());
}

TEST_CASE("states kept before the sequence went back are not offered", "[memory][kept]") {
  const auto tokens = random_tokens(small_shape(), 400, 3),
             other = random_tokens(small_shape(), 400, 4);
  const TempDir temp;
  EpisodicMemory memory = EpisodicMemory::create(in(temp / "m"), small_config(), small_shape());
  feed(memory, tokens, 96);
  memory.commit();
  const auto snapshot = memory.snapshot();
  feed(memory, tokens, 200);
  memory.commit();
  memory.restore(*snapshot);
  feed(memory, other, 300);
  memory.commit();
  std::vector<std::int64_t> offered;
  for (const auto& s : memory.manifest().checkpoints) offered.push_back(s.tokens);
  CHECK((offered == std::vector<std::int64_t>{0, 96}));
  memory.reset();
  feed(memory, other, 310);
  memory.commit();
  offered.clear();
  for (const auto& s : memory.manifest().checkpoints) offered.push_back(s.tokens);
  CHECK((offered == std::vector<std::int64_t>{0}));
}

TEST_CASE("what cannot follow is refused and changes nothing", "[memory][advance]") {
  const auto tokens = random_tokens(small_shape(), 200, 3);
  EpisodicMemory twin(small_config(), small_shape()), memory(small_config(), small_shape());
  feed(twin, tokens, 200);
  feed(memory, tokens, 60);
  const std::uint64_t before = memory.digest();
  const auto refused = [&](auto change) {
    MemoryAdvance a = advance_of(twin, counts(memory), 60);
    change(a);
    CHECK_THROWS_AS(memory.advance(a), DataError);
    CHECK(memory.digest() == before);
  };
  refused([](MemoryAdvance& a) { a.shared_tokens = 61; });
  refused([](MemoryAdvance& a) { a.shared_events.front() += 1; });
  refused([](MemoryAdvance& a) { a.shared_events.push_back(0); });
  refused([](MemoryAdvance& a) { a.events.emplace_back(); });
  refused([](MemoryAdvance& a) { a.state.layers[1].lanes.pop_back(); });
  refused([](MemoryAdvance& a) { a.state.tokens = 12; });
  refused([](MemoryAdvance& a) { a.state.layers.pop_back(); });
  refused([](MemoryAdvance& a) { a.state.layers[1].keys.pop_back(); });
  refused([](MemoryAdvance& a) { a.state.scopes.front().final_flags.pop_back(); });
  refused([](MemoryAdvance& a) { a.state.recent_surprise.pop_back(); });
  refused([](MemoryAdvance& a) { a.ids = {1, 2, 3}; });
  refused([](MemoryAdvance& a) { a.events.front().front().end += 1; });
  memory.advance(advance_of(twin, counts(memory), 60));
  CHECK(memory.digest() == twin.digest());
}

TEST_CASE("of heads a twin shares the events of one moment, which a store can go back to",
          "[memory][advance][lanes]") {
  const auto tokens = random_tokens(small_shape(), 400, 3);
  MemoryConfig config = small_config();
  config.scope = EventScope::head;
  config.segmenter = SegmenterKind::k_similarity;
  config.gamma = 0.5;
  EpisodicMemory twin(config, small_shape()), memory(config, small_shape()),
      itself(config, small_shape());
  feed(twin, tokens, 100);
  feed(itself, tokens, 100);
  const std::vector<std::int64_t> then = counts(twin);
  feed(twin, tokens, 200);
  memory.advance(advance_of(twin, std::vector<std::int64_t>(4, 0), 0));
  feed(itself, tokens, 200);
  CHECK(memory.digest() == itself.digest());
  const std::vector<std::int64_t> now = counts(memory);
  feed(twin, tokens, 300);
  // Within what came at once a store has lane behind lane, and cannot be cut.
  CHECK_THROWS_AS(memory.advance(advance_of(twin, then, 100)), DataError);
  CHECK(memory.digest() == itself.digest());
  memory.advance(advance_of(twin, now, 200));
  feed(itself, tokens, 300);
  CHECK(memory.digest() == itself.digest());
  // All of it anew may always come.
  memory.advance(advance_of(twin, std::vector<std::int64_t>(4, 0), 100));
  CHECK(memory.digest() == itself.digest());
}

TEST_CASE("a store without room leaves the memory as it was", "[memory][advance]") {
  const auto tokens = random_tokens(small_shape(), 400, 3);
  MemoryConfig config = small_config();
  EpisodicMemory twin(config, small_shape());
  config.host_bytes = 40000;
  EpisodicMemory memory(config, small_shape());
  feed(twin, tokens, 60);
  memory.advance(advance_of(twin, {0}, 0));
  const std::uint64_t before = memory.digest();
  const std::vector<std::int64_t> events = counts(memory);
  feed(twin, tokens, 400);
  CHECK_THROWS_AS(memory.advance(advance_of(twin, events, 60)), BudgetError);
  CHECK(memory.digest() == before);
  CHECK(counts(memory) == events);
  feed(memory, tokens, 80);  // it goes on
}

TEST_CASE("a twin's retention is taken over whole or not at all", "[memory][advance][retention]") {
  const auto tokens = random_tokens(small_shape(), 400, 3);
  MemoryConfig config = small_config();
  config.retention.emplace().memoria.initial_lifespan = 50;
  EpisodicMemory twin(config, small_shape());
  config.host_bytes = 40000;
  EpisodicMemory memory(config, small_shape());
  feed(twin, tokens, 60);
  MemoryAdvance early = advance_of(twin, {0}, 0);
  memory.advance(early);
  const std::vector<std::int64_t> events = counts(memory);
  REQUIRE(memory.retention()->total() > 1);
  REQUIRE(events.front() >= memory.retention()->total());
  CHECK(memory.retention()->total() == twin.retention()->total());
  CHECK(memory.retention()->short_term() == twin.retention()->short_term());
  feed(twin, tokens, 400);
  const std::uint64_t before = memory.digest();
  MemoryAdvance damaged = advance_of(twin, events, 60);
  damaged.state.retention.pop_back();
  CHECK_THROWS_AS(memory.advance(damaged), FileError);
  early.state.retention = twin.state().retention;
  CHECK_THROWS_AS(memory.advance(early), FileError);  // of events that are not there
  CHECK_THROWS_AS(memory.advance(advance_of(twin, events, 60)), BudgetError);
  CHECK(memory.digest() == before);
  // What the twin has gone back behind is gone; the graph has no more events than the table.
  CHECK_THROWS_AS(memory.advance(advance_of(twin, {1}, 60)), BudgetError);
  CHECK(counts(memory).front() == 1);
  CHECK(memory.retention()->total() == 1);
  CHECK(memory.retention()->short_term() == std::vector<EventId>{0});
  feed(memory, tokens, 80);
  CHECK(memory.retention()->total() > 1);
  CHECK(memory.retention()->total() <= counts(memory).front());
}

TEST_CASE("a memory over a base takes over a twin's steps, and goes back behind them",
          "[memory][advance][share]") {
  const auto tokens = random_tokens(small_shape(), 400, 31),
             others = random_tokens(small_shape(), 400, 32);
  MemoryConfig config = small_config();
  config.contiguity = 0.3;
  EpisodicMemory read(config, small_shape());
  feed(read, tokens, 150);
  const auto base = read.share();
  EpisodicMemory memory(base), twin(base);
  feed(memory, tokens, 180);
  feed(twin, tokens, 180);
  const auto snapshot = memory.snapshot();
  const std::uint64_t then = memory.digest();
  const std::vector<std::int64_t> shared = counts(memory);
  for (const auto* text : {&tokens, &others}) {
    feed(twin, *text, 300);
    memory.advance(advance_of(twin, shared, 180));
    CHECK(memory.digest() == twin.digest());
    feed(memory, *text, 340);
    feed(twin, *text, 340);
    CHECK(memory.digest() == twin.digest());
    // The whole window was replaced since.
    memory.restore(*snapshot);
    CHECK(memory.digest() == then);
    EpisodicMemory again(base);
    feed(again, tokens, 180);
    twin = std::move(again);
  }
  feed(memory, tokens, 400);
  feed(twin, tokens, 400);
  CHECK(memory.digest() == twin.digest());
}

}  // namespace advance_test
