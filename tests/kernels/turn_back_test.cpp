// SPDX-License-Identifier: Apache-2.0
// Queries and keys turned back on the device, beside the host's angles and a float64 reference.
#include "kernels/turn_back.hpp"

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "batches.hpp"
#include "episodic/attention/rotary.hpp"
#include "kernels/device.hpp"
#include "kernels/window.hpp"

namespace turn_back_test {

using episodic::DType;
using episodic::RotaryPairs;
using episodic::RotaryTable;
using episodic_test::Arena;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

struct TurnCase {
  std::int64_t n, heads, d, rotary_dim, first, gap;
  RotaryPairs pairs;
  double factor;
};

TEST_CASE("what a position turned is turned back on the device, to rounding") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(21);
  const TurnCase cases[] = {
      {1, 1, 8, 8, 0, 0, RotaryPairs::halves, 1.0},
      {5, 3, 64, 32, 9'999'990, 8, RotaryPairs::halves, 1.25},
      {7, 2, 64, 64, 12, 24, RotaryPairs::interleaved, 0.7},
      {6, 2, 10, 6, 3, 1, RotaryPairs::halves, 1.0},  // no pack fits
      {6, 2, 10, 6, 4'000, 3, RotaryPairs::interleaved, 2.5},
      {300, 4, 16, 16, 70, 0, RotaryPairs::halves, 1.1},  // several blocks
      {4, 5, 24, 8, 5, 0, RotaryPairs::interleaved, -1.5},
  };
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16})
    for (const TurnCase& c : cases) {
      INFO(name_of(dtype) << " " << c.n << " tokens of " << c.heads << " heads of " << c.d);
      RotaryTable table = episodic::plain_rotary(c.rotary_dim, 500000.0);
      table.attention_factor = c.factor;
      table.pairs = c.pairs;
      const std::int64_t row = c.heads * c.d + c.gap;
      std::vector<float> x =
          episodic_test::normal_floats(static_cast<std::size_t>(c.n * row), random);
      const std::vector<unsigned char> bytes = episodic_test::stored(x, dtype);
      const DeviceArray<unsigned char> d_x(bytes);
      const auto width = static_cast<std::size_t>(c.n * c.heads * c.d);
      const auto half = static_cast<std::size_t>(c.n * c.rotary_dim / 2);
      const DeviceArray<float> cos(half), sin(half);
      const DeviceArray<std::int64_t> first(std::vector<std::int64_t>{c.first});
      const DeviceArray<double> frequency(table.inverse_frequency);
      REQUIRE(rotary_angles({c.n, c.rotary_dim / 2, first.data(), frequency.data(), c.factor,
                             cos.data(), sin.data()},
                            nullptr) == cudaSuccess);
      std::vector<std::vector<unsigned char>> results;
      episodic_test::in_every_order([&] {
        const DeviceArray<unsigned char> y(width *
                                           static_cast<std::size_t>(episodic::size_of(dtype)));
        TurnBackParams p;
        p.dtype = dtype;
        p.n = c.n;
        p.n_heads = c.heads;
        p.head_dim = c.d;
        p.rotary_dim = c.rotary_dim;
        p.interleaved = c.pairs == RotaryPairs::interleaved;
        p.x = d_x.data();
        p.row_stride = row;
        p.cos = cos.data();
        p.sin = sin.data();
        p.attention_factor = c.factor;
        p.y = y.data();
        REQUIRE(turn_back(p, nullptr) == cudaSuccess);
        REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
        results.push_back(y.host());
      });
      for (const auto& result : results) REQUIRE(result == results.front());
      const std::vector<float> got = episodic_test::floats(results.front(), dtype);
      // The host's twin, and the definition: turned by the position again, x is back.
      episodic::RotaryAngles back;
      back.compute_back(table, c.first, c.n);
      std::vector<float> twin(width);
      episodic::rotate(table, back, c.n, c.heads, c.d, x.data(), row, c.d, twin.data(),
                       c.heads * c.d, c.d);
      const double rounding = dtype == DType::float32   ? 4e-7
                              : dtype == DType::float16 ? 5e-4
                                                        : 4e-3;
      for (std::int64_t i = 0; i < c.n; ++i)
        for (std::int64_t h = 0; h < c.heads; ++h) {
          double largest = 0.0;
          const auto at = static_cast<std::size_t>((i * c.heads + h) * c.d);
          for (std::size_t ch = 0; ch < static_cast<std::size_t>(c.d); ++ch)
            largest = std::max(largest, std::abs(static_cast<double>(twin[at + ch])));
          for (std::size_t ch = 0; ch < static_cast<std::size_t>(c.d); ++ch)
            REQUIRE(std::abs(static_cast<double>(got[at + ch]) - twin[at + ch]) <=
                    rounding * largest + 1e-7);
          for (std::int64_t pair = 0; pair < c.rotary_dim / 2; ++pair) {
            const bool halves = c.pairs == RotaryPairs::halves;
            const auto a = static_cast<std::size_t>(halves ? pair : 2 * pair);
            const auto b = a + static_cast<std::size_t>(halves ? c.rotary_dim / 2 : 1);
            const double angle = static_cast<double>(c.first + i) *
                                 table.inverse_frequency[static_cast<std::size_t>(pair)];
            const double u = got[at + a], v = got[at + b];
            const float* const given = x.data() + i * row + h * c.d;
            const double want = c.factor * (u * std::cos(angle) - v * std::sin(angle));
            const double beside = c.factor * (v * std::cos(angle) + u * std::sin(angle));
            const double bound = std::abs(c.factor) * largest * 2 * rounding + 1e-6;
            REQUIRE(std::abs(want - static_cast<double>(given[a])) <= bound);
            REQUIRE(std::abs(beside - static_cast<double>(given[b])) <= bound);
          }
          for (std::int64_t ch = c.rotary_dim; ch < c.d; ++ch)
            REQUIRE(got[at + static_cast<std::size_t>(ch)] ==
                    x[static_cast<std::size_t>(i * row + h * c.d + ch)]);
        }
    }
}

TEST_CASE("a batch of rows turned back has the bits of its sequences alone") {
  EPISODIC_NEEDS_DEVICE();
  for (const DType dtype : {DType::float32, DType::bfloat16})
    episodic_test::check_batches<TurnBackParams>(
        [&](std::int64_t i, Arena& arena) {
          std::mt19937 random(static_cast<std::uint32_t>(i));
          TurnBackParams p;
          p.dtype = dtype;
          p.n = 1 + 5 * i;
          p.n_heads = 1 + i % 3;
          p.head_dim = 16;
          p.rotary_dim = i % 4 == 3 ? 6 : 16;
          p.interleaved = i % 2 == 1;
          p.row_stride = p.n_heads * 16 + 8;
          p.attention_factor = 1.0 + 0.1 * static_cast<double>(i);
          std::vector<float> x =
              episodic_test::normal_floats(static_cast<std::size_t>(p.n * p.row_stride), random);
          p.x = arena.in(episodic_test::stored(x, dtype));
          const auto angles = static_cast<std::size_t>(p.n * p.rotary_dim / 2);
          p.cos = arena.in(episodic_test::normal_floats(angles, random));
          p.sin = arena.in(episodic_test::normal_floats(angles, random));
          p.y = arena.out<unsigned char>(p.n * p.n_heads * 16 * episodic::size_of(dtype));
          return p;
        },
        turn_back, turn_back_batch, [](std::int64_t n) { return episodic_test::launches_of(n); });
  TurnBackParams sound;
  sound.dtype = DType::float32;
  sound.n_heads = 1;
  sound.head_dim = sound.rotary_dim = sound.row_stride = 8;
  episodic_test::check_shared<TurnBackParams>(sound, turn_back_batch, "dtype",
                                              [](TurnBackParams& p) { p.dtype = DType::float16; });
}

}  // namespace turn_back_test
