// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>
#include <limits>

#include "attend_reference.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/timeline/surprise.hpp"
#include "support/test.hpp"

namespace episodic {
namespace kernels_test {

using testing::Random;

template <class F>
void for_each_table(const F& body) {
  for (int i = 0; const cpu::Kernels* table = cpu::available_kernels(i); ++i) {
    INFO("kernels " << table->name);
    cpu::use_kernels(table);
    body(*table);
  }
  cpu::use_kernels(nullptr);
}

TEST_CASE("the portable kernels are always there, and the default is the first") {
  const cpu::Kernels* last = nullptr;
  for (int i = 0; const cpu::Kernels* table = cpu::available_kernels(i); ++i) last = table;
  REQUIRE(last != nullptr);
  REQUIRE(std::string(last->name) == "portable");
}

TEST_CASE("dots equal float64, and equal rows give equal bits wherever they lie") {
  Random random(1);
  for_each_table([&](const cpu::Kernels& k) {
    for (std::int64_t width : {1, 3, 8, 31, 64, 100, 512}) {
      for (std::int64_t n : {1, 2, 3, 4, 5, 11}) {
        const std::int64_t stride = width + 3;
        const auto q = testing::normal(random, width);
        auto rows = testing::normal(random, n * stride);
        for (std::int64_t i = 1; i < n; i += 2) {
          std::copy(rows.begin(), rows.begin() + width, rows.begin() + i * stride);
        }
        std::vector<float> out(n);
        k.dots(q.data(), rows.data(), n, width, stride, out.data());
        for (std::int64_t i = 0; i < n; ++i) {
          double want = 0.0;
          for (std::int64_t c = 0; c < width; ++c) {
            want += static_cast<double>(q[c]) * rows[i * stride + c];
          }
          REQUIRE(std::abs(out[i] - want) < 1e-5 * std::sqrt(static_cast<double>(width)));
          if (i % 2 == 1) REQUIRE(out[i] == out[0]);
        }
      }
    }
  });
}

TEST_CASE("bfloat16 conversion agrees with the scalar one") {
  Random random(2);
  for_each_table([&](const cpu::Kernels& k) {
    auto x = testing::normal(random, 1003, 100.0f);
    x[3] = std::numeric_limits<float>::quiet_NaN();
    x[5] = std::numeric_limits<float>::infinity();
    x[7] = std::numeric_limits<float>::denorm_min();
    x[9] = std::numeric_limits<float>::max();
    x[1002] = -std::numeric_limits<float>::quiet_NaN();
    std::vector<std::uint16_t> h(x.size());
    std::vector<float> y(x.size());
    for (std::int64_t n : {1003, 1, 5, 16}) {
      const std::int64_t at = 1003 - n;
      k.narrow(x.data() + at, n, h.data());
      k.to_float(h.data(), DType::bfloat16, n, y.data());
      for (std::int64_t i = 0; i < n; ++i) {
        REQUIRE(h[i] == to_bfloat16(x[at + i]));
        if (!std::isnan(y[i])) REQUIRE(y[i] == from_bfloat16(h[i]));
        REQUIRE(std::isnan(y[i]) == std::isnan(x[at + i]));
      }
    }
  });
}

TEST_CASE("float16 conversion agrees with the scalar one, for every float16") {
  constexpr std::int64_t kAll = 65536;
  std::vector<std::uint16_t> half(kAll);
  std::vector<float> x;
  for (std::int64_t h = 0; h < kAll; ++h) {
    half[h] = static_cast<std::uint16_t>(h);
    const float here = from_float16(half[h]);
    x.push_back(here);
    if (!std::isfinite(here)) continue;
    // between it and the next: half way, and just beside
    const float next = from_float16(static_cast<std::uint16_t>(h + 1));
    const float middle = std::isfinite(next) ? (here + next) / 2 : std::copysign(65520.0f, here);
    for (float v : {middle, std::nextafter(middle, 0.0f), std::nextafter(middle, middle * 2)}) {
      x.push_back(v);
    }
  }
  for (float v : {1e-30f, std::numeric_limits<float>::denorm_min(), 1e30f}) x.push_back(v);
  const auto size = static_cast<std::int64_t>(x.size());
  for_each_table([&](const cpu::Kernels& k) {
    std::vector<std::uint16_t> y(x.size());
    k.narrow_half(x.data(), size, y.data());
    for (std::int64_t i = 0; i < size; ++i) {
      if (y[i] != to_float16(x[i])) FAIL(x[i] << " became " << y[i]);
    }
    for (std::int64_t n : {1, 5, 16, 31}) {
      std::vector<std::uint16_t> part(33, 77);
      k.narrow_half(x.data() + 999, n, part.data());
      for (std::int64_t i = 0; i < 33; ++i) {
        REQUIRE(part[i] == (i < n ? to_float16(x[999 + i]) : 77));
      }
    }
    std::vector<float> staged(kAll);
    k.stage(half.data(), DType::float16, kAll, 1, kAll, 1.0f, staged.data(), 1);
    for (std::int64_t h = 0; h < kAll; ++h) {
      const float want = from_float16(half[h]);
      const bool same = std::memcmp(&staged[h], &want, 4) == 0;
      if (!same && !(std::isnan(staged[h]) && std::isnan(want))) FAIL(h << " is " << staged[h]);
    }
  });
}

TEST_CASE("soft_cap is cap times tanh to 5e-7, and keeps NaN") {
  std::vector<float> x;
  for (float v = 1e-30f; v < 1e30f; v *= 1.31f) x.push_back(v);
  for (float v = 0.0f; v < 12.0f; v += 0.0037f) x.push_back(v);
  for (std::size_t i = 0, n = x.size(); i < n; ++i) x.push_back(-x[i]);
  x.push_back(INFINITY);
  x.push_back(-INFINITY);
  const auto size = static_cast<std::int64_t>(x.size());
  for_each_table([&](const cpu::Kernels& k) {
    for (float cap : {1.0f, 50.0f}) {
      auto y = x;
      k.soft_cap(y.data(), size, cap);
      for (std::int64_t i = 0; i < size; ++i) {
        const double want = cap * std::tanh(static_cast<double>(x[i]));
        if (!(std::abs(y[i] - want) <= 5e-7 * std::abs(want))) FAIL(x[i] << " gives " << y[i]);
      }
    }
    for (std::int64_t n : {1, 3, 8, 16, 21}) {
      std::vector<float> y(24, 0.5f);
      y[n - 1] = NAN;
      k.soft_cap(y.data(), n, 2.0f);
      REQUIRE(std::isnan(y[n - 1]));
      for (std::int64_t i = 0; i < 24; ++i) {
        if (i == n - 1) continue;
        REQUIRE(testing::near(y[i], i < n ? 2.0 * std::tanh(0.5) : 0.5, 5e-7));
      }
    }
  });
}

TEST_CASE("to_float widens every dtype exactly, and sum_row and lane_sums add") {
  Random random(22);
  for_each_table([&](const cpu::Kernels& k) {
    for (std::int64_t n : {1, 3, 8, 16, 33, 100}) {
      const auto x = testing::normal(random, n);
      std::vector<std::uint16_t> bf16(n), fp16(n);
      std::vector<std::int8_t> codes(n);
      for (std::int64_t i = 0; i < n; ++i) {
        bf16[i] = to_bfloat16(x[i]);
        fp16[i] = to_float16(x[i]);
        codes[i] = static_cast<std::int8_t>(testing::uniform(random, -128, 127));
      }
      std::vector<float> y(n + 1, 9.0f);
      const auto widened = [&](const void* from, DType dtype, const auto& want) {
        k.to_float(from, dtype, n, y.data());
        for (std::int64_t i = 0; i < n; ++i) REQUIRE(y[i] == want(i));
        REQUIRE(y[n] == 9.0f);
      };
      widened(x.data(), DType::float32, [&](std::int64_t i) { return x[i]; });
      widened(bf16.data(), DType::bfloat16, [&](std::int64_t i) { return from_bfloat16(bf16[i]); });
      widened(fp16.data(), DType::float16, [&](std::int64_t i) { return from_float16(fp16[i]); });
      widened(codes.data(), DType::int8, [&](std::int64_t i) { return codes[i]; });
      widened(codes.data(), DType::fp8, [&](std::int64_t i) {
        return testing::fp8_number(static_cast<std::uint8_t>(codes[i]));
      });
      double want = 0.0;
      for (float v : x) want += v;
      REQUIRE(std::abs(k.sum_row(x.data(), n) - want) < 1e-5);
      const auto panel = testing::normal(random, n * k.panel_lanes);
      std::vector<float> sums(k.panel_lanes);
      k.lane_sums(panel.data(), n, sums.data());
      for (std::int64_t lane = 0; lane < k.panel_lanes; ++lane) {
        want = 0.0;
        for (std::int64_t i = 0; i < n; ++i) want += panel[i * k.panel_lanes + lane];
        REQUIRE(std::abs(sums[lane] - want) < 2e-5);
      }
    }
  });
}

TEST_CASE("add_column_sums rounds a product and a sum, for any number of rows and keys") {
  Random random(25);
  for_each_table([&](const cpu::Kernels& k) {
    for (const std::int64_t n_rows : {1, 2, 3, 4, 5, 7, 8, 12}) {
      for (const std::int64_t n : {1, 3, 4, 8, 15, 16, 17, 33, 100}) {
        const std::int64_t stride = n + 2, weight_stride = 3, to_stride = n_rows + 5;
        const auto p = testing::normal(random, n_rows * stride);
        const auto weights = testing::normal(random, n_rows * weight_stride);
        auto to = testing::normal(random, n * to_stride + 1);
        std::vector<float> want = to;
        for (std::int64_t i = 0; i < n; ++i) {
          for (std::int64_t r = 0; r < n_rows; ++r) {
            const volatile float product = p[r * stride + i] * weights[r * weight_stride];
            want[i * to_stride + r] += product;
          }
        }
        k.add_column_sums(p.data(), stride, n_rows, weights.data(), weight_stride, n, to.data(),
                          to_stride);
        REQUIRE(to == want);  // and what lies between the rows is as it was
      }
    }
  });
}

TEST_CASE("max_magnitude finds the largest, and NaN before all") {
  Random random(21);
  for_each_table([&](const cpu::Kernels& k) {
    REQUIRE(k.max_magnitude(nullptr, 0) == 0.0f);
    for (std::int64_t n : {1, 3, 8, 16, 33, 100}) {
      auto x = testing::normal(random, n);
      float want = 0.0f;
      for (float v : x) want = std::max(want, std::fabs(v));
      REQUIRE(k.max_magnitude(x.data(), n) == want);
      for (std::int64_t at : {std::int64_t{0}, n / 2, n - 1}) {
        const float saved = x[at];
        for (float v : {-9.5f, 9.5f, -INFINITY}) {
          x[at] = v;
          REQUIRE(k.max_magnitude(x.data(), n) == std::fabs(v));
        }
        for (float v : {NAN, -NAN}) {
          x[at] = v;
          x[0] = n > 1 && at != 0 ? INFINITY : v;
          REQUIRE(std::isnan(k.max_magnitude(x.data(), n)));
        }
        x[at] = saved;
        x[0] = at == 0 ? saved : 0.5f;
      }
    }
  });
}

TEST_CASE("quantize rounds to the nearest code, even at ties") {
  for_each_table([&](const cpu::Kernels& k) {
    std::vector<float> x;
    for (int i = -508; i <= 508; ++i) x.push_back(static_cast<float>(i) * 0.125f);  // of 0.5
    for (std::int64_t n : {1, 7, 16, 1017}) {
      std::vector<std::int8_t> y(x.size() + 1, 99);
      const auto at = static_cast<std::int64_t>(x.size()) - n;
      k.quantize(x.data() + at, n, 2.0f, y.data());
      for (std::int64_t i = 0; i < n; ++i) REQUIRE(y[i] == std::nearbyint(x[at + i] * 2.0f));
      REQUIRE(y[n] == 99);
    }
  });
}

TEST_CASE("every fp8 code is read as its number, in whole vectors and parts of one") {
  std::uint8_t codes[256];
  for (int c = 0; c < 256; ++c) codes[c] = static_cast<std::uint8_t>(c);
  for_each_table([&](const cpu::Kernels& k) {
    float y[256];
    for (const std::int64_t n : {1, 7, 16, 256}) {
      for (std::int64_t first = 0; first + n <= 256; first += n) {
        k.to_float(codes + first, DType::fp8, n, y);
        for (std::int64_t i = 0; i < n; ++i) {
          const double want = testing::fp8_number(codes[first + i]);
          if (y[i] != want || std::signbit(y[i]) != std::signbit(want)) FAIL(first + i);
        }
      }
    }
  });
}

TEST_CASE("quantize_fp8 rounds to the nearest number, even at ties, and saturates") {
  std::vector<float> x{0.0f, -0.0f, 1e-40f, -1e-30f, 448.0f, 464.0f, -465.0f, 1e30f, -INFINITY};
  for (int c = 0; c < 0x7e; ++c) {
    const float low = static_cast<float>(testing::fp8_number(static_cast<std::uint8_t>(c)));
    const float high = static_cast<float>(testing::fp8_number(static_cast<std::uint8_t>(c + 1)));
    const float middle = (low + high) / 2;
    for (const float v : {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)})
      x.push_back(c % 3 == 0 ? -v : v);
  }
  for_each_table([&](const cpu::Kernels& k) {
    const auto size = static_cast<std::int64_t>(x.size());
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{7}, std::int64_t{16}, size}) {
      for (std::int64_t at = 0; at + n <= size; at += n) {
        std::vector<cpu::Fp8> y(x.size() + 1, cpu::Fp8{99});
        k.quantize_fp8(x.data() + at, n, 0.5f, y.data());
        for (std::int64_t i = 0; i < n; ++i) {
          const std::uint8_t want = testing::nearest_fp8(static_cast<double>(x[at + i]) * 0.5);
          if (y[i].bits != want) FAIL(x[at + i] << " gives " << int{y[i].bits});
        }
        REQUIRE(y[n].bits == 99);
      }
      // as they are, ties and all
      std::vector<cpu::Fp8> y(x.size());
      k.quantize_fp8(x.data(), size, 1.0f, y.data());
      for (std::int64_t i = 0; i < size; ++i)
        if (y[i].bits != testing::nearest_fp8(x[i])) FAIL(x[i] << " gives " << int{y[i].bits});
    }
  });
}

TEST_CASE("exp2_row is right to 2e-7, and 0 far down") {
  for_each_table([&](const cpu::Kernels& k) {
    std::vector<float> x;
    for (float v = 0.0f; v > -125.9f; v -= 0.00731f) x.push_back(v);
    auto y = x;
    const float sum = k.exp2_row(y.data(), static_cast<std::int64_t>(y.size()), 0.0f);
    double want_sum = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double want = std::exp2(static_cast<double>(x[i]));
      REQUIRE(std::abs(y[i] / want - 1.0) < 2e-7);
      want_sum += want;
    }
    REQUIRE(testing::near(sum, want_sum, 1e-6));
    REQUIRE(y[0] == 1.0f);
    std::vector<float> down = {-1000.0f, -std::numeric_limits<float>::infinity(), -127.0f, -3e38f,
                               -200.0f};
    REQUIRE(k.exp2_row(down.data(), 5, 0.0f) == 0.0f);
    for (float v : down) REQUIRE(v == 0.0f);
    std::vector<float> nan = {-1.0f, std::numeric_limits<float>::quiet_NaN()};
    REQUIRE(std::isnan(k.exp2_row(nan.data(), 2, 0.0f)));
  });
}

double reference_surprise(const float* x, std::int64_t vocab, std::int64_t target) {
  double max = -INFINITY, sum = 0.0;
  for (std::int64_t i = 0; i < vocab; ++i) max = std::max(max, static_cast<double>(x[i]));
  for (std::int64_t i = 0; i < vocab; ++i) sum += std::exp(x[i] - max);
  return max + std::log(sum) - x[target];
}

TEST_CASE("token_surprise equals float64 to 1e-6") {
  Random random(4);
  const int threads = max_threads();
  for_each_table([&](const cpu::Kernels&) {
    for (std::int64_t vocab : {1, 2, 7, 16, 33, 512, 1024, 1500, 32000}) {
      for (float sigma : {0.1f, 3.0f, 30.0f}) {
        const std::int64_t n = vocab > 5000 ? 5 : 40, stride = vocab + 2;
        const auto logits = testing::normal(random, n * stride, sigma);
        std::vector<std::int64_t> targets(n);
        for (auto& t : targets) t = testing::uniform(random, 0, vocab - 1);
        std::vector<float> out(n), again(n);
        set_max_threads(1);
        token_surprise(logits.data(), n, vocab, stride, targets.data(), out.data());
        set_max_threads(2);
        token_surprise(logits.data(), n, vocab, stride, targets.data(), again.data());
        REQUIRE(std::memcmp(out.data(), again.data(), n * sizeof(float)) == 0);
        for (std::int64_t i = 0; i < n; ++i) {
          const double want = reference_surprise(logits.data() + i * stride, vocab, targets[i]);
          REQUIRE(std::abs(out[i] - want) < 1e-6 * (1.0 + want));
        }
      }
    }
  });
  set_max_threads(threads);
}

TEST_CASE("token_surprise refuses NaN, infinity and foreign tokens, and takes masked logits") {
  for_each_table([&](const cpu::Kernels&) {
    for (std::int64_t vocab : {3, 100, 3000}) {
      std::vector<float> x(vocab, 1.0f);
      std::int64_t target = 1;
      float out = 0.0f;
      const auto run = [&] { token_surprise(x.data(), 1, vocab, vocab, &target, &out); };
      x[vocab - 1] = -INFINITY;
      run();
      REQUIRE(testing::near(out, std::log(vocab - 1.0), 1e-6));
      for (float bad : {NAN, INFINITY, -NAN}) {
        for (std::int64_t at : {std::int64_t{0}, vocab / 2, vocab - 1}) {
          auto saved = x;
          x[at] = bad;
          REQUIRE_THROWS_AS(run(), DataError);
          x = saved;
        }
      }
      target = vocab;
      REQUIRE_THROWS_AS(run(), DataError);
      target = -1;
      REQUIRE_THROWS_AS(run(), DataError);
      target = 0;
      std::fill(x.begin(), x.end(), -INFINITY);
      REQUIRE_THROWS_AS(run(), DataError);
      token_surprise(nullptr, 0, vocab, vocab, nullptr, nullptr);
    }
  });
}

}  // namespace kernels_test
}  // namespace episodic
