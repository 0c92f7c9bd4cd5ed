// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include "attend_reference.hpp"
#include "episodic/attention/copy_rows.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/test.hpp"

namespace episodic {
namespace {

using testing::Random;
using testing::row_of;

TEST_CASE("plain_rotary is theta to the minus 2c / dim") {
  const RotaryTable table = plain_rotary(8, 10000.0);
  REQUIRE(table.rotary_dim() == 8);
  for (int c = 0; c < 4; ++c) {
    REQUIRE(testing::near(table.inverse_frequency[c], std::pow(10000.0, -c / 4.0), 1e-14));
  }
  REQUIRE_THROWS_AS(plain_rotary(7, 10000.0), DataError);
  REQUIRE_THROWS_AS(plain_rotary(8, 0.0), DataError);
}

TEST_CASE("angles are right to float32 at ten million, and do not depend on the cut") {
  RotaryTable table = plain_rotary(64, 10000.0);
  table.attention_factor = 1.25;
  for (std::int64_t first : {std::int64_t{0}, std::int64_t{100}, std::int64_t{10'000'000}}) {
    RotaryAngles all, one;
    all.compute(table, first, 200);
    for (std::int64_t i = 0; i < 200; ++i) {
      one.compute(table, first + i, 1);
      for (std::int64_t c = 0; c < 32; ++c) {
        const long double angle = static_cast<long double>(first + i) *
                                  static_cast<long double>(table.inverse_frequency[c]);
        const std::size_t at = static_cast<std::size_t>(i * 32 + c);
        REQUIRE(std::abs(all.cos[at] - 1.25 * static_cast<double>(cosl(angle))) < 1e-7);
        REQUIRE(std::abs(all.sin[at] - 1.25 * static_cast<double>(sinl(angle))) < 1e-7);
        REQUIRE(all.cos[at] == one.cos[static_cast<std::size_t>(c)]);
        REQUIRE(all.sin[at] == one.sin[static_cast<std::size_t>(c)]);
      }
    }
  }
  RotaryAngles angles;
  REQUIRE_THROWS_AS(angles.compute(table, -1, 2), DataError);
  angles.compute(table, 5, 0);
  REQUIRE(angles.n == 0);
}

TEST_CASE("rotate turns channel pairs, with strides, in place, and one row for all") {
  Random random(3);
  for (std::int64_t d : {2, 6, 12, 64, 128, 80}) {
    for (std::int64_t rotary_dim : {d, d / 4 * 2}) {
      for (std::int64_t n : {1, 5, 70}) {
        const std::int64_t heads = 3, x_head = d + 1, x_row = heads * x_head + 2;
        const std::int64_t y_head = d, y_row = heads * d;
        const RotaryTable table = plain_rotary(rotary_dim, 500.0);
        auto x = testing::normal(random, n * x_row);
        for (bool single : {false, true}) {
          RotaryAngles angles;
          angles.compute(table, 1000, single ? 1 : n);
          std::vector<float> y(static_cast<std::size_t>(n * y_row), 99.0f);
          rotate(table, angles, n, heads, d, x.data(), x_row, x_head, y.data(), y_row, y_head);
          auto z = x;
          rotate(table, angles, n, heads, d, z.data(), x_row, x_head, z.data(), x_row, x_head);
          for (std::int64_t i = 0; i < n; ++i) {
            for (std::int64_t h = 0; h < heads; ++h) {
              for (std::int64_t c = 0; c < d; ++c) {
                const float* from = x.data() + i * x_row + h * x_head;
                const std::int64_t half = rotary_dim / 2;
                double want = from[c];
                if (c < rotary_dim) {
                  const double angle = (1000.0 + static_cast<double>(single ? 0 : i)) *
                                       table.inverse_frequency[c % half];
                  want = c < half ? from[c] * std::cos(angle) - from[c + half] * std::sin(angle)
                                  : from[c] * std::cos(angle) + from[c - half] * std::sin(angle);
                }
                REQUIRE(std::abs(y[i * y_row + h * y_head + c] - want) < 2e-6);
                REQUIRE(z[i * x_row + h * x_head + c] == y[i * y_row + h * y_head + c]);
              }
            }
          }
        }
      }
    }
  }
}

// x rotated as the definition says, in double.
std::vector<double> rotated(const RotaryTable& table, const std::vector<double>& x,
                            double position) {
  std::vector<double> y = x;
  const auto half = static_cast<std::int64_t>(table.inverse_frequency.size());
  for (std::int64_t c = 0; c < half; ++c) {
    const bool halves = table.pairs == RotaryPairs::halves;
    const std::int64_t a = halves ? c : 2 * c, b = halves ? c + half : 2 * c + 1;
    const double angle = position * table.inverse_frequency[c], f = table.attention_factor;
    y[a] = f * (x[a] * std::cos(angle) - x[b] * std::sin(angle));
    y[b] = f * (x[b] * std::cos(angle) + x[a] * std::sin(angle));
  }
  return y;
}

TEST_CASE("rotate takes and gives any dtype and stride, in both layouts, partial too") {
  const DType dtypes[] = {DType::float32, DType::bfloat16, DType::float16};
  for (int set = 0; const cpu::Kernels* kernels = cpu::available_kernels(set); ++set) {
    cpu::use_kernels(kernels);
    Random random(51);
    for (RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
      for (std::int64_t d : {2, 6, 33, 64, 1030}) {
        for (std::int64_t rotary_dim : {d / 2 * 2, d / 4 * 2}) {
          for (DType from : dtypes) {
            for (DType to : dtypes) {
              RotaryTable table = plain_rotary(rotary_dim, 500.0);
              table.pairs = pairs;
              table.attention_factor = 1.2;
              const std::int64_t n = 7, heads = 3;
              testing::RowStore source, ring;
              const TensorView x = source.random(random, n, heads, d, from, 5 * d + 1, d);
              const std::int64_t capacity = n + 2;
              const MutableTensorView y(ring.make(heads * capacity * d, to, 7.0f), to,
                                        {n, heads, d}, {d, capacity * d});
              RotaryAngles angles;
              angles.compute(table, 90, n + 4);
              rotate(table, angles.rows(4, n), x, y);
              for (std::int64_t i = 0; i < n; ++i) {
                for (std::int64_t h = 0; h < heads; ++h) {
                  const auto want = rotated(table, row_of(x, i, h), 94.0 + i);
                  const auto got = row_of(y, i, h);
                  for (std::int64_t c = 0; c < d; ++c) {
                    REQUIRE(std::abs(got[c] - want[c]) <
                            3e-6 + testing::rounding_of(to) * std::abs(want[c]));
                  }
                }
              }
              REQUIRE(testing::element(y, n, 0, 0) == 7.0);  // beyond the rows
              copy_rows(x, y);
              for (std::int64_t i = 0; i < n; ++i) {
                const auto want = row_of(x, i, 1), got = row_of(y, i, 1);
                for (std::int64_t c = 0; c < d; ++c) {
                  REQUIRE(std::abs(got[c] - want[c]) <=
                          (from == to ? 0.0 : testing::rounding_of(to)) * std::abs(want[c]));
                }
              }
            }
          }
        }
      }
    }
  }
  cpu::use_kernels(nullptr);
}

TEST_CASE("rotate_queries gives both rotations and the mean, the same bits for any threads") {
  const int threads = max_threads();
  Random random(52);
  AttendWorkspace workspace;
  for (std::int64_t n : {1, 3, 200}) {
    for (DType dtype : {DType::float32, DType::bfloat16}) {
      const std::int64_t heads = 6, d = 132, n_local = 50,
                         size = n * heads * d;  // 200: in parallel
      RotaryTable table = plain_rotary(100, 10000.0);
      table.attention_factor = 1.1;
      testing::RowStore source;
      const TensorView q = source.random(random, n, heads, d, dtype, 9 * d, d);
      RotaryAngles position, fixed;
      position.compute(table, 1000, n);
      fixed.compute_fixed(table, n_local);
      std::vector<float> relative(size), same(size), mean(heads * d);
      set_max_threads(1);
      rotate_queries(table, position.rows(), fixed.rows(), q,
                     {relative.data(), same.data(), mean.data()}, workspace);
      RotaryTable squared = table;
      squared.attention_factor = 1.1 * 1.1;
      for (std::int64_t h = 0; h < heads; ++h) {
        std::vector<double> sum(d);
        for (std::int64_t i = 0; i < n; ++i) {
          const auto x = row_of(q, i, h);
          const auto own = rotated(table, x, 1000.0 + i), far = rotated(squared, x, n_local - 1.0);
          for (std::int64_t c = 0; c < d; ++c) {
            const std::size_t at = (i * heads + h) * d + c;
            REQUIRE(std::abs(relative[at] - own[c]) < 3e-6);
            REQUIRE(std::abs(same[at] - far[c]) < 3e-6);
            sum[c] += same[at];
          }
        }
        for (std::int64_t c = 0; c < d; ++c) {
          REQUIRE(mean[h * d + c] == static_cast<float>(sum[c] / n));
        }
      }
      for (int team : {1, 2, 3}) {
        set_max_threads(team);
        std::vector<float> relative2(size), same2(size), mean2(heads * d), alone(size);
        rotate_queries(table, position.rows(), fixed.rows(), q,
                       {relative2.data(), same2.data(), mean2.data()}, workspace);
        REQUIRE(relative2 == relative);
        REQUIRE(same2 == same);
        REQUIRE(mean2 == mean);
        rotate_queries(table, position.rows(), {}, q, {alone.data(), nullptr, nullptr}, workspace);
        REQUIRE(alone == relative);
      }
    }
  }
  set_max_threads(threads);
}

TEST_CASE("rotate_queries tells of a query that is not finite, wherever it is") {
  const std::int64_t n = 70, heads = 5, d = 36, size = n * heads * d;
  const RotaryTable table = plain_rotary(32, 100.0);  // channels beyond the pairs are looked at too
  RotaryAngles position, fixed;
  position.compute(table, 3, n);
  fixed.compute_fixed(table, 9);
  Random random(54);
  const std::vector<float> good = testing::normal(random, size);
  std::vector<float> relative(size), same(size), mean(heads * d);
  AttendWorkspace workspace;
  for (const DType dtype : {DType::float32, DType::bfloat16, DType::float16}) {
    const auto all_finite = [&](const std::vector<float>& values) {
      std::vector<std::uint16_t> halves(values.size());
      for (std::size_t i = 0; i < values.size(); ++i)
        halves[i] = dtype == DType::bfloat16 ? to_bfloat16(values[i]) : to_float16(values[i]);
      const bool wide = dtype == DType::float32;
      const void* data = halves.data();
      if (wide) data = values.data();
      const TensorView q(data, dtype, {n, heads, d});
      const bool both = rotate_queries(table, position.rows(), fixed.rows(), q,
                                       {relative.data(), same.data(), mean.data()}, workspace);
      const bool one = rotate_queries(table, position.rows(), {}, q,
                                      {relative.data(), nullptr, nullptr}, workspace);
      REQUIRE(both == one);
      return both;
    };
    REQUIRE(all_finite(good));
    for (const float bad :
         {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
          std::numeric_limits<float>::quiet_NaN()})
      for (const std::int64_t at : {std::int64_t{0}, size / 2, d - 1, size - 1}) {
        std::vector<float> values = good;
        values[at] = bad;
        REQUIRE_FALSE(all_finite(values));
      }
  }
}

TEST_CASE("a far score carries the attention factor twice, as a local one does") {
  Random random(53);
  for (RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved}) {
    const std::int64_t d = 24, n_local = 37;
    RotaryTable table = plain_rotary(16, 100.0);  // the last 8 channels carry no factor at all
    table.pairs = pairs;
    table.attention_factor = 1.3;
    const auto q = testing::normal(random, d), k = testing::normal(random, d);
    // the definition: both rotated, n_local - 1 apart, each with its factor
    const auto far_q = rotated(table, {q.begin(), q.end()}, n_local - 1.0);
    const auto far_k = rotated(table, {k.begin(), k.end()}, 0.0);
    double want = 0.0;
    for (std::int64_t c = 0; c < d; ++c) want += far_q[c] * far_k[c];
    // here: the key as it is, and the query of compute_fixed
    RotaryAngles position, fixed;
    position.compute(table, n_local - 1, 1);
    fixed.compute_fixed(table, n_local);
    std::vector<float> relative(d), same(d);
    AttendWorkspace workspace;
    rotate_queries(table, position.rows(), fixed.rows(), {q.data(), {1, 1, d}},
                   {relative.data(), same.data(), nullptr}, workspace);
    double got = 0.0, once = 0.0;
    for (std::int64_t c = 0; c < d; ++c) {
      got += static_cast<double>(same[c]) * k[c];
      once += static_cast<double>(relative[c]) * k[c];
    }
    REQUIRE(std::abs(got - want) < 1e-5);
    REQUIRE(std::abs(once - want) > 1e-2);
    // and through attend: a key at the fixed position next to the same key in the window
    std::vector<float> rotated_key(d);
    RotaryAngles zero;
    zero.compute(table, 0, 1);
    rotate(table, zero.rows(), {k.data(), {1, 1, d}}, {rotated_key.data(), {1, 1, d}});
    KvSegment far{k.data(), k.data(), 1, 0, 0, d};
    KvSegment near = far;
    near.key = rotated_key.data();
    near.position = Position::relative;
    const auto lse = [&](const KvSegment& s, std::int64_t p, std::int64_t window) {
      const std::span<const KvSegment> list(&s, 1);
      std::vector<float> out(d);
      float result = 0.0f;
      const AttendShape shape{.n_queries = 1,
                              .n_heads = 1,
                              .n_kv_heads = 1,
                              .head_dim = d,
                              .first_position = p,
                              .n_local = window};
      AttendOutput output;
      output.out = {out.data(), shape.of_outputs()};
      output.lse = &result;
      attend(shape, {{relative.data(), {1, 1, d}}, {same.data(), {1, 1, d}}, std::span(&list, 1)},
             output, workspace);
      return static_cast<double>(result);
    };
    REQUIRE(std::abs(lse(far, 500, n_local) - lse(near, n_local - 1, n_local)) < 1e-5);
  }
}

TEST_CASE("rotate_queries and copy_rows refuse what they cannot do, by name") {
  const RotaryTable table = plain_rotary(8, 100.0);
  RotaryAngles angles, fixed, other;
  angles.compute(table, 0, 3);
  fixed.compute_fixed(table, 4);
  other.compute_fixed(plain_rotary(4, 100.0), 4);
  std::vector<float> q(3 * 8), a(q.size()), b(q.size()), mean(8);
  AttendWorkspace workspace;
  const auto fails = [&](const std::string& word, const auto& call) {
    std::string message;
    try {
      call();
    } catch (const DataError& e) {
      message = e.what();
    }
    INFO(word << " in: " << message);
    REQUIRE(message.find(word) != std::string::npos);
  };
  const auto run = [&](const TensorView& x, const RotaryAngles& f, const RotatedQueries& out) {
    rotate_queries(table, angles.rows(), f.rows(), x, out, workspace);
  };
  const TensorView three(q.data(), {3, 1, 8});
  fails("rows", [&] { run(three.rows(0, 2), fixed, {a.data(), b.data(), mean.data()}); });
  fails("another rotary", [&] { run(three, other, {a.data(), b.data(), mean.data()}); });
  fails("q is null", [&] {
    run({nullptr, DType::float32, {3, 1, 8}}, fixed, {a.data(), b.data(), mean.data()});
  });
  fails("relative is null", [&] { run(three, fixed, {nullptr, b.data(), mean.data()}); });
  fails("mean", [&] { run(three, fixed, {a.data(), nullptr, mean.data()}); });
  fails("int8", [&] {
    run({q.data(), DType::int8, {3, 1, 8}}, fixed, {a.data(), b.data(), mean.data()});
  });
  fails("n_local", [&] { fixed.compute_fixed(table, 0); });
  fails("overlap", [&] { copy_rows(three, {a.data(), DType::float32, {3, 1, 8}, {7, 8}}); });
  fails("to is null", [&] { copy_rows(three, {nullptr, DType::float32, {3, 1, 8}}); });
  fails("to is [2, 1, 8], must be [3, 1, 8]", [&] { copy_rows(three, {a.data(), {2, 1, 8}}); });
  fails("must not be negative", [&] { copy_rows({q.data(), {3, -1, 8}}, {a.data(), {3, -1, 8}}); });
  copy_rows({nullptr, DType::float32, {0, 1, 8}}, {});
}

TEST_CASE("what compute's angles turn, those of compute_back turn back, at any position") {
  Random random(55);
  for (const RotaryPairs pairs : {RotaryPairs::halves, RotaryPairs::interleaved})
    for (const std::int64_t first : {0, 63, 9'999'990})
      for (const double factor : {1.0, 0.7, 2.5, -1.5}) {
        RotaryTable table = plain_rotary(24, 10000.0);
        table.pairs = pairs;
        table.attention_factor = factor;
        const std::int64_t n = 70, heads = 2, d = 33;
        const auto x = testing::normal(random, n * heads * d);
        RotaryAngles there, back;
        there.compute(table, first, n);
        back.compute_back(table, first, n);
        std::vector<float> y(x.size());
        const MutableTensorView rows(y.data(), {n, heads, d});
        rotate(table, there.rows(), {x.data(), {n, heads, d}}, rows);
        rotate(table, back.rows(), rows, rows);
        for (std::size_t i = 0; i < x.size(); ++i) REQUIRE(std::abs(y[i] - x[i]) < 2e-6);
      }
  RotaryAngles angles;
  for (const double factor :
       {0.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    RotaryTable table = plain_rotary(8, 100.0);
    table.attention_factor = factor;
    REQUIRE_THROWS_AS(angles.compute_back(table, 0, 3), DataError);
  }
  REQUIRE_THROWS_AS(angles.compute_back(plain_rotary(8, 100.0), -1, 3), DataError);
}

TEST_CASE("rotate refuses angles that do not fit") {
  const RotaryTable table = plain_rotary(8, 100.0);
  RotaryAngles angles;
  angles.compute(table, 0, 3);
  std::vector<float> x(4 * 8);
  REQUIRE_THROWS_AS(rotate(table, angles, 4, 1, 8, x.data(), 8, 8, x.data(), 8, 8), DataError);
  REQUIRE_THROWS_AS(rotate(table, angles, 3, 1, 6, x.data(), 8, 8, x.data(), 8, 8), DataError);
  REQUIRE_THROWS_AS(rotate(plain_rotary(4, 100.0), angles, 3, 1, 8, x.data(), 8, 8, x.data(), 8, 8),
                    DataError);
}

}  // namespace
}  // namespace episodic
