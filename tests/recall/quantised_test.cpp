// SPDX-License-Identifier: Apache-2.0
// What the 8-bit copy and its projection say of single rows. That no list changes, whatever they
// say, is in index_test.cpp.
#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "episodic/recall/detail/projection.hpp"
#include "episodic/recall/detail/quantised.hpp"
#include "episodic/recall/index.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace quantised_test {

constexpr std::int64_t kRows = 32;

std::vector<double> mean_of(const std::vector<float>& rows, std::int64_t width) {
  std::vector<double> mean(static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < rows.size(); ++i)
    mean[i % mean.size()] += static_cast<double>(rows[i]) / kRows;
  return mean;
}

double dot_exact(const std::vector<float>& a, const float* b) {
  double sum = 0.0;
  for (std::size_t c = 0; c < a.size(); ++c)
    sum += static_cast<double>(a[c]) * static_cast<double>(b[c]);
  return sum;
}

double norm(const std::vector<float>& a) { return std::sqrt(dot_exact(a, a.data())); }

TEST_CASE("codes are off by half a step at most, and a query along the rest meets the bound") {
  std::mt19937 rng(61);
  std::normal_distribution<float> normal;
  for (const std::int64_t width : {1, 5, 128, 131, 300}) {
    std::vector<float> rows(static_cast<std::size_t>(kRows * width));
    for (float& x : rows) x = 3.0f + normal(rng);
    const std::vector<double> mean = mean_of(rows, width);
    detail::QuantisedSlabs copy(width, kRows);
    copy.add(rows.data());
    std::vector<float> decoded(static_cast<std::size_t>(width)), rest(decoded.size());
    for (std::int64_t r = 0; r < kRows; ++r) {
      const float* row = rows.data() + r * width;
      copy.decode(0, r, decoded.data());
      for (std::int64_t block = 0; block < width; block += 128) {
        const auto end = static_cast<std::size_t>(std::min(block + 128, width));
        double largest = 0.0, off = 0.0;
        for (auto c = static_cast<std::size_t>(block); c < end; ++c) {
          const double x = static_cast<double>(row[c]) - mean[c];
          const double left = x - static_cast<double>(decoded[c]);
          largest = std::max(largest, std::abs(x));
          off = std::max(off, std::abs(left));
          rest[c] = static_cast<float>(left);
        }
        REQUIRE(off <= 0.5001 * largest / 127.0 + 1e-6);
      }
      // The query for which the codes are most wrong, and one of no matter.
      for (const bool along : {true, false}) {
        std::vector<float> query = rest;
        if (!along)
          for (float& x : query) x = normal(rng);
        const auto size = static_cast<float>(norm(query) * 1.0001);
        float value = 0.0f, error = 0.0f;
        copy.bounds(query.data(), size, copy.offset(query.data(), 0), 0, r, 1, &value, &error);
        const double wrong = std::abs(dot_exact(query, row) - static_cast<double>(value));
        REQUIRE(wrong <= static_cast<double>(error));
        // and says little more than the rest and the rounding: the bound is worth something
        const double rounding =
            8.0 * detail::rounding(width) * norm(query) * norm(decoded) +
            8.0 * detail::rounding(width) * norm(query) * 4.0 * std::sqrt(width);
        REQUIRE(static_cast<double>(error) <= 1.01 * norm(query) * norm(rest) + rounding);
      }
    }
  }
}

TEST_CASE("a projection's bound counts the row that the 8-bit copy gets most wrong") {
  // One row whose first channel hides all others from its codes; all others are 0.
  const std::int64_t width = 96, wrong = 3;
  std::vector<float> rows(static_cast<std::size_t>(kRows * width), 0.0f);
  float* row = rows.data() + wrong * width;
  std::fill_n(row, width, 0.49f);
  row[0] = 127.0f;
  detail::QuantisedSlabs copy(width, kRows);
  copy.add(rows.data());
  std::vector<float> query(static_cast<std::size_t>(width), 1.0f);
  query[0] = 0.0f;
  detail::Projection projection(width, kRows, 4);
  for (int i = 0; i < 4; ++i) projection.sample(query.data());  // the subspace is this query
  projection.project(copy, 1);
  REQUIRE(projection.has(0));
  detail::Projection::Opened opened;
  projection.open(query.data(), norm(query) * 1.0001, opened);
  const float offset = copy.offset(query.data(), 0);
  const auto score = static_cast<float>(dot_exact(query, row));
  std::vector<float> upper(static_cast<std::size_t>(projection.groups_per_slab()));
  const float most = projection.bound_groups(opened, 0, offset, upper.data());
  CHECK(most >= score);
  CHECK(upper[wrong / detail::Projection::kGroup] >= score);
  std::vector<detail::Projection::Row> found;
  projection.rows_of(opened, 0, offset, wrong / detail::Projection::kGroup, found);
  REQUIRE(found.size() == detail::Projection::kGroup);
  CHECK(found[wrong].upper >= score);
  CHECK(found[wrong].upper < 2.0f * score);  // so the row's own error is what it consists of
}

}  // namespace quantised_test
