// SPDX-License-Identifier: Apache-2.0
// The reference builds the graph's adjacency matrix and evaluates the textbook formulas on it.
#include "episodic/timeline/refine.hpp"

#include <cmath>
#include <limits>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

struct Stream {
  std::int64_t n_layers, n_heads, d, capacity;
  std::vector<std::vector<float>> all;    // per layer [token][head][d]
  std::vector<std::vector<float>> rings;  // per layer [head][capacity][d + 1]
  std::vector<std::uint8_t> raw;

  Stream(std::mt19937& rng, std::int64_t n, std::int64_t layers, std::int64_t heads,
         std::int64_t dim, std::int64_t ring, double flag_rate)
      : n_layers(layers), n_heads(heads), d(dim), capacity(ring) {
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<double> uniform;
    all.assign(static_cast<std::size_t>(layers),
               std::vector<float>(static_cast<std::size_t>(n * heads * dim)));
    for (auto& layer : all) {
      std::vector<float> topic(static_cast<std::size_t>(heads * dim));
      for (std::int64_t t = 0; t < n; ++t) {
        if (t % 17 == 0)
          for (float& x : topic) x = normal(rng);
        for (std::int64_t c = 0; c < heads * dim; ++c)
          layer[static_cast<std::size_t>(t * heads * dim + c)] =
              1.5f * topic[static_cast<std::size_t>(c)] + normal(rng);
      }
    }
    raw.resize(static_cast<std::size_t>(n));
    for (auto& f : raw) f = uniform(rng) < flag_rate;
    rings.assign(static_cast<std::size_t>(layers),
                 std::vector<float>(static_cast<std::size_t>(heads * ring * (dim + 1)),
                                    std::numeric_limits<float>::quiet_NaN()));
  }

  void load(std::int64_t from, std::int64_t to) {
    for (std::size_t l = 0; l < rings.size(); ++l)
      for (std::int64_t t = from; t < to; ++t)
        for (std::int64_t h = 0; h < n_heads; ++h)
          for (std::int64_t c = 0; c < d; ++c)
            rings[l][static_cast<std::size_t>((h * capacity + t % capacity) * (d + 1) + c)] =
                all[l][static_cast<std::size_t>((t * n_heads + h) * d + c)];
  }

  std::vector<KeyRing> views() const {
    std::vector<KeyRing> out;
    for (const auto& r : rings) out.push_back({r.data(), capacity, capacity * (d + 1), d + 1});
    return out;
  }

  double edge(std::int64_t i, std::int64_t j) const {
    double sum = 0;
    for (const auto& layer : all)
      for (std::int64_t c = 0; c < n_heads * d; ++c)
        sum += static_cast<double>(layer[static_cast<std::size_t>(i * n_heads * d + c)]) *
               static_cast<double>(layer[static_cast<std::size_t>(j * n_heads * d + c)]);
    return sum;
  }
};

using Matrix = std::vector<std::vector<double>>;

double block(const Matrix& a, std::int64_t r0, std::int64_t r1, std::int64_t c0, std::int64_t c1) {
  double sum = 0;
  for (std::int64_t i = r0; i < r1; ++i)
    for (std::int64_t j = c0; j < c1; ++j)
      sum += a[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
  return sum;
}

// Larger is better; x is the split, n the window's length.
double objective(Refinement kind, const Matrix& a, std::int64_t x, std::int64_t n) {
  const double ss = block(a, 0, x, 0, x), rr = block(a, x, n, x, n), sr = block(a, 0, x, x, n);
  if (kind == Refinement::modularity) {
    const double two_m = block(a, 0, n, 0, n);
    const double ds = block(a, 0, x, 0, n), dr = block(a, x, n, 0, n);
    return (ss - ds * ds / two_m + rr - dr * dr / two_m) / (2 * two_m);
  }
  if (kind == Refinement::conductance) {
    const double denominator = std::min(ss, rr);
    return -sr / (denominator == 0 ? 1e-15 : denominator);
  }
  const double l = static_cast<double>(x), r = static_cast<double>(n - x);
  const double inter = sr / (l * r);
  return 0.5 * (ss / (l * l) / inter + rr / (r * r) / inter);
}

struct Reference {
  Refinement kind;
  std::int64_t n_init, min_block;
  std::vector<std::int64_t> finals = {};  // all final boundaries so far
  std::int64_t previous_start = -1;       // of the previous step
  int moved = 0, kept = 0, dropped = 0;

  // Empty when two candidates are too close for float noise to leave the choice alone.
  std::vector<std::uint8_t> step(const Stream& s, std::int64_t c0, std::int64_t end, bool& clear) {
    std::vector<std::uint8_t> out(static_cast<std::size_t>(end - c0), 0);
    std::int64_t lo = c0;
    for (const std::int64_t f : finals)
      if (f >= previous_start && previous_start >= 0) lo = f;  // the last one inside it
    lo = std::max(lo, n_init);
    for (std::int64_t b = c0; b < end; ++b) {
      if (!s.raw[static_cast<std::size_t>(b)]) continue;
      const std::int64_t a = finals.empty() ? n_init : finals.back();
      std::int64_t best = b;
      if (b - a < min_block) {
        ++dropped;
        continue;
      }
      if (b - a == min_block) ++kept;
      if (b - a > min_block) {
        const std::int64_t half = (b - a) / 2;
        const std::int64_t w0 = std::max(lo, a - half), w1 = std::min(end, b + half);
        Matrix m(static_cast<std::size_t>(w1 - w0),
                 std::vector<double>(static_cast<std::size_t>(w1 - w0)));
        for (std::int64_t i = w0; i < w1; ++i)
          for (std::int64_t j = w0; j < w1; ++j)
            m[static_cast<std::size_t>(i - w0)][static_cast<std::size_t>(j - w0)] = s.edge(i, j);
        double top = -std::numeric_limits<double>::infinity(), second = top;
        for (std::int64_t t = std::max({w0 + 1, c0, a + min_block}); t <= b; ++t) {
          const double q = objective(kind, m, t - w0, w1 - w0);
          if (q >= top) {
            second = top, top = q, best = t;
          } else {
            second = std::max(second, q);
          }
        }
        if (top - second < 1e-9 * std::abs(top)) clear = false;
        moved += best != b;
      }
      out[static_cast<std::size_t>(best - c0)] = 1;
      finals.push_back(best);
    }
    previous_start = c0;
    return out;
  }
};

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
    Stream s(rng, n, 1 + seed % 3, heads, dim, 2 * longest, 0.03 + 0.3 * (seed % 4) / 3.0);
    BoundaryRefiner refiner(kind, n_init, min_block, heads, dim);
    Reference reference{kind, n_init, min_block};
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
    Stream s(rng, 60, 2, 2, 7, 64, 0.0);
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
  Stream s(rng, 40, 1, 1, 5, 64, 0.0);
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
    Stream s(rng, 40, 1, 1, 4, 40, 0.0);
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
  Stream s(rng, 80, 1, 1, 8, 80, 0.0);
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
  Stream s(rng, 200, 3, 2, 16, 200, 0.08);
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

TEST_CASE("without an objective the flags pass through") {
  std::mt19937 rng(16);
  Stream s(rng, 50, 1, 1, 4, 8, 0.3);
  BoundaryRefiner refiner(Refinement::none, 10, 8, 1, 4);
  std::vector<std::uint8_t> out(50, 9);
  refiner.step({}, 0, s.raw, out);
  REQUIRE(out == s.raw);
}
