// SPDX-License-Identifier: Apache-2.0
// A caller's ranking in place of the index's: what is recalled follows it by the rules of EM 3.4.
#include "support/recall_reference.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <algorithm>
#include <limits>
#include <numeric>

#include "driver.hpp"
#include "episodic/base/error.hpp"

using namespace episodic;
using driver::random_tokens;
using driver::small_config;
using driver::small_shape;
using driver::step;

namespace {

/// Relevance that nothing in the memory knows of; several events share one.
float score_of(std::int64_t layer, EventId e) {
  return static_cast<float>((e * 7 + layer * 3) % 11) / 10.0f;
}

/// Events of a lane, most relevant first.
std::vector<EventId> order_of(std::int64_t layer, std::int64_t n_events,
                              std::span<const EventId> forgotten = {}) {
  std::vector<EventId> order;
  for (EventId e = 0; e < n_events; ++e)
    if (!std::binary_search(forgotten.begin(), forgotten.end(), e)) order.push_back(e);
  std::stable_sort(order.begin(), order.end(),
                   [&](EventId a, EventId b) { return score_of(layer, a) > score_of(layer, b); });
  return order;
}

bool rank(const RankRequest& asked, std::vector<ScoredEvent>& best) {
  for (const EventId e : order_of(asked.layer, asked.n_events, asked.forgotten))
    if (std::ssize(best) < asked.count) best.push_back({e, score_of(asked.layer, e)});
  return true;
}

}  // namespace

TEST_CASE("a rank hook decides which events fill the similarity buffer", "[memory][hook]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 260, 71);
  for (const double share : {0.0, 0.3}) {
    MemoryConfig c = small_config();
    c.contiguity = share;
    EpisodicMemory memory(c, s), plain(c, s);
    memory.set_rank_hook(rank);
    std::int64_t compared = 0, others = 0;
    for (std::int64_t at = 0; at < 260; at += 10) {
      const EventTable events = memory.events();
      if (at == 200) memory.forget(order_of(0, events.size())[0]);
      step(memory, tokens, at, 10);
      step(plain, tokens, at, 10);
      const std::int64_t outside = std::max<std::int64_t>(
          0, std::max<std::int64_t>(0, at + 10 - c.n_local) - events.tokens());
      const double budget = episodic_test::reference_budget(c, outside).similarity;
      if (static_cast<double>(events.tokens()) <= budget) continue;
      for (std::int64_t l = 0; l < s.n_layers; ++l) {
        const auto expected = episodic_test::reference_fill(
            order_of(l, events.size(), memory.forgotten()), events, budget);
        REQUIRE(memory.recalled(l).similarity() == expected);
        compared += static_cast<std::int64_t>(expected.size());
        others += memory.recalled(l).similarity() != plain.recalled(l).similarity();
      }
    }
    REQUIRE(compared > 50);
    REQUIRE(others > 10);
  }
}

TEST_CASE("a rank hook chooses for narrow and broad reweighting, lane by lane", "[memory][hook]") {
  const MemoryShape s = small_shape(2, 6, 3, 10);
  const auto tokens = random_tokens(s, 240, 72);
  MemoryConfig c = small_config();
  c.recall_groups = 3;
  c.reweight = Reweighting::narrow;
  c.reweight_top = 2;
  EpisodicMemory memory(c, s);
  std::vector<std::int64_t> calls(6, 0);
  memory.set_rank_hook([&](const RankRequest& asked, std::vector<ScoredEvent>& best) {
    ++calls[static_cast<std::size_t>(asked.layer * 3 + asked.group)];
    REQUIRE(asked.query.size() == 20);
    REQUIRE(asked.count == 2);
    // each lane's own choice: its number, and the event after it
    for (EventId e = asked.group; e < asked.group + 2; ++e)
      if (e < asked.n_events) best.push_back({e, 1.0f});
    return true;
  });
  for (std::int64_t at = 0; at < 240; at += 12) {
    const std::int64_t n_events = memory.events().size();
    step(memory, tokens, at, 12);
    if (n_events < 4) continue;
    for (std::int64_t lane = 0; lane < 6; ++lane)
      REQUIRE(memory.recalled(lane).recalled() == std::vector<EventId>{lane % 3, lane % 3 + 1});
  }
  for (const std::int64_t n : calls) REQUIRE(n > 5);
}

TEST_CASE("a rank hook without an opinion changes nothing, and a wrong one refuses the step",
          "[memory][hook]") {
  const MemoryShape s = small_shape();
  const auto tokens = random_tokens(s, 220, 73);
  EpisodicMemory memory(small_config(), s), plain(small_config(), s);
  bool asked_once = false;
  memory.set_rank_hook([&](const RankRequest&, std::vector<ScoredEvent>& best) {
    asked_once = true;
    best.push_back({0, 1.0f});  // not looked at
    return false;
  });
  for (std::int64_t at = 0; at < 200; at += 10)
    REQUIRE(step(memory, tokens, at, 10) == step(plain, tokens, at, 10));
  REQUIRE(asked_once);
  memory.forget(3);
  plain.forget(3);

  using Best = std::vector<ScoredEvent>;
  const auto said = [&](auto&& wrong) {
    memory.set_rank_hook([&](const RankRequest& asked, Best& best) {
      wrong(asked, best);
      return true;
    });
    return refusal<DataError>([&] { step(memory, tokens, 200, 10); });
  };
  REQUIRE(mentions(said([](const RankRequest& asked, Best& best) {
                     for (EventId e = 4; e < 5 + asked.count; ++e) best.push_back({e, 1.0f});
                   }),
                   "were asked for"));
  REQUIRE(mentions(said([](const RankRequest& asked, Best& best) {
                     best.push_back({asked.n_events, 1.0f});
                   }),
                   "in layer 0"));
  REQUIRE(mentions(said([](const RankRequest&, Best& best) {
                     best.push_back({-1, 1.0f});
                   }),
                   "event -1"));
  REQUIRE(mentions(said([](const RankRequest&, Best& best) {
                     best.push_back({3, 1.0f});
                   }),
                   "event 3, which was forgotten"));
  REQUIRE(mentions(said([](const RankRequest&, Best& best) {
                     best = {{5, 1.0f}, {5, 0.5f}};
                   }),
                   "event 5 twice"));
  REQUIRE(mentions(said([](const RankRequest&, Best& best) {
                     best.push_back({5, std::numeric_limits<float>::quiet_NaN()});
                   }),
                   "no number"));
  // what was refused left nothing behind
  memory.set_rank_hook({});
  REQUIRE(step(memory, tokens, 200, 10) == step(plain, tokens, 200, 10));
}
