// SPDX-License-Identifier: Apache-2.0
#include "episodic/recall/representatives.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "support/test.hpp"

using namespace episodic;

TEST_CASE("representatives are the keys of largest relevance, summed in order of time") {
  std::mt19937 rng(31);
  std::normal_distribution<float> normal;
  for (int seed = 0; seed < 80; ++seed) {
    const auto pick = [&](std::int64_t most) {
      return 1 + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(most));
    };
    const std::int64_t n = pick(40), groups = pick(3), heads = groups * pick(3), d = pick(19);
    const std::int64_t n_repr = pick(6);
    const std::int64_t row = d + 2, head_stride = (n + 1) * row;
    std::vector<float> keys(static_cast<std::size_t>(groups * head_stride));
    for (float& x : keys) x = normal(rng);
    std::vector<float> relevance(static_cast<std::size_t>(n * heads));
    for (float& r : relevance) r = static_cast<float>(rng() % 6);  // many ties
    const std::int64_t count = std::min(n, n_repr);
    std::vector<float> mean(static_cast<std::size_t>(heads * d));
    std::vector<float> each(static_cast<std::size_t>(count * heads * d));
    const KeyView view{keys.data(), head_stride, row};
    REQUIRE(select_representatives(view, relevance.data(), n, heads, groups, d, n_repr, mean.data(),
                                   each.data()) == count);
    for (std::int64_t h = 0; h < heads; ++h) {
      std::vector<std::int64_t> order(static_cast<std::size_t>(n));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
        return relevance[static_cast<std::size_t>(a * heads + h)] >
               relevance[static_cast<std::size_t>(b * heads + h)];
      });
      std::sort(order.begin(), order.begin() + count);
      for (std::int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (std::int64_t j = 0; j < count; ++j) {
          const float key = keys[static_cast<std::size_t>(
              h * groups / heads * head_stride + order[static_cast<std::size_t>(j)] * row + c)];
          sum += key;
          REQUIRE(each[static_cast<std::size_t>((j * heads + h) * d + c)] == key);
        }
        const double got = mean[static_cast<std::size_t>(h * d + c)];
        REQUIRE(std::abs(got - sum / static_cast<double>(count)) < 1e-6);
      }
    }
    std::vector<float> alone(mean.size());
    select_representatives(view, relevance.data(), n, heads, groups, d, n_repr, alone.data(),
                           nullptr);
    REQUIRE(alone == mean);
    // Keys of 16 bits are the numbers that they stand for.
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      std::vector<std::uint16_t> halves;
      std::vector<float> wide;
      for (const float x : keys) {
        const bool brain = dtype == DType::bfloat16;
        halves.push_back(brain ? to_bfloat16(x) : to_float16(x));
        wide.push_back(brain ? from_bfloat16(halves.back()) : from_float16(halves.back()));
      }
      std::vector<float> mean16(mean.size()), each16(each.size()), each32(each.size());
      select_representatives({halves.data(), head_stride, row, dtype}, relevance.data(), n, heads,
                             groups, d, n_repr, mean16.data(), each16.data());
      select_representatives({wide.data(), head_stride, row}, relevance.data(), n, heads, groups, d,
                             n_repr, alone.data(), each32.data());
      REQUIRE(mean16 == alone);
      REQUIRE(each16 == each32);
    }
  }
}

TEST_CASE("equal tokens give equal bits, whichever positions they hold") {
  std::mt19937 rng(32);
  std::normal_distribution<float> normal;
  const std::int64_t n = 12, d = 16;
  std::vector<float> a(static_cast<std::size_t>(n * d)), b(a.size());
  for (float& x : a) x = normal(rng);
  for (float& x : b) x = normal(rng);
  // the same four tokens in the same order, at other places and with other ranks
  const std::int64_t at_a[] = {1, 4, 5, 9}, at_b[] = {0, 2, 7, 11};
  std::vector<float> ra(static_cast<std::size_t>(n), 0.0f), rb = ra;
  for (int j = 0; j < 4; ++j) {
    std::copy_n(a.data() + at_a[j] * d, d, b.data() + at_b[j] * d);
    ra[static_cast<std::size_t>(at_a[j])] = 1.0f + static_cast<float>(j);
    rb[static_cast<std::size_t>(at_b[j])] = 9.0f - static_cast<float>(j);
  }
  std::vector<float> ma(static_cast<std::size_t>(d)), mb = ma;
  select_representatives({a.data(), 0, d}, ra.data(), n, 1, 1, d, 4, ma.data(), nullptr);
  select_representatives({b.data(), 0, d}, rb.data(), n, 1, 1, d, 4, mb.data(), nullptr);
  REQUIRE(ma == mb);
}
