// SPDX-License-Identifier: Apache-2.0
#include "kernels/short_convolution.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "kernels/batches.hpp"
#include "kernels/device.hpp"

namespace short_convolution_test {

using episodic::DType;
using episodic_test::Arena;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

/// A sequence of `total` tokens, in steps of n.
struct Case {
  std::int64_t total, n, width, taps;
  bool biases;
};

struct Computed {
  std::vector<float> out;
  std::vector<float> ring;  // after the last step
};

Computed computed(const Case& c, DType dtype, const std::vector<unsigned char>& rows,
                  const std::vector<float>& rows_bias, const std::vector<float>& tap,
                  const std::vector<float>& bias, std::int64_t capacity) {
  const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
  const auto width = static_cast<std::size_t>(c.width);
  const DeviceArray<unsigned char> d_rows(rows);
  const DeviceArray<float> d_rows_bias(rows_bias), d_tap(tap), d_bias(bias);
  // what lies in a ring before the first token is never read
  const DeviceArray<float> ring(
      std::vector<float>(static_cast<std::size_t>(capacity) * width, std::nanf("")));
  const DeviceArray<unsigned char> out(static_cast<std::size_t>(c.total) * width * element);
  for (std::int64_t first = 0; first < c.total; first += c.n) {
    const DeviceArray<std::int64_t> position(std::vector<std::int64_t>{first});
    ShortConvolutionParams p;
    p.dtype = dtype;
    p.n = std::min(c.n, c.total - first);
    p.width = c.width;
    p.taps = c.taps;
    p.first_position = position.data();
    p.rows = d_rows.data() + static_cast<std::size_t>(first) * 3 * width * element;
    p.maybe_rows_bias = c.biases ? d_rows_bias.data() : nullptr;
    p.tap = d_tap.data();
    p.maybe_bias = c.biases ? d_bias.data() : nullptr;
    p.ring = ring.data();
    p.ring_capacity = capacity;
    p.out = out.data() + static_cast<std::size_t>(first) * width * element;
    REQUIRE(short_convolution(p, nullptr) == cudaSuccess);
    REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  }
  return {episodic_test::floats(out.host(), dtype), ring.host()};
}

TEST_CASE("short convolution: what its formula says, the same bits in steps of any length") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const Case& c : {Case{23, 23, 24, 3, false}, Case{23, 23, 37, 4, true},
                          Case{9, 9, 300, 1, true}, Case{40, 40, 5, 7, false}}) {
      std::mt19937 random(static_cast<unsigned>(c.width));
      std::vector<float> rows =
          episodic_test::normal_floats(static_cast<std::size_t>(c.total * 3 * c.width), random);
      const std::vector<unsigned char> as_stored = episodic_test::stored(rows, dtype);
      const auto draw = [&](std::int64_t n) {
        return episodic_test::normal_floats(static_cast<std::size_t>(n), random);
      };
      const std::vector<float> rows_bias = draw(3 * c.width), tap = draw(c.width * c.taps),
                               bias = draw(c.width);
      CAPTURE(c.width, c.taps);
      Computed whole;
      episodic_test::in_every_order([&] {
        whole = computed(c, dtype, as_stored, rows_bias, tap, bias, c.total + c.taps - 1);
        const auto at = [&](std::int64_t t, std::int64_t part, std::int64_t ch) {
          const auto i = static_cast<std::size_t>((3 * t + part) * c.width + ch);
          return static_cast<double>(rows[i]) +
                 (c.biases ? rows_bias[static_cast<std::size_t>(part * c.width + ch)] : 0.0f);
        };
        const double rounding = dtype == DType::float32   ? 1e-5
                                : dtype == DType::float16 ? 2e-3
                                                          : 2e-2;
        for (std::int64_t t = 0; t < c.total; ++t)
          for (std::int64_t ch = 0; ch < c.width; ++ch) {
            double sum = c.biases ? bias[static_cast<std::size_t>(ch)] : 0.0;
            for (std::int64_t k = 0; k < c.taps; ++k)
              if (const std::int64_t from = t - c.taps + 1 + k; from >= 0)
                sum += static_cast<double>(tap[static_cast<std::size_t>(ch * c.taps + k)]) *
                       at(from, 0, ch) * at(from, 2, ch);
            const double y = at(t, 1, ch) * sum;
            const float got = whole.out[static_cast<std::size_t>(t * c.width + ch)];
            REQUIRE(std::abs(got - y) <= rounding * (1 + std::abs(y)));
          }
      });
      for (const std::int64_t n : {1, 3, 8}) {
        Case pieces = c;
        pieces.n = n;
        const std::int64_t capacity = n + c.taps - 1;
        const Computed got = computed(pieces, dtype, as_stored, rows_bias, tap, bias, capacity);
        REQUIRE(got.out == whole.out);
        for (std::int64_t t = c.total - c.taps + 1; t < c.total; ++t)  // what the next token reads
          for (std::int64_t ch = 0; ch < c.width; ++ch)
            REQUIRE(
                got.ring[static_cast<std::size_t>(t % capacity * c.width + ch)] ==
                whole.ring[static_cast<std::size_t>(t % (c.total + c.taps - 1) * c.width + ch)]);
      }
    }
}

TEST_CASE("short convolution: a batch has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::bfloat16}) {
    const auto make = [&](std::int64_t i, Arena& arena) {
      std::mt19937 random(static_cast<unsigned>(i));
      const auto draw = [&](std::int64_t n) {
        return episodic_test::normal_floats(static_cast<std::size_t>(n), random);
      };
      ShortConvolutionParams p;
      p.dtype = dtype;
      p.n = i % 5 == 4 ? 0 : 1 + i % 3;
      p.width = 40;
      p.taps = 3;
      p.first_position = arena.in(std::vector<std::int64_t>{i % 4 == 3 ? 0 : 7 * i});
      p.rows = arena.in(episodic_test::random_elements(3 * 3 * 40, dtype, random));
      p.maybe_rows_bias = i % 2 == 0 ? nullptr : arena.in(draw(120));
      p.tap = arena.in(draw(120));
      p.maybe_bias = i % 3 == 0 ? nullptr : arena.in(draw(40));
      p.ring_capacity = 5 + i;
      p.ring = arena.out(draw(p.ring_capacity * 40));
      p.out = arena.out<unsigned char>(3 * 40 * episodic::size_of(dtype));
      return p;
    };
    const auto working = [](std::int64_t n) { return n - n / 5; };
    episodic_test::check_batches<ShortConvolutionParams>(
        make, short_convolution, short_convolution_batch,
        [&](std::int64_t n) { return episodic_test::launches_of(working(n)); });
  }
}

alignas(256) unsigned char memory[256];

ShortConvolutionParams sound() {
  ShortConvolutionParams p;
  p.dtype = DType::float32;
  p.n = 2;
  p.width = 4;
  p.taps = 3;
  p.first_position = reinterpret_cast<std::int64_t*>(memory);
  p.rows = p.out = memory;
  p.tap = p.ring = reinterpret_cast<float*>(memory);
  p.ring_capacity = 4;
  return p;
}

TEST_CASE("short convolution: what its launcher refuses, by the field's name") {
  struct Wrong {
    const char* field;
    void (*change)(ShortConvolutionParams&);
  };
  using P = ShortConvolutionParams;
  REQUIRE(invalid_field(sound()) == nullptr);
  for (const Wrong& w :
       {Wrong{"dtype", [](P& p) { p.dtype = DType::int8; }},
        {"width", [](P& p) { p.width = 0; }},
        {"width", [](P& p) { p.width = std::int64_t{1} << 40; }},
        {"taps", [](P& p) { p.taps = 0; }},
        {"taps", [](P& p) { p.taps = std::int64_t{1} << 40; }},
        {"n", [](P& p) { p.n = -1; }},
        {"n", [](P& p) { p.n = std::int64_t{1} << 40; }},
        {"ring_capacity", [](P& p) { p.ring_capacity = 3; }},
        {"ring_capacity", [](P& p) { p.ring_capacity = INT64_MAX; }},
        {"first_position", [](P& p) { p.first_position = nullptr; }},
        {"rows", [](P& p) { p.rows = nullptr; }},
        {"tap", [](P& p) { p.tap = nullptr; }},
        {"ring", [](P& p) { p.ring = nullptr; }},
        {"out", [](P& p) { p.out = nullptr; }},
        {"out", [](P& p) { p.out = memory + 1; }},
        {"maybe_bias", [](P& p) { p.maybe_bias = reinterpret_cast<float*>(memory + 1); }}}) {
    P changed = sound();
    w.change(changed);
    CAPTURE(w.field);
    const char* const named = invalid_field(changed);
    REQUIRE(named != nullptr);
    REQUIRE(std::string(named) == w.field);
    const cudaError_t error = short_convolution(changed, nullptr);
    REQUIRE((error == cudaErrorInvalidValue || error == cudaErrorMisalignedAddress));
  }
  const auto shared = [](const char* field, void (*change)(P&)) {
    episodic_test::check_shared<P>(sound(), short_convolution_batch, field, change);
  };
  shared("dtype", [](P& p) { p.dtype = DType::float16; });
  shared("width", [](P& p) { p.width = 3; });
  shared("taps", [](P& p) { p.taps = 2; });
}

}  // namespace short_convolution_test
