// SPDX-License-Identifier: Apache-2.0
// Lanes: key/value heads, or groups of them, with events or recall of their own. The oracle is a
// memory for each lane that knows of nothing else.
#include <algorithm>
#include <cmath>
#include <functional>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"
#include "support/compare.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace driver;

namespace {

double largest_difference(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i)
    worst = worse_of(worst, std::fabs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  return worst;
}

/// The heads of one lane of one layer, as if the model had no others.
std::vector<Token> only(const std::vector<Token>& tokens, const MemoryShape& s, std::int64_t layer,
                        std::int64_t group, std::int64_t groups) {
  const auto part = [&](const std::vector<float>& x, std::int64_t heads) {
    const std::int64_t width = heads / groups * s.head_dim;
    return std::vector<float>(x.begin() + group * width, x.begin() + (group + 1) * width);
  };
  std::vector<Token> out;
  for (const Token& t : tokens) {
    Token& one = out.emplace_back();
    const auto l = static_cast<std::size_t>(layer);
    one.q = {part(t.q[l], s.n_heads)};
    one.k = {part(t.k[l], s.n_kv_heads)};
    one.v = {part(t.v[l], s.n_kv_heads)};
    one.surprise = t.surprise;
  }
  return out;
}

/// Feeds both the memory of all lanes and one for each; they must agree in everything.
void check_against_single(const MemoryConfig& config, const MemoryShape& shape,
                          std::int64_t n_tokens, std::uint32_t seed) {
  const auto tokens = random_tokens(shape, n_tokens, seed);
  const std::int64_t groups = config.lanes_per_layer(shape.n_kv_heads);
  EpisodicMemory memory(config, shape);
  REQUIRE(memory.lanes() == shape.n_layers * groups);
  MemoryConfig alone = config;
  alone.scope = EventScope::sequence;
  alone.recall_groups = 1;
  const MemoryShape narrow{1, shape.n_heads / groups, shape.n_kv_heads / groups, shape.head_dim,
                           shape.rotary};
  std::vector<EpisodicMemory> singles;
  std::vector<std::vector<Token>> parts;
  for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
    singles.emplace_back(alone, narrow);
    parts.push_back(only(tokens, shape, lane / groups, lane % groups, groups));
  }
  std::int64_t recalled = 0;
  bool lists_differ = false;
  for (std::int64_t at = 0; at < n_tokens;) {
    const std::int64_t n = at % 60 >= 48 ? 1 : std::min(config.chunk, n_tokens - at);
    const auto out = step(memory, tokens, at, n);
    for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
      const auto s = static_cast<std::size_t>(lane);
      const auto one = step(singles[s], parts[s], at, n);
      const std::int64_t scope = memory.scopes() > 1 ? lane : 0;
      REQUIRE(memory.events(scope).all() == singles[s].events().all());
      REQUIRE(memory.recalled(lane).similarity() == singles[s].recalled(0).similarity());
      REQUIRE(memory.recalled(lane).contiguity() == singles[s].recalled(0).contiguity());
      recalled += static_cast<std::int64_t>(memory.recalled(lane).recalled().size());
      lists_differ |= memory.recalled(lane).recalled() != memory.recalled(0).recalled();
      const std::int64_t width = narrow.n_heads * shape.head_dim;
      const auto& layer = out[static_cast<std::size_t>(lane / groups)];
      std::vector<float> heads;
      for (std::int64_t i = 0; i < n; ++i) {
        const float* row =
            layer.data() + i * shape.n_heads * shape.head_dim + lane % groups * width;
        heads.insert(heads.end(), row, row + width);
      }
      REQUIRE(largest_difference(heads, one.front()) < 1e-5);
      for (EventId e = 0; e < memory.events(scope).size(); e += 7)
        REQUIRE(largest_difference(memory.representative(lane, e),
                                   singles[s].representative(0, e)) < 1e-6);
    }
    at += n;
  }
  REQUIRE(recalled > 100);
  REQUIRE(lists_differ);
}

MemoryConfig head_config(SegmenterKind kind) {
  MemoryConfig c = small_config();
  c.segmenter = kind;
  c.scope = EventScope::head;
  c.gamma = 0.5;
  c.contiguity = 0.3;
  return c;
}

}  // namespace

TEST_CASE("each head's events, recall and attention are those of a memory of that head alone",
          "[memory][lanes]") {
  for (const auto kind :
       {SegmenterKind::k_similarity, SegmenterKind::gaussian, SegmenterKind::surprise}) {
    MemoryConfig c = head_config(kind);
    if (kind == SegmenterKind::surprise) c.refine = Refinement::modularity;  // by the head's keys
    check_against_single(c, small_shape(2, 6, 3, 10), 12 * 20, 3);
  }
  // Stored with a scale for each head, and one layer that does not recall.
  MemoryConfig c = head_config(SegmenterKind::k_similarity);
  for (const DType dtype : {DType::int8, DType::fp8}) {
    c.kv_dtype = dtype;
    check_against_single(c, small_shape(1, 4, 4, 6), 12 * 20, 4);
  }
}

TEST_CASE("groups of heads recall by themselves", "[memory][lanes]") {
  for (const std::int64_t groups : {2, 4}) {
    MemoryConfig c = small_config();
    c.recall_groups = groups;
    c.contiguity = 0.2;
    check_against_single(c, small_shape(2, 8, 4, 6), 12 * 20, 5);
  }
  MemoryConfig c = small_config();
  c.recall_groups = 3;
  REQUIRE(mentions(refusal<ConfigError>([&] { EpisodicMemory(c, small_shape()); }),
                   "recall_groups = 3"));
}

TEST_CASE("heads with events of their own live in a folder, in tiers and in snapshots",
          "[memory][lanes]") {
  const MemoryShape shape = small_shape(2, 4, 2, 10);
  const auto tokens = random_tokens(shape, 12 * 40, 8);
  for (const auto kind : {SegmenterKind::gaussian, SegmenterKind::surprise}) {
    MemoryConfig config = head_config(kind);
    if (kind == SegmenterKind::gaussian) config.recall_layers = {{1}};
    EpisodicMemory whole(config, shape);
    const TempDir temp;
    const KeepOptions keep{temp / "m"};
    // Little room, so that blocks come back from files.
    MemoryConfig tight = config;
    tight.host_bytes = least_host_bytes(config, shape);
    std::vector<float> expected, found;
    const auto feed = [&](EpisodicMemory& memory, std::int64_t from, std::int64_t to) {
      std::vector<float> all;
      for (std::int64_t at = from; at < to; at += 12)
        for (const auto& layer : step(memory, tokens, at, 12))
          all.insert(all.end(), layer.begin(), layer.end());
      for (std::int64_t s = 0; s < memory.scopes(); ++s)
        for (const TokenRange& e : memory.events(s).all()) all.push_back(static_cast<float>(e.end));
      return all;
    };
    expected = feed(whole, 0, 240);
    {
      EpisodicMemory memory = EpisodicMemory::create(keep, tight, shape);
      REQUIRE(feed(memory, 0, 240) == expected);
      memory.commit();
      // Back to a snapshot and on again: the same.
      const auto snapshot = memory.snapshot();
      const auto other = whole.snapshot();
      expected = feed(whole, 240, 360);
      REQUIRE(feed(memory, 240, 360) == expected);
      memory.restore(*snapshot);
      whole.restore(*other);
      REQUIRE(feed(memory, 240, 360) == expected);
      REQUIRE(feed(whole, 240, 360) == expected);
    }
    EpisodicMemory memory = EpisodicMemory::open(keep, OpenMode::write, &shape);
    REQUIRE(memory.tokens() == 240);
    REQUIRE(feed(memory, 240, 360) == expected);
    memory.commit();
    REQUIRE(verify_memory(temp / "m").damages.empty());
    // Forgetting a passage takes the events of every head that holds some of it.
    for (EpisodicMemory* m : {&memory, &whole}) {
      m->forget(TokenRange{30, 60});
      for (std::int64_t s = 0; s < m->scopes(); ++s)
        for (EventId e = 0; e < m->events(s).size(); ++e) {
          const TokenRange& range = m->events(s)[e];
          const auto& gone = m->forgotten(s);
          REQUIRE(std::binary_search(gone.begin(), gone.end(), e) ==
                  (range.start < 60 && range.end > 30));
        }
    }
    memory.compact();
    REQUIRE(verify_memory(temp / "m").damages.empty());
    expected = feed(whole, 360, 480);
    REQUIRE(feed(memory, 360, 480) == expected);
    memory.commit();
    const std::uint64_t digest = memory.digest();
    memory = EpisodicMemory::open({temp / "m"}, OpenMode::read, &shape);
    REQUIRE(memory.digest() == digest);
    for (std::int64_t s = 0; s < memory.scopes(); ++s)
      REQUIRE(memory.forgotten(s) == whole.forgotten(s));
    // Reset begins anew.
    whole.reset();
    EpisodicMemory fresh(config, shape);
    REQUIRE(feed(whole, 0, 120) == feed(fresh, 0, 120));
  }
}

TEST_CASE("a recall hook sees each lane by itself", "[memory][lanes]") {
  MemoryConfig c = head_config(SegmenterKind::k_similarity);
  const MemoryShape shape = small_shape(2, 6, 3, 10);
  const auto tokens = random_tokens(shape, 240, 9);
  EpisodicMemory memory(c, shape);
  std::vector<std::int64_t> calls(6, 0);
  memory.set_recall_hook([&](const RecalledEvents& r) {
    ++calls[static_cast<std::size_t>(r.layer * 3 + r.group)];
    REQUIRE(r.query.size() == 20);
    REQUIRE(r.scores.size() == r.events.size());
    // What is recalled is nothing to the output: the far keys' values count for nothing.
    if (r.group == 1) std::fill(r.weights.begin(), r.weights.end(), 0.0f);
  });
  EpisodicMemory plain(c, shape);
  bool differ = false;
  for (std::int64_t at = 0; at < 240; at += 12) {
    const auto a = step(memory, tokens, at, 12), b = step(plain, tokens, at, 12);
    for (std::size_t i = 0; i < a[0].size(); ++i) {
      const std::size_t head = i / 10 % 6;
      if (head / 2 != 1)
        REQUIRE(a[0][i] == b[0][i]);
      else
        differ |= a[0][i] != b[0][i];
    }
  }
  REQUIRE(differ);
  for (const std::int64_t n : calls) REQUIRE(n > 5);
}

TEST_CASE("scopes and lanes that a memory does not have are refused", "[memory][lanes]") {
  const EpisodicMemory memory(head_config(SegmenterKind::k_similarity), small_shape());
  REQUIRE_THROWS_AS(memory.events(4), DataError);
  REQUIRE_THROWS_AS(memory.recalled(4), DataError);
  REQUIRE(memory.scopes() == 4);
}
