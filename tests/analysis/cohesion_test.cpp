// SPDX-License-Identifier: Apache-2.0
// Measures of whole segmentations against the graph itself, built token by token in float64, and
// against refinement's own objective for a single split.
#include "analysis/cohesion.hpp"

#include <cmath>
#include <numeric>

#include "analysis/recall_overlap.hpp"
#include "episodic/base/error.hpp"
#include "some_keys.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::analysis;

namespace {

/// A_ij of the units, over the text.
std::vector<std::vector<double>> graph(const RecordedKeys& keys, TokenRange text,
                                       const std::vector<std::int64_t>& units) {
  const auto n = static_cast<std::size_t>(text.size());
  std::vector<std::vector<double>> a(n, std::vector<double>(n));
  for (const std::int64_t unit : units)
    for (std::size_t i = 0; i < n; ++i)
      for (std::size_t j = 0; j < n; ++j) {
        const auto x = keys.key(unit, text.start + static_cast<std::int64_t>(i));
        const auto y = keys.key(unit, text.start + static_cast<std::int64_t>(j));
        for (std::size_t c = 0; c < x.size(); ++c)
          a[i][j] += static_cast<double>(x[c]) * static_cast<double>(y[c]);
      }
  return a;
}

/// Eqs. 2 to 5 as they are printed.
Cohesion by_the_graph(const std::vector<std::vector<double>>& a, TokenRange text,
                      const Boundaries& boundaries) {
  std::vector<std::size_t> event(a.size());
  for (const std::int64_t b : boundaries)
    for (auto i = static_cast<std::size_t>(b - text.start); i < a.size(); ++i) ++event[i];
  const std::size_t events = boundaries.size() + 1;
  std::vector<double> degree(a.size());
  double two_m = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    degree[i] = std::accumulate(a[i].begin(), a[i].end(), 0.0);
    two_m += degree[i];
  }
  Cohesion result;
  for (std::size_t i = 0; i < a.size(); ++i)
    for (std::size_t j = 0; j < a.size(); ++j)
      if (event[i] == event[j])
        result.modularity += (a[i][j] - degree[i] * degree[j] / two_m) / (2 * two_m);
  for (std::size_t e = 0; e < events; ++e) {
    double in = 0, across = 0, out = 0, n = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
      n += event[i] == e;
      for (std::size_t j = 0; j < a.size(); ++j)
        (event[i] == e ? (event[j] == e ? in : across) : (event[j] == e ? across : out)) +=
            event[i] == e || event[j] != e ? a[i][j] : 0.0;
    }
    const auto count = static_cast<double>(events), all = static_cast<double>(a.size());
    result.conductance += across / std::min(in, out) / count;
    result.ratio_of_sums += in / across / count;
    result.ratio_of_means += in / (n * n) / (across / (n * (all - n))) / count;
  }
  return result;
}

void check_equal(const Cohesion& a, const Cohesion& b) {
  CHECK(a.modularity == Approx(b.modularity).epsilon(1e-9).margin(1e-13));
  CHECK(a.conductance == Approx(b.conductance).epsilon(1e-8));
  CHECK(a.ratio_of_sums == Approx(b.ratio_of_sums).epsilon(1e-8));
  CHECK(a.ratio_of_means == Approx(b.ratio_of_means).epsilon(1e-8));
}

}  // namespace

TEST_CASE("measures of a segmentation equal the graph's, by unit, by layer and over all") {
  const RecordedKeys keys = some_keys(61, 3, 2, 5, 13);
  const KeySums sums(keys);
  const TokenRange text{2, 59};
  for (const Boundaries& b : {Boundaries{30}, Boundaries{3, 4, 20, 58}, Boundaries{13, 26, 39}}) {
    const CohesionByPart parts = cohesion_by_part(sums, 2, text, b);
    REQUIRE(parts.units.size() == 6);
    REQUIRE(parts.layers.size() == 3);
    for (std::int64_t unit = 0; unit < 6; ++unit)
      check_equal(parts.units[static_cast<std::size_t>(unit)],
                  by_the_graph(graph(keys, text, {unit}), text, b));
    for (std::int64_t l = 0; l < 3; ++l)
      check_equal(parts.layers[static_cast<std::size_t>(l)],
                  by_the_graph(graph(keys, text, {2 * l, 2 * l + 1}), text, b));
    check_equal(parts.all, by_the_graph(graph(keys, text, {0, 1, 2, 3, 4, 5}), text, b));
    check_equal(cohesion_of_all(sums, text, b), parts.all);
  }
}

TEST_CASE("one split has the modularity that refinement gives it") {
  const RecordedKeys keys = some_keys(20, 1, 1, 4, 7);
  const KeySums sums(keys);
  for (std::int64_t t = 1; t < 20; ++t) {
    const EventSums left = event_sums(sums, 0, {0, 20}, Boundaries{t}).front();
    const double total = left.inside + 2 * left.across + left.outside;
    const double by_rule =
        (left.inside * left.outside - left.across * left.across) / (total * total);
    CHECK(cohesion_of_all(sums, {0, 20}, Boundaries{t}).modularity == Approx(by_rule));
  }
}

TEST_CASE("true events are more modular than shifted ones") {
  const KeySums sums(some_keys(120, 2, 2, 8, 20));
  const Cohesion at = cohesion_of_all(sums, {0, 120}, Boundaries{20, 40, 60, 80, 100});
  const Cohesion off = cohesion_of_all(sums, {0, 120}, Boundaries{10, 30, 50, 70, 90});
  CHECK(at.modularity > off.modularity);
  CHECK(at.ratio_of_means > 0);
}

TEST_CASE("one event, and keys of nothing, give no division by zero") {
  const KeySums sums(some_keys(10, 1, 1, 3));
  const Cohesion one = cohesion_of_all(sums, {0, 10}, {});
  CHECK(one.modularity == 0);
  CHECK(one.ratio_of_means == 0);
  RecordedKeys zero = some_keys(10, 1, 1, 3);
  for (float& x : zero.layers[0]) x = 0;
  const Cohesion none = cohesion_of_all(KeySums(zero), {0, 10}, Boundaries{5});
  CHECK(none.modularity == 0);
  CHECK(std::isfinite(none.conductance));
  CHECK(std::isfinite(none.ratio_of_means));
}

TEST_CASE("recorded keys that do not fit or are not finite are refused") {
  RecordedKeys keys = some_keys(10, 2, 1, 3);
  keys.check();
  keys.layers[1][7] = std::nanf("");
  CHECK_THROWS_WITH(keys.check(), Catch::Contains("layer 1"));
  keys.layers[1].pop_back();
  CHECK_THROWS_WITH(keys.check(), Catch::Contains("29"));
  CHECK_THROWS_AS(RecordedKeys{}.check(), DataError);
}

TEST_CASE("an event is recalled alone if no other layer recalls it in that step") {
  RecallOverlap overlap(3);
  overlap.add({{1, 2}, {2, 3}, {}});
  overlap.add({{5}, {6}, {7}});
  CHECK(overlap.recalled(0) == 3);
  CHECK(overlap.alone(0) == Approx(2.0 / 3));
  CHECK(overlap.alone(1) == Approx(2.0 / 3));
  CHECK(overlap.alone(2) == 1);
  CHECK(RecallOverlap(1).alone(0) == 0);
}
