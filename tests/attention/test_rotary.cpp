// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "attend_reference.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/base/error.hpp"
#include "support/test.hpp"

namespace episodic {
namespace {

using testing::Random;

TEST_CASE("plain_rotary is theta to the minus 2c / dim") {
  const RotaryTable table = plain_rotary(8, 10000.0);
  REQUIRE(table.rotary_dim() == 8);
  for (int c = 0; c < 4; ++c) {
    REQUIRE(testing::near(table.inverse_frequency[c], std::pow(10000.0, -c / 4.0), 1e-14));
  }
  REQUIRE_THROWS_AS(plain_rotary(7, 10000.0), DataError);
  REQUIRE_THROWS_AS(plain_rotary(8, 0.0), DataError);
}

TEST_CASE("angles are right to float32 at ten million, and do not depend on the cut") {
  RotaryTable table = plain_rotary(64, 10000.0);
  table.attention_factor = 1.25;
  for (std::int64_t first : {std::int64_t{0}, std::int64_t{100}, std::int64_t{10'000'000}}) {
    RotaryAngles all, one;
    all.compute(table, first, 200);
    for (std::int64_t i = 0; i < 200; ++i) {
      one.compute(table, first + i, 1);
      for (std::int64_t c = 0; c < 32; ++c) {
        const long double angle = static_cast<long double>(first + i) *
                                  static_cast<long double>(table.inverse_frequency[c]);
        const std::size_t at = static_cast<std::size_t>(i * 32 + c);
        REQUIRE(std::abs(all.cos[at] - 1.25 * static_cast<double>(cosl(angle))) < 1e-7);
        REQUIRE(std::abs(all.sin[at] - 1.25 * static_cast<double>(sinl(angle))) < 1e-7);
        REQUIRE(all.cos[at] == one.cos[static_cast<std::size_t>(c)]);
        REQUIRE(all.sin[at] == one.sin[static_cast<std::size_t>(c)]);
      }
    }
  }
  RotaryAngles angles;
  REQUIRE_THROWS_AS(angles.compute(table, -1, 2), DataError);
  angles.compute(table, 5, 0);
  REQUIRE(angles.n == 0);
}

TEST_CASE("rotate turns channel pairs, with strides, in place, and one row for all") {
  Random random(3);
  for (std::int64_t d : {2, 6, 12, 64, 128, 80}) {
    for (std::int64_t rotary_dim : {d, d / 4 * 2}) {
      for (std::int64_t n : {1, 5, 70}) {
        const std::int64_t heads = 3, x_head = d + 1, x_row = heads * x_head + 2;
        const std::int64_t y_head = d, y_row = heads * d;
        const RotaryTable table = plain_rotary(rotary_dim, 500.0);
        auto x = testing::normal(random, n * x_row);
        for (bool single : {false, true}) {
          RotaryAngles angles;
          angles.compute(table, 1000, single ? 1 : n);
          std::vector<float> y(static_cast<std::size_t>(n * y_row), 99.0f);
          rotate(table, angles, n, heads, d, x.data(), x_row, x_head, y.data(), y_row, y_head);
          auto z = x;
          rotate(table, angles, n, heads, d, z.data(), x_row, x_head, z.data(), x_row, x_head);
          for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t h = 0; h < heads; ++h) {
              for (std::int64_t c = 0; c < d; ++c) {
                const float* from = x.data() + i * x_row + h * x_head;
                const std::int64_t half = rotary_dim / 2;
                double want = from[c];
                if (c < rotary_dim) {
                  const double angle = (1000.0 + static_cast<double>(single ? 0 : i)) *
                                       table.inverse_frequency[c % half];
                  want = c < half ? from[c] * std::cos(angle) - from[c + half] * std::sin(angle)
                                  : from[c] * std::cos(angle) + from[c - half] * std::sin(angle);
                }
                REQUIRE(std::abs(y[i * y_row + h * y_head + c] - want) < 2e-6);
                REQUIRE(z[i * x_row + h * x_head + c] == y[i * y_row + h * y_head + c]);
              }
            }
          }
        }
      }
    }
  }
}

TEST_CASE("rotate refuses angles that do not fit") {
  const RotaryTable table = plain_rotary(8, 100.0);
  RotaryAngles angles;
  angles.compute(table, 0, 3);
  std::vector<float> x(4 * 8);
  REQUIRE_THROWS_AS(rotate(table, angles, 4, 1, 8, x.data(), 8, 8, x.data(), 8, 8), DataError);
  REQUIRE_THROWS_AS(rotate(table, angles, 3, 1, 6, x.data(), 8, 8, x.data(), 8, 8), DataError);
  REQUIRE_THROWS_AS(rotate(plain_rotary(4, 100.0), angles, 3, 1, 8, x.data(), 8, 8, x.data(), 8, 8),
                    DataError);
}

}  // namespace
}  // namespace episodic
