// SPDX-License-Identifier: Apache-2.0
// What is held of a sequence, against plain loops and cases whose answer is known.
#include "analysis/survival.hpp"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/retention/memoria.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::analysis;

TEST_CASE("survivors are counted in parts that cover the sequence once") {
  std::mt19937 random(1);
  for (const int n : {0, 1, 2, 7, 100, 101}) {
    std::vector<bool> held(static_cast<std::size_t>(n));
    for (std::size_t i = 0; i < held.size(); ++i) held[i] = random() % 3 == 0;
    for (const int bins : {1, 2, 10, 200}) {
      const auto parts = survivors_by_place(held, bins);
      CHECK(static_cast<int>(parts.size()) <= bins);
      std::int64_t next = 0;
      for (const Survivors& part : parts) {
        CHECK(part.first == next);
        REQUIRE(part.end > part.first);
        std::int64_t count = 0;
        for (std::int64_t i = part.first; i < part.end; ++i)
          count += held[static_cast<std::size_t>(i)];
        CHECK(part.held == count);
        next = part.end;
      }
      CHECK(next == n);
    }
  }
  CHECK_THROWS_AS(survivors_by_place({true}, 0), ConfigError);
}

TEST_CASE("contiguity: chance gives 1, also where the share changes along the sequence") {
  std::mt19937 random(2);
  std::uniform_real_distribution<double> uniform(0, 1);
  constexpr std::size_t kEvents = 200000;
  std::vector<bool> held(kEvents);
  for (std::size_t i = 0; i < kEvents; ++i)  // recency: from 10 to 60 percent
    held[i] = uniform(random) < 0.1 + 0.5 * static_cast<double>(i) / kEvents;
  for (const Contiguity& c : contiguity_of(held, 8, 100)) CHECK(c.ratio == Approx(1).margin(0.03));
  const std::vector<double> numbers(held.begin(), held.end());
  for (const double r : autocorrelation_of(numbers, 8, 100)) CHECK(r == Approx(0).margin(0.02));
}

TEST_CASE("contiguity: events that survive in pairs show at lag one alone") {
  std::mt19937 random(3);
  constexpr std::size_t kEvents = 200000;
  std::vector<bool> held(kEvents);
  for (std::size_t i = 0; i + 1 < kEvents; i += 2) held[i] = held[i + 1] = random() % 4 == 0;
  const auto lags = contiguity_of(held, 5, 100);
  // Half of all neighbours are pairs, which survive together: (1/2 p + 1/2 p^2) / p^2 = 2.5.
  CHECK(lags[0].ratio == Approx(2.5).epsilon(0.05));
  const std::vector<double> numbers(held.begin(), held.end());
  CHECK(autocorrelation_of(numbers, 5, 100)[0] == Approx(0.5).margin(0.03));
  for (std::size_t i = 1; i < lags.size(); ++i) CHECK(lags[i].ratio == Approx(1).margin(0.06));
  CHECK(contiguity_of(std::vector<bool>(10), 2, 100).size() == 2);  // no surroundings: no numbers
  // The last ones all held, a sudden end: they count for nothing.
  std::vector<bool> recent = held;
  std::fill(recent.end() - 100, recent.end(), true);
  const auto with_recent = contiguity_of(recent, 5, 100);
  for (std::size_t i = 0; i < lags.size(); ++i) CHECK(with_recent[i].ratio == lags[i].ratio);
  CHECK_THROWS_AS(contiguity_of(held, 0, 10), ConfigError);
  CHECK_THROWS_AS(contiguity_of(held, 10, 10), ConfigError);
}

TEST_CASE("autocorrelation equals plain loops, and is known for some series") {
  std::mt19937 random(5);
  std::normal_distribution<double> normal;
  for (const int n : {0, 1, 40, 41, 42, 60, 333})
    for (const int most_lag : {1, 3, 9}) {
      constexpr int kAround = 10;
      std::vector<double> series(static_cast<std::size_t>(n));
      for (std::size_t i = 0; i < series.size(); ++i)
        series[i] =
            normal(random) + (i > 0 ? 0.7 * series[i - 1] : 0) + 0.02 * static_cast<double>(i);
      const auto x = [&](int i) {  // beside its surroundings
        double sum = 0;
        int count = 0;
        for (int j = i - kAround; j <= i + kAround; ++j)
          if (std::abs(j - i) > most_lag) sum += series[static_cast<std::size_t>(j)], ++count;
        return series[static_cast<std::size_t>(i)] - sum / count;
      };
      const std::vector<double> found = autocorrelation_of(series, most_lag, kAround);
      REQUIRE(static_cast<int>(found.size()) == most_lag);
      const int first = 2 * kAround, end = n - 2 * kAround;
      for (int lag = 1; lag <= most_lag; ++lag) {
        double squares = 0, products = 0;
        for (int i = first; i < end; ++i) squares += x(i) * x(i) / (end - first);
        for (int i = first; i + lag < end; ++i) products += x(i) * x(i + lag) / (end - first - lag);
        INFO(n << " numbers, lag " << lag);
        CHECK(found[static_cast<std::size_t>(lag - 1)] ==
              Approx(end - first > lag ? products / squares : 0.0).margin(1e-9));
      }
    }
  constexpr std::size_t kEvents = 200000;
  std::vector<double> noise(kEvents), decaying(kEvents), turning(kEvents);
  for (std::size_t i = 0; i < kEvents; ++i) {
    noise[i] = normal(random) + 1e-4 * static_cast<double>(i);  // a trend is none of it
    decaying[i] = normal(random) + (i > 0 ? 0.8 * decaying[i - 1] : 0);
    turning[i] = i % 2 == 0 ? 1 : -1;
  }
  const auto of_decaying = autocorrelation_of(decaying, 40, 2000);
  for (const int lag : {1, 2, 5, 40})
    CHECK(of_decaying[static_cast<std::size_t>(lag - 1)] ==
          Approx(std::pow(0.8, lag)).margin(0.02));
  const auto of_turning = autocorrelation_of(turning, 4, 100);
  for (std::size_t i = 0; i < 4; ++i)
    CHECK(of_turning[i] == Approx(i % 2 == 0 ? -1 : 1).margin(0.02));
  for (const double r : autocorrelation_of(noise, 8, 100)) CHECK(r == Approx(0).margin(0.02));
  for (const double r : autocorrelation_of(std::vector<double>(500, 3.0), 4, 20)) CHECK(r == 0);
  CHECK_THROWS_AS(autocorrelation_of(noise, 0, 10), ConfigError);
  CHECK_THROWS_AS(autocorrelation_of(noise, 10, 10), ConfigError);
}

TEST_CASE("edges are sorted by distance in powers of two, in both directions") {
  const std::vector<std::int64_t> events{3, 4, 6, 20};
  const auto edge = [](std::int64_t a, std::int64_t b) {
    if (a == 3 && b == 4) return 0.5;
    if (a == 20 && b == 3) return 0.25;
    return 0.0;
  };
  const auto bins = edges_by_distance(events, edge);
  REQUIRE(bins.size() == 5);
  CHECK((bins[0].least == 1 && bins[0].most == 1 && bins[0].pairs == 2 && bins[0].linked == 1));
  CHECK(bins[0].mean() == Approx(0.25));
  CHECK(bins[0].mean_of_linked() == Approx(0.5));
  CHECK((bins[1].least == 2 && bins[1].most == 3 && bins[1].pairs == 4));  // 4-6, 3-6
  CHECK((bins[4].least == 16 && bins[4].pairs == 4 && bins[4].linked == 1));
  std::int64_t pairs = 0;
  for (const auto& bin : bins) pairs += bin.pairs;
  CHECK(pairs == 12);
  CHECK(edges_by_distance({}, edge).empty());
}

TEST_CASE("edges are sorted by the age of the event that they lead from") {
  const auto edge = [](std::int64_t a, std::int64_t b) {
    if (a == b) return 9.0;  // is none
    if (a == 3) return 0.5;
    return a == 20 && b == 3 ? 0.25 : 0.0;
  };
  const auto bins = edges_by_age(std::vector<std::int64_t>{3, 4, 6, 20}, 21, edge);
  REQUIRE(bins.size() == 5);  // ages 18, 17, 15 and 1
  CHECK((bins[0].least == 1 && bins[0].most == 1 && bins[0].events == 1 && bins[0].linked == 1));
  CHECK(bins[0].mean_of_linked() == Approx(0.25));
  CHECK((bins[3].least == 8 && bins[3].most == 15 && bins[3].events == 1 && bins[3].linked == 0));
  CHECK(bins[3].mean_of_linked() == 0);
  CHECK((bins[4].events == 2 && bins[4].linked == 3));
  CHECK(bins[4].linked_each() == Approx(1.5));
  CHECK(bins[4].mean_of_linked() == Approx(0.5));
  CHECK(edges_by_age({}, 5, edge).empty());
}

TEST_CASE("a memory that forgets never holds more than the bound of the long run") {
  // Everything that is recalled receives attention, all of it goes to the first: the most unequal
  // share there can be.
  MemoriaConfig config;
  config.short_term_capacity = 20;
  Memoria memoria(config, 4);
  std::mt19937 random(4);
  std::normal_distribution<float> normal;
  double recalled = 0, fresh = 0, held = 0;
  constexpr int kSteps = 400, kFrom = 100;
  for (int step = 0; step < kSteps; ++step) {
    const std::int64_t n = 1 + static_cast<std::int64_t>(random() % 6);
    std::vector<float> engrams(static_cast<std::size_t>(4 * n));
    for (float& x : engrams) x = normal(random);
    const std::int64_t size = memoria.recall(engrams, n).size();
    std::vector<double> attention(static_cast<std::size_t>(size), 0.0);
    if (step % 2 == 0 && size > 0) attention[0] = 1.0;
    if (step % 2 == 1) attention.assign(attention.size(), 1.0);
    memoria.commit(attention);
    if (step < kFrom) continue;
    recalled += static_cast<double>(size);
    fresh += static_cast<double>(n);
    held += static_cast<double>(memoria.size());
  }
  constexpr double kCounted = kSteps - kFrom;
  const double most = Memoria::most_held(config, recalled / kCounted, fresh / kCounted);
  CHECK(held / kCounted < most);
  CHECK(held / kCounted > 0.3 * most);
}
