// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/text.hpp"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <random>
#include <string>

#include "support/test.hpp"

using episodic::concat;

TEST_CASE("concat puts text and numbers together") {
  CHECK(concat() == "");
  CHECK(concat("n_mem = ", std::int64_t{-3}, ", must be in [", 0, ", ", std::uint64_t{1} << 63,
               "]") == "n_mem = -3, must be in [0, 9223372036854775808]");
  CHECK(concat(std::string("a"), std::string_view("b"), "c") == "abc");
}

TEST_CASE("concat writes a number with as few digits as tell it from its neighbours") {
  CHECK(concat(0.0, " ", -0.5, " ", 3.0, " ", 0.1) == "0 -0.5 3 0.1");
  CHECK(concat(1e-30, " ", 1e300, " ", 65520.0f) == "1e-30 1e+300 65520");
  CHECK(concat(0.1f, " ", 1.0f / 3) == "0.1 0.33333334");  // of a float, not of its double
  CHECK(concat(1.0 / 3) == "0.3333333333333333");
  CHECK(concat(INFINITY, " ", -std::numeric_limits<double>::infinity()) == "inf -inf");
  CHECK(concat(std::abs(std::numeric_limits<double>::quiet_NaN())) == "nan");
}

TEST_CASE("what concat writes of a number reads back as that number") {
  std::mt19937_64 random(3);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bits = random();
    double x;
    float y;
    std::memcpy(&x, &bits, sizeof x);
    std::memcpy(&y, &bits, sizeof y);
    INFO(concat(x) << " " << concat(y));
    if (std::isfinite(x)) REQUIRE(std::strtod(concat(x).c_str(), nullptr) == x);
    if (std::isfinite(y)) REQUIRE(std::strtof(concat(y).c_str(), nullptr) == y);
  }
}
