// SPDX-License-Identifier: Apache-2.0
// Memoria against a reference that does its section 3 with full matrices and lists, and nothing
// clever; then what is expected of it on any long run, and its edges.
#include "episodic/retention/memoria.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

#include "support/test.hpp"

using namespace episodic;

namespace {

using Ids = std::vector<std::int64_t>;

/// Memoria 3 word by word. Every list is a plain vector, Count a full matrix.
struct Reference {
  MemoriaConfig c;
  std::vector<std::vector<double>> vectors;  // of all engrams that ever came
  std::vector<double> life;                  // 0: forgotten
  std::vector<std::vector<std::int64_t>> count;
  Ids stm, ltm;

  struct Step {
    Ids working, stm_recalled, initial, found, ltm_recalled, forgotten;
  };

  double correlation(std::int64_t i, const Ids& working) const {
    double sum = 0;
    for (const auto w : working) {
      double distance = 0;
      for (std::size_t k = 0; k < vectors[0].size(); ++k)
        distance += std::pow(vectors[std::size_t(i)][k] - vectors[std::size_t(w)][k], 2);
      sum += std::exp(-distance);
    }
    return sum / double(working.size());
  }

  Ids top(Ids ids, const Ids& working, std::int64_t n) const {
    std::sort(ids.begin(), ids.end());
    std::stable_sort(ids.begin(), ids.end(), [&](auto a, auto b) {
      return correlation(a, working) > correlation(b, working);
    });
    if (std::int64_t(ids.size()) > n) ids.resize(std::size_t(n));
    return ids;
  }

  Step step(const std::vector<std::vector<double>>& engrams,
            const std::map<std::int64_t, double>& attention) {
    Step s;
    for (const auto& e : engrams) {
      s.working.push_back(std::int64_t(vectors.size()));
      vectors.push_back(e);
      life.push_back(c.initial_lifespan);
      for (auto& row : count) row.push_back(0);
      count.emplace_back(vectors.size(), 0);
    }
    s.stm_recalled = top(stm, s.working, c.n_short);
    std::set<std::int64_t> found;
    const auto walk = [&](const Ids& from) {
      std::set<std::int64_t> next;
      for (const auto i : from) {
        std::int64_t best = -1;
        double best_edge = 0;
        for (const auto j : ltm) {  // sorted: the first of equals is the older
          if (found.count(j) || j == i) continue;
          const double edge = double(count[std::size_t(i)][std::size_t(j)]) /
                              double(count[std::size_t(i)][std::size_t(i)]);
          if (edge > best_edge) best_edge = edge, best = j;
        }
        if (best >= 0) next.insert(best);
      }
      found.insert(next.begin(), next.end());
      return Ids(next.begin(), next.end());
    };
    Ids level = s.initial = walk(s.stm_recalled);
    for (std::int64_t d = 0; d < c.depth; ++d) level = walk(level);
    s.found.assign(found.begin(), found.end());
    s.ltm_recalled = top(s.found, s.working, c.n_long);

    Ids recalled = s.stm_recalled;
    recalled.insert(recalled.end(), s.ltm_recalled.begin(), s.ltm_recalled.end());
    Ids firing = recalled;
    firing.insert(firing.end(), s.working.begin(), s.working.end());
    for (const auto a : firing)
      for (const auto b : firing) ++count[std::size_t(a)][std::size_t(b)];
    double sum = 0;
    for (const auto i : recalled) sum += attention.at(i);
    for (const auto i : recalled)
      if (sum > 0)
        life[std::size_t(i)] += attention.at(i) / sum * double(recalled.size()) * c.alpha;
    for (std::size_t i = 0; i < life.size(); ++i) {
      if (life[i] <= 0) continue;
      if ((life[i] -= 1) > 0) continue;
      life[i] = 0;
      s.forgotten.push_back(std::int64_t(i));
      for (std::size_t j = 0; j < life.size(); ++j) count[i][j] = count[j][i] = 0;
    }
    stm.insert(stm.end(), s.working.begin(), s.working.end());
    const auto dead = [&](std::int64_t i) { return life[std::size_t(i)] <= 0; };
    std::erase_if(stm, dead);
    std::erase_if(ltm, dead);
    while (std::int64_t(stm.size()) > c.short_term_capacity) {
      ltm.push_back(stm.front());
      stm.erase(stm.begin());
    }
    std::sort(ltm.begin(), ltm.end());
    return s;
  }
};

std::vector<float> unit(std::mt19937& rng, std::int64_t width) {
  std::normal_distribution<double> normal;
  std::vector<double> v(static_cast<std::size_t>(width));
  double sum = 0;
  for (double& x : v) x = normal(rng), sum += x * x;
  std::vector<float> out;
  for (const double x : v) out.push_back(static_cast<float>(x / std::sqrt(sum)));
  return out;
}

std::vector<double> even(const Memoria::Recall& r) {
  return std::vector<double>(static_cast<std::size_t>(r.size()), 1.0);
}

}  // namespace

TEST_CASE("memoria equals a plain reference on random runs") {
  std::mt19937 rng(7);
  std::int64_t forgotten = 0, recalled_long = 0;
  for (int run = 0; run < 60; ++run) {
    MemoriaConfig c;
    c.n_short = static_cast<std::int64_t>(rng() % 6);
    c.n_long = static_cast<std::int64_t>(rng() % 6);
    c.short_term_capacity = 1 + static_cast<std::int64_t>(rng() % 12);
    c.depth = static_cast<std::int64_t>(rng() % 5);
    c.initial_lifespan = 1 + static_cast<double>(rng() % 9) + 0.25;
    c.alpha = static_cast<double>(rng() % 4);
    const std::int64_t width = 1 + static_cast<std::int64_t>(rng() % 7);
    Memoria memoria(c, width);
    Reference reference{c, {}, {}, {}, {}, {}};
    for (int t = 0; t < 30; ++t) {
      const std::int64_t n = 1 + static_cast<std::int64_t>(rng() % 5);
      std::vector<float> flat;
      std::vector<std::vector<double>> rows;
      for (std::int64_t i = 0; i < n; ++i) {
        const auto v = unit(rng, width);
        flat.insert(flat.end(), v.begin(), v.end());
        rows.emplace_back(v.begin(), v.end());
      }
      std::map<std::int64_t, double> attention;
      for (std::int64_t i = 0; i < memoria.total(); ++i)
        attention[i] = rng() % 8 == 0 ? 0.0 : static_cast<double>(rng() % 1000) / 1000;
      const Memoria::Recall r = memoria.recall(flat, n);
      std::vector<double> weights;
      for (const Ids* list : {&r.short_term, &r.long_term})
        for (const auto id : *list) weights.push_back(attention.at(id));
      const Ids gone = memoria.commit(weights);
      const Reference::Step s = reference.step(rows, attention);
      REQUIRE(r.working == s.working);
      // Equal correlations are ranked by rounding in one of the two codes: width 1 has many.
      if (width > 1) {
        REQUIRE(r.short_term == s.stm_recalled);
        REQUIRE(r.initial == s.initial);
        REQUIRE(r.found == s.found);
        REQUIRE(r.long_term == s.ltm_recalled);
        REQUIRE(gone == s.forgotten);
        REQUIRE(memoria.short_term() == reference.stm);
        REQUIRE(memoria.long_term() == reference.ltm);
        bool equal = true;
        for (std::int64_t i = 0; i < memoria.total(); ++i) {
          equal = equal && std::abs(memoria.lifespan(i) - reference.life[std::size_t(i)]) < 1e-9;
          for (std::int64_t j = 0; j < memoria.total(); ++j)
            equal = equal && memoria.count(i, j) == reference.count[std::size_t(i)][std::size_t(j)];
        }
        REQUIRE(equal);
        forgotten += static_cast<std::int64_t>(gone.size());
        recalled_long += static_cast<std::int64_t>(r.long_term.size());
      } else {
        // go on from one state: a tie broken the other way leads to another history
        break;
      }
    }
  }
  REQUIRE(forgotten > 200);
  REQUIRE(recalled_long > 200);
}

TEST_CASE("memoria ranks by correlations that float32 would call zero") {
  Memoria memoria({.n_short = 2, .n_long = 0, .short_term_capacity = 8}, 1);
  const std::vector<float> first{100.0f, 90.0f, 95.0f}, second{0.0f};
  memoria.recall(first, 3);
  memoria.commit({});
  // exp(-8100) and exp(-9025) are zero even in float64
  const Memoria::Recall r = memoria.recall(second, 1);
  REQUIRE(r.short_term == Ids{1, 2});
}

TEST_CASE("ties go to the older engram") {
  Memoria memoria({.n_short = 1, .n_long = 1, .short_term_capacity = 2}, 2);
  const std::vector<float> same{1, 0, 1, 0, 1, 0, 1, 0};
  memoria.recall(same, 4);
  memoria.commit({});
  REQUIRE(memoria.long_term() == Ids{0, 1});
  const Memoria::Recall r = memoria.recall(std::span(same).first(2), 1);
  REQUIRE(r.short_term == Ids{2});
  REQUIRE(r.initial == Ids{0});  // all fired together once
  REQUIRE(r.long_term == Ids{0});
}

TEST_CASE("memoria is saved and goes on as if it had not been") {
  std::mt19937 rng(3);
  const MemoriaConfig c{.n_short = 3,
                        .n_long = 3,
                        .short_term_capacity = 6,
                        .depth = 3,
                        .initial_lifespan = 6,
                        .alpha = 1.5};
  Memoria whole(c, 4);
  for (int t = 0; t < 40; ++t) {
    if (t == 20) {
      ByteWriter to;
      whole.save(to);
      Memoria back(c, 4);
      ByteReader from(to.bytes(), "memoria");
      back.load(from);
      from.finish();
      Memoria other = whole;
      std::mt19937 same = rng;
      for (int u = 0; u < 10; ++u) {
        std::vector<float> v = unit(same, 4);
        REQUIRE(back.recall(v, 1).long_term == other.recall(v, 1).long_term);
        REQUIRE(back.commit(even(back.recall(v, 1))) == other.commit(even(other.recall(v, 1))));
      }
      ByteWriter a, b;
      back.save(a);
      other.save(b);
      REQUIRE(a.bytes() == b.bytes());
      // every prefix is refused and leaves what there was
      for (std::size_t n = 0; n < to.bytes().size(); n += 7) {
        ByteReader cut(std::span(to.bytes()).first(n), "memoria");
        REQUIRE_THROWS_AS(back.load(cut), FileError);
      }
      ByteWriter after;
      back.save(after);
      REQUIRE(after.bytes() == a.bytes());
    }
    const std::vector<float> v = unit(rng, 4);
    whole.commit(even(whole.recall(v, 1)));
  }
}

TEST_CASE("what survives a long run: the oldest, the newest, and neighbours in time together") {
  // Topics that come back: what is attended often lives long (Memoria 6, B).
  std::mt19937 rng(11);
  std::normal_distribution<float> normal;
  Memoria memoria({.n_short = 4,
                   .n_long = 4,
                   .short_term_capacity = 16,
                   .depth = 6,
                   .initial_lifespan = 20,
                   .alpha = 4.0},
                  8);
  std::vector<std::vector<float>> topics;
  for (int i = 0; i < 12; ++i) topics.push_back(unit(rng, 8));
  std::int64_t gone = 0;
  for (int t = 0; t < 1500; ++t) {
    std::vector<float> engram = topics[static_cast<std::size_t>(t / 5 % 12)];
    for (float& x : engram) x += 0.3f * normal(rng);
    gone += static_cast<std::int64_t>(memoria.commit(even(memoria.recall(engram, 1))).size());
  }
  REQUIRE(gone > 1300);  // it forgets, and so stays bounded
  REQUIRE(memoria.size() + gone == 1500);
  const Ids longs = memoria.long_term();
  REQUIRE(longs.size() > 10);
  REQUIRE(longs.front() < 150);  // primacy: of the first tenth some are held
  for (std::int64_t i = memoria.total() - 10; i < memoria.total(); ++i)
    REQUIRE(memoria.holds(i));  // recency
  double near = 0, far = 0;
  std::int64_t n_near = 0, n_far = 0;
  for (const auto a : longs)
    for (const auto b : longs) {
      if (a == b) continue;
      (std::abs(a - b) <= 4 ? near : far) += memoria.edge(a, b);
      ++(std::abs(a - b) <= 4 ? n_near : n_far);
    }
  REQUIRE(n_near > 10);
  REQUIRE(n_far > 10);
  REQUIRE(near / static_cast<double>(n_near) > far / static_cast<double>(n_far));  // contiguity
}

TEST_CASE("the reset period forgets everything") {
  Memoria memoria({.short_term_capacity = 2, .reset_period = 3}, 1);
  const std::vector<float> one{1.0f};
  REQUIRE(memoria.commit(even(memoria.recall(one, 1))).empty());
  REQUIRE(memoria.commit(even(memoria.recall(one, 1))).empty());
  REQUIRE(memoria.commit(even(memoria.recall(one, 1))) == Ids{0, 1, 2});
  REQUIRE(memoria.size() == 0);
  REQUIRE(memoria.recall(one, 1).working == Ids{3});
}

TEST_CASE("engrams that are taken back leave no trace among those before") {
  std::mt19937 rng(12);
  std::normal_distribution<float> normal;
  const auto engrams = [&](std::size_t n) {
    std::vector<float> x(4 * n);
    for (float& v : x) v = normal(rng);
    return x;
  };
  Memoria memoria({.n_short = 2, .n_long = 2, .short_term_capacity = 3, .initial_lifespan = 50}, 4);
  for (int i = 0; i < 6; ++i) memoria.commit(even(memoria.recall(engrams(2), 2)));
  memoria.recall(engrams(2), 2);  // open, and given up
  memoria.truncate(100);
  REQUIRE(memoria.total() == 12);
  memoria.truncate(10);
  REQUIRE(memoria.total() == 10);
  REQUIRE(memoria.short_term() == Ids{9});
  REQUIRE(memoria.size() == 10);
  REQUIRE(memoria.last_recall().working.empty());
  for (std::int64_t e = 0; e < 10; ++e) {
    REQUIRE(memoria.count(e, 10) == 0);
    REQUIRE(memoria.lifespan(e) > 0);
  }
  ByteWriter to;  // which load would refuse if counts of them were left
  memoria.save(to);
  ByteReader from(to.bytes(), "here");
  Memoria again(memoria.config(), 4);
  again.load(from);
  REQUIRE(memoria.recall(engrams(1), 1).working == Ids{10});
}

TEST_CASE("memoria refuses what cannot be") {
  REQUIRE_THROWS_AS(Memoria({.short_term_capacity = 0}, 4), ConfigError);
  REQUIRE_THROWS_AS(Memoria({.n_short = -1}, 4), ConfigError);
  REQUIRE_THROWS_AS(Memoria({.initial_lifespan = 0}, 4), ConfigError);
  REQUIRE_THROWS_AS(Memoria({.alpha = NAN}, 4), ConfigError);
  REQUIRE_THROWS_AS(Memoria({}, 0), ConfigError);
  Memoria memoria({}, 2);
  REQUIRE_THROWS_AS(memoria.commit({}), DataError);
  const std::vector<float> three(3, 1.0f), nan{1.0f, NAN}, good{1.0f, 0.0f};
  REQUIRE_THROWS_AS(memoria.recall(three, 1), DataError);
  REQUIRE_THROWS_AS(memoria.recall(nan, 1), DataError);
  memoria.commit(even(memoria.recall(good, 1)));
  memoria.recall(good, 1);
  const std::vector<double> negative{-1.0}, two{1.0, 1.0}, fine{1.0};
  REQUIRE_THROWS_AS(memoria.commit(negative), DataError);
  REQUIRE_THROWS_AS(memoria.commit(two), DataError);
  ByteWriter to;
  REQUIRE_THROWS_AS(memoria.save(to), DataError);
  REQUIRE(memoria.commit(fine).empty());
  REQUIRE(memoria.size() == 2);
}

TEST_CASE("a full search recalls the nearest of all long-term engrams, linked or not",
          "[retention]") {
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  MemoriaConfig config;
  config.n_short = 2, config.n_long = 3, config.short_term_capacity = 4, config.depth = 0;
  config.initial_lifespan = 1000;
  MemoriaConfig full = config;
  full.search = LongTermSearch::full;
  constexpr std::int64_t kWidth = 5, kFresh = 3;
  Memoria linked(config, kWidth), all(full, kWidth);
  std::vector<std::vector<float>> vectors;
  int differ = 0;
  for (int step = 0; step < 40; ++step) {
    std::vector<float> engrams;
    for (std::int64_t i = 0; i < kFresh * kWidth; ++i) engrams.push_back(normal(random));
    std::vector<std::pair<double, std::int64_t>> nearest;  // by mean correlation, in float64
    for (const std::int64_t id : all.long_term()) {
      double sum = 0;
      for (std::int64_t w = 0; w < kFresh; ++w) {
        double square = 0;
        for (std::int64_t x = 0; x < kWidth; ++x) {
          const double d = static_cast<double>(engrams[static_cast<std::size_t>(w * kWidth + x)]) -
                           static_cast<double>(
                               vectors[static_cast<std::size_t>(id)][static_cast<std::size_t>(x)]);
          square += d * d;
        }
        sum += std::exp(-square);
      }
      nearest.emplace_back(-sum, id);
    }
    std::sort(nearest.begin(), nearest.end());
    const Memoria::Recall r = all.recall(engrams, kFresh);
    std::vector<std::int64_t> expected;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, nearest.size()); ++i)
      expected.push_back(nearest[i].second);
    REQUIRE(r.long_term == expected);
    REQUIRE(r.found == all.long_term());
    differ += linked.recall(engrams, kFresh).long_term != expected;
    all.commit(std::vector<double>(static_cast<std::size_t>(all.last_recall().size()), 1.0));
    linked.commit(std::vector<double>(static_cast<std::size_t>(linked.last_recall().size()), 1.0));
    for (std::int64_t w = 0; w < kFresh; ++w)
      vectors.emplace_back(engrams.begin() + w * kWidth, engrams.begin() + (w + 1) * kWidth);
  }
  REQUIRE(differ > 10);
}

TEST_CASE("a step's owner may choose what is recalled, and leave numbers out", "[retention]") {
  MemoriaConfig config;
  config.n_short = 1, config.n_long = 2, config.short_term_capacity = 2;
  config.initial_lifespan = 10, config.alpha = 4;
  Memoria memoria(config, 1);
  const std::vector<float> x{0, 1, 2, 3, 4, 5};
  const auto engrams = [&](std::size_t n) { return std::span(x).first(n); };
  memoria.recall(engrams(2), std::vector<std::int64_t>{0, 2}, 4);  // 1 and 3 are no engrams
  memoria.commit({});
  REQUIRE(memoria.total() == 4);
  REQUIRE((memoria.holds(0) && !memoria.holds(1) && memoria.holds(2) && !memoria.holds(3)));
  memoria.recall(engrams(2), std::vector<std::int64_t>{4, 5}, 6);
  memoria.commit(std::vector<double>(static_cast<std::size_t>(memoria.last_recall().size()), 1));
  REQUIRE(memoria.long_term() == std::vector<std::int64_t>{0, 2});
  REQUIRE(memoria.short_term() == std::vector<std::int64_t>{4, 5});
  const double before = memoria.lifespan(2);
  const std::vector<std::int64_t> chosen{5, 2, 4, 0};
  const Memoria::Recall& r = memoria.recall(engrams(1), std::vector<std::int64_t>{6}, 7, chosen);
  REQUIRE(r.short_term == std::vector<std::int64_t>{5});  // 4 is one too many
  REQUIRE(r.long_term == std::vector<std::int64_t>{2, 0});
  REQUIRE((r.initial.empty() && r.found.empty()));
  memoria.commit(std::vector<double>{1, 2, 1});
  REQUIRE(memoria.lifespan(2) == before + 2.0 / 4 * 3 * 4 - 1);
  REQUIRE(memoria.count(2, 5) == 1);
  // Nothing changes by what is refused.
  const std::vector<std::int64_t> unknown{3}, late{7}, early{6};
  REQUIRE_THROWS_AS(memoria.recall(engrams(1), late, 8, unknown), DataError);
  REQUIRE_THROWS_AS(memoria.recall(engrams(1), early, 8), DataError);
  REQUIRE_THROWS_AS(memoria.recall(engrams(1), late, 7), DataError);
  REQUIRE_THROWS_AS(memoria.recall(engrams(2), late, 8), DataError);
  REQUIRE(memoria.total() == 7);
}

TEST_CASE("random wiring links what fires with long-term engrams, not with what fires with it",
          "[retention]") {
  std::mt19937 random(12);
  std::normal_distribution<float> normal;
  MemoriaConfig config;
  config.n_short = 4, config.n_long = 4, config.short_term_capacity = 12;
  config.initial_lifespan = 1000;
  constexpr std::int64_t kWidth = 6, kFresh = 4, kSteps = 60;
  const auto run = [&](Wiring wiring) {
    config.wiring = wiring;
    Memoria memoria(config, kWidth);
    random.seed(12);
    for (int step = 0; step < kSteps; ++step) {
      std::vector<float> engrams;
      for (std::int64_t i = 0; i < kFresh * kWidth; ++i) engrams.push_back(normal(random));
      const std::int64_t n = memoria.recall(engrams, kFresh).size();
      const Ids queue = memoria.short_term();
      memoria.commit(std::vector<double>(static_cast<std::size_t>(n), 1.0));
      if (wiring == Wiring::random)  // no two of the newest are linked: neither is an old one
        for (const std::int64_t a : queue)
          for (const std::int64_t b : queue) REQUIRE((a == b || memoria.count(a, b) == 0));
    }
    return memoria;
  };
  const auto pairs = [](const Memoria& memoria) {
    std::int64_t sum = 0;
    for (std::int64_t a = 0; a < memoria.total(); ++a)
      for (std::int64_t b = 0; b < a; ++b) {
        REQUIRE(memoria.count(a, b) == memoria.count(b, a));
        sum += memoria.count(a, b);
      }
    return sum;
  };
  const Memoria hebbian = run(Wiring::hebbian), drawn = run(Wiring::random);
  REQUIRE(hebbian.total() == drawn.total());
  // As many links, but for pairs that were drawn twice in a step and the steps before any was old.
  REQUIRE(pairs(drawn) < pairs(hebbian));
  REQUIRE(pairs(drawn) * 2 > pairs(hebbian));
  ByteWriter to;
  drawn.save(to);
  Memoria back(config, kWidth);
  ByteReader from(to.bytes(), "state");
  back.load(from);
  REQUIRE(pairs(back) == pairs(drawn));
}
