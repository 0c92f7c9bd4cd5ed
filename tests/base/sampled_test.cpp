// SPDX-License-Identifier: Apache-2.0
#include "support/sampled.hpp"

#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "support/test.hpp"

using episodic_test::combined;
using episodic_test::in_turn;
using episodic_test::sampled;
using episodic_test::sampled_range;

TEST_CASE("sampled cases are spread evenly, with the first and the last, and all where asked") {
  const std::vector<int> ten{0, 1, 2, 3, 4, 5, 6, 7, 8, 9};
  REQUIRE(sampled(ten, 4, false) == std::vector<int>{0, 3, 6, 9});
  REQUIRE(sampled(ten, 2, false) == std::vector<int>{0, 9});
  REQUIRE(sampled(ten, 1, false) == std::vector<int>{0});
  REQUIRE(sampled(ten, 4, true) == ten);
  REQUIRE(sampled(ten, 10, false) == ten);
  REQUIRE(sampled(ten, 11, false) == ten);
  REQUIRE(sampled(std::vector<int>{}, 3, false).empty());
  REQUIRE(sampled_range(5, 12, 3, false) == std::vector<int>{5, 8, 11});
  REQUIRE(sampled_range(5, 8, 1, true) == std::vector<int>{5, 6, 7});
  REQUIRE(in_turn(ten, 13, false) == std::vector<int>{3});
  REQUIRE(in_turn(ten, 13, true) == ten);
  for (std::size_t n = 1; n < 40; ++n)
    for (std::size_t k = 1; k <= n; ++k) {
      const std::vector<std::size_t> some = sampled_range<std::size_t>(0, n, k, false);
      REQUIRE(some.size() == k);
      REQUIRE(std::set<std::size_t>(some.begin(), some.end()).size() == k);
      REQUIRE(some.front() == 0);
      if (k > 1) REQUIRE(some.back() == n - 1);
    }
}

TEST_CASE("combined cases have each value of every list, and all pairs where asked") {
  const std::vector<int> a{1, 2, 3};
  const std::vector<std::string> b{"x", "y"};
  using Case = std::tuple<int, std::string>;
  REQUIRE(combined(false, a, b) == std::vector<Case>{{1, "x"}, {2, "y"}, {3, "x"}});
  const std::vector<Case> all = combined(true, a, b);
  REQUIRE(all.size() == 6);
  REQUIRE(std::set<Case>(all.begin(), all.end()).size() == 6);
  REQUIRE(combined(false, a) == std::vector<std::tuple<int>>{{1}, {2}, {3}});
}
