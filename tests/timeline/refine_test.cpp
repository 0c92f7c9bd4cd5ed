// SPDX-License-Identifier: Apache-2.0
#include "episodic/timeline/refine.hpp"

#include <cmath>
#include <limits>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/timeline/detail/split_sums.hpp"
#include "support/refine_reference.hpp"
#include "support/test.hpp"

using namespace episodic;
using episodic_test::KeyStream;
using episodic_test::RefineReference;

namespace {

constexpr Refinement kObjectives[] = {Refinement::modularity, Refinement::conductance,
                                      Refinement::intra_inter};

}  // namespace

TEST_CASE("refinement equals the textbook objectives on the explicit graph") {
  std::mt19937 rng(11);
  int moved = 0, kept = 0, dropped = 0, compared = 0;
  for (int seed = 0; seed < 90; ++seed) {
    const Refinement kind = kObjectives[seed % 3];
    const std::int64_t n = 60 + static_cast<std::int64_t>(rng() % 80);
    const std::int64_t n_init = static_cast<std::int64_t>(rng() % 9);
    const std::int64_t min_block = 1 + static_cast<std::int64_t>(rng() % 6);
    const std::int64_t heads = 1 + static_cast<std::int64_t>(rng() % 3);
    const std::int64_t longest = 1 + static_cast<std::int64_t>(rng() % 40);
    const std::int64_t dim = 3 + static_cast<std::int64_t>(rng() % 11);
    KeyStream s(rng, n, 1 + seed % 3, heads, dim, 2 * longest, 0.03 + 0.3 * (seed % 4) / 3.0);
    BoundaryRefiner refiner(kind, n_init, min_block, heads, dim);
    RefineReference reference{kind, n_init, min_block};
    bool clear = true;
    for (std::int64_t c0 = 0; c0 < n && clear;) {
      const std::int64_t most = rng() % 4 ? longest : 1;
      const std::int64_t end =
          std::min(n, c0 + 1 + static_cast<std::int64_t>(rng() % static_cast<std::uint64_t>(most)));
      s.load(c0, end);
      std::vector<std::uint8_t> got(static_cast<std::size_t>(end - c0), 9);
      refiner.step(s.views(), c0,
                   std::span(s.raw).subspan(static_cast<std::size_t>(c0), got.size()), got);
      const auto expected = reference.step(s, c0, end, clear);
      if (!clear) break;
      REQUIRE(got == expected);
      REQUIRE(refiner.last_boundary() == (reference.finals.empty() ? -1 : reference.finals.back()));
      c0 = end;
      ++compared;
    }
    moved += reference.moved, kept += reference.kept, dropped += reference.dropped;
  }
  REQUIRE(compared > 500);
  REQUIRE(moved > 150);
  REQUIRE(kept > 50);
  REQUIRE(dropped > 200);
}

TEST_CASE("equal tokens tie, and the latest split wins") {
  std::mt19937 rng(12);
  for (const Refinement kind : {Refinement::modularity, Refinement::intra_inter}) {
    KeyStream s(rng, 60, 2, 2, 7, 64, 0.0);
    for (auto& layer : s.all)
      for (std::int64_t t = 1; t < 60; ++t) std::copy_n(layer.data(), 14, layer.data() + t * 14);
    s.raw[31] = s.raw[53] = 1;
    s.load(0, 60);
    BoundaryRefiner refiner(kind, 4, 3, 2, 7);
    std::vector<std::uint8_t> out(60);
    refiner.step(s.views(), 0, s.raw, out);
    REQUIRE(out == s.raw);
  }
  // Conductance of n equal tokens is best in the middle; for odd n two splits tie.
  KeyStream s(rng, 40, 1, 1, 5, 64, 0.0);
  for (std::int64_t t = 1; t < 40; ++t) std::copy_n(s.all[0].data(), 5, s.all[0].data() + t * 5);
  s.raw[21] = 1;
  s.load(0, 40);
  BoundaryRefiner refiner(Refinement::conductance, 0, 3, 1, 5);
  std::vector<std::uint8_t> out(40);
  refiner.step(s.views(), 0, s.raw, out);  // window [0, 31): splits 15 and 16 tie
  REQUIRE(refiner.last_boundary() == 16);
}

TEST_CASE("keys of zeros leave the boundary where it is") {
  std::mt19937 rng(13);
  for (const Refinement kind : kObjectives) {
    KeyStream s(rng, 40, 1, 1, 4, 40, 0.0);
    std::fill(s.all[0].begin(), s.all[0].end(), 0.0f);
    s.raw[20] = 1;
    s.load(0, 40);
    BoundaryRefiner refiner(kind, 0, 2, 1, 4);
    std::vector<std::uint8_t> out(40);
    refiner.step(s.views(), 0, s.raw, out);
    REQUIRE(out == s.raw);
  }
}

TEST_CASE("cancellation does not choose the boundary") {
  // A far common offset: the textbook form of modularity loses every digit in float32 here.
  std::mt19937 rng(14);
  KeyStream s(rng, 80, 1, 1, 8, 80, 0.0);
  for (std::int64_t t = 0; t < 80; ++t)
    for (std::int64_t c = 0; c < 8; ++c)
      s.all[0][static_cast<std::size_t>(t * 8 + c)] =
          4096.0f + (c == (t < 33 ? 0 : 1) ? 0.25f : 0.0f);
  s.raw[40] = 1;
  s.load(0, 80);
  BoundaryRefiner refiner(Refinement::modularity, 0, 2, 1, 8);
  std::vector<std::uint8_t> out(80);
  refiner.step(s.views(), 0, s.raw, out);
  REQUIRE(refiner.last_boundary() == 33);
}

TEST_CASE("a refiner copies, keeps its state when it throws, and needs no threads for its bits") {
  std::mt19937 rng(15);
  KeyStream s(rng, 200, 3, 2, 16, 200, 0.08);
  s.load(0, 200);
  BoundaryRefiner a(Refinement::modularity, 4, 3, 2, 16);
  std::vector<std::uint8_t> first(100), rest(100), again(100);
  const std::span raw(s.raw);
  a.step(s.views(), 0, raw.first(100), first);
  BoundaryRefiner b = a;
  a.step(s.views(), 100, raw.subspan(100), rest);
  REQUIRE_THROWS_AS(b.step({}, 100, raw.subspan(100), again), ConfigError);
  std::vector<KeyRing> small = s.views();
  small[1].capacity = 2;
  REQUIRE_THROWS_AS(b.step(small, 100, raw.subspan(100), again), DataError);
  REQUIRE_THROWS_AS(b.step(s.views(), 100, raw.subspan(100), std::span(again).first(7)), DataError);
  const int threads = max_threads();
  set_max_threads(threads == 1 ? 2 : 1);
  b.step(s.views(), 100, raw.subspan(100), again);
  set_max_threads(threads);
  REQUIRE(rest == again);
}

TEST_CASE("a split's sums have the same bits with every machine's instructions") {
  using namespace episodic::refine_detail;
  const SplitLoops loops(cpu::kernels());
  std::mt19937 rng(5);
  std::normal_distribution<float> normal;
  for (const std::int64_t d : {1, 5, 8, 13, 64, 100, 128}) {
    const auto n = static_cast<std::size_t>(d);
    std::vector<float> key(n);
    std::vector<double> total(n), sum(n);
    for (std::size_t c = 0; c < n; ++c) {
      total[c] = 30.0 * normal(rng);
      sum[c] = 10.0 * normal(rng);
    }
    auto same = sum;
    for (int t = 0; t < 20; ++t) {
      for (float& x : key) x = normal(rng);
      const auto plain = advance(key.data(), total.data(), sum.data(), d);
      const auto wide = loops.advance(key.data(), total.data(), same.data(), d);
      REQUIRE(plain.ss == wide.ss);
      REQUIRE(plain.rr == wide.rr);
      REQUIRE(plain.sr == wide.sr);
      accumulate(key.data(), sum.data(), d);
      loops.accumulate(key.data(), same.data(), d);
      REQUIRE(sum == same);
    }
  }
}

TEST_CASE("keys of 16 bits are refined as the numbers that they stand for") {
  std::mt19937 rng(17);
  int moved = 0;
  for (const DType dtype : {DType::bfloat16, DType::float16})
    for (const Refinement kind : kObjectives) {
      KeyStream s(rng, 150, 2, 3, 11, 150, 0.1);
      s.load(0, 150);
      std::vector<std::vector<std::uint16_t>> halves;
      for (auto& ring : s.rings) {
        halves.emplace_back();
        for (float& x : ring) {
          const bool brain = dtype == DType::bfloat16;
          halves.back().push_back(brain ? to_bfloat16(x) : to_float16(x));
          x = brain ? from_bfloat16(halves.back().back()) : from_float16(halves.back().back());
        }
      }
      std::vector<KeyRing> views = s.views();
      BoundaryRefiner wide(kind, 4, 3, 3, 11), narrow(kind, 4, 3, 3, 11);
      std::vector<std::uint8_t> want(150), got(150);
      wide.step(views, 0, s.raw, want);
      for (std::size_t l = 0; l < views.size(); ++l)
        views[l].data = halves[l].data(), views[l].dtype = dtype;
      narrow.step(views, 0, s.raw, got);
      REQUIRE(got == want);
      moved += got != s.raw;
      // One head of them, as a scope of its own sees it.
      const KeyRing head = views[1].head(2);
      REQUIRE(head.row(0, 140) == views[1].row(2, 140));
    }
  REQUIRE(moved == 6);
}

TEST_CASE("without an objective the flags pass through") {
  std::mt19937 rng(16);
  KeyStream s(rng, 50, 1, 1, 4, 8, 0.3);
  BoundaryRefiner refiner(Refinement::none, 10, 8, 1, 4);
  std::vector<std::uint8_t> out(50, 9);
  refiner.step({}, 0, s.raw, out);
  REQUIRE(out == s.raw);
}
