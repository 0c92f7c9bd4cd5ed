// SPDX-License-Identifier: Apache-2.0
#include "kernels/product.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <random>
#include <vector>

#include "kernels/device.hpp"
#include "kernels/window.hpp"

namespace product_test {

using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

double tolerance(DType dtype) {
  return dtype == DType::float32 ? 2e-5 : dtype == DType::float16 ? 2e-3 : 1.6e-2;
}

/// Rows, weights and a bias, and their product in float64.
struct Case {
  Case(DType type, std::int64_t rows, std::int64_t width, std::int64_t outputs, bool of_hidden,
       bool biased, std::mt19937& random)
      : dtype(type), n(rows), in(width), out(outputs) {
    const auto size = [](std::int64_t a, std::int64_t b) {
      return static_cast<std::size_t>(a * b);
    };
    std::vector<float> w = episodic_test::normal_floats(size(out, in), random, 0.3f);
    d_weight.emplace(episodic_test::stored(w, dtype));
    std::vector<float> x = episodic_test::normal_floats(size(n, in), random);
    const std::vector<float> norm = episodic_test::normal_floats(size(1, in), random);
    const std::vector<float> bias = episodic_test::normal_floats(size(1, out), random);
    d_norm.emplace(norm);
    d_bias.emplace(bias);
    d_hidden.emplace(x);
    if (of_hidden) {
      for (std::int64_t i = 0; i < n; ++i) {
        double squares = 0;
        for (std::int64_t c = 0; c < in; ++c)
          squares += std::pow(static_cast<double>(x[size(i, in) + size(c, 1)]), 2);
        const double factor = 1 / std::sqrt(squares / static_cast<double>(in) + 1e-5);
        for (std::int64_t c = 0; c < in; ++c)
          x[size(i, in) + size(c, 1)] *= static_cast<float>(factor) * norm[size(c, 1)];
      }
    }
    d_x.emplace(episodic_test::stored(x, dtype));  // rounds what is made of hidden, too
    expected.resize(size(n, out));
    for (std::int64_t i = 0; i < n; ++i)
      for (std::int64_t o = 0; o < out; ++o) {
        double sum = biased ? static_cast<double>(bias[size(o, 1)]) : 0.0;
        for (std::int64_t c = 0; c < in; ++c)
          sum += static_cast<double>(x[size(i, in) + size(c, 1)]) *
                 static_cast<double>(w[size(o, in) + size(c, 1)]);
        expected[size(i, out) + size(o, 1)] = sum;
      }
    p.dtype = dtype;
    p.n = n;
    p.in = in;
    p.out = out;
    p.weight = d_weight->data();
    p.maybe_bias = biased ? d_bias->data() : nullptr;
    if (of_hidden) {
      p.hidden = d_hidden->data();
      p.maybe_norm = d_norm->data();
      p.eps = 1e-5f;
    } else {
      p.x = d_x->data();
    }
  }

  DType dtype;
  std::int64_t n, in, out;
  std::optional<DeviceArray<unsigned char>> d_weight, d_x;
  std::optional<DeviceArray<float>> d_norm, d_bias, d_hidden;
  std::vector<double> expected;  // [n, out]
  ProductParams p;
};

void check_close(const std::vector<float>& got, const std::vector<double>& expected,
                 double within) {
  REQUIRE(got.size() == expected.size());
  for (std::size_t i = 0; i < got.size(); ++i)
    REQUIRE(std::abs(static_cast<double>(got[i]) - expected[i]) <=
            within * (1 + std::abs(expected[i])));
}

std::size_t bytes_of(std::int64_t elements, DType dtype) {
  return static_cast<std::size_t>(elements * episodic::size_of(dtype));
}

TEST_CASE("products of few rows are float64's, of rows as they are and of the normed stream") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(5);
  int trial = 0;
  for (const std::int64_t n : {1, 2, 4})
    for (const std::int64_t in : {8, 40, 520})
      for (const std::int64_t out : {1, 31, 70})
        for (const bool of_hidden : {false, true}) {
          const DType dtype = kDTypes[trial++ % 3];
          const bool biased = trial % 2;
          const Case c(dtype, n, in, out, of_hidden, biased, random);
          // A product in 16 bits of rows that another order of sums rounded elsewhere.
          const double within = of_hidden ? tolerance(dtype) : 2e-5;
          std::optional<std::vector<float>> first;
          const std::vector<float> before =
              episodic_test::normal_floats(static_cast<std::size_t>(n * out), random);
          episodic_test::in_every_order([&] {
            const DeviceArray<float> y(static_cast<std::size_t>(n * out));
            float* rows[kMostProductRows] = {};
            for (std::int64_t i = 0; i < n; ++i) rows[i] = y.data() + i * out;
            REQUIRE(product(c.p, rows, nullptr) == cudaSuccess);
            const std::vector<float> got = y.host();
            check_close(got, c.expected, within);
            if (!first) first = got;
            REQUIRE(*first == got);

            const DeviceArray<unsigned char> narrow(bytes_of(n * out, dtype));
            REQUIRE(narrow_product(c.p, narrow.data(), nullptr) == cudaSuccess);
            std::vector<float> rounded = got;
            episodic_test::stored(rounded, dtype);
            REQUIRE(episodic_test::floats(narrow.host(), dtype) == rounded);

            const DeviceArray<float> sum(before);
            REQUIRE(add_product(c.p, 0.25f, sum.data(), nullptr) == cudaSuccess);
            const std::vector<float> added = sum.host();
            for (std::size_t i = 0; i < added.size(); ++i)
              REQUIRE(added[i] == std::fmaf(0.25f, got[i], before[i]));
          });
          // Each row alone is the same to the bit.
          for (std::int64_t i = 0; i < n; ++i) {
            ProductParams p = c.p;
            p.n = 1;
            if (of_hidden)
              p.hidden += i * in;
            else
              p.x = static_cast<const unsigned char*>(p.x) + bytes_of(i * in, dtype);
            const DeviceArray<float> y(static_cast<std::size_t>(out));
            REQUIRE(product(p, {y.data()}, nullptr) == cudaSuccess);
            const std::vector<float> alone = y.host();
            REQUIRE(std::equal(alone.begin(), alone.end(), first->begin() + i * out));
          }
        }
}

TEST_CASE("a product of more outputs than warps run at once is float64's too") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const DType dtype : kDTypes) {
    constexpr std::int64_t kOut = 6403;  // more than 6,336: two pairs a warp, the last of one
    const Case c(dtype, 1, 40, kOut, false, true, random);
    const DeviceArray<float> y(static_cast<std::size_t>(kOut));
    REQUIRE(product(c.p, {y.data()}, nullptr) == cudaSuccess);
    check_close(y.host(), c.expected, 2e-5);
  }
}

TEST_CASE("a gated product is gate_times_up of the product without its rounding") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const DType dtype : kDTypes)
    for (const GateActivation activation : {GateActivation::silu, GateActivation::gelu_tanh})
      for (const std::int64_t n : {1, 3}) {
        const std::int64_t width = 37;
        const Case c(dtype, n, 64, 2 * width, true, true, random);
        const DeviceArray<float> wide(static_cast<std::size_t>(n * 2 * width));
        float* rows[kMostProductRows] = {};
        for (std::int64_t i = 0; i < n; ++i) rows[i] = wide.data() + i * 2 * width;
        REQUIRE(product(c.p, rows, nullptr) == cudaSuccess);
        const DeviceArray<float> of_wide(static_cast<std::size_t>(n * width));
        REQUIRE(gate_times_up(
                    {DType::float32, activation, wide.data(), nullptr, n, width, of_wide.data()},
                    nullptr) == cudaSuccess);
        std::vector<float> expected = of_wide.host();
        episodic_test::stored(expected, dtype);
        const DeviceArray<unsigned char> y(bytes_of(n * width, dtype));
        REQUIRE(gated_product(c.p, activation, y.data(), nullptr) == cudaSuccess);
        REQUIRE(episodic_test::floats(y.host(), dtype) == expected);
      }
}

/// A sequence's window, with a token's place in it.
struct Window {
  Window(DType dtype, std::int64_t kv_heads, std::int64_t d, std::int64_t e, std::int64_t rotary,
         std::int64_t mean_width, std::int64_t at, std::mt19937& random)
      : position(std::vector<std::int64_t>{at}),
        cos(episodic_test::normal_floats(static_cast<std::size_t>(rotary / 2), random)),
        sin(episodic_test::normal_floats(static_cast<std::size_t>(rotary / 2), random)),
        fixed_cos(episodic_test::normal_floats(static_cast<std::size_t>(rotary / 2), random)),
        fixed_sin(episodic_test::normal_floats(static_cast<std::size_t>(rotary / 2), random)),
        mean(std::vector<float>(static_cast<std::size_t>(mean_width), -1.0f)) {
    // not a value of any token
    const auto of_tokens = [&](std::int64_t tokens, std::int64_t width) {
      return std::vector<unsigned char>(bytes_of(kv_heads * tokens * width, dtype), 0x11);
    };
    for (auto* ring : {&ring_key, &ring_rotated}) ring->emplace(of_tokens(kCapacity, d));
    ring_value.emplace(of_tokens(kCapacity, e));
    sink_key.emplace(of_tokens(kInit, d));
    sink_value.emplace(of_tokens(kInit, e));
  }

  static constexpr std::int64_t kCapacity = 7, kInit = 3;
  DeviceArray<std::int64_t> position;
  DeviceArray<float> cos, sin, fixed_cos, fixed_sin, mean;
  std::optional<DeviceArray<unsigned char>> ring_key, ring_rotated, ring_value, sink_key,
      sink_value;

  HeadTarget target(std::int64_t d, std::int64_t e, bool keeps_keys, bool wants_mean) const {
    HeadTarget to;
    to.position = position.data();
    to.cos = cos.data();
    to.sin = sin.data();
    to.maybe_ring_key = keeps_keys ? ring_key->data() : nullptr;
    to.ring_rotated_key = ring_rotated->data();
    to.ring_value = ring_value->data();
    to.ring_capacity = kCapacity;
    to.ring_head_stride = kCapacity * d;
    to.value_head_stride = kCapacity * e;
    to.sink_key = sink_key->data();
    to.sink_value = sink_value->data();
    to.n_init = kInit;
    to.fixed_cos = fixed_cos.data();
    to.fixed_sin = fixed_sin.data();
    to.maybe_mean = wants_mean ? mean.data() : nullptr;
    return to;
  }
  bool operator==(const Window& other) const {
    return ring_key->host() == other.ring_key->host() &&
           ring_rotated->host() == other.ring_rotated->host() &&
           ring_value->host() == other.ring_value->host() &&
           sink_key->host() == other.sink_key->host() &&
           sink_value->host() == other.sink_value->host() && mean.host() == other.mean.host();
  }
};

TEST_CASE("a product of heads leaves what the product, append_window and mean_fixed_query leave") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kHeads = 4, kKvHeads = 2;
  int trial = 0;
  for (const std::int64_t n : {1, 3})
    for (const std::int64_t d : {8, 24})
      for (const std::int64_t rotary : {std::int64_t{0}, std::int64_t{8}, d})
        for (const bool interleaved : {false, true}) {
          const DType dtype = kDTypes[trial++ % 3];
          const bool keeps_keys = trial % 2, wants_mean = trial % 3 != 0;
          const std::int64_t value_dim = trial % 4 < 2 ? 0 : trial % 4 == 2 ? d + 10 : 6;
          const std::int64_t e = value_dim > 0 ? value_dim : d;
          const std::int64_t row = (kHeads + kKvHeads) * d + kKvHeads * e;
          std::mt19937 random(static_cast<unsigned>(trial));
          const Case c(dtype, n, 48, row, true, trial % 2 == 0, random);
          const DeviceArray<unsigned char> qkv(bytes_of(n * row, dtype));
          REQUIRE(narrow_product(c.p, qkv.data(), nullptr) == cudaSuccess);
          std::vector<unsigned char> queries = qkv.host();

          std::deque<Window> apart, fused;  // whose elements stay where they are
          for (const std::int64_t at : {std::int64_t{1}, std::int64_t{13}, std::int64_t{100'000}}) {
            const std::mt19937 as_before = random;
            apart.emplace_back(dtype, kKvHeads, d, e, rotary, kHeads * d, at, random);
            random = as_before;
            fused.emplace_back(dtype, kKvHeads, d, e, rotary, kHeads * d, at, random);
          }
          for (std::int64_t i = 0; i < n; ++i) {
            const Window& w = apart[static_cast<std::size_t>(i)];
            const unsigned char* const q = qkv.data() + bytes_of(i * row, dtype);
            AppendParams a;
            a.dtype = dtype;
            a.n = 1;
            a.n_kv_heads = kKvHeads;
            a.head_dim = d;
            a.value_dim = e;
            a.rotary_dim = rotary;
            a.interleaved = interleaved;
            a.first_position = w.position.data();
            a.k = q + bytes_of(kHeads * d, dtype);
            a.v = q + bytes_of((kHeads + kKvHeads) * d, dtype);
            a.k_row_stride = a.v_row_stride = row;
            a.cos = w.cos.data();
            a.sin = w.sin.data();
            a.ring_key = keeps_keys ? w.ring_key->data() : nullptr;
            a.ring_rotated_key = w.ring_rotated->data();
            a.ring_value = w.ring_value->data();
            a.ring_capacity = Window::kCapacity;
            a.ring_head_stride = Window::kCapacity * d;
            a.value_head_stride = Window::kCapacity * e;
            a.sink_key = w.sink_key->data();
            a.sink_value = w.sink_value->data();
            a.n_init = Window::kInit;
            REQUIRE(append_window(a, nullptr) == cudaSuccess);
            if (!wants_mean) continue;
            MeanQueryParams m;
            m.dtype = dtype;
            m.n = 1;
            m.n_heads = kHeads;
            m.head_dim = d;
            m.rotary_dim = rotary;
            m.interleaved = interleaved;
            m.q = q;
            m.q_row_stride = row;
            m.fixed_cos = w.fixed_cos.data();
            m.fixed_sin = w.fixed_sin.data();
            m.mean = w.mean.data();
            REQUIRE(mean_fixed_query(m, nullptr) == cudaSuccess);
          }
          HeadsParams heads;
          heads.n_heads = kHeads;
          heads.n_kv_heads = kKvHeads;
          heads.head_dim = d;
          heads.value_dim = value_dim;
          heads.rotary_dim = rotary;
          heads.interleaved = interleaved;
          heads.q_row_stride = row;
          for (std::int64_t i = 0; i < n; ++i)
            heads.row[i] = fused[static_cast<std::size_t>(i)].target(d, e, keeps_keys, wants_mean);
          episodic_test::in_every_order([&] {
            const DeviceArray<unsigned char> q(queries.size());
            heads.q = q.data();
            REQUIRE(heads_product(c.p, heads, nullptr) == cudaSuccess);
            const std::vector<unsigned char> got = q.host();
            for (std::int64_t i = 0; i < n; ++i) {
              const auto at = static_cast<std::ptrdiff_t>(bytes_of(i * row, dtype));
              const auto width = static_cast<std::ptrdiff_t>(bytes_of(kHeads * d, dtype));
              REQUIRE(std::equal(got.begin() + at, got.begin() + at + width, queries.begin() + at));
              REQUIRE(fused[static_cast<std::size_t>(i)] == apart[static_cast<std::size_t>(i)]);
            }
          });
        }
}

TEST_CASE("a row of NaNs spoils no other row of a product") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(9);
  const Case c(DType::bfloat16, 3, 40, 30, true, false, random);
  std::vector<float> hidden = c.d_hidden->host();
  for (std::size_t i = 40; i < 80; ++i) hidden[i] = std::numeric_limits<float>::quiet_NaN();
  const DeviceArray<float> spoiled(hidden), y(90), sound(90);
  REQUIRE(product(c.p, {sound.data(), sound.data() + 30, sound.data() + 60}, nullptr) ==
          cudaSuccess);
  ProductParams p = c.p;
  p.hidden = spoiled.data();
  REQUIRE(product(p, {y.data(), y.data() + 30, y.data() + 60}, nullptr) == cudaSuccess);
  const std::vector<float> got = y.host(), expected = sound.host();
  for (std::size_t i = 0; i < 90; ++i) {
    const bool of_spoiled = i / 30 == 1;
    REQUIRE(std::isnan(got[i]) == of_spoiled);
    if (!of_spoiled) REQUIRE(got[i] == expected[i]);
  }
}

TEST_CASE("products of few rows refuse what they do not take, without a device") {
  REQUIRE(takes_product(DType::bfloat16, 1, 8, true));
  REQUIRE_FALSE(takes_product(DType::bfloat16, 1, 12, true));  // no multiple of 16 bytes
  REQUIRE(takes_product(DType::float32, 4, 12, false));
  REQUIRE_FALSE(takes_product(DType::float32, 5, 12, false));
  REQUIRE_FALSE(takes_product(DType::float32, 0, 12, false));
  REQUIRE_FALSE(takes_product(DType::int8, 1, 16, false));
  REQUIRE(takes_product(DType::float32, 4, 1 << 16, false));
  REQUIRE_FALSE(takes_product(DType::float32, 4, 1 << 16, true));  // of shared memory
  alignas(16) float any[16] = {};
  ProductParams p;
  p.dtype = DType::float32;
  p.n = 1;
  p.in = p.out = 4;
  float* const rows[kMostProductRows] = {any};
  REQUIRE(product(p, rows, nullptr) == cudaErrorInvalidValue);  // no weights
  p.weight = any;
  REQUIRE(product(p, rows, nullptr) == cudaErrorInvalidValue);  // no rows
  p.x = any;
  p.maybe_norm = any;
  REQUIRE(product(p, rows, nullptr) == cudaErrorInvalidValue);  // of rows that are normed already
  p.maybe_norm = nullptr;
  REQUIRE(product(p, {}, nullptr) == cudaErrorInvalidValue);
  REQUIRE(add_product(p, 1.0f, nullptr, nullptr) == cudaErrorInvalidValue);
  REQUIRE(narrow_product(p, nullptr, nullptr) == cudaErrorInvalidValue);
  REQUIRE(gated_product(p, GateActivation::silu, nullptr, nullptr) == cudaErrorInvalidValue);
  REQUIRE(heads_product(p, {}, nullptr) == cudaErrorInvalidValue);
  p.x = any + 1;
  REQUIRE(product(p, rows, nullptr) == cudaErrorMisalignedAddress);
  p.x = p.hidden = any;
  REQUIRE(product(p, rows, nullptr) == cudaErrorInvalidValue);  // both
}

}  // namespace product_test
