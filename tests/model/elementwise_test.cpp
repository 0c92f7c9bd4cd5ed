// SPDX-License-Identifier: Apache-2.0
// The decoder's work between matrix products, against the formulas in float64.
#include "model/elementwise.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "support/compare.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

/// Around every vector's and every task's end, and the ends themselves.
constexpr std::int64_t kSizes[] = {0, 1, 3, 7, 8, 9, 16, 17, 31, 100, 16383, 16384, 16385};

std::vector<float> draw(std::int64_t n, std::uint32_t seed, float spread) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, spread);
  std::vector<float> x(static_cast<std::size_t>(n));
  for (float& v : x) v = normal(random);
  return x;
}

/// Errors as a part of |expected|, or of 1e-6 of what stands before it where that is more.
double worst_error(const std::vector<float>& got, const std::vector<double>& expected,
                   const std::vector<float>& before) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i)
    worst = worse_of(worst, std::abs(got[i] - expected[i]) /
                                std::max({std::abs(expected[i]),
                                          1e-6 * std::abs(static_cast<double>(before[i])), 1e-30}));
  return worst;
}

double silu(double x) { return x / (1 + std::exp(-x)); }
double gelu(double x) {
  return x / (1 + std::exp(-2 * std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

}  // namespace

TEST_CASE(
    "elementwise: a number's bits do not depend on where it stands, nor on how many there are") {
  constexpr std::int64_t kMany = 999;
  const auto x = draw(kMany, 5, 3.0f), up = draw(kMany, 6, 1.0f);
  const auto all_of = [&](std::int64_t first, std::int64_t n) {
    std::vector<float> out;
    const auto take = [&](auto&& f) {
      std::vector<float> y(x.begin() + first, x.begin() + first + n);
      f(y.data());
      out.insert(out.end(), y.begin(), y.end());
    };
    take([&](float* y) { silu_times(y, up.data() + first, n); });
    take([&](float* y) { gelu_times(y, up.data() + first, n); });
    take([&](float* y) { soft_cap(30.0f, y, n); });
    take([&](float* y) { clamped_silu_times(1.702f, 2.0f, y, up.data() + first, n); });
    take([&](float* y) { scale(0.3f, y, n); });
    take([&](float* y) { add_scaled(0.3f, up.data() + first, y, n); });
    return out;
  };
  const std::vector<float> whole = all_of(0, kMany);
  for (const std::int64_t n : {1, 2, 5, 16, 31, 100})
    for (std::int64_t first = 0; first + n <= kMany; first += 83) {
      const std::vector<float> part = all_of(first, n);
      for (std::int64_t f = 0; f < 6; ++f)
        for (std::int64_t i = 0; i < n; ++i) {
          INFO("function " << f << ", number " << first + i << " as one of " << n);
          REQUIRE(part[static_cast<std::size_t>(f * n + i)] ==
                  whole[static_cast<std::size_t>(f * kMany + first + i)]);
        }
    }
}

TEST_CASE("elementwise: activations and soft caps are their formulas at any size") {
  for (const std::int64_t n : kSizes)
    for (const float spread : {0.1f, 3.0f, 60.0f}) {
      INFO(n << " numbers, spread " << spread);
      const auto x = draw(n, 3, spread), up = draw(n, 4, 1.0f);
      auto with_silu = x, with_gelu = x, capped = x, clamped = x;
      silu_times(with_silu.data(), up.data(), n);
      clamped_silu_times(1.702f, 0.7f, clamped.data(), up.data(), n);
      gelu_times(with_gelu.data(), up.data(), n);
      soft_cap(30.0f, capped.data(), n);
      std::vector<double> silus, gelus, caps, clamps;
      for (std::size_t i = 0; i < x.size(); ++i) {
        silus.push_back(silu(x[i]) * up[i]);
        gelus.push_back(gelu(x[i]) * up[i]);
        caps.push_back(30 * std::tanh(x[i] / 30.0));
        const double g = std::min(x[i], 0.7f), u = std::clamp(up[i], -0.7f, 0.7f);
        clamps.push_back(g / (1 + std::exp(-1.702f * g)) * (u + 1));
      }
      REQUIRE(worst_error(with_silu, silus, x) < 2e-6);
      REQUIRE(worst_error(clamped, clamps, x) < 2e-6);
      REQUIRE(worst_error(with_gelu, gelus, x) < 2e-5);  // e^-2u with u rounded to float32
      // cap - 2 cap / (1 + e^2t): near 0 what is left of two numbers of cap's size
      double worst = 0;
      for (std::size_t i = 0; i < x.size(); ++i)
        worst = worse_of(worst, std::abs(capped[i] - caps[i]));
      REQUIRE(worst < 30 * 5e-7);
    }
}

TEST_CASE("elementwise: what is not a number stays so, wherever it stands") {
  for (const std::int64_t n : {1, 8, 9, 33})
    for (std::int64_t at = 0; at < n; ++at) {
      const std::vector<float> ones(static_cast<std::size_t>(n), 1.0f);
      auto x = draw(n, 5, 1.0f);
      x[static_cast<std::size_t>(at)] = kNaN;
      for (const int which : {0, 1, 2, 3, 4}) {
        auto y = x;
        if (which == 0) silu_times(y.data(), ones.data(), n);
        if (which == 1) gelu_times(y.data(), ones.data(), n);
        if (which == 2) soft_cap(2.0f, y.data(), n);
        if (which == 3) clamped_silu_times(1.7f, 7.0f, y.data(), ones.data(), n);
        if (which == 4) {
          y = ones;
          clamped_silu_times(1.7f, 7.0f, y.data(), x.data(), n);
        }
        for (std::int64_t i = 0; i < n; ++i)
          REQUIRE(std::isnan(y[static_cast<std::size_t>(i)]) == (i == at));
      }
    }
}

TEST_CASE("elementwise: large numbers of either sign end where the formulas do") {
  const std::vector<float> x{-1e30f, -1000.0f, -100.0f, 100.0f, 1000.0f, 1e30f};
  const std::vector<float> ones(x.size(), 1.0f);
  auto with_silu = x, with_gelu = x, capped = x;
  const auto n = static_cast<std::int64_t>(x.size());
  silu_times(with_silu.data(), ones.data(), n);
  gelu_times(with_gelu.data(), ones.data(), n);
  soft_cap(50.0f, capped.data(), n);
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double bound = 1e-6 + 1e-6 * std::max(x[i], 0.0f);  // 0 on the other side
    REQUIRE(std::abs(with_silu[i] - silu(x[i])) <= bound);
    if (std::abs(x[i]) <= 1000) REQUIRE(std::abs(with_gelu[i] - gelu(x[i])) <= bound);
    REQUIRE(std::abs(capped[i] - 50 * std::tanh(x[i] / 50.0)) <= 50 * 5e-7);
  }
}

TEST_CASE("elementwise: rms_norm, scale and add_scaled are their formulas, in place too") {
  for (const std::int64_t width : {1, 5, 8, 33, 640})
    for (const std::int64_t n : {1, 3, 40}) {
      INFO(n << " rows of " << width);
      const auto x = draw(n * width, 6, 2.0f), weight = draw(width, 7, 1.0f);
      std::vector<double> expected;
      for (std::int64_t r = 0; r < n; ++r) {
        double square = 0;
        for (std::int64_t c = 0; c < width; ++c) {
          const double v = x[static_cast<std::size_t>(r * width + c)];
          square += v * v;
        }
        for (std::int64_t c = 0; c < width; ++c)
          expected.push_back(x[static_cast<std::size_t>(r * width + c)] /
                             std::sqrt(square / static_cast<double>(width) + 1e-6) *
                             weight[static_cast<std::size_t>(c)]);
      }
      std::vector<float> apart(x.size()), in_place = x;
      rms_norm(x.data(), weight.data(), 1e-6f, n, width, apart.data());
      rms_norm(in_place.data(), weight.data(), 1e-6f, n, width, in_place.data());
      REQUIRE(worst_error(apart, expected, x) < 5e-6);
      REQUIRE(apart == in_place);

      auto sum = apart;
      add_scaled(-0.5f, x.data(), sum.data(), n * width);
      for (std::size_t i = 0; i < x.size(); ++i)
        REQUIRE(std::abs(sum[i] - (apart[i] - 0.5 * x[i])) <= 1e-6 * (1 + std::abs(x[i])));
      scale(-2.0f, sum.data(), n * width);
      for (std::size_t i = 0; i < x.size(); ++i)
        REQUIRE(std::abs(sum[i] + 2 * (apart[i] - 0.5 * x[i])) <= 2e-6 * (1 + std::abs(x[i])));
    }
}
