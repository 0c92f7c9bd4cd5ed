// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/timeline/surprise.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace threshold_test {

constexpr float kInf = std::numeric_limits<float>::infinity();

// mu + gamma * sigma of s[from, to), EM 3.2 read literally in float64.
double reference(const std::vector<float>& s, std::int64_t from, std::int64_t to, double gamma) {
  std::vector<double> v;
  for (std::int64_t t = std::max<std::int64_t>(from, 1); t < to; ++t)  // x_0 is in no average
    v.push_back(s[static_cast<std::size_t>(t)]);
  if (v.size() < 2) return kInf;
  double mean = 0, var = 0;
  for (double x : v) mean += x;
  mean /= static_cast<double>(v.size());
  for (double x : v) var += (x - mean) * (x - mean);
  return mean + gamma * std::sqrt(var / static_cast<double>(v.size() - 1));
}

void check_close(float got, double expected) {
  if (std::isinf(expected))
    REQUIRE(got == kInf);
  else
    REQUIRE(std::abs(got - expected) <= 2e-6 * std::max(1.0, std::abs(expected)));
}

std::vector<float> random_surprise(std::mt19937& rng, std::int64_t n) {
  std::gamma_distribution<float> draw(0.7f, 3.0f);
  std::vector<float> s(static_cast<std::size_t>(n));
  for (float& x : s) x = draw(rng);
  s[0] = 0;
  return s;
}

// Steps of random lengths that add up to n; single tokens now and then.
std::vector<std::int64_t> random_steps(std::mt19937& rng, std::int64_t n, std::int64_t longest) {
  std::vector<std::int64_t> steps;
  while (n > 0) {
    const std::int64_t most = rng() % 3 ? longest : 1;
    const std::int64_t m = std::min<std::int64_t>(n, 1 + static_cast<std::int64_t>(rng() % most));
    steps.push_back(m), n -= m;
  }
  return steps;
}

std::vector<float> run(SurpriseThreshold threshold, const std::vector<float>& s,
                       const std::vector<std::int64_t>& steps) {
  std::vector<float> out(s.size(), -1.0f);
  std::int64_t t = 0;
  for (const std::int64_t n : steps) {
    threshold.step(s.data() + t, n, out.data() + t);
    t += n;
  }
  REQUIRE(threshold.tokens() == static_cast<std::int64_t>(s.size()));
  return out;
}

TEST_CASE("moving threshold equals the definition and does not feel the cut, to the bit") {
  std::mt19937 rng(1);
  for (int seed = 0; seed < 60; ++seed) {
    const std::int64_t n = 1 + static_cast<std::int64_t>(rng() % 150);
    const std::int64_t tau = 1 + static_cast<std::int64_t>(rng() % (seed % 2 ? 200 : 12));
    const double gamma = 0.5 * (seed % 5);
    std::vector<float> s = random_surprise(rng, n);
    const SurpriseThreshold threshold(ThresholdWindow::moving, tau, gamma, 4);
    const std::vector<float> whole = run(threshold, s, {n});
    for (std::int64_t t = 0; t < n; ++t)
      check_close(whole[static_cast<std::size_t>(t)],
                  t == 0 ? kInf : reference(s, t - tau, t, gamma));
    for (int cut = 0; cut < 4; ++cut) REQUIRE(run(threshold, s, random_steps(rng, n, 40)) == whole);
    s[0] = 1e6f;  // ignored, whatever it is
    REQUIRE(run(threshold, s, random_steps(rng, n, 40)) == whole);
  }
}

TEST_CASE("chunked threshold takes one window per step, the first step its own start") {
  std::mt19937 rng(2);
  for (int seed = 0; seed < 60; ++seed) {
    const std::int64_t n = 1 + static_cast<std::int64_t>(rng() % 150);
    const std::int64_t tau = 1 + static_cast<std::int64_t>(rng() % 60);
    const std::int64_t n_init = static_cast<std::int64_t>(rng() % 20);
    const std::vector<float> s = random_surprise(rng, n);
    const auto steps = random_steps(rng, n, 30);
    const auto got = run(SurpriseThreshold(ThresholdWindow::chunked, tau, 1.5, n_init), s, steps);
    std::int64_t start = 0;
    for (const std::int64_t m : steps) {
      const double expected = start == 0 ? reference(s, 0, std::min(n_init, m), 1.5)
                                         : reference(s, start - (tau - m), start, 1.5);
      for (std::int64_t t = start; t < start + m; ++t)
        check_close(got[static_cast<std::size_t>(t)], t == 0 ? kInf : expected);
      start += m;
    }
  }
}

TEST_CASE("fewer than two values give no threshold, and equal values no boundary") {
  const std::vector<float> s(20, 1.1f);
  const auto t = run(SurpriseThreshold(ThresholdWindow::moving, 7, 0.0, 0), s, {20});
  REQUIRE(t[0] == kInf);
  REQUIRE(t[1] == kInf);
  REQUIRE(t[2] == kInf);  // only x_1 before it
  for (std::size_t i = 3; i < t.size(); ++i) REQUIRE(t[i] == 1.1f);
  const auto one = run(SurpriseThreshold(ThresholdWindow::moving, 1, 0.0, 0), s, {3, 17});
  for (const float x : one) REQUIRE(x == kInf);
  REQUIRE_THROWS_AS(SurpriseThreshold(ThresholdWindow::moving, 0, 1.0, 0), ConfigError);
}

TEST_CASE("a copy of a threshold is a snapshot") {
  std::mt19937 rng(3);
  const std::vector<float> s = random_surprise(rng, 90);
  SurpriseThreshold a(ThresholdWindow::moving, 16, 1.0, 4);
  std::vector<float> first(50), rest(40), again(40);
  a.step(s.data(), 50, first.data());
  SurpriseThreshold b = a;
  a.step(s.data() + 50, 40, rest.data());
  b.step(s.data() + 50, 40, again.data());
  REQUIRE(rest == again);
}

}  // namespace threshold_test
