// SPDX-License-Identifier: Apache-2.0
// What the tests themselves compare with.
#include "support/compare.hpp"

#include <algorithm>
#include <vector>

#include "support/test.hpp"

TEST_CASE("a largest error is NaN if any error was, first, between or last") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> errors{nan, 0.25, 0.5};
  for (int turn = 0; turn < 3; ++turn) {
    double worst = 0;
    for (const double error : errors) worst = worse_of(worst, error);
    CHECK(std::isnan(worst));
    CHECK_FALSE(worst < 1e9);
    std::rotate(errors.begin(), errors.begin() + 1, errors.end());
  }
  CHECK(worse_of(0.25, 0.5) == 0.5);
  CHECK(worse_of(0.5, 0.25) == 0.5);
}
