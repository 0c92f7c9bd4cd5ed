// SPDX-License-Identifier: Apache-2.0
#pragma once
// Refinement by the textbook formulas on the explicit adjacency matrix (EM 3.3): the reference of
// the CPU refiner and of its kernel.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "episodic/timeline/refine.hpp"

namespace episodic_test {

using episodic::KeyRing;
using episodic::Refinement;

/// Keys of a whole sequence that change their topic every 17 tokens, and raw flags.
struct KeyStream {
  std::int64_t n_layers, n_heads, d, capacity;
  std::vector<std::vector<float>> all;    // per layer [token][head][d]
  std::vector<std::vector<float>> rings;  // per layer [head][capacity][d + 1]
  std::vector<std::uint8_t> raw;

  KeyStream(std::mt19937& rng, std::int64_t n, std::int64_t layers, std::int64_t heads,
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

inline double block(const Matrix& a, std::int64_t r0, std::int64_t r1, std::int64_t c0,
                    std::int64_t c1) {
  double sum = 0;
  for (std::int64_t i = r0; i < r1; ++i)
    for (std::int64_t j = c0; j < c1; ++j)
      sum += a[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)];
  return sum;
}

/// Larger is better; x is the split, n the window's length.
inline double objective(Refinement kind, const Matrix& a, std::int64_t x, std::int64_t n) {
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

/// Algorithm 1 with the choices of docs/papers.md, on A itself.
struct RefineReference {
  Refinement kind;
  std::int64_t n_init, min_block;
  std::vector<std::int64_t> finals = {};  // all final boundaries so far
  std::int64_t previous_start = -1;       // of the previous step
  double margin = 1e-9;  // of the best objective's size: closer candidates are noise
  int moved = 0, kept = 0, dropped = 0;

  // Empty when two candidates are too close for float noise to leave the choice alone.
  std::vector<std::uint8_t> step(const KeyStream& s, std::int64_t c0, std::int64_t end,
                                 bool& clear) {
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
        if (top - second < margin * std::abs(top)) clear = false;
        moved += best != b;
      }
      out[static_cast<std::size_t>(best - c0)] = 1;
      finals.push_back(best);
    }
    previous_start = c0;
    return out;
  }
};

}  // namespace episodic_test
