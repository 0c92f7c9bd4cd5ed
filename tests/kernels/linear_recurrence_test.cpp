// SPDX-License-Identifier: Apache-2.0
#include "kernels/linear_recurrence.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/device.hpp"

namespace linear_recurrence_test {

using episodic::DType;
using episodic_test::Arena;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

/// Sizes of a layer, and whether there are biases; a sequence of `total` tokens, in steps of n.
struct Case {
  bool delta;
  std::int64_t heads, key_heads, key_dim, value_dim, taps;
  bool tiled, biases;
  std::int64_t total, n;

  std::int64_t keys() const { return key_heads * key_dim; }
  std::int64_t values() const { return heads * value_dim; }
  std::int64_t channels() const { return 2 * keys() + values(); }
  std::int64_t row() const { return channels() + values() + (delta ? 2 : 1) * heads; }
};

LinearRecurrenceParams sizes_of(const Case& c, DType dtype) {
  LinearRecurrenceParams p;
  p.dtype = dtype;
  p.delta = c.delta;
  p.tiled = c.tiled;
  p.heads = c.heads;
  p.key_heads = c.key_heads;
  p.key_dim = c.key_dim;
  p.value_dim = c.value_dim;
  p.taps = c.taps;
  p.least_step = 0.05f;
  p.most_step = c.taps == 3 ? 2.0f : std::numeric_limits<float>::infinity();
  return p;
}

struct Weights {
  std::vector<float> rows_bias, tap, bias, log_rate, step_bias, skip, norm;

  Weights(const Case& c, std::mt19937& random) {
    const auto draw = [&](std::int64_t n) {
      return episodic_test::normal_floats(static_cast<std::size_t>(n), random);
    };
    rows_bias = draw(c.row());
    tap = draw(c.channels() * c.taps);
    bias = draw(c.channels());
    log_rate = draw(c.heads);
    for (float& x : log_rate) x -= 2;
    step_bias = draw(c.heads);
    skip = draw(c.heads);
    norm = draw(c.delta ? c.value_dim : c.values());
  }
};

struct Computed {
  std::vector<float> out, ring, matrix;  // the matrices behind the last token
};

Computed computed(const Case& c, DType dtype, const std::vector<unsigned char>& rows,
                  const Weights& w, std::int64_t capacity) {
  const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
  const auto size = [](std::int64_t n) { return static_cast<std::size_t>(n); };
  const DeviceArray<unsigned char> d_rows(rows);
  const DeviceArray<float> rows_bias(w.rows_bias), tap(w.tap), bias(w.bias), rate(w.log_rate),
      step_bias(w.step_bias), skip(w.skip), norm(w.norm);
  // what lies there before the first token is never read
  const auto nans = [&](std::int64_t n) { return std::vector<float>(size(n), std::nanf("")); };
  const std::int64_t matrix_floats = c.heads * c.key_dim * c.value_dim;
  const std::int64_t tags = c.heads * recurrent_pieces(c.value_dim);
  const DeviceArray<float> ring(nans(capacity * c.channels())), matrix(nans(2 * matrix_floats)),
      inputs(nans(c.n * c.channels())), weights(nans(c.n * 2 * c.heads)), y(nans(c.n * c.values()));
  const DeviceArray<std::int64_t> tag(std::vector<std::int64_t>(size(2 * tags), c.total));
  const DeviceArray<unsigned char> out(size(c.total * c.values()) * element);
  for (std::int64_t first = 0; first < c.total; first += c.n) {
    const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{first});
    LinearRecurrenceParams p = sizes_of(c, dtype);
    p.n = std::min(c.n, c.total - first);
    p.first_position = position.data();
    p.rows = d_rows.data() + size(first * c.row()) * element;
    p.maybe_rows_bias = c.biases ? rows_bias.data() : nullptr;
    p.tap = tap.data();
    p.maybe_bias = c.biases ? bias.data() : nullptr;
    p.log_rate = rate.data();
    p.step_bias = step_bias.data();
    p.maybe_skip = c.delta ? nullptr : skip.data();
    p.norm = norm.data();
    p.ring = ring.data();
    p.ring_capacity = capacity;
    p.matrix = matrix.data();
    p.tag = tag.data();
    p.inputs = inputs.data();
    p.weights = weights.data();
    p.y = y.data();
    p.out = out.data() + size(first * c.values()) * element;
    // a step that does not count is made again with the same bits
    for (int i = 0; i < 2; ++i) REQUIRE(linear_recurrence(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  Computed result{episodic_test::floats(out.host(), dtype), ring.host(), {}};
  const std::vector<std::int64_t> seen = tag.host();
  const std::vector<float> both = matrix.host();
  const std::int64_t slot = seen[0] == c.total ? 0 : 1;
  for (std::int64_t i = 0; i < tags; ++i) {
    REQUIRE(seen[size(slot * tags + i)] == c.total);
    REQUIRE(seen[size((1 - slot) * tags + i)] != c.total);
  }
  const auto begin = both.begin() + slot * matrix_floats;
  result.matrix.assign(begin, begin + matrix_floats);
  return result;
}

/// By its formula, in double.
std::vector<double> by_formula(const Case& c, const std::vector<float>& rows, const Weights& w) {
  const auto at = [](const std::vector<float>& x, std::int64_t i) {
    return static_cast<double>(x[static_cast<std::size_t>(i)]);
  };
  const auto row = [&](std::int64_t t, std::int64_t i) {
    return at(rows, t * c.row() + i) + (c.biases ? at(w.rows_bias, i) : 0);
  };
  const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
  const auto u = [&](std::int64_t t, std::int64_t channel) {
    double sum = c.biases ? at(w.bias, channel) : 0;
    for (std::int64_t i = 0; i < c.taps; ++i)
      if (const std::int64_t from = t - c.taps + 1 + i; from >= 0)
        sum += at(w.tap, channel * c.taps + i) * row(from, channel);
    return silu(sum);
  };
  std::vector<double> matrix(static_cast<std::size_t>(c.heads * c.key_dim * c.value_dim));
  std::vector<double> out(static_cast<std::size_t>(c.total * c.values()));
  const std::int64_t first_query = c.delta ? 0 : c.values() + c.keys(),
                     first_key = c.delta ? c.keys() : c.values(),
                     first_value = c.delta ? 2 * c.keys() : 0;
  for (std::int64_t t = 0; t < c.total; ++t) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      const std::int64_t key_head = c.tiled ? h % c.key_heads : h / (c.heads / c.key_heads);
      std::vector<double> q, k;
      double of_q = 0, of_k = 0;
      for (std::int64_t i = 0; i < c.key_dim; ++i) {
        q.push_back(u(t, first_query + key_head * c.key_dim + i));
        k.push_back(u(t, first_key + key_head * c.key_dim + i));
        of_q += q.back() * q.back();
        of_k += k.back() * k.back();
      }
      if (c.delta) {
        for (double& x : q) x /= std::sqrt(of_q + 1e-6) * std::sqrt(double(c.key_dim));
        for (double& x : k) x /= std::sqrt(of_k + 1e-6);
      }
      const std::int64_t step = c.channels() + c.values() + h;
      double time = std::log1p(std::exp(row(t, step) + at(w.step_bias, h)));
      const LinearRecurrenceParams sizes = sizes_of(c, DType::float32);
      if (!c.delta) time = std::clamp<double>(time, sizes.least_step, sizes.most_step);
      const double write = c.delta ? 1 / (1 + std::exp(-row(t, step + c.heads))) : time;
      const double decay = std::exp(-std::exp(at(w.log_rate, h)) * time);
      double* const m = matrix.data() + h * c.key_dim * c.value_dim;
      for (std::int64_t j = 0; j < c.value_dim; ++j) {
        const double v = u(t, first_value + h * c.value_dim + j);
        double said = 0, y = 0;
        for (std::int64_t i = 0; i < c.key_dim; ++i) {
          m[i * c.value_dim + j] *= decay;
          said += k[static_cast<std::size_t>(i)] * m[i * c.value_dim + j];
        }
        for (std::int64_t i = 0; i < c.key_dim; ++i) {
          m[i * c.value_dim + j] +=
              k[static_cast<std::size_t>(i)] * write * (c.delta ? v - said : v);
          y += q[static_cast<std::size_t>(i)] * m[i * c.value_dim + j];
        }
        if (!c.delta) y += at(w.skip, h) * v;
        out[static_cast<std::size_t>(t * c.values() + h * c.value_dim + j)] = y;
      }
    }
    const std::int64_t width = c.delta ? c.value_dim : c.values() / c.key_heads;
    for (std::int64_t first = 0; first < c.values(); first += width) {
      double squares = 0;
      const auto gate = [&](std::int64_t i) { return silu(row(t, c.channels() + i)); };
      for (std::int64_t i = first; i < first + width; ++i) {
        double& y = out[static_cast<std::size_t>(t * c.values() + i)];
        if (!c.delta) y *= gate(i);
        squares += y * y;
      }
      for (std::int64_t i = first; i < first + width; ++i) {
        double& y = out[static_cast<std::size_t>(t * c.values() + i)];
        y *= at(w.norm, c.delta ? i - first : i) /
             std::sqrt(squares / static_cast<double>(width) + 1e-6);
        if (c.delta) y *= gate(i);
      }
    }
  }
  return out;
}

TEST_CASE("linear recurrence: what its formula says, the same bits in steps of any length") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const Case& c : {Case{true, 4, 2, 6, 10, 4, false, false, 19, 19},
                          Case{true, 6, 3, 20, 40, 3, true, true, 11, 11},
                          Case{true, 1, 1, 1, 1, 1, false, true, 7, 7},
                          Case{false, 6, 2, 10, 8, 4, false, true, 19, 19},
                          Case{false, 2, 1, 33, 70, 3, false, false, 11, 11}}) {
      INFO(episodic::name_of(dtype)
           << ", " << c.heads << " heads, " << (c.delta ? "delta" : "Mamba2"));
      std::mt19937 random(static_cast<unsigned>(c.row()));
      const std::vector<unsigned char> stored = episodic_test::random_elements(
          static_cast<std::size_t>(c.total * c.row()), dtype, random);
      const Weights w(c, random);
      Computed whole;
      episodic_test::in_every_order(
          [&] { whole = computed(c, dtype, stored, w, c.total + c.taps - 1); });
      const std::vector<double> wanted = by_formula(c, episodic_test::floats(stored, dtype), w);
      double largest = 0;
      for (const double y : wanted) largest = std::max(largest, std::abs(y));
      const double rounding = dtype == DType::bfloat16 ? 8e-3 : 1e-3;
      for (std::size_t i = 0; i < wanted.size(); ++i)
        REQUIRE(std::abs(whole.out[i] - wanted[i]) <= rounding * (largest + std::abs(wanted[i])));
      for (const std::int64_t n : {1, 3, 8}) {
        Case pieces = c;
        pieces.n = n;
        const Computed got = computed(pieces, dtype, stored, w, n + c.taps - 1);
        REQUIRE(got.out == whole.out);
        REQUIRE(got.matrix == whole.matrix);
      }
    }
}

TEST_CASE("linear recurrence: matrices that saw other tokens give NaN, and not numbers") {
  EPISODIC_NEEDS_DEVICE();
  const Case c{true, 2, 1, 4, 6, 2, false, false, 3, 3};
  std::mt19937 random(1);
  const Weights w(c, random);
  const std::vector<float> rows =
      episodic_test::normal_floats(static_cast<std::size_t>(3 * c.row()), random);
  const DeviceArray<float> d_rows(rows), tap(w.tap), rate(w.log_rate), bias(w.step_bias),
      norm(w.norm), ring(std::vector<float>(static_cast<std::size_t>(8 * c.channels()), 1.0f)),
      matrix(std::vector<float>(2 * 2 * 4 * 6, 1.0f)),
      inputs(static_cast<std::size_t>(3 * c.channels())), weights(3 * 2 * 2), y(3 * 12),
      out(3 * 12);
  const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{5}),
      tag(std::vector<std::int64_t>{4, 5, 6, 3});
  LinearRecurrenceParams p = sizes_of(c, DType::float32);
  p.n = 3;
  p.first_position = position.data();
  p.rows = d_rows.data();
  p.tap = tap.data();
  p.log_rate = rate.data();
  p.step_bias = bias.data();
  p.norm = norm.data();
  p.ring = ring.data();
  p.ring_capacity = 8;
  p.matrix = matrix.data();
  p.tag = tag.data();
  p.inputs = inputs.data();
  p.weights = weights.data();
  p.y = y.data();
  p.out = out.data();
  REQUIRE(linear_recurrence(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  const std::vector<float> got = out.host();
  for (std::size_t i = 0; i < got.size(); ++i)  // head 0 has seen 4 and 6 tokens, head 1 has 5
    REQUIRE(std::isnan(got[i]) == (i / 6 % 2 == 0));
}

TEST_CASE("linear recurrence: a batch has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::bfloat16})
    for (const bool delta : {true, false}) {
      const Case c{delta, 4, 2, 6, 34, 3, false, true, 3, 3};
      const auto make = [&](std::int64_t i, Arena& arena) {
        std::mt19937 random(static_cast<unsigned>(i));
        const Weights w(c, random);
        const auto out_of = [&](std::int64_t n) {
          return arena.out(std::vector<float>(static_cast<std::size_t>(n), 0.0f));
        };
        LinearRecurrenceParams p = sizes_of(c, dtype);
        p.n = i % 5 == 4 ? 0 : 1 + i % 3;
        const std::int64_t first = i % 4 == 3 ? 0 : 7 * i;
        p.first_position = arena.in(std::vector<std::int64_t>{first});
        p.rows = arena.in(
            episodic_test::random_elements(static_cast<std::size_t>(3 * c.row()), dtype, random));
        p.maybe_rows_bias = i % 2 == 0 ? nullptr : arena.in(w.rows_bias);
        p.tap = arena.in(w.tap);
        p.maybe_bias = i % 3 == 0 ? nullptr : arena.in(w.bias);
        p.log_rate = arena.in(w.log_rate);
        p.step_bias = arena.in(w.step_bias);
        p.maybe_skip = delta ? nullptr : arena.in(w.skip);
        p.norm = arena.in(w.norm);
        p.ring_capacity = 5 + i;
        p.ring = arena.out(episodic_test::normal_floats(
            static_cast<std::size_t>(p.ring_capacity * c.channels()), random));
        p.matrix = arena.out(
            episodic_test::normal_floats(static_cast<std::size_t>(2 * 4 * 6 * 34), random));
        std::vector<std::int64_t> tags(2 * 4 * 2, -1);
        std::fill_n(tags.begin() + (i % 2) * 8, 8, first);
        p.tag = arena.out(tags);
        p.inputs = out_of(3 * c.channels());
        p.weights = out_of(3 * 2 * c.heads);
        p.y = out_of(3 * c.values());
        p.out = arena.out<unsigned char>(3 * c.values() * episodic::size_of(dtype));
        return p;
      };
      const auto working = [](std::int64_t n) { return n - n / 5; };
      episodic_test::check_batches<LinearRecurrenceParams>(
          make, linear_recurrence, linear_recurrence_batch,
          [&](std::int64_t n) { return 3 * episodic_test::launches_of(working(n)); });
    }
}

alignas(256) unsigned char memory[256];

LinearRecurrenceParams sound() {
  LinearRecurrenceParams p;
  p.dtype = DType::float32;
  p.n = 2;
  p.heads = 4;
  p.key_heads = 2;
  p.key_dim = p.value_dim = 4;
  p.taps = 3;
  p.first_position = reinterpret_cast<std::int64_t*>(memory);
  p.tag = reinterpret_cast<std::int64_t*>(memory);
  p.rows = p.out = memory;
  p.tap = p.log_rate = p.step_bias = p.norm = reinterpret_cast<float*>(memory);
  p.ring = p.matrix = p.inputs = p.weights = p.y = reinterpret_cast<float*>(memory);
  p.ring_capacity = 4;
  return p;
}

TEST_CASE("linear recurrence: what its launcher refuses, by the field's name") {
  struct Wrong {
    const char* field;
    void (*change)(LinearRecurrenceParams&);
  };
  using P = LinearRecurrenceParams;
  REQUIRE(invalid_field(sound()) == nullptr);
  for (const Wrong& w : {
           Wrong{"dtype", [](P& p) { p.dtype = DType::int8; }},
           {"heads", [](P& p) { p.heads = 0; }},
           {"key_heads", [](P& p) { p.key_heads = 0; }},
           {"key_heads", [](P& p) { p.key_heads = 3; }},
           {"key_dim", [](P& p) { p.key_dim = 0; }},
           {"key_dim", [](P& p) { p.key_dim = kMostRecurrentKey + 1; }},
           {"value_dim", [](P& p) { p.value_dim = 0; }},
           {"value_dim", [](P& p) { p.value_dim = INT64_MAX; }},
           {"value_dim", [](P& p) { p.heads = p.value_dim = 1 << 20; }},
           {"taps", [](P& p) { p.taps = 0; }},
           {"taps", [](P& p) { p.taps = INT64_MAX; }},
           {"n", [](P& p) { p.n = -1; }},
           {"n", [](P& p) { p.n = std::int64_t{1} << 40; }},
           {"least_step", [](P& p) { p.delta = false, p.least_step = -1.0f; }},
           {"most_step", [](P& p) { p.delta = false, p.least_step = 1.0f; }},
           {"ring_capacity", [](P& p) { p.ring_capacity = 3; }},
           {"ring_capacity", [](P& p) { p.ring_capacity = INT64_MAX; }},
           {"first_position", [](P& p) { p.first_position = nullptr; }},
           {"rows", [](P& p) { p.rows = nullptr; }},
           {"tap", [](P& p) { p.tap = nullptr; }},
           {"log_rate", [](P& p) { p.log_rate = nullptr; }},
           {"step_bias", [](P& p) { p.step_bias = nullptr; }},
           {"norm", [](P& p) { p.norm = nullptr; }},
           {"ring", [](P& p) { p.ring = nullptr; }},
           {"matrix", [](P& p) { p.matrix = nullptr; }},
           {"tag", [](P& p) { p.tag = nullptr; }},
           {"inputs", [](P& p) { p.inputs = nullptr; }},
           {"weights", [](P& p) { p.weights = nullptr; }},
           {"y", [](P& p) { p.y = nullptr; }},
           {"out", [](P& p) { p.out = nullptr; }},
           {"out", [](P& p) { p.out = memory + 1; }},
           {"matrix", [](P& p) { p.matrix = reinterpret_cast<float*>(memory + 1); }},
           {"tag", [](P& p) { p.tag = reinterpret_cast<std::int64_t*>(memory + 4); }},
       }) {
    P changed = sound();
    w.change(changed);
    CAPTURE(w.field);
    const char* const named = invalid_field(changed);
    REQUIRE(named != nullptr);
    REQUIRE(std::string(named) == w.field);
    const cudaError_t error = linear_recurrence(changed, nullptr);
    REQUIRE((error == cudaErrorInvalidValue || error == cudaErrorMisalignedAddress));
  }
  const auto shared = [](const char* field, void (*change)(P&)) {
    episodic_test::check_shared<P>(sound(), linear_recurrence_batch, field, change);
  };
  shared("dtype", [](P& p) { p.dtype = DType::float16; });
  shared("delta", [](P& p) { p.delta = false, p.most_step = 1.0f; });
  shared("tiled", [](P& p) { p.tiled = true; });
  shared("heads", [](P& p) { p.heads = 2; });
  shared("key_heads", [](P& p) { p.key_heads = 1; });
  shared("key_dim", [](P& p) { p.key_dim = 3; });
  shared("value_dim", [](P& p) { p.value_dim = 3; });
  shared("taps", [](P& p) { p.taps = 2; });
}

}  // namespace linear_recurrence_test
