// SPDX-License-Identifier: Apache-2.0
#include "kernels/online_softmax.hpp"

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "support/test.hpp"

namespace {

using episodic::kernels::add;
using episodic::kernels::log_sum_exp;
using episodic::kernels::merge;
using episodic::kernels::OnlineSoftmax;

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

OnlineSoftmax of(const std::vector<float>& logits) {
  OnlineSoftmax state;
  for (const float x : logits) add(state, x);
  return state;
}

double reference(const std::vector<float>& logits) {
  long double sum = 0;
  for (const float x : logits) sum += std::exp(static_cast<long double>(x));
  return static_cast<double>(std::log(sum));
}

}  // namespace

TEST_CASE("online softmax agrees with the sum in long double, however the set is cut") {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 8.0f);
  for (const std::size_t n : {1, 2, 3, 17, 1000, 4099}) {
    std::vector<float> logits(n);
    for (float& x : logits) x = normal(random);
    const double expected = reference(logits);
    REQUIRE(std::abs(static_cast<double>(log_sum_exp(of(logits))) - expected) <
            2e-6 * (1 + std::abs(expected)));

    OnlineSoftmax state;  // a tree of unequal parts, empty ones among them
    for (std::size_t at = 0; at < n;) {
      const std::size_t length = std::min<std::size_t>(random() % 9, n - at);
      state = merge(state, of({logits.begin() + static_cast<std::ptrdiff_t>(at),
                               logits.begin() + static_cast<std::ptrdiff_t>(at + length)}));
      at += length;
    }
    REQUIRE(std::abs(static_cast<double>(log_sum_exp(state)) - expected) <
            2e-6 * (1 + std::abs(expected)));
  }
}

TEST_CASE("online softmax of logits added four at a time is that of each by itself") {
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0.0f, 8.0f);
  const auto in_fours = [](const std::vector<float>& logits) {
    OnlineSoftmax state;
    for (std::size_t i = 0; i < logits.size(); i += 4) {
      const float four[4] = {logits[i], logits[i + 1], logits[i + 2], logits[i + 3]};
      add(state, four);
    }
    return state;
  };
  for (const std::size_t n : {4, 8, 1000}) {
    std::vector<float> logits(n);
    for (float& x : logits) x = normal(random);
    const double expected = reference(logits);
    REQUIRE(std::abs(static_cast<double>(log_sum_exp(in_fours(logits))) - expected) <
            2e-6 * (1 + std::abs(expected)));
  }
  const auto log_of = [&](const std::vector<float>& logits) {
    return static_cast<double>(log_sum_exp(in_fours(logits)));
  };
  REQUIRE(std::abs(log_of({-kInfinity, 1.0f, -kInfinity, -kInfinity}) - 1.0) < 1e-6);
  REQUIRE(
      std::abs(log_of({-kInfinity, -kInfinity, -kInfinity, -kInfinity, 2.0f, 2.0f, 1.0f, 1.0f}) -
               reference({2.0f, 2.0f, 1.0f, 1.0f})) < 1e-6);
  REQUIRE(log_of({0.0f, kInfinity, 1.0f, 2.0f}) == static_cast<double>(kInfinity));
  REQUIRE(std::isnan(log_of({0.0f, kNan, 1.0f, 2.0f, 3.0f, 4.0f, 5.0f, 6.0f})));
  REQUIRE(std::isnan(log_of({kNan, kNan, kNan, kNan})));
}

TEST_CASE("online softmax does not overflow") {
  REQUIRE(static_cast<float>(log_sum_exp(of({3e38f, 3e38f}))) == 3e38f);
  REQUIRE(std::abs(log_sum_exp(of({1000.0f, 1000.0f})) - (1000.0 + std::log(2.0))) < 1e-9);
  REQUIRE(static_cast<float>(log_sum_exp(of({-3e38f}))) == -3e38f);
}

TEST_CASE("online softmax of nothing is -inf and changes nothing") {
  REQUIRE(log_sum_exp(OnlineSoftmax{}) == -kInfinity);
  REQUIRE(log_sum_exp(merge(OnlineSoftmax{}, OnlineSoftmax{})) == -kInfinity);
  const OnlineSoftmax one = of({2.5f});
  REQUIRE(log_sum_exp(merge(one, OnlineSoftmax{})) == 2.5f);
  REQUIRE(log_sum_exp(merge(OnlineSoftmax{}, one)) == 2.5f);
}

TEST_CASE("online softmax counts -inf as nothing and lets +inf and NaN be seen") {
  REQUIRE(log_sum_exp(of({-kInfinity, 1.0f, -kInfinity})) == 1.0f);
  REQUIRE(log_sum_exp(of({-kInfinity, -kInfinity})) == -kInfinity);
  REQUIRE(log_sum_exp(of({1.0f, kInfinity, 2.0f})) == kInfinity);
  REQUIRE(std::isnan(log_sum_exp(of({kNan}))));
  REQUIRE(std::isnan(log_sum_exp(of({1.0f, kNan, 50.0f}))));
  REQUIRE(std::isnan(log_sum_exp(merge(of({1.0f, kNan}), of({90.0f})))));
  REQUIRE(std::isnan(log_sum_exp(merge(of({90.0f}), of({kNan})))));
}
