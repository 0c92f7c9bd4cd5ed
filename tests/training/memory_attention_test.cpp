// SPDX-License-Identifier: Apache-2.0
// The memory's attention and its derivative against plain loops in float64 and their differences.
#include "episodic/training/memory_attention.hpp"

#include <ATen/ATen.h>

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "support/refusal.hpp"

using namespace episodic;

namespace {

using Numbers = std::vector<double>;

struct Case {
  std::string name;
  std::int64_t n, heads, groups, d, tokens;
  MemoryAttention how;
  std::vector<float> weights;
};

MemoryAttention plan(std::int64_t first, std::int64_t n_local, std::int64_t rotary_dim,
                     std::vector<AttendedRun> runs, float softcap = 0) {
  MemoryAttention how;
  how.runs = std::move(runs);
  how.first_position = first;
  how.n_local = n_local;
  how.softcap = softcap;
  if (rotary_dim > 0) how.rotary = plain_rotary(rotary_dim, 100.0);
  return how;
}

constexpr auto kFixed = Position::fixed;
constexpr auto kRelative = Position::relative;

std::vector<Case> cases() {
  std::vector<Case> all;
  // sinks, an event, another one with a weight, pending tokens that cross the window's edge, window
  all.push_back(
      {"a chunk",
       3,
       4,
       2,
       6,
       17,
       plan(14, 5, 6,
            {{0, 2, kFixed}, {2, 3, kFixed}, {6, 2, kFixed}, {9, 3, kFixed}, {10, 7, kRelative}}),
       {1, 0.25f, 0.9f, 1, 1}});
  all.push_back({"odd sizes, part of the channels turned, one kv head",
                 5,
                 3,
                 1,
                 7,
                 13,
                 plan(8, 4, 4, {{1, 3, kFixed}, {5, 8, kRelative}}),
                 {0.5f, 1}});
  all.push_back(
      {"one token, its own head each", 1, 2, 2, 4, 1, plan(0, 8, 4, {{0, 1, kRelative}}), {0.75f}});
  all.push_back({"nothing turned, soft cap",
                 2,
                 4,
                 2,
                 5,
                 9,
                 plan(7, 3, 0, {{0, 4, kFixed}, {5, 4, kRelative}}, 1.5f),
                 {0.6f, 1}});
  all.push_back({"far keys alone",
                 2,
                 2,
                 1,
                 4,
                 12,
                 plan(30, 6, 4, {{3, 4, kFixed}, {9, 2, kFixed}}),
                 {1, 0.3f}});
  all.push_back({"an empty run, and queries that see nothing",
                 3,
                 2,
                 1,
                 4,
                 8,
                 plan(1, 2, 4, {{4, 0, kFixed}, {2, 2, kRelative}}),
                 {1, 0.8f}});
  Case yarn{"a rotary table with a factor",
            2,
            2,
            2,
            6,
            11,
            plan(9, 4, 6, {{0, 3, kFixed}, {6, 5, kRelative}}),
            {0.9f, 1}};
  yarn.how.rotary.attention_factor = 1.3;
  all.push_back(yarn);
  Case pairs{"interleaved pairs",
             2,
             2,
             1,
             6,
             9,
             plan(7, 4, 6, {{0, 3, kFixed}, {4, 5, kRelative}}),
             {0.9f, 1}};
  pairs.how.rotary.pairs = RotaryPairs::interleaved;
  all.push_back(pairs);
  return all;
}

/// x [rows, heads, d] turned, row i by position[i] and scaled by factor.
void turn(const RotaryTable& table, std::int64_t heads, std::int64_t d, double position,
          double factor, double* row) {
  const auto half = static_cast<std::int64_t>(table.inverse_frequency.size());
  const bool halves = table.pairs == RotaryPairs::halves;
  for (std::int64_t h = 0; h < heads; ++h, row += d)
    for (std::int64_t c = 0; c < half; ++c) {
      const double angle = position * table.inverse_frequency[static_cast<std::size_t>(c)];
      double& a = row[halves ? c : 2 * c];
      double& b = row[halves ? c + half : 2 * c + 1];
      const double x = a, y = b;
      a = factor * (x * std::cos(angle) - y * std::sin(angle));
      b = factor * (y * std::cos(angle) + x * std::sin(angle));
    }
}

/// out [n, heads, d] of the definition.
Numbers reference(const Case& c, const Numbers& q, const Numbers& k, const Numbers& v,
                  const Numbers& weights) {
  const MemoryAttention& how = c.how;
  const double f = how.rotary.rotary_dim() > 0 ? how.rotary.attention_factor : 1;
  Numbers out(q.size(), 0.0);
  const std::int64_t share = c.heads / c.groups;
  Numbers near = q, far = q, turned = k;
  for (std::int64_t i = 0; i < c.n; ++i) {
    turn(how.rotary, c.heads, c.d, static_cast<double>(how.first_position + i), f,
         near.data() + i * c.heads * c.d);
    turn(how.rotary, c.heads, c.d, static_cast<double>(how.n_local - 1), f * f,
         far.data() + i * c.heads * c.d);
  }
  for (std::int64_t j = 0; j < c.tokens; ++j)
    turn(how.rotary, c.groups, c.d, static_cast<double>(j), f, turned.data() + j * c.groups * c.d);
  for (std::int64_t i = 0; i < c.n; ++i)
    for (std::int64_t h = 0; h < c.heads; ++h) {
      struct Seen {
        double score, weight;
        const double* value;
      };
      std::vector<Seen> seen;
      for (std::size_t r = 0; r < how.runs.size(); ++r)
        for (std::int64_t j = how.runs[r].first; j < how.runs[r].first + how.runs[r].length; ++j) {
          const bool fixed = how.runs[r].position == Position::fixed;
          const std::int64_t distance = how.first_position + i - j;
          if (fixed ? distance < how.n_local : distance < 0 || distance >= how.n_local) continue;
          const double* x = (fixed ? far : near).data() + (i * c.heads + h) * c.d;
          const std::int64_t row = (j * c.groups + h / share) * c.d;
          const double* y = (fixed ? k : turned).data() + row;
          double dot = 0;
          for (std::int64_t e = 0; e < c.d; ++e) dot += x[e] * y[e];
          double score = dot / std::sqrt(static_cast<double>(c.d));
          if (how.softcap > 0) score = how.softcap * std::tanh(score / how.softcap);
          seen.push_back({score, weights[r], v.data() + row});
        }
      double sum = 0;
      for (const Seen& s : seen) sum += std::exp(s.score);
      for (const Seen& s : seen)
        for (std::int64_t e = 0; e < c.d; ++e)
          out[static_cast<std::size_t>((i * c.heads + h) * c.d + e)] +=
              std::exp(s.score) / sum * s.weight * s.value[e];
    }
  return out;
}

Numbers draw(std::int64_t n, std::mt19937& random) {
  std::normal_distribution<float> normal;
  Numbers x(static_cast<std::size_t>(n));
  for (double& f : x) f = normal(random);  // a float, exactly
  return x;
}

at::Tensor tensor(const Numbers& x, std::vector<std::int64_t> shape) {
  at::Tensor t = at::empty(shape, at::kFloat);
  std::copy(x.begin(), x.end(), t.mutable_data_ptr<float>());
  return t;
}

double dot(const Numbers& a, const Numbers& b) {
  double sum = 0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

double largest(const Numbers& x) {
  double most = 0;
  for (const double f : x) most = std::max(most, std::abs(f));
  return most;
}

struct Inputs {
  Numbers q, k, v, weights, gradient;
  at::Tensor tq, tk, tv, tw, tg;

  Inputs(const Case& c, unsigned seed) {
    std::mt19937 random(seed);
    q = draw(c.n * c.heads * c.d, random);
    k = draw(c.tokens * c.groups * c.d, random);
    v = draw(c.tokens * c.groups * c.d, random);
    gradient = draw(c.n * c.heads * c.d, random);
    weights.assign(c.weights.begin(), c.weights.end());
    tq = tensor(q, {c.n, c.heads, c.d}).set_requires_grad(true);
    tk = tensor(k, {c.tokens, c.groups, c.d}).set_requires_grad(true);
    tv = tensor(v, {c.tokens, c.groups, c.d}).set_requires_grad(true);
    tw = tensor(weights, {static_cast<std::int64_t>(weights.size())}).set_requires_grad(true);
    tg = tensor(gradient, {c.n, c.heads * c.d});
  }
};

/// Whether a gradient is what central differences of the float64 reference say, everywhere.
void check_gradient(const std::string& of, const at::Tensor& got, const Numbers& expected,
                    double scale) {
  REQUIRE(got.defined());
  REQUIRE(got.numel() == static_cast<std::int64_t>(expected.size()));
  const at::Tensor packed = got.contiguous();
  const float* g = packed.const_data_ptr<float>();
  for (std::size_t i = 0; i < expected.size(); ++i) {
    INFO("gradient of " << of << "[" << i << "]: " << g[i] << ", differences " << expected[i]);
    REQUIRE(std::abs(g[i] - expected[i]) <= 2e-5 * scale);
  }
}

/// Differences of sum(out * gradient) in each element of x, which `evaluate` reads.
template <class F>
Numbers differences(Numbers& x, F&& evaluate) {
  constexpr double kStep = 1e-5;
  Numbers out(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double above = evaluate();
    x[i] = at - kStep;
    out[i] = (above - evaluate()) / (2 * kStep);
    x[i] = at;
  }
  return out;
}

}  // namespace

TEST_CASE("the memory's attention and its gradients are those of float64 differences", "[proof]") {
  unsigned seed = 1;
  for (const Case& c : cases()) {
    INFO(c.name);
    Inputs in(c, seed++);
    const at::Tensor out = memory_attention(in.tq, in.tk, in.tv, in.tw, c.how);
    REQUIRE(out.sizes().vec() == std::vector<std::int64_t>{c.n, c.heads * c.d});
    const Numbers expected = reference(c, in.q, in.k, in.v, in.weights);
    for (std::size_t i = 0; i < expected.size(); ++i)
      REQUIRE(out.const_data_ptr<float>()[i] == Approx(expected[i]).margin(2e-5));
    (out * in.tg).sum().backward();
    const auto loss = [&] { return dot(reference(c, in.q, in.k, in.v, in.weights), in.gradient); };
    const Numbers dq = differences(in.q, loss), dk = differences(in.k, loss);
    const Numbers dv = differences(in.v, loss), dw = differences(in.weights, loss);
    const double scale = std::max({1.0, largest(dq), largest(dk), largest(dv), largest(dw)});
    CHECK(largest(dv) > 0.1);  // there is something to compare
    check_gradient("q", in.tq.grad(), dq, scale);
    check_gradient("k", in.tk.grad(), dk, scale);
    check_gradient("v", in.tv.grad(), dv, scale);
    check_gradient("weights", in.tw.grad(), dw, scale);
  }
}

TEST_CASE("gradients of runs longer than a block of the backward pass") {
  Case c{"long",   1, 1, 1, 2, 1300, plan(1299, 600, 2, {{0, 700, kFixed}, {700, 600, kRelative}}),
         {0.5f, 1}};
  Inputs in(c, 9);
  (memory_attention(in.tq, in.tk, in.tv, in.tw, c.how) * in.tg).sum().backward();
  const auto loss = [&] { return dot(reference(c, in.q, in.k, in.v, in.weights), in.gradient); };
  check_gradient("q", in.tq.grad(), differences(in.q, loss), 1);
  check_gradient("weights", in.tw.grad(), differences(in.weights, loss), 1);
  // one key in each block, and at both sides of the seams
  for (const std::size_t j : {0, 511, 512, 699, 700, 1211, 1212, 1299})
    for (Numbers* x : {&in.k, &in.v}) {
      Numbers one{(*x)[2 * j]};
      const Numbers expected = differences(one, [&] {
        const double before = (*x)[2 * j];
        (*x)[2 * j] = one[0];
        const double value = loss();
        (*x)[2 * j] = before;
        return value;
      });
      const at::Tensor g = (x == &in.k ? in.tk : in.tv).grad().contiguous();
      CHECK(g.const_data_ptr<float>()[2 * j] == Approx(expected[0]).margin(2e-6));
    }
}

TEST_CASE("the order of far runs is no input of the attention") {
  Case c = cases()[0];
  Inputs in(c, 3), same(c, 3);
  (memory_attention(in.tq, in.tk, in.tv, in.tw, c.how) * in.tg).sum().backward();
  std::swap(c.how.runs[0], c.how.runs[2]);
  const at::Tensor swapped = same.tw.detach().index_select(0, at::tensor({2, 1, 0, 3, 4}));
  const at::Tensor out = memory_attention(same.tq, same.tk, same.tv, swapped, c.how);
  (out * same.tg).sum().backward();
  CHECK(at::allclose(in.tq.grad(), same.tq.grad(), 1e-4, 1e-5));
  CHECK(at::allclose(in.tk.grad(), same.tk.grad(), 1e-4, 1e-5));
  CHECK(at::allclose(in.tv.grad(), same.tv.grad(), 1e-4, 1e-5));
}

TEST_CASE("the memory's attention refuses what does not fit") {
  const Case c = cases()[0];
  const Inputs in(c, 1);
  const auto says = [&](const at::Tensor& q, const at::Tensor& k, const at::Tensor& w,
                        const MemoryAttention& how) {
    return refusal<DataError>([&] { memory_attention(q, k, in.tv, w, how); });
  };
  CHECK(mentions(says(in.tq.select(0, 0), in.tk, in.tw, c.how), "[tokens, heads, d]"));
  CHECK(mentions(says(in.tq.to(at::kDouble), in.tk, in.tw, c.how), "float32"));
  CHECK(mentions(says(in.tq.narrow(1, 0, 3), in.tk, in.tw, c.how), "multiple"));
  CHECK(mentions(says(in.tq, in.tk.narrow(0, 0, 5), in.tw, c.how), "v shaped as k"));
  CHECK(mentions(says(in.tq, in.tk, in.tw.narrow(0, 0, 2), c.how), "2 weights for 5 runs"));
  MemoryAttention outside = c.how;
  outside.runs[1].length = 40;
  CHECK(mentions(says(in.tq, in.tk, in.tw, outside), "a run of 40 tokens from 2 on"));
}
