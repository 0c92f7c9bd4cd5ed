// SPDX-License-Identifier: Apache-2.0
// A mixture of experts on the device against float64.
#include "kernels/mixture.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "kernels/device.hpp"

namespace mixture_kernels_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

double dot(const std::vector<float>& a, std::size_t at, const std::vector<float>& b,
           std::size_t from, std::size_t n) {
  double sum = 0;
  for (std::size_t c = 0; c < n; ++c)
    sum += static_cast<double>(a[at + c]) * static_cast<double>(b[from + c]);
  return sum;
}

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

/// Scores of one row's products, and the chosen ones in the order of their numbers with weights.
struct Chosen {
  std::vector<std::size_t> expert;
  std::vector<double> weight;
};
Chosen choose(std::vector<double> s, const std::vector<float>* choice, bool sigmoid,
              bool normalised, double scaling, std::size_t k) {
  const double most = *std::max_element(s.begin(), s.end());
  double sum = 0;
  for (double& v : s) sum += v = sigmoid ? logistic(v) : std::exp(v - most);
  if (!sigmoid)
    for (double& v : s) v /= sum;
  std::vector<std::size_t> order(s.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  const auto by = [&](std::size_t e) {
    return s[e] + (choice ? static_cast<double>((*choice)[e]) : 0.0);
  };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return by(a) > by(b); });
  Chosen c;
  c.expert.assign(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(k));
  std::sort(c.expert.begin(), c.expert.end());
  double of_chosen = 0;
  for (const std::size_t e : c.expert) of_chosen += s[e];
  for (const std::size_t e : c.expert)
    c.weight.push_back(s[e] / (normalised ? of_chosen : 1.0) * scaling);
  return c;
}

TEST_CASE("choose_experts chooses and weighs as float64 does, equal scores by number") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(47);
  constexpr std::size_t kRows = 3, kHidden = 40;
  for (const bool sigmoid : {false, true})
    for (const bool normalised : {false, true})
      for (const bool biased : {false, true})
        for (const bool by_choice : {false, true})
          for (const std::size_t experts : {1, 7, 33}) {
            const std::size_t k = std::min<std::size_t>(experts, 3);
            const std::vector<float> x = episodic_test::normal_floats(kRows * kHidden, random);
            std::vector<float> router =
                episodic_test::normal_floats(experts * kHidden, random, 0.2f);
            if (experts == 7)  // three the same: the first of them goes first
              for (const std::size_t e : {3, 5})
                std::copy_n(router.begin() + kHidden, kHidden,
                            router.begin() + static_cast<std::ptrdiff_t>(e * kHidden));
            std::vector<float> bias = episodic_test::normal_floats(experts, random, 0.1f);
            if (experts == 7) bias[3] = bias[5] = bias[1];
            const std::vector<float> shared = episodic_test::normal_floats(kHidden, random, 0.2f);
            const DeviceArray<float> d_x(x), d_router(router), d_bias(bias), d_shared(shared);
            const DeviceArray<std::int32_t> expert(kRows * k);
            const DeviceArray<float> weight(kRows * k), factor(kRows);
            ChooseExpertsParams p;
            p.dtype = DType::float32;
            p.x = d_x.data();
            p.n = kRows;
            p.hidden = kHidden;
            p.router = d_router.data();
            p.maybe_bias = biased ? d_bias.data() : nullptr;
            p.maybe_choice = by_choice ? d_bias.data() : nullptr;
            p.experts = static_cast<std::int64_t>(experts);
            p.chosen = static_cast<std::int64_t>(k);
            p.sigmoid = sigmoid;
            p.normalised = normalised;
            p.scaling = 2.5f;
            p.expert = expert.data();
            p.weight = weight.data();
            p.maybe_shared_router = d_shared.data();
            p.maybe_shared = factor.data();
            REQUIRE(choose_experts(p, nullptr) == cudaSuccess);
            const auto got = expert.host();
            const auto weights = weight.host(), factors = factor.host();
            for (std::size_t i = 0; i < kRows; ++i) {
              std::vector<double> products(experts);
              for (std::size_t e = 0; e < experts; ++e)
                products[e] = dot(x, i * kHidden, router, e * kHidden, kHidden) +
                              (biased ? static_cast<double>(bias[e]) : 0.0);
              const Chosen wanted =
                  choose(products, by_choice ? &bias : nullptr, sigmoid, normalised, 2.5, k);
              for (std::size_t j = 0; j < k; ++j) {
                REQUIRE(static_cast<std::size_t>(got[i * k + j]) == wanted.expert[j]);
                REQUIRE(std::abs(static_cast<double>(weights[i * k + j]) - wanted.weight[j]) <=
                        1e-5);
              }
              REQUIRE(std::abs(static_cast<double>(factors[i]) -
                               logistic(dot(x, i * kHidden, shared, 0, kHidden))) <= 1e-5);
            }
          }
}

TEST_CASE("a row of NaN chooses experts that are there, and its weights show it") {
  EPISODIC_NEEDS_DEVICE();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> x(std::vector<float>{nan, 1, 1, 1}), router(std::vector<float>(12, 1));
  const DeviceArray<std::int32_t> expert(4);
  const DeviceArray<float> weight(4);
  ChooseExpertsParams p;
  p.dtype = DType::float32;
  p.x = x.data();
  p.router = router.data();
  p.n = 2;
  p.hidden = 2;
  p.experts = 6;
  p.chosen = 2;
  p.expert = expert.data();
  p.weight = weight.data();
  REQUIRE(choose_experts(p, nullptr) == cudaSuccess);
  for (const std::int32_t e : expert.host()) REQUIRE((e >= 0 && e < 6));
  REQUIRE(std::isnan(weight.host()[0]));
  REQUIRE(weight.host()[2] == weight.host()[3]);
}

TEST_CASE("experts' gates and their sum are float64's, with what else they may have") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(48);
  constexpr std::size_t kRows = 4, kExperts = 5, kChosen = 2, kIn = 24, kWidth = 20;
  constexpr float kSlope = 1.702f, kLimit = 0.8f;
  // a shared expert, or biases and a clamped gate
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const auto& [shared, clamped] :
         {std::pair{false, false}, std::pair{true, false}, std::pair{false, true}}) {
      const auto stored_and_back = [&](std::vector<float>& x) {
        const std::vector<unsigned char> bytes = episodic_test::stored(x, dtype);
        x = episodic_test::floats(bytes, dtype);
        return bytes;
      };
      std::vector<float> x = episodic_test::normal_floats(kRows * kIn, random);
      std::vector<float> gate_up =
          episodic_test::normal_floats(kExperts * 2 * kWidth * kIn, random, 0.2f);
      std::vector<float> down = episodic_test::normal_floats(kExperts * kIn * kWidth, random, 0.2f);
      const DeviceArray<unsigned char> d_x(stored_and_back(x)), d_gate_up(stored_and_back(gate_up)),
          d_down(stored_and_back(down));
      const std::vector<std::int32_t> expert{0, 4, 2, 3, 2, 4, 0, 1};
      const std::vector<float> weight{0.5f, 0.25f, 1.5f, 0.1f, 0.3f, 0.7f, 0.9f, 2.0f};
      const std::vector<float> before = episodic_test::normal_floats(kRows * kIn, random);
      const std::vector<float> factor{0.5f, 1.0f, 0.0f, 0.25f};
      const std::vector<float> inner_bias =
          episodic_test::normal_floats(kExperts * 2 * kWidth, random, 0.3f);
      const std::vector<float> sum_bias = episodic_test::normal_floats(kExperts * kIn, random);
      const DeviceArray<float> d_inner_bias(inner_bias), d_sum_bias(sum_bias);
      const bool adds = shared, cut = clamped;  // for lambdas
      bool cuts = false;
      const DeviceArray<std::int32_t> d_expert(expert);
      const DeviceArray<float> d_weight(weight), d_factor(factor);
      const std::size_t element = static_cast<std::size_t>(episodic::size_of(dtype));
      episodic_test::in_every_order([&] {
        const DeviceArray<unsigned char> d_inner(kRows * kChosen * kWidth * element);
        const DeviceArray<float> sum(before);
        ExpertGateParams g;
        g.dtype = dtype;
        g.x = d_x.data();
        g.gate_up = d_gate_up.data();
        g.expert = d_expert.data();
        g.n = kRows;
        g.in = kIn;
        g.width = kWidth;
        g.chosen = kChosen;
        g.inner = d_inner.data();
        if (cut) {
          g.slope = kSlope;
          g.limit = kLimit;
          g.maybe_bias = d_inner_bias.data();
        }
        REQUIRE(expert_gate(g, nullptr) == cudaSuccess);
        ExpertSumParams s;
        s.dtype = dtype;
        s.inner = d_inner.data();
        s.down = d_down.data();
        s.expert = d_expert.data();
        s.weight = d_weight.data();
        s.n = kRows;
        s.width = kWidth;
        s.out = kIn;
        s.chosen = kChosen;
        s.adds = adds;
        s.maybe_shared = adds ? d_factor.data() : nullptr;
        s.maybe_bias = cut ? d_sum_bias.data() : nullptr;
        s.sum = sum.data();
        REQUIRE(expert_sum(s, nullptr) == cudaSuccess);
        const std::vector<float> inner = episodic_test::floats(d_inner.host(), dtype);
        const double exact = dtype == DType::float32 ? 1e-5 : dtype == DType::float16 ? 2e-3 : 2e-2;
        for (std::size_t pair = 0; pair < kRows * kChosen; ++pair)
          for (std::size_t c = 0; c < kWidth; ++c) {
            const std::size_t of = static_cast<std::size_t>(expert[pair]) * 2 * kWidth;
            double gate = dot(x, pair / kChosen * kIn, gate_up, (of + c) * kIn, kIn);
            double up = dot(x, pair / kChosen * kIn, gate_up, (of + kWidth + c) * kIn, kIn);
            double wanted = gate * logistic(gate) * up;
            if (cut) {
              gate += static_cast<double>(inner_bias[of + c]);
              up += static_cast<double>(inner_bias[of + kWidth + c]);
              const double limit = static_cast<double>(kLimit);
              cuts = cuts || gate > limit;
              gate = std::min(gate, limit);
              up = std::clamp(up, -limit, limit);
              wanted = gate * logistic(static_cast<double>(kSlope) * gate) * (up + 1);
            }
            REQUIRE(std::abs(static_cast<double>(inner[pair * kWidth + c]) - wanted) <=
                    exact * (1 + std::abs(wanted)));
          }
        const std::vector<float> got = sum.host();
        for (std::size_t i = 0; i < kRows; ++i)
          for (std::size_t c = 0; c < kIn; ++c) {
            double wanted =
                adds ? static_cast<double>(factor[i]) * static_cast<double>(before[i * kIn + c])
                     : 0.0;
            for (std::size_t j = 0; j < kChosen; ++j) {
              const std::size_t pair = i * kChosen + j;
              const std::size_t row = static_cast<std::size_t>(expert[pair]) * kIn + c;
              wanted += static_cast<double>(weight[pair]) *
                        (dot(inner, pair * kWidth, down, row * kWidth, kWidth) +
                         (cut ? static_cast<double>(sum_bias[row]) : 0.0));
            }
            REQUIRE(std::abs(static_cast<double>(got[i * kIn + c]) - wanted) <=
                    1e-5 * (1 + std::abs(wanted)));
          }
      });
      REQUIRE(cuts == clamped);
    }
}

}  // namespace mixture_kernels_test
