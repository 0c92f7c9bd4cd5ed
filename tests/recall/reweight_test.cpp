// SPDX-License-Identifier: Apache-2.0
// EpMAN's weights against their definition (EpMAN 3.2).
#include "episodic/recall/reweight.hpp"

#include <cmath>
#include <random>
#include <set>

#include "support/test.hpp"

using namespace episodic;

TEST_CASE("events that take part are those of the definition") {
  std::mt19937 rng(1);
  for (int run = 0; run < 300; ++run) {
    std::vector<float> score(rng() % 20);
    for (float& s : score) s = static_cast<float>(static_cast<int>(rng() % 12) - 3) / 8;
    if (!score.empty() && run % 5 == 0) score[rng() % score.size()] = NAN;
    const auto k = static_cast<std::int64_t>(1 + rng() % 6);
    const auto value = [&](std::int64_t e) {
      const float s = score[static_cast<std::size_t>(e)];
      return std::isnan(s) || s < 0 ? 0.0f : s;
    };
    // rank of an event: how many come before it
    std::set<std::int64_t> top, broad;
    const auto n = static_cast<std::int64_t>(score.size());
    for (std::int64_t e = 0; e < n; ++e) {
      std::int64_t before = 0;
      for (std::int64_t o = 0; o < n; ++o)
        before += value(o) > value(e) || (value(o) == value(e) && o < e);
      if (before < k) top.insert(e);
    }
    for (const std::int64_t e : top)
      for (std::int64_t o = e - 1; o <= e + 1; ++o)
        if (o >= 0 && o < n) broad.insert(o);

    const auto exact = reweighted_events(Reweight::exact, k, score);
    REQUIRE(exact.size() == score.size());
    for (std::int64_t e = 0; e < n; ++e) {
      REQUIRE(exact[static_cast<std::size_t>(e)].event == e);
      REQUIRE(exact[static_cast<std::size_t>(e)].value_weight == value(e));
    }
    for (const auto& [mode, expected] :
         {std::pair(Reweight::narrow, top), std::pair(Reweight::broad, broad)}) {
      const auto got = reweighted_events(mode, k, score);
      std::vector<std::int64_t> events;
      for (const WeightedEvent& e : got) {
        events.push_back(e.event);
        REQUIRE(e.value_weight == 1.0f);
      }
      REQUIRE(events == std::vector<std::int64_t>(expected.begin(), expected.end()));
    }
  }
  REQUIRE_THROWS_AS(reweighted_events(Reweight::narrow, 0, {}), ConfigError);
}

TEST_CASE("the score is the cosine, never negative, and 0 where there is none") {
  const std::vector<float> x{3, 4}, y{4, 3}, back{-3, -4}, zero{0, 0}, nan{NAN, 1}, three{1, 2, 3};
  REQUIRE(std::abs(relevance_score(x, y) - 24.0f / 25) < 1e-6f);
  REQUIRE(relevance_score(x, x) == 1.0f);
  REQUIRE(relevance_score(x, back) == 0.0f);
  REQUIRE(relevance_score(x, zero) == 0.0f);
  REQUIRE(relevance_score(x, nan) == 0.0f);
  REQUIRE_THROWS_AS(relevance_score(x, three), DataError);
}
