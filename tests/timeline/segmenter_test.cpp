// SPDX-License-Identifier: Apache-2.0
#include "episodic/timeline/segmenter.hpp"

#include <algorithm>
#include <limits>
#include <random>

#include "episodic/base/error.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace segmenter_test {

struct Flags {
  std::vector<float> threshold;
  std::vector<std::uint8_t> flags;
  bool operator==(const Flags&) const = default;
};

Flags run(Segmenter& segmenter, const std::vector<float>& s, std::int64_t first, std::int64_t end,
          std::int64_t step) {
  Flags all;
  for (std::int64_t t = first; t < end; t += step) {
    const auto n = static_cast<std::size_t>(std::min(step, end - t));
    Flags f{std::vector<float>(n), std::vector<std::uint8_t>(n, 7)};
    segmenter.step(t, std::span(s).subspan(static_cast<std::size_t>(t), n), f.threshold, f.flags);
    all.threshold.insert(all.threshold.end(), f.threshold.begin(), f.threshold.end());
    all.flags.insert(all.flags.end(), f.flags.begin(), f.flags.end());
  }
  return all;
}

std::vector<std::int64_t> positions(const Flags& f) {
  std::vector<std::int64_t> out;
  for (std::size_t i = 0; i < f.flags.size(); ++i) {
    REQUIRE(f.flags[i] <= 1);
    if (f.flags[i]) out.push_back(static_cast<std::int64_t>(i));
  }
  return out;
}

std::vector<float> noise(std::int64_t n) {
  std::mt19937 rng(5);
  std::vector<float> s(static_cast<std::size_t>(n));
  for (float& x : s) x = static_cast<float>(rng() % 1000) / 100.0f;
  return s;
}

TEST_CASE("surprise segmenter flags what exceeds the threshold") {
  MemoryConfig c;
  c.n_local = 20, c.gamma = 0.7, c.n_init = 4;
  const auto s = noise(300);
  const Flags whole = run(*make_segmenter(c), s, 0, 300, 300);
  REQUIRE(positions(whole).size() > 20);
  for (std::size_t i = 0; i < s.size(); ++i)
    REQUIRE((whole.flags[i] == 1) == (s[i] > whole.threshold[i]));
  REQUIRE(run(*make_segmenter(c), s, 0, 300, 1) == whole);

  auto a = make_segmenter(c);
  run(*a, s, 0, 100, 30);
  auto b = a->clone();
  REQUIRE(run(*a, s, 100, 300, 7) == run(*b, s, 100, 300, 11));
  REQUIRE_THROWS_AS(run(*b, s, 0, 10, 10), DataError);  // steps out of order
}

TEST_CASE("a surprise that equals its threshold is no boundary") {
  MemoryConfig c;
  c.n_local = 20, c.gamma = 0.0, c.n_init = 4;
  const std::vector<float> s(100, 3.5f);  // whose mean is exact, and whose deviation is 0
  const Flags f = run(*make_segmenter(c), s, 0, 100, 7);
  REQUIRE(std::count(f.threshold.begin(), f.threshold.end(), 3.5f) > 50);
  REQUIRE(positions(f).empty());
}

TEST_CASE("fixed and given segmenters flag positions, without thresholds") {
  MemoryConfig c;
  c.n_init = 5, c.max_block = 10, c.min_block = 2;
  const auto s = noise(40);
  c.segmenter = SegmenterKind::fixed;
  const Flags fixed = run(*make_segmenter(c), s, 0, 40, 7);
  REQUIRE(positions(fixed) == std::vector<std::int64_t>{15, 25, 35});
  for (const float t : fixed.threshold) REQUIRE(t == std::numeric_limits<float>::infinity());
  c.segmenter = SegmenterKind::given;
  REQUIRE(positions(run(*make_segmenter(c, {0, 3, 17, 17, 39, 80}), s, 0, 40, 9)) ==
          std::vector<std::int64_t>{0, 3, 17, 39});
  REQUIRE(positions(run(*make_segmenter(c)->clone(), s, 0, 40, 9)).empty());
  REQUIRE_THROWS_AS(make_segmenter(c, {5, 3}), DataError);
  REQUIRE_THROWS_AS(make_segmenter(c, {-1}), DataError);
  c.segmenter = SegmenterKind::fixed;
  REQUIRE_THROWS_AS(make_segmenter(c, {5}), ConfigError);
}

TEST_CASE("random segmenter draws per token, by seed, at the stated rate") {
  MemoryConfig c;
  c.segmenter = SegmenterKind::random;
  c.min_block = 8, c.max_block = 32, c.seed = 3;
  const auto s = noise(40000);
  const Flags whole = run(*make_segmenter(c), s, 0, 40000, 40000);
  REQUIRE(run(*make_segmenter(c), s, 0, 40000, 513) == whole);
  const auto drawn = static_cast<double>(positions(whole).size());
  REQUIRE(std::abs(drawn - 2000.0) < 200.0);  // 40000 * 2 / 40; sigma is 44
  c.seed = 4;
  REQUIRE_FALSE(run(*make_segmenter(c), s, 0, 40000, 513) == whole);
  c.min_block = c.max_block = 1;
  REQUIRE(positions(run(*make_segmenter(c), s, 0, 50, 50)).size() == 50);
}

}  // namespace segmenter_test
