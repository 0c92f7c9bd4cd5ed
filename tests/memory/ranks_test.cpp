// SPDX-License-Identifier: Apache-2.0
// The memory of a model whose heads are divided among the ranks of a group: each rank, a thread,
// decides as one process with all heads does, and has the outputs of its own.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/base/rules/refinement.hpp"
#include "episodic/memory/host_memory.hpp"
#include "episodic/memory/sizes.hpp"
#include "support/ranks.hpp"
#include "support/test.hpp"

using namespace episodic;
using episodic_test::message_of;
using episodic_test::run_ranks;
using episodic_test::try_ranks;

namespace {

constexpr std::int64_t kLayers = 2, kHeads = 8, kKvHeads = 4, kDim = 8, kTokens = 260;

MemoryConfig config_with(Refinement refine, EventScope scope, std::int64_t groups) {
  MemoryConfig c;
  c.n_init = 4;
  c.n_local = 24;
  c.n_mem = 20;
  c.chunk = 12;
  c.n_repr = 3;
  c.min_block = 3;
  c.max_block = 9;
  c.contiguity = 0.3;
  c.refine = refine;
  c.scope = scope;
  c.recall_groups = groups;
  return c;
}

/// Of one rank of so many.
MemoryShape shape_of(int rank, int ranks) {
  MemoryShape s{kLayers, kHeads / ranks, kKvHeads / ranks, kDim, plain_rotary(kDim, 10000.0)};
  s.ranks = ranks;
  s.rank = rank;
  return s;
}

/// [tokens, heads, d] of each layer, and surprise.
struct Text {
  std::vector<std::vector<float>> q, k, v;
  std::vector<float> surprise;
};

const Text& text() {
  static const Text made = [] {
    Text t;
    std::mt19937 rng(11);
    std::normal_distribution<float> normal;
    const auto draw = [&](std::int64_t heads) {
      std::vector<float> x(static_cast<std::size_t>(kTokens * heads * kDim));
      for (float& f : x) f = normal(rng);
      return x;
    };
    for (std::int64_t l = 0; l < kLayers; ++l) {
      t.q.push_back(draw(kHeads));
      t.k.push_back(draw(kKvHeads));
      t.v.push_back(draw(kKvHeads));
    }
    for (std::int64_t i = 0; i < kTokens; ++i)
      t.surprise.push_back(std::fabs(normal(rng)) + (rng() % 6 == 0 ? 4.0f : 0.0f));
    return t;
  }();
  return made;
}

/// A rank's heads of rows [first, first + n).
std::vector<float> part(const std::vector<float>& x, std::int64_t all, std::int64_t first,
                        std::int64_t n, int rank, int ranks) {
  const std::int64_t width = all / ranks * kDim;
  std::vector<float> out;
  for (std::int64_t i = first; i < first + n; ++i) {
    const auto from = x.begin() + i * all * kDim + rank * width;
    out.insert(out.end(), from, from + width);
  }
  return out;
}

/// What a memory makes of a step.
struct Made {
  std::vector<std::vector<float>> out;                       // [n, heads, d] of each layer
  std::vector<std::vector<std::uint8_t>> raw, boundaries;    // of each scope
  std::vector<std::vector<EventId>> similarity, contiguity;  // of each lane
};

Made step(HostMemory& memory, std::int64_t first, std::int64_t n, int rank, int ranks,
          bool spoiled = false) {
  Made made;
  memory.begin_step(n, StepKind::prompt);
  for (std::int64_t l = 0; l < kLayers; ++l) {
    const auto at = static_cast<std::size_t>(l);
    std::vector<float> k = part(text().k[at], kKvHeads, first, n, rank, ranks);
    if (spoiled && l == 1) k[0] = std::numeric_limits<float>::quiet_NaN();
    auto& out = made.out.emplace_back(static_cast<std::size_t>(n * kHeads / ranks * kDim));
    memory.attend(l, part(text().q[at], kHeads, first, n, rank, ranks).data(), k.data(),
                  part(text().v[at], kKvHeads, first, n, rank, ranks).data(), out.data());
  }
  memory.end_step(text().surprise.data() + first);
  for (std::int64_t s = 0; s < memory.scopes(); ++s) {
    made.raw.push_back(memory.last_step(s).raw_boundaries);
    made.boundaries.push_back(memory.last_step(s).final_boundaries);
  }
  for (std::int64_t lane = 0; lane < memory.lanes(); ++lane) {
    made.similarity.push_back(memory.recalled(lane).similarity());
    made.contiguity.push_back(memory.recalled(lane).contiguity());
  }
  return made;
}

std::int64_t length_of(std::int64_t first) {
  const std::int64_t n = first % 5 == 3 ? 1 : first % 3 == 1 ? 7 : 12;
  return std::min(n, kTokens - first);
}

void require(bool holds, const char* what) {
  if (!holds) throw Error(what);
}

/// Events of a scope as pairs.
std::vector<std::pair<std::int64_t, std::int64_t>> events_of(const EventTable& events) {
  std::vector<std::pair<std::int64_t, std::int64_t>> out;
  for (EventId e = 0; e < events.size(); ++e) out.emplace_back(events[e].start, events[e].end);
  return out;
}

struct Whole {
  std::vector<Made> steps;
  std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>> events;  // of each scope
  std::vector<std::int64_t> scored;  // events of each search of the index, in order
};

Whole in_one_process(const MemoryConfig& config) {
  Whole whole;
  HostMemory memory(config, shape_of(0, 1));
  std::set<std::pair<std::int64_t, std::int64_t>> seen;  // step, layer
  std::int64_t at = 0;
  memory.set_rank_hook([&](const RankRequest& request, std::vector<ScoredEvent>&) {
    if (seen.insert({at, request.layer}).second) whole.scored.push_back(request.n_events);
    return false;
  });
  for (std::int64_t first = 0; first < kTokens; first += length_of(first), ++at)
    whole.steps.push_back(step(memory, first, length_of(first), 0, 1));
  for (std::int64_t s = 0; s < memory.scopes(); ++s)
    whole.events.push_back(events_of(memory.events(s)));
  return whole;
}

/// How many places each boundary of a scope could have moved to, where there was more than one to
/// be looked at (docs/parallel.md).
std::vector<std::int64_t> splits_of(const Whole& whole, const MemoryConfig& config) {
  std::vector<std::int64_t> splits;
  std::int64_t last = -1, last_in_previous = -1, first = 0;
  for (const Made& made : whole.steps) {
    const auto n = static_cast<std::int64_t>(made.raw[0].size());
    const std::int64_t low =
        std::max(config.n_init, last_in_previous >= 0 ? last_in_previous : first);
    std::int64_t last_in_step = -1, placed = 0;  // of the final ones, which stand in the same order
    for (std::int64_t b = first; b < first + n; ++b) {
      const std::int64_t a = last >= 0 ? last : config.n_init;
      if (!made.raw[0][static_cast<std::size_t>(b - first)] || b - a < config.min_block) continue;
      if (b - a > config.min_block) {
        const auto w = rules::boundary_window(a, b, low, first + n, first, config.min_block);
        if (w.from <= b) splits.push_back(b - w.from + 1);
      }
      const auto& final = made.boundaries[0];
      const auto at = std::find(final.begin() + placed, final.end(), std::uint8_t{1});
      require(at != final.end(), "a boundary went");
      placed = at - final.begin() + 1;
      last = last_in_step = first + placed - 1;
    }
    last_in_previous = last_in_step;
    first += n;
  }
  return splits;
}

/// The ranks' memories against the one of all heads.
void compare(const MemoryConfig& config, int ranks, bool disturb = false) {
  const Whole whole = in_one_process(config);
  std::size_t recalled = 0;
  for (const Made& made : whole.steps)
    for (const auto& list : made.similarity) recalled += list.size();
  REQUIRE(recalled > 0);
  run_ranks(ranks, [&](const std::shared_ptr<Group>& group) {
    const int rank = group->rank();
    MemoryShape shape = shape_of(rank, ranks);
    const MemoryConfig mine = share_of(config, shape);
    HostMemory memory(mine, shape);
    memory.join(group);
    std::size_t at = 0;
    for (std::int64_t first = 0; first < kTokens; first += length_of(first), ++at) {
      const std::int64_t n = length_of(first);
      if (disturb && at % 4 == 2) {
        bool failed = false;
        try {
          as_one(group.get(), [&] {
            step(memory, first, n, rank, ranks, rank == static_cast<int>(at) % ranks);
          });
        } catch (const Error&) {
          failed = true;
          memory.abandon_step();
        }
        require(failed, "a number that is none was taken");
      }
      const Made made = as_one(group.get(), [&] { return step(memory, first, n, rank, ranks); });
      const Made& all = whole.steps[at];
      for (std::size_t l = 0; l < made.out.size(); ++l) {
        const std::vector<float> expected = part(all.out[l], kHeads, 0, n, rank, ranks);
        for (std::size_t i = 0; i < expected.size(); ++i)
          require(std::fabs(made.out[l][i] - expected[i]) < 1e-4f, "another output");
      }
      const auto own = [&](std::size_t mine_at, std::size_t per_layer) {
        const std::size_t share = per_layer / static_cast<std::size_t>(ranks);
        return mine_at / share * per_layer + static_cast<std::size_t>(rank) * share +
               mine_at % share;
      };
      const bool by_head = config.scope == EventScope::head;
      for (std::size_t s = 0; s < made.boundaries.size(); ++s)
        require(made.boundaries[s] == all.boundaries[by_head ? own(s, kKvHeads) : s],
                "other boundaries");
      for (std::size_t lane = 0; lane < made.similarity.size(); ++lane) {
        const std::size_t there =
            shape.recall_together
                ? lane
                : own(lane, static_cast<std::size_t>(config.lanes_per_layer(kKvHeads)));
        require(made.similarity[lane] == all.similarity[there], "another similarity list");
        require(made.contiguity[lane] == all.contiguity[there], "another contiguity list");
      }
    }
    for (std::int64_t s = 0; s < memory.scopes(); ++s) {
      const bool by_head = config.scope == EventScope::head;
      const std::int64_t share = kKvHeads / ranks;
      const std::int64_t there = by_head ? s / share * kKvHeads + rank * share + s % share : s;
      require(events_of(memory.events(s)) == whole.events[static_cast<std::size_t>(there)],
              "other events");
    }
    if (disturb || (config.refine != Refinement::none && config.scope == EventScope::head)) return;
    // the scores of each recall, prefix products of each boundary, and nothing else
    std::int64_t bytes = 0, refined = 0;
    if (config.refine != Refinement::none)
      for (const std::int64_t n : splits_of(whole, config))
        refined += Group::sum_bytes(3 * n, 8, ranks, rank);
    require(config.refine == Refinement::none || refined > 0, "nothing was refined");
    bytes += refined;
    if (shape.recall_together)
      for (const std::int64_t n : whole.scored) bytes += Group::sum_bytes(n, 4, ranks, rank);
    require(group->counters().bytes == bytes, "other bytes");
    require(!shape.recall_together || bytes > refined, "nothing was recalled");
  });
}

}  // namespace

TEST_CASE("ranks: a table of all heads gives boundaries, events and lists of one process") {
  const int ranks = GENERATE(2, 4);
  const Refinement refine = GENERATE(Refinement::none, Refinement::modularity,
                                     Refinement::conductance, Refinement::intra_inter);
  compare(config_with(refine, EventScope::sequence, 1), ranks);
}

TEST_CASE("ranks: groups that recall for themselves need no message") {
  compare(config_with(Refinement::none, EventScope::sequence, 4), 2);
  compare(config_with(Refinement::none, EventScope::sequence, 4), 4);
  compare(config_with(Refinement::modularity, EventScope::sequence, 2), 2);
}

TEST_CASE("ranks: heads with events of their own need no message") {
  const int ranks = GENERATE(2, 4);
  compare(config_with(Refinement::none, EventScope::head, 1), ranks);
  MemoryConfig keys = config_with(Refinement::none, EventScope::head, 1);
  keys.segmenter = SegmenterKind::k_similarity;
  compare(keys, ranks);
  compare(config_with(Refinement::modularity, EventScope::head, 1), ranks);
}

TEST_CASE("ranks: best-of-k scores and 16 bits") {
  MemoryConfig c = config_with(Refinement::modularity, EventScope::sequence, 1);
  c.score = RepresentativeScore::max;
  c.kv_dtype = DType::bfloat16;
  compare(c, 2);
}

TEST_CASE("ranks: a step that one rank refuses counts on none, and is made again") {
  compare(config_with(Refinement::modularity, EventScope::sequence, 1), 2, true);
  compare(config_with(Refinement::none, EventScope::head, 1), 4, true);
}

TEST_CASE("ranks: one that ends in mid-step leaves the others with one error and their last step") {
  const MemoryConfig config = config_with(Refinement::modularity, EventScope::sequence, 1);
  const auto errors = try_ranks(
      2,
      [&](const std::shared_ptr<Group>& group) {
        MemoryShape shape = shape_of(group->rank(), 2);
        HostMemory memory(share_of(config, shape), shape);
        memory.join(group);
        for (std::int64_t first = 0; first < 240; first += 12) {
          if (first == 120 && group->rank() == 1) return;  // its end, between two calls
          try {
            as_one(group.get(), [&] { step(memory, first, 12, group->rank(), 2); });
          } catch (...) {
            memory.abandon_step();
            require(memory.tokens() == 120, "the step counted");
            throw;
          }
        }
      },
      std::chrono::milliseconds(3000));
  CHECK_THAT(message_of(errors[0]), Catch::Matchers::Contains("rank 1 of 2 has sent nothing"));
  CHECK(message_of(errors[1]).empty());
}

TEST_CASE("ranks: what they cannot do is refused by name") {
  const auto made = [](MemoryConfig c) {
    MemoryShape shape = shape_of(1, 4);
    const MemoryConfig mine = share_of(c, shape);
    HostMemory memory(mine, shape);
    return memory.shape().ranks;
  };
  const MemoryConfig usual = config_with(Refinement::none, EventScope::sequence, 1);
  CHECK(made(usual) == 4);
  const auto refused = [&](const MemoryConfig& c, const char* name) {
    CHECK_THROWS_WITH(made(c), Catch::Matchers::Contains(name));
  };
  MemoryConfig c = usual;
  c.recall_groups = 2;
  refused(c, "recall_groups = 2 among 4 ranks");
  c = usual;
  c.segmenter = SegmenterKind::gaussian;
  refused(c, "segmenter");
  c = usual;
  c.reweight = Reweighting::narrow;
  refused(c, "reweight");
  c = usual;
  c.index = IndexKind::faiss;
  refused(c, "index = \"faiss\"");
  c = usual;
  c.retention.emplace();
  refused(c, "retention");

  MemoryShape shape = shape_of(1, 2);
  HostMemory memory(share_of(usual, shape), shape);
  CHECK_THROWS_WITH(memory.begin_step(1), Catch::Matchers::Contains("join it to their group"));
  const auto ends = make_thread_group(2);
  CHECK_THROWS_WITH(memory.join(ends[0]), Catch::Matchers::Contains("rank 1 of 2"));
  CHECK_THROWS_AS(memory.join(nullptr), ConfigError);
  CHECK_THROWS_AS(memory.set_rank_hook([](const auto&, auto&) { return false; }), ConfigError);
  HostMemory whole(usual, shape_of(0, 1));
  CHECK_THROWS_AS(whole.join(ends[0]), ConfigError);
}
