// SPDX-License-Identifier: Apache-2.0
// Weights in blocks: as numbers to the bit of the host's, and products against float64.
#include "kernels/blocks.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <deque>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/rules/fp8.hpp"
#include "kernels/block_problem.hpp"
#include "kernels/mixture.hpp"
#include "kernels/product.hpp"

namespace blocks_test {

using block_problem::Kind;
using block_problem::kKinds;
using block_problem::Rows;
using block_problem::size;
using episodic::DType;
using episodic_test::DeviceArray;
using namespace episodic::kernels;

constexpr DType kFloats[] = {DType::float32, DType::float16, DType::bfloat16};

/// A product's rows: some matrices behind each other.
struct Matrices {
  std::deque<Rows> parts;
  BlockWeights blocks;
  std::vector<float> numbers;

  void add(Rows rows) {
    blocks.part[blocks.n_parts++] = rows.matrix();
    numbers.insert(numbers.end(), rows.numbers.begin(), rows.numbers.end());
    parts.push_back(std::move(rows));
  }
};

/// x [n, in] times the rows, and for each output the size of what was added up.
struct Sums {
  std::vector<double> sum, size;
};
Sums reference(const std::vector<double>& x, const std::vector<float>& w, std::int64_t n,
               std::int64_t in) {
  const std::int64_t out = static_cast<std::int64_t>(w.size()) / in;
  Sums s;
  for (std::int64_t i = 0; i < n; ++i)
    for (std::int64_t o = 0; o < out; ++o) {
      double sum = 0, added = 0;
      for (std::int64_t c = 0; c < in; ++c) {
        const double term = x[size(i * in + c)] * static_cast<double>(w[size(o * in + c)]);
        sum += term;
        added += std::abs(term);
      }
      s.sum.push_back(sum);
      s.size.push_back(added);
    }
  return s;
}

std::vector<double> rounded_rows(const std::vector<float>& x, std::int64_t n, std::int64_t in) {
  std::vector<double> all;
  for (std::int64_t i = 0; i < n; ++i) {
    const std::vector<double> row = block_problem::rounded(x.data() + size(i * in), in);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

TEST_CASE("weights in blocks of every type are widened to the bits of the host's") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(3);
  for (const std::int64_t in : {256, 768})
    for (const DType dtype : kFloats) {
      Matrices all;
      std::int64_t rows = 0;
      const auto check = [&] {
        for (const std::int64_t first : {std::int64_t{0}, rows / 2, rows - 1}) {
          const std::int64_t count = std::min<std::int64_t>(rows - first, 5);
          const DeviceArray<unsigned char> y(size(count * in, episodic::size_of(dtype)));
          WidenBlocksParams p{dtype, all.blocks, first, count, in, y.data()};
          REQUIRE(widen_blocks(p, nullptr) == cudaSuccess);
          std::vector<float> wanted(all.numbers.begin() + first * in,
                                    all.numbers.begin() + (first + count) * in);
          REQUIRE(y.host() == episodic_test::stored(wanted, dtype));
        }
        all = {};
        rows = 0;
      };
      for (const Kind& kind : kKinds) {
        const std::int64_t of_part = 1 + static_cast<std::int64_t>(random() % 4);
        all.add(Rows(kind, of_part, in, random));
        rows += of_part;
        if (all.blocks.n_parts == kMostBlockParts) check();
      }
      all.add(Rows(3, in, random));
      rows += 3;
      check();
    }
}

TEST_CASE("tokens' rows are read out of a table in blocks") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(4);
  constexpr std::int64_t kVocab = 9, kWidth = 512;
  const std::vector<std::int64_t> ids = {3, 0, 8, 9, -1, 3};
  const DeviceArray<std::int64_t> d_ids(ids);
  for (const Kind& kind : kKinds) {
    const Rows table(kind, kVocab, kWidth, random);
    const DeviceArray<float> hidden(ids.size() * size(kWidth));
    EmbedParams p;
    p.vocab = kVocab;
    p.width = kWidth;
    p.ids = d_ids.data();
    p.n = static_cast<std::int64_t>(ids.size());
    p.hidden = hidden.data();
    p.multiplier = 3.0f;
    REQUIRE(embed_blocks(p, table.matrix(), nullptr) == cudaSuccess);
    const std::vector<float> got = hidden.host();
    for (std::size_t i = 0; i < ids.size(); ++i)
      for (std::size_t c = 0; c < size(kWidth); ++c) {
        const float x = got[i * size(kWidth) + c];
        if (ids[i] < 0 || ids[i] >= kVocab)
          REQUIRE(std::isnan(x));
        else
          REQUIRE(x == 3.0f * table.numbers[size(ids[i], kWidth) + c]);
      }
    BlockMatrix none = table.matrix();
    none.data = nullptr;
    REQUIRE(std::string(invalid_field(p, none)) == "data");
    p.width = 40;
    REQUIRE(std::string(invalid_field(p, table.matrix())) == "width");
  }
}

/// A product's parameters, and what its rows are.
struct Case {
  Case(DType dtype, std::int64_t n, std::int64_t in, const Matrices& w, bool of_hidden, bool biased,
       std::mt19937& random)
      : x(episodic_test::normal_floats(size(n * in), random)),
        d_x(episodic_test::stored(x, of_hidden ? DType::float32 : dtype)),
        norm(episodic_test::normal_floats(size(in), random)),
        d_norm(norm),
        bias(episodic_test::normal_floats(w.numbers.size() / size(in), random)),
        d_bias(bias) {
    p.dtype = dtype;
    p.n = n;
    p.in = in;
    p.out = static_cast<std::int64_t>(bias.size());
    p.blocks = w.blocks;
    if (biased) p.maybe_bias = d_bias.data();
    if (!of_hidden) {
      p.x = d_x.data();
      return;
    }
    p.hidden = reinterpret_cast<const float*>(d_x.data());
    p.maybe_norm = d_norm.data();
    p.eps = 1e-5f;
    for (std::int64_t i = 0; i < n; ++i) {
      double squares = 0;
      for (std::int64_t c = 0; c < in; ++c)
        squares += std::pow(static_cast<double>(x[size(i * in + c)]), 2);
      const double factor = 1 / std::sqrt(squares / static_cast<double>(in) + 1e-5);
      for (std::int64_t c = 0; c < in; ++c)
        x[size(i * in + c)] *= static_cast<float>(factor) * norm[size(c)];
    }
  }

  std::vector<float> x;
  DeviceArray<unsigned char> d_x;
  std::vector<float> norm;
  DeviceArray<float> d_norm;
  std::vector<float> bias;
  DeviceArray<float> d_bias;
  ProductParams p;
};

std::vector<float> run_product(const ProductParams& p) {
  const DeviceArray<float> y(size(p.n * p.out));
  float* rows[kMostProductRows] = {};
  for (std::int64_t i = 0; i < p.n; ++i) rows[i] = y.data() + i * p.out;
  REQUIRE(invalid_field(p, rows) == nullptr);
  REQUIRE(product(p, rows, nullptr) == cudaSuccess);
  return y.host();
}

/// All that is done with a product, of every row count; `x` is what the weights are multiplied
/// with.
void check_products(const Case& c, const Matrices& w, const std::vector<double>& x, double within) {
  const ProductParams& p = c.p;
  const Sums wanted = reference(x, w.numbers, p.n, p.in);
  std::vector<float> first;
  episodic_test::in_every_order([&] {
    const std::vector<float> got = run_product(p);
    for (std::size_t i = 0; i < got.size(); ++i) {
      const double bias = p.maybe_bias ? static_cast<double>(c.bias[i % size(p.out)]) : 0.0;
      REQUIRE(std::abs(static_cast<double>(got[i]) - wanted.sum[i] - bias) <=
              within * (wanted.size[i] + std::abs(bias)) + 1e-6);
    }
    if (first.empty()) first = got;
    REQUIRE(first == got);
  });
  const DeviceArray<unsigned char> narrow(size(p.n * p.out, episodic::size_of(p.dtype)));
  REQUIRE(narrow_product(p, narrow.data(), nullptr) == cudaSuccess);
  std::vector<float> rounded = first;
  REQUIRE(narrow.host() == episodic_test::stored(rounded, p.dtype));
  std::mt19937 random(9);
  const std::vector<float> before = episodic_test::normal_floats(size(p.n * p.out), random);
  const DeviceArray<float> sum(before);
  REQUIRE(add_product(p, 0.25f, sum.data(), nullptr) == cudaSuccess);
  const std::vector<float> added = sum.host();
  for (std::size_t i = 0; i < added.size(); ++i)
    REQUIRE(added[i] == std::fmaf(0.25f, first[i], before[i]));
  // Each row alone is the same to the bit.
  for (std::int64_t i = 0; i < p.n; ++i) {
    ProductParams alone = p;
    alone.n = 1;
    if (p.hidden)
      alone.hidden += i * p.in;
    else
      alone.x = static_cast<const unsigned char*>(p.x) + i * p.in * episodic::size_of(p.dtype);
    const std::vector<float> got = run_product(alone);
    REQUIRE(std::equal(got.begin(), got.end(), first.begin() + i * p.out));
  }
}

TEST_CASE("products of few rows with blocks of every type are float64's of rounded rows") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(5);
  int trial = 0;
  for (const Kind& kind : kKinds)
    for (const std::int64_t n : {1, 3, 4})
      for (const std::int64_t blocks : {1, 3, 9})
        for (const std::int64_t out : {1, 31, 70}) {
          if (n > 1 && out == 31 && blocks == 9) continue;
          const std::int64_t in = blocks * block_multiple(kind.type);
          Matrices w;
          w.add(Rows(kind, out, in, random));
          const bool of_hidden = trial % 2;
          const Case c(kFloats[trial % 3], n, in, w, of_hidden, trial % 3 == 0, random);
          ++trial;
          // Rows that are made of hidden may round to the next code where float64 is at the middle.
          check_products(c, w, rounded_rows(c.x, n, in), of_hidden ? 2e-3 : 1e-6);
        }
}

TEST_CASE("products with blocks equal the host's to rounding") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(6);
  for (const Kind& kind : kKinds)
    for (const std::int64_t n : {1, 4}) {
      constexpr std::int64_t kIn = 1024, kOut = 40;
      Matrices w;
      w.add(Rows(kind, kOut, kIn, random));
      const Case c(DType::float32, n, kIn, w, false, false, random);
      const std::vector<float> got = run_product(c.p);
      std::vector<float> host(got.size());
      episodic::cpu::WeightProduct p;
      p.type = kind.stored;
      p.weight = w.parts[0].stored().data();
      p.out = kOut;
      p.in = p.x_stride = kIn;
      p.x = c.x.data();
      p.y = host.data();
      p.y_stride = kOut;
      episodic::cpu::multiply_weights(n, {&p, 1}, {.rows = episodic::cpu::RowClass::few});
      const Sums wanted = reference({c.x.begin(), c.x.end()}, w.numbers, n, kIn);
      // Without the host's integer loops its activations are not rounded.
      const double within = std::getenv("EPISODIC_CPU") ? 4e-3 : 2e-6;
      for (std::size_t i = 0; i < got.size(); ++i)
        REQUIRE(std::abs(got[i] - host[i]) <= within * wanted.size[i]);
    }
}

TEST_CASE("a product's rows of several types are those of each alone, to the bit") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(7);
  constexpr std::int64_t kIn = 512;
  for (const std::int64_t n : {1, 4}) {
    Matrices w;
    for (const std::size_t kind : {5, 7, 8, 0}) w.add(Rows(kKinds[kind], 12, kIn, random));
    const Case c(DType::bfloat16, n, kIn, w, false, false, random);
    const std::vector<float> got = run_product(c.p);
    for (int part = 0; part < 4; ++part) {
      ProductParams alone = c.p;
      alone.blocks = {1, {w.blocks.part[part]}};
      alone.out = 12;
      const std::vector<float> own = run_product(alone);
      for (std::int64_t i = 0; i < n; ++i)
        REQUIRE(std::equal(own.begin() + i * 12, own.begin() + (i + 1) * 12,
                           got.begin() + i * 48 + part * 12));
    }
  }
}

TEST_CASE("products with E4M3 and a scale a row are float64's") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  int trial = 0;
  for (const std::int64_t n : {1, 3, 4})
    for (const std::int64_t in : {32, 544})
      for (const std::int64_t out : {1, 31, 70}) {
        Matrices w;
        w.add(Rows(out, in, random));
        const Case c(kFloats[trial % 3], n, in, w, false, trial % 2, random);
        ++trial;
        check_products(c, w, {c.x.begin(), c.x.end()}, 1e-6);
      }
  unsigned char codes[32] = {};
  codes[7] = 0xff;
  float scale = 1.0f;
  unsigned char planes[48];
  REQUIRE_FALSE(pack_fp8_rows(codes, &scale, 1, 32, {planes, nullptr, nullptr, planes + 32}));
}

TEST_CASE("a gate of weights in blocks is that of its two products") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(9);
  for (const Kind& kind : kKinds)
    for (const std::int64_t n : {1, 2}) {
      constexpr std::int64_t kIn = 256, kInner = 33;
      Matrices w;
      w.add(Rows(kind, 2 * kInner, kIn, random));
      const Case c(DType::float32, n, kIn, w, true, true, random);
      const std::vector<float> both = run_product(c.p);
      const DeviceArray<float> y(size(n * kInner));
      REQUIRE(gated_product(c.p, GateActivation::silu, y.data(), nullptr) == cudaSuccess);
      const std::vector<float> got = y.host();
      for (std::int64_t i = 0; i < n; ++i)
        for (std::int64_t o = 0; o < kInner; ++o) {
          const double g = both[size(i * 2 * kInner + o)], u = both[size((i * 2 + 1) * kInner + o)];
          const double wanted = g / (1 + std::exp(-g)) * u;
          REQUIRE(std::abs(got[size(i * kInner + o)] - wanted) <= 1e-5 * (1 + std::abs(wanted)));
        }
    }
}

TEST_CASE("rows that are no numbers, and infinite ones, spoil none beside them") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(10);
  constexpr std::int64_t kIn = 256, kOut = 6, kRows = 4;
  for (const Kind& kind : kKinds) {
    Matrices w;
    w.add(Rows(kind, kOut, kIn, random));
    Case c(DType::float32, kRows, kIn, w, false, false, random);
    const std::vector<float> before = run_product(c.p);
    c.x[size(kIn + 40)] = std::numeric_limits<float>::quiet_NaN();
    c.x[size(3 * kIn + 255)] = std::numeric_limits<float>::infinity();
    std::fill_n(c.x.begin() + 2 * kIn, kIn, 1e-33f);  // too small for a scale
    const DeviceArray<float> x(c.x);
    c.p.x = x.data();
    const std::vector<float> got = run_product(c.p);
    for (std::int64_t o = 0; o < kOut; ++o) {
      REQUIRE(got[size(o)] == before[size(o)]);
      REQUIRE(std::isnan(got[size(kOut + o)]));
      REQUIRE(got[size(2 * kOut + o)] == 0.0f);
      REQUIRE_FALSE(std::isfinite(got[size(3 * kOut + o)]));
    }
  }
}

TEST_CASE("what products with blocks do not take is refused by name") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(11);
  Matrices w;
  w.add(Rows(kKinds[5], 4, 512, random));
  w.add(Rows(kKinds[7], 4, 512, random));
  const Case c(DType::bfloat16, 1, 512, w, false, false, random);
  const DeviceArray<float> y(16);
  float* rows[kMostProductRows] = {y.data()};
  const auto refused = [&](const ProductParams& p) {
    const char* field = invalid_field(p, rows);
    REQUIRE(product(p, rows, nullptr) != cudaSuccess);
    return std::string(field ? field : "nothing");
  };
  ProductParams p = c.p;
  REQUIRE(invalid_field(p, rows) == nullptr);
  p.weight = y.data();
  REQUIRE(refused(p) == "weight");
  p = c.p;
  p.blocks.n_parts = kMostBlockParts + 1;
  REQUIRE(refused(p) == "blocks");
  p = c.p;
  p.blocks.part[1].data = nullptr;
  REQUIRE(refused(p) == "blocks");
  p.blocks.part[1].data = static_cast<const unsigned char*>(w.blocks.part[1].data) + 8;
  REQUIRE(product(p, rows, nullptr) == cudaErrorMisalignedAddress);
  p = c.p;
  p.out = 9;
  REQUIRE(refused(p) == "out");
  p = c.p;
  p.blocks.part[0].rows = 3;  // an odd number before another type
  p.out = 7;
  REQUIRE(refused(p) == "in");
  p = c.p;
  p.in = 480;  // no multiple of 256
  REQUIRE(refused(p) == "in");
  REQUIRE(std::string(invalid_field(c.p, GateActivation::silu, y.data())) == "blocks");
  REQUIRE_FALSE(takes_product(c.p.blocks, 4, 65536));
  REQUIRE(takes_product(c.p.blocks, 1, 65536));
  REQUIRE_FALSE(takes_product(c.p.blocks, kMostProductRows + 1, 512));
  WidenBlocksParams widen{DType::float32, w.blocks, 0, 8, 512, y.data()};
  widen.first = 1;
  REQUIRE(std::string(invalid_field(widen)) == "rows");
  widen.from.n_parts = 0;
  REQUIRE(std::string(invalid_field(widen)) == "from");
}

TEST_CASE("experts in blocks are float64's of rounded rows") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(12);
  constexpr std::int64_t kRows = 3, kIn = 256, kWidth = 256, kExperts = 4, kChosen = 2, kOut = 20;
  int trial = 0;
  for (const Kind& kind : kKinds) {
    const DType dtype = kFloats[trial++ % 3];
    const Rows gate_up(kind, kExperts * 2 * kWidth, kIn, random);
    const Rows down(kind, kExperts * kOut, kWidth, random);
    std::vector<float> x = episodic_test::normal_floats(size(kRows * kIn), random, 0.1f);
    const DeviceArray<unsigned char> d_x(episodic_test::stored(x, dtype));
    const std::vector<std::int32_t> expert = {0, 3, 1, 2, 2, 3};
    const DeviceArray<std::int32_t> d_expert(expert);
    const std::vector<float> bias =
        episodic_test::normal_floats(size(kExperts * 2 * kWidth), random);
    const DeviceArray<float> d_bias(bias);
    const DeviceArray<unsigned char> inner(
        size(kRows * kChosen * kWidth, episodic::size_of(dtype)));
    ExpertGateParams p;
    p.dtype = dtype;
    p.x = d_x.data();
    p.blocks = gate_up.matrix();
    p.maybe_bias = d_bias.data();
    p.expert = d_expert.data();
    p.n = kRows;
    p.in = kIn;
    p.width = kWidth;
    p.chosen = kChosen;
    p.inner = inner.data();
    REQUIRE(expert_gate(p, nullptr) == cudaSuccess);
    const std::vector<float> got = episodic_test::floats(inner.host(), dtype);
    const std::vector<double> of_x = rounded_rows(x, kRows, kIn);
    const double within = dtype == DType::float32 ? 1e-4 : dtype == DType::float16 ? 2e-3 : 1e-2;
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < kChosen; ++j)
        for (std::int64_t c = 0; c < kWidth; ++c) {
          const std::int64_t e = expert[size(i * kChosen + j)];
          const auto dot = [&](std::int64_t row) {
            double sum = bias[size(row)];
            for (std::int64_t k = 0; k < kIn; ++k)
              sum += of_x[size(i * kIn + k)] *
                     static_cast<double>(gate_up.numbers[size(row * kIn + k)]);
            return sum;
          };
          const double g = dot(e * 2 * kWidth + c), u = dot(e * 2 * kWidth + kWidth + c);
          const double wanted = g / (1 + std::exp(-g)) * u;
          REQUIRE(std::abs(static_cast<double>(got[size((i * kChosen + j) * kWidth + c)]) -
                           wanted) <= within * (1 + std::abs(wanted)));
        }

    const std::vector<float> weight = episodic_test::normal_floats(expert.size(), random);
    const DeviceArray<float> d_weight(weight), sum(size(kRows * kOut));
    ExpertSumParams q;
    q.dtype = dtype;
    q.inner = inner.data();
    q.blocks = down.matrix();
    q.expert = d_expert.data();
    q.weight = d_weight.data();
    q.n = kRows;
    q.width = kWidth;
    q.out = kOut;
    q.chosen = kChosen;
    q.sum = sum.data();
    REQUIRE(expert_sum(q, nullptr) == cudaSuccess);
    const std::vector<float> sums = sum.host();
    const std::vector<double> of_inner = rounded_rows(got, kRows * kChosen, kWidth);
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t c = 0; c < kOut; ++c) {
        double wanted = 0, added = 0;
        for (std::int64_t j = 0; j < kChosen; ++j) {
          const std::int64_t at = i * kChosen + j, row = expert[size(at)] * kOut + c;
          for (std::int64_t k = 0; k < kWidth; ++k) {
            const double term = static_cast<double>(weight[size(at)]) *
                                of_inner[size(at * kWidth + k)] *
                                static_cast<double>(down.numbers[size(row * kWidth + k)]);
            wanted += term;
            added += std::abs(term);
          }
        }
        REQUIRE(std::abs(static_cast<double>(sums[size(i * kOut + c)]) - wanted) <=
                1e-6 * added + 1e-6);
      }

    ExpertGateParams bad = p;
    bad.gate_up = d_x.data();
    REQUIRE(std::string(invalid_field(bad)) == "blocks");
    bad = p;
    bad.blocks.rows += 1;
    REQUIRE(std::string(invalid_field(bad)) == "blocks");
    ExpertSumParams worse = q;
    worse.blocks.data = nullptr;
    REQUIRE(std::string(invalid_field(worse)) == "blocks");
    worse = q;
    worse.width = 1 << 20;
    REQUIRE(std::string(invalid_field(worse)) == "width");
  }
}

}  // namespace blocks_test
