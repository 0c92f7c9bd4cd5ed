// SPDX-License-Identifier: Apache-2.0
#include "episodic/recall/index.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <thread>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/recall/detail/exact_index.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace index_test {

std::vector<float> random_vector(std::mt19937& rng, std::int64_t n) {
  std::normal_distribution<float> normal;
  std::vector<float> v(static_cast<std::size_t>(n));
  for (float& x : v) x = normal(rng);
  return v;
}

// n vectors around centres, as events of a few topics would be.
std::vector<std::vector<float>> clustered(std::mt19937& rng, std::int64_t n, std::int64_t width) {
  std::vector<std::vector<float>> centres, out;
  for (int i = 0; i < 40; ++i) centres.push_back(random_vector(rng, width));
  for (std::int64_t i = 0; i < n; ++i) {
    std::vector<float> v = centres[rng() % centres.size()];
    const std::vector<float> offset = random_vector(rng, width);
    for (std::size_t c = 0; c < v.size(); ++c) v[c] += 0.5f * offset[c];
    out.push_back(std::move(v));
  }
  return out;
}

bool same(const std::vector<ScoredEvent>& a, const std::vector<ScoredEvent>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.event == y.event && x.score == y.score;
  });
}

TEST_CASE("individual representatives are as they were added, and gone once forgotten") {
  // 873 rows of 300 floats are a slab: the 219th event of four lies in two.
  const IndexShape shape{3, 100, 4, RepresentativeScore::max};
  std::mt19937 rng(43);
  constexpr EventId kGone = 218;
  const auto index = make_exact_index(shape), zeros = make_exact_index(shape);
  std::vector<std::vector<float>> added;
  for (EventId e = 0; e < 230; ++e) {
    const std::int64_t count = e == kGone ? 4 : 1 + static_cast<std::int64_t>(rng() % 4);
    const std::vector<float> mean = random_vector(rng, 300);
    added.push_back(random_vector(rng, count * 300));
    index->add(mean.data(), added.back().data(), count);
    const std::vector<float> none(added.back().size(), 0.0f);
    const bool gone = e == kGone;
    zeros->add(gone ? none.data() : mean.data(), gone ? none.data() : added.back().data(), count);
  }
  for (EventId e = 0; e < 230; ++e) REQUIRE(index->each(e) == added[static_cast<std::size_t>(e)]);
  ByteWriter forgotten, expected;
  for (const auto& [of, to] : {std::pair{&index, &forgotten}, std::pair{&zeros, &expected}}) {
    (*of)->forget(kGone);
    (*of)->save(*to);
    REQUIRE_THROWS_AS((*of)->each(kGone), DataError);
    REQUIRE_THROWS_AS((*of)->each(230), DataError);
    REQUIRE((*of)->each(kGone + 1) == added[kGone + 1]);
  }
  REQUIRE(std::ranges::equal(forgotten.bytes(), expected.bytes()));
  const auto by_mean = make_exact_index({3, 100, 4, RepresentativeScore::mean});
  by_mean->add(added[0].data(), nullptr, 0);
  REQUIRE(by_mean->each(0).empty());
}

TEST_CASE("exact index ranks by dot product, both scores, odd sizes, ties to the earlier") {
  std::mt19937 rng(41);
  for (int seed = 0; seed < 40; ++seed) {
    IndexShape shape;
    shape.n_heads = 1 + static_cast<std::int64_t>(rng() % 4);
    shape.head_dim = 1 + static_cast<std::int64_t>(rng() % 37);
    shape.n_repr = 1 + static_cast<std::int64_t>(rng() % 4);
    shape.score = seed % 2 ? RepresentativeScore::max : RepresentativeScore::mean;
    const std::int64_t width = shape.width(), n = static_cast<std::int64_t>(rng() % 300);
    const auto index = make_exact_index(shape);
    const std::vector<float> query = random_vector(rng, width);
    std::vector<double> expected;
    std::vector<std::vector<float>> means;
    for (std::int64_t e = 0; e < n; ++e) {
      const std::int64_t count =
          1 + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(shape.n_repr));
      const std::vector<float> mean = random_vector(rng, width),
                               each = random_vector(rng, count * width);
      const bool max = shape.score == RepresentativeScore::max;
      index->add(mean.data(), max ? each.data() : nullptr, max ? count : 0);
      means.push_back(mean);
      double score = 0;
      for (std::int64_t h = 0; h < shape.n_heads; ++h) {
        double best = -1e300, dot_mean = 0;
        for (std::int64_t j = 0; j < count; ++j) {
          double dot = 0;
          for (std::int64_t c = h * shape.head_dim; c < (h + 1) * shape.head_dim; ++c)
            dot += double(query[static_cast<std::size_t>(c)]) *
                   each[static_cast<std::size_t>(j * width + c)];
          best = std::max(best, dot);
        }
        for (std::int64_t c = h * shape.head_dim; c < (h + 1) * shape.head_dim; ++c)
          dot_mean +=
              double(query[static_cast<std::size_t>(c)]) * mean[static_cast<std::size_t>(c)];
        score += max ? best : dot_mean;
      }
      expected.push_back(score);
    }
    REQUIRE(index->size() == n);
    for (const std::int64_t k : {std::int64_t{0}, std::int64_t{1}, n / 2, n, n + 5}) {
      std::vector<ScoredEvent> got{{7, 7.0f}};
      index->search(query.data(), k, got);
      REQUIRE(static_cast<std::int64_t>(got.size()) == std::min(k, n));
      std::vector<double> left = expected;
      std::vector<bool> seen(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < got.size(); ++i) {
        const auto e = static_cast<std::size_t>(got[i].event);
        REQUIRE_FALSE(seen[e]);
        seen[e] = true;
        REQUIRE(std::abs(got[i].score - expected[e]) < 1e-4);
        REQUIRE(*std::max_element(left.begin(), left.end()) - expected[e] < 1e-4);
        left[e] = -1e300;
        if (i) REQUIRE(got[i - 1].score >= got[i].score);
      }
    }
    for (std::int64_t e = 0; e < n; ++e)
      REQUIRE(std::equal(means[static_cast<std::size_t>(e)].begin(),
                         means[static_cast<std::size_t>(e)].end(), index->mean(e)));
  }
}

TEST_CASE("equal vectors keep the order of time in an exact index") {
  std::mt19937 rng(42);
  const IndexShape shape{2, 24, 4, RepresentativeScore::mean};
  const auto index = make_exact_index(shape);
  const std::vector<float> a = random_vector(rng, 48), query = random_vector(rng, 48);
  for (int i = 0; i < 200; ++i) index->add(a.data(), nullptr, 0);
  std::vector<ScoredEvent> got;
  index->search(query.data(), 50, got);
  for (std::size_t i = 0; i < got.size(); ++i) REQUIRE(got[i].event == static_cast<EventId>(i));
}

TEST_CASE("an exact index forgets, checks its input, and does not feel the threads") {
  std::mt19937 rng(43);
  const IndexShape shape{2, 40, 2, RepresentativeScore::mean};
  const auto a = make_exact_index(shape), b = make_exact_index(shape);
  const auto vectors = clustered(rng, 9000, 80);
  for (std::size_t i = 0; i < vectors.size(); ++i) {
    a->add(vectors[i].data(), nullptr, 0);
    if (i < 5000) b->add(vectors[i].data(), nullptr, 0);
  }
  REQUIRE(a->bytes() >= 9000 * 80 * 4);
  a->truncate(4000);
  b->truncate(4000);
  for (std::size_t i = 6000; i < 7000; ++i)
    a->add(vectors[i].data(), nullptr, 0), b->add(vectors[i].data(), nullptr, 0);
  std::vector<ScoredEvent> ga, gb;
  const std::vector<float> query = random_vector(rng, 80);
  a->search(query.data(), 100, ga);
  const int threads = max_threads();
  set_max_threads(threads == 1 ? 2 : 1);
  b->search(query.data(), 100, gb);
  set_max_threads(threads);
  REQUIRE(same(ga, gb));
  REQUIRE_THROWS_AS(a->mean(5000), DataError);
  REQUIRE_THROWS_AS(a->truncate(5001), DataError);
  REQUIRE_THROWS_AS(make_exact_index({0, 4, 1, RepresentativeScore::mean}), ConfigError);
  const auto max = make_exact_index({1, 4, 2, RepresentativeScore::max});
  REQUIRE_THROWS_AS(max->add(query.data(), nullptr, 0), DataError);
  REQUIRE_THROWS_AS(max->add(query.data(), query.data(), 3), DataError);
}

TEST_CASE("a list so long that the first look takes in every event is had by a scan") {
  std::mt19937 rng(61);
  const IndexShape shape{1, 64, 1, RepresentativeScore::mean};
  detail::ExactIndex index(shape, {0, 4});
  for (const auto& v : clustered(rng, 1280, 64)) index.add(v.data(), nullptr, 0);
  const std::int64_t before = index.bytes();
  const auto query = clustered(rng, 1, 64)[0];
  std::vector<ScoredEvent> list;
  index.search(query.data(), 1280 / 64 + 1, list);
  REQUIRE(index.bytes() == before);  // nothing was quantised
  REQUIRE(list.size() == 21);
  index.search(query.data(), 1280 / 64, list);
  REQUIRE(index.bytes() > before);
  REQUIRE(list.size() == 20);
}

TEST_CASE("the quantised copy changes no list") {
  std::mt19937 rng(46);
  for (int seed = 0; seed < 8; ++seed) {
    const std::int64_t widths[] = {256, 200, 97, 1, 128, 333, 64, 131};
    const std::int64_t width = widths[seed], n = 5000;
    const IndexShape shape{1, width, 1, RepresentativeScore::mean};
    detail::ExactIndex bounded(shape, {0, 4, true, 4});
    detail::ExactIndex plain(shape, {std::int64_t{1} << 60, 1});
    auto vectors = clustered(rng, n, width);
    for (auto& v : vectors) {
      const float scale = seed % 4 == 1 ? static_cast<float>(1 + rng() % 1000) : 1.0f;
      for (float& x : v) x = x * scale + (seed % 4 == 2 ? 300.0f : 0.0f);  // a large common part
      if (seed % 4 == 3 && rng() % 50 == 0)
        v[rng() % v.size()] = rng() % 2 ? std::numeric_limits<float>::quiet_NaN()
                                        : std::numeric_limits<float>::infinity();
    }
    for (int i = 0; i < 500; ++i)  // ties
      vectors[rng() % vectors.size()] = vectors[rng() % 10];
    const auto add = [&](const std::vector<float>& v) {
      bounded.add(v.data(), nullptr, 0);
      plain.add(v.data(), nullptr, 0);
    };
    const auto compare = [&] {
      std::vector<ScoredEvent> a, b;
      for (const std::int64_t k : {1, 10, 300, 1200}) {
        auto query = clustered(rng, 1, width)[0];
        if (k == 10) query = vectors[rng() % 10];
        bounded.search(query.data(), k, a);
        plain.search(query.data(), k, b);
        REQUIRE(same(a, b));
      }
      const std::vector<float> nothing(static_cast<std::size_t>(width), 0.0f);
      bounded.search(nothing.data(), 5, a);
      plain.search(nothing.data(), 5, b);
      REQUIRE(same(a, b));
    };
    for (const auto& v : vectors) add(v);
    compare();
    REQUIRE(bounded.bytes() > plain.bytes());  // there is a quantised copy
    compare();
    bounded.truncate(2600), plain.truncate(2600);
    compare();
    for (std::size_t i = vectors.size(); i-- > 1000;) add(vectors[i]);
    compare();
  }
}

TEST_CASE("scores that are not numbers come last") {
  const auto index = make_exact_index({1, 2, 1, RepresentativeScore::mean});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float bad[] = {nan, 1.0f}, good[] = {-5.0f, 0.0f}, query[] = {1.0f, 1.0f};
  for (int i = 0; i < 40; ++i) index->add(i % 2 ? good : bad, nullptr, 0);
  std::vector<ScoredEvent> got;
  index->search(query, 30, got);
  for (std::size_t i = 0; i < 20; ++i) REQUIRE(got[i].event == static_cast<EventId>(2 * i + 1));
}

TEST_CASE("FAISS index is exact while small and finds clustered events after") {
  std::mt19937 rng(44);
  const IndexShape shape{4, 32, 4, RepresentativeScore::mean};
  const std::int64_t n = 6000, width = shape.width();
  const auto vectors = clustered(rng, n, width);
  const auto exact = make_exact_index(shape), approximate = make_faiss_index(shape, 1000);
  std::vector<ScoredEvent> want, got;
  double recall = 0;
  int queries = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    exact->add(vectors[static_cast<std::size_t>(i)].data(), nullptr, 0);
    approximate->add(vectors[static_cast<std::size_t>(i)].data(), nullptr, 0);
    if (i % 311 != 310) continue;
    const auto query = clustered(rng, 1, width)[0];
    exact->search(query.data(), 64, want);
    approximate->search(query.data(), 64, got);
    REQUIRE(got.size() == want.size());
    if (i < 1000) REQUIRE(same(got, want));
    const double share = recall_of(got, want);
    if (i >= 1000) recall += share, ++queries;
    // the event itself, linked or in the tail, is found by its own direction
    approximate->search(vectors[static_cast<std::size_t>(i)].data(), 64, got);
    REQUIRE(std::any_of(got.begin(), got.end(), [&](const auto& e) { return e.event == i; }));
  }
  INFO("mean recall " << recall / queries);
  REQUIRE(recall / queries >= 0.9);
  // what the index itself measured of its recall: over fewer searches, so not the same number
  REQUIRE(exact->quality().checked == 0);
  REQUIRE(approximate->quality().checked > 0);
  REQUIRE(std::abs(approximate->quality().recall() - recall / queries) < 0.15);
  REQUIRE(approximate->bytes() > exact->bytes());
  REQUIRE(approximate->size() == n);
  REQUIRE(std::equal(vectors[77].begin(), vectors[77].end(), approximate->mean(77)));
  approximate->search(vectors[0].data(), n, got);
  REQUIRE(static_cast<std::int64_t>(got.size()) == n);
}

TEST_CASE("a rewound FAISS index equals one that never went further, on any threads") {
  std::mt19937 rng(45);
  const IndexShape shape{2, 16, 4, RepresentativeScore::mean};
  const auto vectors = clustered(rng, 2500, 32);
  const auto a = make_faiss_index(shape, 300), b = make_faiss_index(shape, 300);
  const int threads = max_threads();
  const auto add = [&](RepresentativeIndex& index, std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) index.add(vectors[i].data(), nullptr, 0);
  };
  add(*a, 0, 2500);
  a->truncate(2400);  // still above what is linked, or not: both must hold
  a->truncate(1200);
  set_max_threads(threads == 1 ? 2 : 1);
  add(*b, 0, 1200);
  set_max_threads(threads);
  std::vector<ScoredEvent> ga, gb;
  for (int i = 0; i < 20; ++i) {
    const auto query = clustered(rng, 1, 32)[0];
    a->search(query.data(), 20, ga);
    b->search(query.data(), 20, gb);
    REQUIRE(same(ga, gb));
    for (const auto& e : ga) REQUIRE(e.event < 1200);
  }
  a->truncate(100);
  const auto exact = make_exact_index(shape);
  add(*exact, 0, 100);
  a->search(vectors[3].data(), 20, ga);
  exact->search(vectors[3].data(), 20, gb);
  REQUIRE(same(ga, gb));
  REQUIRE_THROWS_AS(make_faiss_index({2, 16, 4, RepresentativeScore::max}, 300), ConfigError);
}

TEST_CASE("make_index follows the configuration, and recall_of counts") {
  MemoryConfig c;
  c.score = RepresentativeScore::max;
  const float v[] = {1.0f, 2.0f};
  make_index(c, 1, 2)->add(v, v, 1);
  c.index = IndexKind::faiss;
  REQUIRE_THROWS_AS(make_index(c, 1, 2), ConfigError);
  c.score = RepresentativeScore::mean;
  make_index(c, 1, 2)->add(v, nullptr, 0);
  const std::vector<ScoredEvent> a{{1, 0}, {5, 0}, {9, 0}}, b{{9, 0}, {2, 0}};
  REQUIRE(recall_of(a, b) == 0.5);
  REQUIRE(recall_of({}, b) == 0.0);
  REQUIRE(recall_of(a, {}) == 1.0);
}

TEST_CASE("a learned projection changes no list, whatever the vectors") {
  std::mt19937 rng(47);
  for (int seed = 0; seed < 6; ++seed) {
    const std::int64_t width = seed == 5 ? 333 : 256, n = 4000;
    const IndexShape shape{1, width, 1, RepresentativeScore::mean};
    detail::ExactIndex projected(shape, {0, 8, true, 4}), plain(shape, {std::int64_t{1} << 60, 1});
    const std::vector<float> common = random_vector(rng, width);
    for (std::int64_t i = 0; i < n; ++i) {
      std::vector<float> v = random_vector(rng, width);
      for (std::size_t c = 0; c < v.size(); ++c) v[c] = 0.3f * v[c] + 3.0f * common[c];
      if (seed == 1 && i % 3 == 0) std::fill(v.begin(), v.end(), 0.0f);
      if (seed == 2)
        for (float& x : v) x = 7.0f;  // all equal
      if (seed == 3 && i % 500 == 0)
        for (float& x : v) x *= 1e20f;
      if (seed == 4 && i % 700 == 0) v[3] = std::numeric_limits<float>::quiet_NaN();
      if (seed == 4 && i % 900 == 0) v[5] = -std::numeric_limits<float>::infinity();
      projected.add(v.data(), nullptr, 0);
      plain.add(v.data(), nullptr, 0);
    }
    std::vector<ScoredEvent> a, b;
    for (int i = 0; i < 80; ++i) {
      std::vector<float> q = random_vector(rng, width);
      const float spread = i % 7 == 0 ? 1.0f : 0.02f;
      for (std::size_t c = 0; c < q.size(); ++c)
        q[c] = spread * q[c] + (i % 11 == 0 ? -1.0f : 1.0f) * common[c];
      if (i % 20 == 19)
        for (float& x : q) x *= 1e-15f;
      const std::int64_t k = 1 + i % 37;
      projected.search(q.data(), k, a);
      plain.search(q.data(), k, b);
      REQUIRE(same(a, b));
      if (i % 10 == 0) {
        const auto e = static_cast<EventId>(rng() % static_cast<std::uint64_t>(n));
        projected.forget(e), plain.forget(e);
      }
    }
  }
}

TEST_CASE("a search over many slabs lists what the plain one does, ties and forgotten included") {
  // Narrow enough to be quick; the first look then goes by slabs, as it does over a long context.
  std::mt19937 rng(52);
  const std::int64_t width = 64, n = 40 * 1024;
  const IndexShape shape{1, width, 1, RepresentativeScore::mean};
  detail::ExactIndex projected(shape, {0, 16, true, 4}), plain(shape, {std::int64_t{1} << 60, 1});
  const std::vector<float> common = random_vector(rng, width);
  std::vector<float> v;
  for (std::int64_t i = 0; i < n; ++i) {
    if (i % 9 != 8) v = random_vector(rng, width);  // else: what came before once more
    projected.add(v.data(), nullptr, 0), plain.add(v.data(), nullptr, 0);
  }
  std::vector<ScoredEvent> a, b;
  for (int i = 0; i < 60; ++i) {
    std::vector<float> q = random_vector(rng, width);
    for (std::size_t c = 0; c < q.size(); ++c) q[c] = 0.1f * q[c] + common[c] + (c == 3 ? 5.0f : 0);
    const std::int64_t k = 1 + i % 9;
    projected.search(q.data(), k, a), plain.search(q.data(), k, b);
    REQUIRE(same(a, b));
    for (const ScoredEvent& e : a)
      if (i % 3 == 0) projected.forget(e.event), plain.forget(e.event);
    if (i == 40) projected.truncate(n - 3000), plain.truncate(n - 3000);
  }
}

TEST_CASE("no level of a projection bounds a row below its score") {
  std::mt19937 rng(53);
  for (const std::int64_t rows : {1024, 250, 16, 17}) {
    const std::int64_t width = 96, slabs = 3;
    detail::QuantisedSlabs quantised(width, rows);
    detail::Projection projection(width, rows, 16);
    const std::vector<float> common = random_vector(rng, width);
    std::vector<std::vector<float>> all;
    for (std::int64_t slab = 0; slab < slabs; ++slab) {
      std::vector<float> vectors;
      for (std::int64_t r = 0; r < rows; ++r) {
        std::vector<float> v = random_vector(rng, width);
        for (std::size_t c = 0; c < v.size(); ++c) v[c] = 0.5f * v[c] + 2.0f * common[c];
        if (rng() % 300 == 0) v[7] = std::numeric_limits<float>::infinity();  // nothing is known
        vectors.insert(vectors.end(), v.begin(), v.end());
        all.push_back(std::move(v));
      }
      quantised.add(vectors.data());
    }
    const auto draw_query = [&](float spread) {
      std::vector<float> q = random_vector(rng, width);
      for (std::size_t c = 0; c < q.size(); ++c)
        q[c] = spread * q[c] + (c < 5 ? 3.0f * static_cast<float>(rng() % 7) - 9.0f : 0.0f);
      return q;
    };
    for (int i = 0; i < 16; ++i) projection.sample(draw_query(0.1f).data());
    projection.project(quantised, slabs);
    const std::int64_t groups = projection.groups_per_slab();
    std::vector<float> upper(static_cast<std::size_t>(groups));
    for (int i = 0; i < 12; ++i) {
      const std::vector<float> q = draw_query(i % 3 == 0 ? 1.0f : 0.1f);
      detail::Projection::Opened opened;
      projection.open(q.data(), 1.001 * std::sqrt(detail::dot(q.data(), q.data(), width)), opened);
      for (std::int64_t slab = 0; slab < slabs; ++slab) {
        REQUIRE(projection.has(slab));
        std::vector<float> score, best(upper.size(), -std::numeric_limits<float>::infinity());
        for (std::int64_t r = 0; r < rows; ++r) {
          score.push_back(
              detail::dot(q.data(), all[static_cast<std::size_t>(slab * rows + r)].data(), width));
          float& b = best[static_cast<std::size_t>(r / detail::Projection::kGroup)];
          if (score.back() == score.back()) b = std::max(b, score.back());
        }
        const auto covers = [&](float most) {
          for (std::size_t g = 0; g < upper.size(); ++g)
            if (!(upper[g] >= best[g]) || !(most >= upper[g])) return false;
          return true;
        };
        const float offset = quantised.offset(q.data(), slab);
        REQUIRE(covers(projection.bound_groups(opened, slab, offset, upper.data())));
        // All rows that reach a bound, by both halves.
        std::vector<float> ordered;
        for (const float x : score)
          if (x == x) ordered.push_back(x);
        std::sort(ordered.begin(), ordered.end());
        const float reach = ordered[ordered.size() * 9 / 10];
        std::vector<detail::Projection::Row> found;
        projection.rows_above(opened, slab, offset, upper.data(), reach, found);
        std::vector<float> bound(score.size(), -std::numeric_limits<float>::infinity());
        for (const auto& row : found)
          bound[static_cast<std::size_t>(row.event - slab * rows)] = row.upper;
        for (std::size_t r = 0; r < score.size(); ++r)
          if (score[r] >= reach) REQUIRE(bound[r] >= score[r]);
        // Queries of few directions: the bounds rule a part of the others out.
        if (i % 3 != 0 && rows > 17) REQUIRE(found.size() < score.size());
      }
    }
  }
}

TEST_CASE("a subspace of 31 directions, as was saved once, is taken without the last") {
  const std::int64_t width = 64;
  const auto saved = [&](std::int64_t directions) {
    std::vector<float> rows(static_cast<std::size_t>(directions * width));
    for (std::int64_t j = 0; j < directions; ++j) rows[static_cast<std::size_t>(j * width + j)] = 1;
    ByteWriter to;
    to.put(std::int64_t{128});
    to.put(std::int64_t{1});
    to.put_vector(rows);
    return to;
  };
  const ByteWriter old = saved(31), now = saved(30), impossible = saved(32);
  detail::Projection projection(width, 1024, 128), other(width, 1024, 128);
  ByteReader from(old.bytes(), "old.state");
  projection.load(from);
  from.finish();
  ByteWriter again;
  projection.save(again);
  REQUIRE((again.bytes() == now.bytes()));
  ByteReader bad(impossible.bytes(), "bad.state");
  REQUIRE_THROWS_AS(other.load(bad), FileError);
}

TEST_CASE("forgotten events are never listed, and new ones under their numbers are") {
  std::mt19937 rng(48);
  for (const bool faiss : {false, true}) {
    const IndexShape shape{2, 16, 4, RepresentativeScore::mean};
    const auto vectors = clustered(rng, 1500, 32);
    const auto index = faiss ? make_faiss_index(shape, 300) : make_exact_index(shape);
    for (const auto& v : vectors) index->add(v.data(), nullptr, 0);
    const std::int64_t bytes = index->bytes();
    for (EventId e = 0; e < 1500; e += 3) index->forget(e), index->forget(e);
    REQUIRE(index->size() == 1500);
    REQUIRE(index->bytes() == bytes);
    std::vector<ScoredEvent> got;
    for (int i = 0; i < 20; ++i) {
      std::vector<float> q = vectors[static_cast<std::size_t>(3 * i)];
      if (i % 2)
        for (float& x : q) x = -x;  // zeros would rank high
      index->search(q.data(), 30, got);
      REQUIRE(got.size() == 30);
      for (const ScoredEvent& e : got) REQUIRE(e.event % 3 != 0);
    }
    REQUIRE_THROWS_AS(index->mean(0), DataError);
    REQUIRE_THROWS_AS(index->forget(1500), DataError);
    REQUIRE_THROWS_AS(index->forget(-1), DataError);
    index->truncate(900);
    index->add(vectors[900].data(), nullptr, 0);  // 900 was forgotten
    REQUIRE_FALSE(index->forgotten(900));
    REQUIRE(std::equal(vectors[900].begin(), vectors[900].end(), index->mean(900)));
    REQUIRE(index->forgotten(897));
  }
}

TEST_CASE("a saved index answers and grows as the one it was") {
  std::mt19937 rng(49);
  for (int kind = 0; kind < 3; ++kind) {
    const IndexShape shape{2, 40, 3,
                           kind == 2 ? RepresentativeScore::max : RepresentativeScore::mean};
    const auto make = [&] {
      return kind == 1 ? make_faiss_index(shape, 300) : make_exact_index(shape);
    };
    CAPTURE(kind);
    const auto vectors = clustered(rng, 1800, 80);
    const auto index = make(), loaded = make();
    const auto add = [&](RepresentativeIndex& to, std::size_t from, std::size_t end) {
      for (std::size_t i = from; i < end; ++i)
        to.add(vectors[i].data(), kind == 2 ? vectors[i].data() : nullptr, 1);
    };
    std::vector<ScoredEvent> a, b;
    const auto ask = [&](RepresentativeIndex& of, std::vector<ScoredEvent>& out, std::size_t i) {
      of.search(vectors[i].data(), 25, out);
    };
    add(*index, 0, 1300);
    for (std::size_t i = 0; i < 40; ++i) ask(*index, a, i);
    for (EventId e = 5; e < 1300; e += 50) index->forget(e);
    ByteWriter saved;
    index->save(saved);
    ByteReader reader(saved.bytes(), "index.state");
    loaded->load(reader);
    reader.finish();
    const auto equal = [&] {
      for (std::size_t i = 0; i < 70; ++i) {
        ask(*index, a, 11 * i), ask(*loaded, b, 11 * i);
        REQUIRE(same(a, b));
      }
      REQUIRE(index->quality().checked == loaded->quality().checked);
      REQUIRE(index->quality().recall_sum == loaded->quality().recall_sum);
      ByteWriter x, y;
      index->save(x), loaded->save(y);
      REQUIRE((x.bytes() == y.bytes()));
    };
    equal();
    add(*index, 1300, 1800), add(*loaded, 1300, 1800);
    equal();
    index->truncate(700), loaded->truncate(700);
    equal();

    // Cut or changed content is refused, or read as other numbers, but never trusted with sizes.
    for (int i = 0; i < 400; ++i) {
      std::vector<std::byte> bytes = saved.bytes();
      const bool cut = i % 2 == 0;
      if (cut)
        bytes.resize(rng() % bytes.size());
      else
        bytes[i < 200 ? static_cast<std::size_t>(i) : rng() % bytes.size()] ^=
            static_cast<std::byte>(1 + rng() % 255);
      const auto other = make();
      ByteReader from(bytes, "index.state");
      try {
        other->load(from);
        REQUIRE_FALSE(cut);
        ask(*other, a, 3);
      } catch (const FileError& e) {
        REQUIRE(std::string(e.what()).find("index.state") == 0);
      }
    }
  }
}

TEST_CASE("many readers of one index list what one index of all lists, each with events of its own",
          "[readers]") {
  std::mt19937 rng(71);
  constexpr std::int64_t n_base = 3000, n_all = 3400, width = 32;
  // Through the projection, and by a plain scan.
  for (const std::int64_t bound_from : {std::int64_t{0}, std::int64_t{1} << 60}) {
    const IndexShape shape{2, 16, 4, RepresentativeScore::mean};
    std::vector<std::vector<float>> vectors = clustered(rng, n_all, width);
    vectors[n_base + 3] = vectors[17];  // equal scores: the earlier event comes first
    detail::ExactIndex base(shape, {bound_from, 16, true, 4}),
        whole(shape, {bound_from, 16, true, 4});
    std::vector<std::vector<float>> queries = clustered(rng, 60, width);
    queries[5] = vectors[17];
    std::vector<ScoredEvent> list;
    for (std::int64_t e = 0; e < n_base; ++e) {
      base.add(vectors[static_cast<std::size_t>(e)].data(), nullptr, 0);
      if (e % 100 == 0)  // it learns from what is asked
        base.search(queries[static_cast<std::size_t>(e / 100)].data(), 5, list);
    }
    for (const auto& v : vectors) whole.add(v.data(), nullptr, 0);
    for (const EventId e : {4, 1700}) base.forget(e), whole.forget(e);
    base.freeze();
    std::vector<std::vector<std::vector<ScoredEvent>>> found(3);
    std::vector<std::thread> threads;
    for (auto& lists : found)
      threads.emplace_back([&] {
        const auto mine = make_index_over(base, make_exact_index(shape));
        for (std::int64_t e = n_base; e < n_all; ++e)
          mine->add(vectors[static_cast<std::size_t>(e)].data(), nullptr, 0);
        for (const auto& q : queries) mine->search(q.data(), 40, lists.emplace_back());
      });
    for (std::thread& t : threads) t.join();
    for (std::size_t i = 0; i < queries.size(); ++i) {
      whole.search(queries[i].data(), 40, list);
      for (const auto& lists : found) {
        REQUIRE(lists[i].size() == list.size());
        for (std::size_t r = 0; r < list.size(); ++r) {
          REQUIRE(lists[i][r].event == list[r].event);
          REQUIRE(lists[i][r].score == list[r].score);
        }
      }
    }
  }
}

TEST_CASE("an index over another refuses to change it") {
  std::mt19937 rng(72);
  const IndexShape shape{2, 16, 4, RepresentativeScore::mean};
  const auto vectors = clustered(rng, 20, 32);
  const auto base = make_exact_index(shape);
  for (const auto& v : vectors) base->add(v.data(), nullptr, 0);
  base->freeze();
  const auto mine = make_index_over(*base, make_exact_index(shape));
  mine->add(vectors[3].data(), nullptr, 0);
  REQUIRE(mine->size() == 21);
  REQUIRE(mine->score(vectors[5].data(), 20) == mine->score(vectors[5].data(), 3));
  REQUIRE(std::equal(vectors[7].begin(), vectors[7].end(), mine->mean(7)));
  REQUIRE_THROWS_AS(mine->forget(19), ConfigError);
  REQUIRE_THROWS_AS(mine->truncate(19), DataError);
  ByteWriter to;
  REQUIRE_THROWS_AS(mine->save(to), ConfigError);
  mine->forget(20);
  mine->truncate(20);
  REQUIRE(base->size() == 20);
  const auto faiss = make_faiss_index(shape, 300);
  REQUIRE_THROWS_AS(faiss->freeze(), ConfigError);
}

}  // namespace index_test
