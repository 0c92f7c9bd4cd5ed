// SPDX-License-Identifier: Apache-2.0
// Distances between boundaries, against cases that can be done by hand and against other formulas.
#include "analysis/agreement.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::analysis;

namespace {

using Points = std::vector<std::int64_t>;

Points drawn(std::mt19937& random, std::size_t n, std::int64_t end) {
  Points all(static_cast<std::size_t>(end));
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(n);
  std::sort(all.begin(), all.end());
  return all;
}

}  // namespace

TEST_CASE("Wasserstein distance of points is how far they must move") {
  CHECK(wasserstein_points(Points{3, 9}, Points{3, 9}) == 0);
  CHECK(wasserstein_points(Points{3}, Points{10}) == Approx(7));
  CHECK(wasserstein_points(Points{0, 10}, Points{1, 12}) == Approx(1.5));
  // Two against one: half of the weight moves 4, half 6.
  CHECK(wasserstein_points(Points{0, 10}, Points{4}) == Approx(5));
  CHECK_THROWS_AS(wasserstein_points(Points{}, Points{1}), DataError);
  std::mt19937 random(3);
  for (int i = 0; i < 50; ++i) {
    // Sets of one size: sorted points move in pairs.
    const std::size_t n = 1 + random() % 20;
    const Points a = drawn(random, n, 60), b = drawn(random, n, 60);
    double sum = 0;
    for (std::size_t j = 0; j < n; ++j) sum += std::abs(static_cast<double>(a[j] - b[j]));
    CHECK(wasserstein_points(a, b) == Approx(sum / static_cast<double>(n)));
    // Any sizes: the same as between densities that hold a point's weight at its token.
    const Points c = drawn(random, 1 + random() % 30, 60);
    std::vector<double> p(60), q(60);
    for (const auto t : a) p[static_cast<std::size_t>(t)] += 1.0 / static_cast<double>(n);
    for (const auto t : c) q[static_cast<std::size_t>(t)] += 1.0 / static_cast<double>(c.size());
    CHECK(wasserstein_points(a, c) == Approx(wasserstein(p, q)));
    CHECK(wasserstein_points(a, c) == Approx(wasserstein_points(c, a)));
  }
}

TEST_CASE("a smoothed density is a mixture of Gaussians that sums to one") {
  const TokenRange text{5, 405};
  const std::vector<double> one = smoothed_density(mixture_of(Points{200}, 10), text);
  CHECK(one.size() == 400);
  double sum = 0;
  for (const double x : one) sum += x;
  CHECK(sum == Approx(1));
  CHECK(one[195] == Approx(1 / (10 * std::sqrt(2 * 3.14159265358979))));
  CHECK(one[205] / one[195] == Approx(std::exp(-0.5)));
  // At the edge what would lie outside is dealt out within.
  const std::vector<double> edge = smoothed_density(mixture_of(Points{5}, 10), text);
  CHECK(edge[0] == Approx(2 * one[195]).epsilon(0.05));
  // Weights: three quarters of the mass at one place.
  BoundaryMixture weighted = mixture_of(Points{100, 300}, 5);
  weighted.weights = {3, 1};
  const std::vector<double> w = smoothed_density(weighted, text);
  double left = 0;
  for (std::size_t t = 0; t < 195; ++t) left += w[t];
  CHECK(left == Approx(0.75));
  // The distance of two smoothed points is that of the points, but for the edges.
  CHECK(wasserstein(one, smoothed_density(mixture_of(Points{230}, 10), text)) == Approx(30));
  CHECK(wasserstein(one, one) == 0);

  CHECK_THROWS_AS(smoothed_density(mixture_of(Points{200}, 0), text), ConfigError);
  CHECK_THROWS_AS(smoothed_density(mixture_of(Points{}, 1), text), DataError);
  CHECK_THROWS_AS(smoothed_density(mixture_of(Points{405}, 1), text), DataError);
  weighted.weights = {1, std::numeric_limits<double>::quiet_NaN()};
  CHECK_THROWS_AS(smoothed_density(weighted, text), DataError);
  CHECK_THROWS_AS(wasserstein(one, std::vector<double>(3)), DataError);
}

TEST_CASE("correlation and log-density know nothing, all, and the opposite") {
  const std::vector<double> up{1, 2, 3, 4}, down{8, 6, 4, 2}, flat{1, 1, 1, 1}, bent{0, 1, 0, 1};
  CHECK(correlation(up, up) == Approx(1));
  CHECK(correlation(up, down) == Approx(-1));
  CHECK(correlation(up, flat) == 0);
  CHECK(correlation(up, bent) == Approx(1 / std::sqrt(5.0)));
  CHECK_THROWS_AS(correlation(up, std::vector<double>{1}), DataError);

  const std::vector<double> even(100, 0.01);
  CHECK(mean_log_density(even, 10, Points{10, 50, 109}) == Approx(0).margin(1e-12));
  std::vector<double> peak(100, 0.0);
  peak[40] = 1;
  CHECK(mean_log_density(peak, 0, Points{40}) == Approx(std::log(100.0)));
  CHECK(std::isfinite(mean_log_density(peak, 0, Points{41})));
  CHECK(mean_log_density(peak, 0, Points{41}) < -20);
  CHECK_THROWS_AS(mean_log_density(peak, 0, Points{100}), DataError);
  CHECK_THROWS_AS(mean_log_density(peak, 0, Points{}), DataError);
}

TEST_CASE("boundaries match in pairs, each once, as many as can be") {
  CHECK(f1(Points{}, Points{}, 5) == 1);
  CHECK(f1(Points{1}, Points{}, 5) == 0);
  CHECK(f1(Points{10, 20}, Points{12, 40}, 3) == Approx(0.5));
  CHECK(f1(Points{10, 11, 12}, Points{11}, 3) == Approx(0.5));
  CHECK(f1(Points{10, 14}, Points{12, 16}, 2) == 1);
  // Against all ways to pair, by the augmenting paths of a small graph.
  std::mt19937 random(5);
  for (int i = 0; i < 100; ++i) {
    const Points a = drawn(random, 1 + random() % 7, 30), b = drawn(random, 1 + random() % 7, 30);
    const std::int64_t tolerance = random() % 6;
    std::vector<int> partner(b.size(), -1);
    std::vector<char> seen;
    const auto augment = [&](const auto& self, std::size_t x) -> bool {
      for (std::size_t y = 0; y < b.size(); ++y) {
        if (seen[y] || std::abs(a[x] - b[y]) > tolerance) continue;
        seen[y] = 1;
        if (partner[y] < 0 || self(self, static_cast<std::size_t>(partner[y]))) {
          partner[y] = static_cast<int>(x);
          return true;
        }
      }
      return false;
    };
    int pairs = 0;
    for (std::size_t x = 0; x < a.size(); ++x) {
      seen.assign(b.size(), 0);
      pairs += augment(augment, x);
    }
    CHECK(f1(a, b, tolerance) == Approx(2.0 * pairs / static_cast<double>(a.size() + b.size())));
  }
}
