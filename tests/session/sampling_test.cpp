// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/sampling.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <set>

#include "episodic/base/error.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

using Ids = std::vector<std::int64_t>;
constexpr float kInf = std::numeric_limits<float>::infinity();

/// Probabilities that the options give, by the definition.
std::vector<double> reference(const std::vector<float>& logits, const Ids& history,
                              const SamplingOptions& o) {
  const std::size_t n = logits.size();
  std::vector<double> s(logits.begin(), logits.end());
  for (const std::int64_t id : std::set<std::int64_t>(history.begin(), history.end())) {
    double& x = s[static_cast<std::size_t>(id)];
    x = x < 0 ? x * o.repetition_penalty : x / o.repetition_penalty;
  }
  for (double& x : s) x /= o.temperature;
  std::vector<std::size_t> order(n);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return s[a] > s[b]; });
  if (o.top_k > 0 && static_cast<std::size_t>(o.top_k) < n) {
    const double least = s[order[static_cast<std::size_t>(o.top_k) - 1]];
    for (double& x : s)
      if (x < least) x = -INFINITY;
  }
  const auto softmax = [&] {
    std::vector<double> p(n);
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += p[i] = std::exp(s[i] - s[order[0]]);
    for (double& x : p) x /= sum;
    return p;
  };
  if (o.top_p < 1) {
    const auto p = softmax();
    double before = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (i > 0 && before >= o.top_p) s[order[i]] = -INFINITY;
      before += p[order[i]];
    }
  }
  const auto p = softmax();
  for (std::size_t i = 0; i < n; ++i)
    if (p[i] < o.min_p * p[order[0]]) s[i] = -INFINITY;
  return softmax();
}

std::vector<float> random_logits(std::mt19937& random, std::size_t n) {
  std::vector<float> logits(n);
  for (float& x : logits) x = static_cast<float>(random() % 4001) / 500.0f - 4.0f;
  return logits;
}

}  // namespace

TEST_CASE("frequencies are those of the definition") {
  std::mt19937 random(1);
  const std::vector<SamplingOptions> cases{
      {1.0, 0, 1.0, 1.0, 5},      {0.7, 5, 1.0, 1.0, 6},       {1.3, 0, 0.8, 1.0, 7},
      {0.9, 6, 0.9, 1.5, 8},      {2.0, 50, 1.0, 0.8, 9},      {1.0, 1, 1.0, 1.0, 10},
      {1.0, 0, 0.001, 1.0, 11},   {1.0, 0, 1.0, 1.0, 12, 0.2}, {0.8, 9, 0.95, 1.2, 13, 0.05},
      {1.5, 0, 1.0, 1.0, 14, 1.0}};
  for (const SamplingOptions& options : cases) {
    auto logits = random_logits(random, 13);
    logits[3] = -kInf;
    logits[4] = logits[5];
    const Ids history{1, 1, 7, 12};
    const auto p = reference(logits, history, options);
    Sampler sampler(options);
    const int draws = 20000;
    std::vector<int> count(logits.size(), 0);
    for (int i = 0; i < draws; ++i)
      ++count[static_cast<std::size_t>(sampler.sample(logits, history))];
    double chi2 = 0;
    for (std::size_t i = 0; i < p.size(); ++i) {
      const double expected = p[i] * draws;
      if (expected < 1e-9) {
        CHECK(count[i] == 0);
      } else if (expected > 5) {
        chi2 += (count[i] - expected) * (count[i] - expected) / expected;
      }
    }
    CHECK(chi2 < 33);  // 12 degrees of freedom: 1 in 1000 by chance, but the seed is fixed
    CHECK(sampler.draws() == static_cast<std::uint64_t>(draws));
  }
}

TEST_CASE("greedy takes the largest logit, the smaller id of equals") {
  Sampler sampler({});
  const Ids none;
  CHECK(sampler.sample(std::vector<float>{1, 3, 3, 2}, none) == 1);
  CHECK(sampler.sample(std::vector<float>{-kInf, -2, -kInf}, none) == 1);
  CHECK(sampler.sample(std::vector<float>{5}, none) == 0);
  CHECK(sampler.draws() == 0);
  SamplingOptions penalty;
  penalty.repetition_penalty = 2;
  CHECK(Sampler(penalty).sample(std::vector<float>{3, 2, 1}, Ids{0, 0}) == 1);
  CHECK(Sampler(penalty).sample(std::vector<float>{-3, -2, -5}, Ids{1, 1}) == 0);
  // however often a token came, it counts once
  CHECK(Sampler(penalty).sample(std::vector<float>{3, 1, 0}, Ids{0, 0}) == 0);
}

TEST_CASE("top-k keeps what equals the k-th, top-p the smaller id of equals") {
  const Ids none;
  const auto drawn = [&](const std::vector<float>& logits, SamplingOptions options) {
    Sampler sampler(options);
    std::set<std::int64_t> ids;
    for (int i = 0; i < 2000; ++i) ids.insert(sampler.sample(logits, none));
    return ids;
  };
  CHECK(drawn({1, 2, 1, 0}, {1.0, 2, 1.0, 1.0, 1}) == std::set<std::int64_t>{0, 1, 2});
  CHECK(drawn({1, 1, 1, 1}, {1.0, 0, 0.5, 1.0, 1}) == std::set<std::int64_t>{0, 1});
  CHECK(drawn({1, 1, 1, 1}, {1.0, 0, 0.0, 1.0, 1}) == std::set<std::int64_t>{0});
  CHECK(drawn({3, 9, 1}, {1e-300, 0, 1.0, 1.0, 1}) == std::set<std::int64_t>{1});
}

TEST_CASE("a seed fixes the tokens, a saved sampler goes on") {
  std::mt19937 random(2);
  const auto logits = random_logits(random, 1000);
  const SamplingOptions options{0.8, 100, 0.95, 1.1, 42};
  const auto draw = [&](Sampler& s, int n) {
    Ids ids;
    for (int i = 0; i < n; ++i) ids.push_back(s.sample(logits, ids));
    return ids;
  };
  Sampler a(options), b(options);
  const Ids first = draw(a, 50);
  CHECK(first == draw(b, 50));
  SamplingOptions other = options;
  other.seed = 43;
  Sampler c(other);
  CHECK(first != draw(c, 50));
  Sampler resumed(options, a.draws());
  CHECK(draw(a, 20) == draw(resumed, 20));
}

TEST_CASE("the generator is SplitMix64") {
  // 64 equal logits: the token is the top 6 bits of the next number; the stream of seed 0 begins
  // e220a8397b1dcdaf 6e789e6aa1b965f4 06c45d188009454f
  Sampler sampler({1.0, 0, 1.0, 1.0, 0});
  const std::vector<float> flat(64, 0.0f);
  for (const std::uint64_t bits :
       {0xe220a8397b1dcdafull, 0x6e789e6aa1b965f4ull, 0x06c45d188009454full})
    CHECK(sampler.sample(flat, {}) == static_cast<std::int64_t>(bits >> 58));
}

TEST_CASE("bad options and bad logits") {
  CHECK_THROWS_AS(Sampler({-0.1}), ConfigError);
  CHECK_THROWS_AS(Sampler({NAN}), ConfigError);
  CHECK_THROWS_AS(Sampler({1.0, -1}), ConfigError);
  CHECK_THROWS_AS(Sampler({1.0, 0, 1.1}), ConfigError);
  CHECK_THROWS_AS(Sampler({1.0, 0, NAN}), ConfigError);
  CHECK_THROWS_AS(Sampler({1.0, 0, 1.0, 0.0}), ConfigError);
  for (const double temperature : {0.0, 1.0}) {
    Sampler sampler({temperature});
    CHECK_THROWS_AS(sampler.sample({}, {}), DataError);
    CHECK_THROWS_AS(sampler.sample(std::vector<float>{1, NAN}, {}), DataError);
    CHECK_THROWS_AS(sampler.sample(std::vector<float>{1, kInf}, {}), DataError);
    CHECK_THROWS_AS(sampler.sample(std::vector<float>{-kInf, -kInf}, {}), DataError);
    CHECK(sampler.draws() == 0);
    Sampler penalized({temperature, 0, 1.0, 1.1});
    CHECK_THROWS_AS(penalized.sample(std::vector<float>{1, 2}, Ids{2}), DataError);
    CHECK(penalized.draws() == 0);
  }
}

TEST_CASE("the context is looked at only where there is a penalty, and may come piece by piece") {
  // Without one a token that is out of the vocabulary is not even noticed.
  CHECK(Sampler({}).sample(std::vector<float>{1, 2}, Ids{2, 99999}) == 1);
  SamplingOptions options;
  options.repetition_penalty = 1.3;
  std::mt19937 random(4);
  Sampler whole(options), pieces(options);
  Ids history;
  for (int step = 0; step < 200; ++step) {
    const std::vector<float> logits = random_logits(random, 40);
    const std::int64_t id = pieces.sample(logits);
    REQUIRE(id == whole.sample(logits, history));
    const std::vector<std::int32_t> more{static_cast<std::int32_t>(random() % 40), -1};
    pieces.see(id);
    pieces.see(more);  // unknown tokens are skipped
    history.push_back(id);
    history.push_back(more[0]);
  }
}
