// SPDX-License-Identifier: Apache-2.0
// The reference restates EM 3.4 with sets and full sorts.
#include "episodic/recall/buffers.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <set>

#include "episodic/base/error.hpp"
#include "support/recall_reference.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

EventTable random_events(std::mt19937& rng, std::int64_t n_events, std::int64_t n_init,
                         std::int64_t min_block, std::int64_t max_block) {
  EventTable table(n_init, min_block, max_block);
  std::set<std::int64_t> boundaries;
  std::int64_t at = n_init;
  for (std::int64_t i = 0; i < n_events; ++i) {
    at += min_block +
          static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(max_block - min_block + 1));
    boundaries.insert(at);
  }
  table.close_up_to(at + 1, [&](std::int64_t t) { return boundaries.count(t) > 0; });
  return table;
}

struct Reference {
  std::vector<EventId> similarity, contiguity;

  void step(const MemoryConfig& c, const std::vector<double>& score, const EventTable& events,
            std::int64_t outside) {
    const auto [similarity_share, contiguity_share] = episodic_test::reference_budget(c, outside);
    std::vector<EventId> order(static_cast<std::size_t>(events.size()));
    std::iota(order.begin(), order.end(), 0);
    similarity.clear();
    if (similarity_share > 0) {
      if (static_cast<double>(events.tokens()) <= similarity_share) {
        similarity = order;
      } else {
        std::stable_sort(order.begin(), order.end(), [&](EventId a, EventId b) {
          return score[static_cast<std::size_t>(a)] > score[static_cast<std::size_t>(b)];
        });
        similarity = episodic_test::reference_fill(order, events, similarity_share);
      }
    }
    std::vector<EventId> list;
    const auto add = [&](EventId e) {
      const auto in = [e](const std::vector<EventId>& v) {
        return std::find(v.begin(), v.end(), e) != v.end();
      };
      if (e >= 0 && e < events.size() && !in(similarity) && !in(list)) list.push_back(e);
    };
    for (const EventId e : similarity)
      for (std::int64_t i = 1; i <= c.neighbours; ++i) add(e + i), add(e - i);
    const std::vector<EventId> queue = contiguity;
    for (const EventId e : queue) add(e);
    contiguity = episodic_test::reference_fill(list, events, contiguity_share);
  }
};

}  // namespace

TEST_CASE("capacities: the share is floored in double") {
  MemoryConfig c;
  c.n_init = 128, c.chunk = 512, c.n_mem = 2048;
  c.contiguity = 0.3;
  REQUIRE(recall_budget(c, 200).contiguity == 747);  // floor(0.3 * 2488 + 1)
  REQUIRE(recall_budget(c, 200).similarity == 2488 - 747);
  c.contiguity = 0.0;
  REQUIRE(recall_budget(c, 200).contiguity == 0);
  REQUIRE(recall_budget(c, 200).similarity == 2488);
  REQUIRE(recall_budget(c, 5000).similarity == 2688 - 5000);
  c.contiguity = 1.0;
  REQUIRE(recall_budget(c, 200).contiguity == 2489);
  REQUIRE(recall_budget(c, 200).similarity == -1);
  c.contiguity = 0.1;  // 0.1 * 2690 is just above 269 in double, 0.7 * 10 just below 7
  c.n_mem = 2050;
  REQUIRE(recall_budget(c, 0).contiguity ==
          static_cast<std::int64_t>(std::floor(0.1 * 2690.0 + 1.0)));
}

TEST_CASE("filling keeps the last event only if that is strictly nearer") {
  EventTable events(0, 1, 100);
  events.close_up_to(21, [](std::int64_t t) { return t == 6 || t == 10 || t == 20; });  // 6, 4, 10
  std::vector<EventId> out;
  const std::vector<EventId> order{0, 1, 2};
  const auto filled = [&](std::int64_t capacity) {
    fill_buffer(order, events, capacity, out);
    return out.size();
  };
  REQUIRE(filled(0) == 0);
  REQUIRE(filled(-4) == 0);
  REQUIRE(filled(3) == 0);  // 3 away with it, 3 without: not strictly nearer
  REQUIRE(filled(4) == 1);  // 2 with, 4 without
  REQUIRE(filled(6) == 1);  // reached
  REQUIRE(filled(8) == 1);  // 6 and 10 are both 2 away
  REQUIRE(filled(9) == 2);
  REQUIRE(filled(10) == 2);
  REQUIRE(filled(15) == 2);
  REQUIRE(filled(16) == 3);
  REQUIRE(filled(1000) == 3);
}

TEST_CASE("both buffers follow the rules over many steps") {
  std::mt19937 rng(51);
  std::uniform_real_distribution<double> uniform;
  int by_rank = 0, all_fit = 0, from_queue = 0, queue_only = 0;
  for (int seed = 0; seed < 120; ++seed) {
    MemoryConfig c;
    c.min_block = 1 + static_cast<std::int64_t>(rng() % 6);
    c.max_block = c.min_block + (seed % 4 ? static_cast<std::int64_t>(rng() % 12) : 0);
    c.n_init = static_cast<std::int64_t>(rng() % 8);
    c.chunk = 1 + static_cast<std::int64_t>(rng() % 20);
    c.n_mem = static_cast<std::int64_t>(rng() % 120);
    const double shares[] = {0.0, 0.3, 0.6, 1.0, uniform(rng)};
    c.contiguity = shares[seed % 5];
    c.neighbours = 1 + static_cast<std::int64_t>(rng() % 3);
    const EventTable whole = random_events(rng, 60, c.n_init, c.min_block, c.max_block);
    std::vector<float> value;
    for (std::int64_t e = 0; e < whole.size(); ++e) value.push_back(static_cast<float>(rng() % 30));
    const auto index = make_exact_index({1, 2, 1, RepresentativeScore::mean});
    RecallBuffers buffers;
    Reference reference;
    EventTable events(c.n_init, c.min_block, c.max_block);
    for (int step = 0; step < 40; ++step) {
      const std::int64_t n =
          std::min(whole.size(), index->size() + static_cast<std::int64_t>(rng() % 4));
      while (index->size() < n) {
        const float v[] = {value[static_cast<std::size_t>(index->size())],
                           value[static_cast<std::size_t>((index->size() * 7) % whole.size())]};
        index->add(v, nullptr, 0);
      }
      events = whole;
      events.truncate(n);
      const float query[] = {static_cast<float>(rng() % 3) - 1.0f, static_cast<float>(rng() % 3)};
      std::vector<double> score;
      for (std::int64_t e = 0; e < n; ++e)
        score.push_back(double(query[0]) * value[static_cast<std::size_t>(e)] +
                        double(query[1]) * value[static_cast<std::size_t>((e * 7) % whole.size())]);
      const auto outside = static_cast<std::int64_t>(rng() % 60);
      RecallBuffers copy = buffers;
      const std::vector<EventId> queue = reference.contiguity;
      buffers.recall(c, *index, events, query, outside);
      reference.step(c, score, events, outside);
      REQUIRE(buffers.similarity() == reference.similarity);
      REQUIRE(buffers.contiguity() == reference.contiguity);
      std::set<EventId> both(reference.similarity.begin(), reference.similarity.end());
      both.insert(reference.contiguity.begin(), reference.contiguity.end());
      REQUIRE(both.size() == reference.similarity.size() + reference.contiguity.size());
      REQUIRE(buffers.recalled() == std::vector<EventId>(both.begin(), both.end()));
      copy.recall(c, *index, events, query, outside);
      REQUIRE(copy.contiguity() == buffers.contiguity());
      if (c.contiguity == 1.0) REQUIRE(buffers.recalled().empty());
      if (c.contiguity == 0.0) REQUIRE(buffers.contiguity().empty());
      all_fit += n > 0 && static_cast<std::int64_t>(buffers.similarity().size()) == n;
      by_rank += !std::is_sorted(buffers.similarity().begin(), buffers.similarity().end());
      queue_only += buffers.similarity().empty() && !buffers.contiguity().empty();
      for (const EventId e : buffers.contiguity()) {
        bool fresh = false;
        for (const EventId s : buffers.similarity())
          fresh = fresh || std::abs(s - e) <= c.neighbours;
        from_queue += !fresh && std::count(queue.begin(), queue.end(), e);
      }
    }
  }
  REQUIRE(by_rank > 300);
  REQUIRE(all_fit > 300);
  REQUIRE(from_queue > 200);
  REQUIRE(queue_only > 20);
}

TEST_CASE("many short events before long ones fill the buffer all the same") {
  // The best events are the shortest, so a list sized by the mean event would end too early.
  MemoryConfig c;
  c.n_init = 0, c.chunk = 1, c.n_mem = 300, c.min_block = 1, c.max_block = 40;
  EventTable events(0, 1, 40);
  events.close_up_to(100 + 40 * 40 + 1, [](std::int64_t t) { return t <= 100 || t % 40 == 20; });
  const auto index = make_exact_index({1, 1, 1, RepresentativeScore::mean});
  for (std::int64_t e = 0; e < events.size(); ++e) {
    const float value = -static_cast<float>(events[e].size()) - 1e-3f * static_cast<float>(e);
    index->add(&value, nullptr, 0);
  }
  RecallBuffers buffers;
  const float one = 1.0f;
  buffers.recall(c, *index, events, &one, 0);
  std::int64_t tokens = 0;
  for (const EventId e : buffers.similarity()) tokens += events[e].size();
  REQUIRE(buffers.similarity().size() > 100);
  REQUIRE(std::abs(tokens - 301) <= 20);
}

TEST_CASE("clearing empties the queue, and an index out of step is refused") {
  MemoryConfig c;
  c.n_init = 0, c.chunk = 1, c.n_mem = 20, c.min_block = 4, c.max_block = 4, c.contiguity = 0.5;
  std::mt19937 rng(52);
  const EventTable events = random_events(rng, 10, 0, 4, 4);
  const auto index = make_exact_index({1, 1, 1, RepresentativeScore::mean});
  RecallBuffers buffers;
  const float one[] = {1.0f};
  REQUIRE_THROWS_AS(buffers.recall(c, *index, events, one, 0), DataError);
  for (std::int64_t e = 0; e < events.size(); ++e) index->add(one, nullptr, 0);
  buffers.recall(c, *index, events, one, 0);
  REQUIRE_FALSE(buffers.contiguity().empty());
  buffers.clear();
  REQUIRE(buffers.recalled().empty());
  buffers.recall(c, *index, events, one, 1000);  // no room: nothing, and nothing queued
  REQUIRE(buffers.recalled().empty());
}

TEST_CASE("forgotten events are recalled neither by rank nor as neighbours nor when all fit") {
  std::mt19937 rng(53);
  MemoryConfig c;
  c.n_init = 0, c.chunk = 1, c.n_mem = 60, c.min_block = 4, c.max_block = 4, c.contiguity = 0.5;
  const EventTable events = random_events(rng, 40, 0, 4, 4);
  const auto index = make_exact_index({1, 1, 1, RepresentativeScore::mean});
  for (std::int64_t e = 0; e < events.size(); ++e) {
    const float value = static_cast<float>(e);
    index->add(&value, nullptr, 0);
  }
  RecallBuffers buffers;
  const float one = 1.0f;
  buffers.recall(c, *index, events, &one, 0);
  const std::vector<EventId> before = buffers.recalled();
  const EventId best = buffers.similarity()[0], next = buffers.contiguity()[0];
  index->forget(best), index->forget(next);
  const auto holds = [&](EventId e) {
    return std::count(buffers.recalled().begin(), buffers.recalled().end(), e) > 0;
  };
  buffers.recall(c, *index, events, &one, 0);
  REQUIRE_FALSE(holds(best));
  REQUIRE_FALSE(holds(next));  // though the queue of the step before names it
  REQUIRE(buffers.recalled().size() > before.size() / 2);
  c.n_mem = 10000, c.contiguity = 0;
  buffers.recall(c, *index, events, &one, 0);
  REQUIRE(static_cast<std::int64_t>(buffers.recalled().size()) == events.size() - 2);
  REQUIRE_FALSE(holds(best));
}
