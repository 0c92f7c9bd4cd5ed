// SPDX-License-Identifier: Apache-2.0
#include "kernels/surprise.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "kernels/device.hpp"

namespace surprise_test {

using episodic::DType;
using episodic::kernels::SurpriseParams;
using episodic::kernels::token_surprise;
using episodic_test::DeviceArray;

struct Result {
  std::vector<float> surprise, log_sum_exp;
};

/// Runs the kernel on `logits` stored as `dtype`, starting `shift` elements into the memory.
/// `logits` is rounded to what is stored. \param parts whether several blocks share a row
Result run(std::vector<float>& logits, DType dtype, std::int64_t n, std::int64_t vocab,
           std::int64_t row_stride, std::int64_t shift, const std::vector<std::int64_t>& targets,
           bool parts = false) {
  std::vector<unsigned char> bytes = episodic_test::stored(logits, dtype);
  const auto offset = static_cast<std::size_t>(shift * episodic::size_of(dtype));
  bytes.insert(bytes.begin(), offset, 0);
  const DeviceArray<unsigned char> d_logits(bytes);
  const DeviceArray<std::int64_t> d_targets(targets);
  const DeviceArray<float> d_surprise(targets.size()), d_sum(targets.size());
  SurpriseParams p;
  p.logits = d_logits.data() + offset;
  p.dtype = dtype;
  p.n = n;
  p.vocab = vocab;
  p.row_stride = row_stride;
  p.targets = d_targets.data();
  p.surprise = d_surprise.data();
  p.maybe_log_sum_exp = d_sum.data();
  const DeviceArray<episodic::kernels::OnlineSoftmax> d_parts(targets.size() *
                                                              episodic::kernels::kSurpriseParts);
  const std::vector<std::uint32_t> none(targets.size(), 0);
  const DeviceArray<std::uint32_t> d_arrived(none);
  if (parts) {
    p.maybe_parts = d_parts.data();
    p.maybe_arrived = d_arrived.data();
  }
  REQUIRE(token_surprise(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  REQUIRE(d_arrived.host() == none);
  return {d_surprise.host(), d_sum.host()};
}

TEST_CASE("surprise kernel agrees with float64 for every dtype, size and alignment") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const std::int64_t vocab : {1, 3, 511, 512, 1025, 32003, 128256})
      for (const std::int64_t n : {1, 5})
        for (const std::int64_t shift : {0, 1}) {
          const std::int64_t row_stride = vocab + shift * 3;
          std::vector<float> logits(static_cast<std::size_t>(n * row_stride));
          for (float& x : logits) x = normal(random);
          std::vector<std::int64_t> targets(static_cast<std::size_t>(n));
          for (std::int64_t& t : targets)
            t = static_cast<std::int64_t>(random() % static_cast<unsigned>(vocab));
          std::vector<double> sums;
          for (const bool parts : {false, true}) {
            const Result result = run(logits, dtype, n, vocab, row_stride, shift, targets, parts);
            const Result again = run(logits, dtype, n, vocab, row_stride, shift, targets, parts);
            for (std::size_t i = 0; i < targets.size(); ++i) {
              const float* row = logits.data() + static_cast<std::int64_t>(i) * row_stride;
              if (!parts) {
                double sum = 0;
                for (std::int64_t j = 0; j < vocab; ++j)
                  sum += std::exp(static_cast<double>(row[j]));
                sums.push_back(std::log(sum));
              }
              REQUIRE(std::abs(static_cast<double>(result.log_sum_exp[i]) - sums[i]) <
                      1e-5 * (1 + std::abs(sums[i])));
              REQUIRE(std::abs(static_cast<double>(result.surprise[i]) -
                               (sums[i] - static_cast<double>(row[targets[i]]))) < 3e-5);
              REQUIRE(std::memcmp(&result.surprise[i], &again.surprise[i], 4) == 0);
            }
          }
        }
}

TEST_CASE("surprise of rows in parts does not depend on the order of their blocks") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(8);
  constexpr std::int64_t kVocab = 9000;
  std::vector<float> logits =
      episodic_test::normal_floats(static_cast<std::size_t>(3 * kVocab), random, 4.0f);
  std::vector<std::vector<float>> results;
  episodic_test::in_every_order([&] {
    results.push_back(
        run(logits, DType::float32, 3, kVocab, kVocab, 0, {0, 5000, kVocab - 1}, true).surprise);
  });
  for (const auto& result : results) REQUIRE(result == results.front());
}

TEST_CASE("surprise kernel shows NaN rows and unknown targets as NaN, other rows untouched") {
  EPISODIC_NEEDS_DEVICE();
  for (const std::int64_t vocab : {700, 7000}) {
    std::vector<float> logits(static_cast<std::size_t>(4 * vocab), 0.5f);
    logits[static_cast<std::size_t>(2 * vocab - 1)] = std::numeric_limits<float>::quiet_NaN();
    const Result result =
        run(logits, DType::float32, 4, vocab, vocab, 0, {3, 0, vocab, -1}, vocab > 700);
    REQUIRE(std::abs(result.surprise[0] - std::log(static_cast<float>(vocab))) < 1e-4f);
    for (const int i : {1, 2, 3}) REQUIRE(std::isnan(result.surprise[static_cast<std::size_t>(i)]));
    REQUIRE(std::isfinite(result.log_sum_exp[2]));
  }
}

TEST_CASE("surprise kernel refuses the rows that the host refuses, and is never below 0") {
  EPISODIC_NEEDS_DEVICE();
  const float inf = std::numeric_limits<float>::infinity();
  for (const std::int64_t vocab : {700, 7000}) {
    const auto width = static_cast<std::size_t>(vocab);
    std::vector<float> logits(6 * width, 0.25f);
    const auto row = [&](std::size_t i) { return logits.begin() + static_cast<long>(i * width); };
    row(0)[vocab - 5] = inf;  // +inf beside the target
    row(1)[3] = inf;          // +inf is the target
    std::fill_n(row(2), vocab, -inf);
    row(3)[3] = -inf;  // cannot come, and comes
    std::fill_n(row(4), vocab, -inf);
    row(4)[3] = 17.3f;  // nothing else can come
    row(5)[3] = 90.0f;  // hardly anything else
    const Result result = run(logits, DType::float32, 6, vocab, vocab, 0,
                              std::vector<std::int64_t>(6, 3), vocab > 700);
    for (const std::size_t i : {0, 1, 2}) REQUIRE(std::isnan(result.surprise[i]));
    REQUIRE(result.surprise[3] == inf);
    for (const std::size_t i : {4, 5}) {
      REQUIRE(result.surprise[i] == 0.0f);
      REQUIRE_FALSE(std::signbit(result.surprise[i]));
    }
  }
}

TEST_CASE("surprise kernel takes more rows than a grid has blocks") {
  EPISODIC_NEEDS_DEVICE();
  constexpr std::int64_t kRows = 5001;
  std::vector<float> logits(kRows * 2);
  for (std::size_t i = 0; i < kRows; ++i) logits[2 * i] = static_cast<float>(i % 13);
  const Result result =
      run(logits, DType::float32, kRows, 2, 2, 0, std::vector<std::int64_t>(kRows, 1));
  for (std::size_t i = 0; i < kRows; ++i)
    REQUIRE(std::abs(result.surprise[i] - std::log1p(std::exp(logits[2 * i]))) < 1e-5f);
}

/// What a head's products say, in pieces of `width` tokens.
struct Pieces {
  std::vector<float> surprise, last, kept;
};
Pieces in_pieces(const std::vector<float>& products, std::int64_t n, std::int64_t vocab,
                 std::int64_t width, float multiplier, float soft_cap, bool write_back,
                 const std::vector<std::int64_t>& targets) {
  const auto rows = static_cast<std::size_t>(n), columns = static_cast<std::size_t>(vocab);
  const DeviceArray<std::int64_t> d_targets(targets);
  const DeviceArray<episodic::kernels::SurpriseState> state(rows);
  const DeviceArray<float> surprise(rows), last(columns);
  Pieces out;
  out.kept.resize(products.size());
  episodic::kernels::SurprisePieceParams p;
  p.n = n;
  p.vocab = vocab;
  p.multiplier = multiplier;
  p.soft_cap = soft_cap;
  p.write_back = write_back;
  p.targets = d_targets.data();
  p.state = state.data();
  p.surprise = surprise.data();
  p.last = last.data();
  for (p.first = 0; p.first < vocab; p.first += p.cols) {
    p.cols = std::min(width, vocab - p.first);
    p.row_stride = p.cols + 1;
    std::vector<float> tile(rows * static_cast<std::size_t>(p.row_stride), 7.0f);
    for (std::int64_t i = 0; i < n; ++i)
      std::copy_n(products.begin() + i * vocab + p.first, p.cols, tile.begin() + i * p.row_stride);
    const DeviceArray<float> d_tile(tile);
    p.logits = d_tile.data();
    REQUIRE(surprise_piece(p, nullptr) == cudaSuccess);
    tile = d_tile.host();
    for (std::int64_t i = 0; i < n; ++i)
      std::copy_n(tile.begin() + i * p.row_stride, p.cols, out.kept.begin() + i * vocab + p.first);
  }
  out.surprise = surprise.host();
  out.surprise.resize(rows - 1);
  out.last = last.host();
  return out;
}

TEST_CASE("surprise in pieces of the vocabulary is that of whole rows") {
  EPISODIC_NEEDS_DEVICE();
  std::mt19937 random(3);
  for (const std::int64_t vocab : {1, 700, 2500})
    for (const std::int64_t n : {1, 2, 6})
      for (const bool finished : {false, true}) {
        const float multiplier = finished ? 1.0f : 0.5f, cap = finished ? 0.0f : 6.0f;
        const std::vector<float> products =
            episodic_test::normal_floats(static_cast<std::size_t>(n * vocab), random, 8.0f);
        std::vector<float> logits = products;
        for (float& x : logits) {
          x *= multiplier;
          if (cap > 0) x = cap * std::tanh(x / cap);
        }
        std::vector<std::int64_t> targets;
        for (std::int64_t i = 0; i < n; ++i)
          targets.push_back(static_cast<std::int64_t>(random() % static_cast<unsigned>(vocab)));
        const Result whole = run(logits, DType::float32, n, vocab, vocab, 0, targets);
        for (const std::int64_t width : {vocab, std::int64_t{512}, std::int64_t{1}}) {
          if (width == 1 && (vocab > 700 || n != 2)) continue;
          for (const bool write_back : {false, true}) {
            const Pieces got =
                in_pieces(products, n, vocab, width, multiplier, cap, write_back, targets);
            for (std::int64_t i = 0; i + 1 < n; ++i)
              REQUIRE(std::abs(got.surprise[static_cast<std::size_t>(i)] -
                               whole.surprise[static_cast<std::size_t>(i)]) < 3e-5f);
            for (std::int64_t v = 0; v < vocab; ++v)
              REQUIRE(std::abs(got.last[static_cast<std::size_t>(v)] -
                               logits[static_cast<std::size_t>((n - 1) * vocab + v)]) < 2e-6f);
            const std::vector<float>& kept = write_back ? logits : products;
            for (std::size_t i = 0; i < kept.size(); ++i)
              REQUIRE(std::abs(got.kept[i] - kept[i]) < 2e-6f);
          }
        }
      }
}

TEST_CASE("surprise in pieces shows what the rows of whole logits show") {
  EPISODIC_NEEDS_DEVICE();
  const float inf = std::numeric_limits<float>::infinity();
  constexpr std::size_t kVocab = 700;
  std::vector<float> logits(7 * kVocab, 0.25f);
  const auto row = [&](std::size_t i) { return logits.begin() + static_cast<long>(i * kVocab); };
  row(0)[5] = inf;
  row(1)[650] = std::numeric_limits<float>::quiet_NaN();
  std::fill_n(row(2), kVocab, -inf);
  std::fill_n(row(4), kVocab, -inf);
  row(4)[3] = 17.3f;  // nothing else can come, in whole pieces
  const Pieces got = in_pieces(logits, 7, kVocab, 100, 1.0f, 0.0f, false, {3, 3, 3, 3, 3, 700, 0});
  for (const std::size_t i : {0, 1, 2, 5}) REQUIRE(std::isnan(got.surprise[i]));
  REQUIRE(std::abs(got.surprise[3] - std::log(700.0f)) < 1e-4f);
  REQUIRE(got.surprise[4] == 0.0f);
}

TEST_CASE("surprise in pieces refuses parameters that make no sense, without a device") {
  episodic::kernels::SurprisePieceParams p;
  REQUIRE(surprise_piece(p, nullptr) == cudaErrorInvalidValue);
  p.cols = p.row_stride = p.vocab = 8;
  REQUIRE(surprise_piece(p, nullptr) == cudaSuccess);  // no rows
  p.n = 1;
  REQUIRE(surprise_piece(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  p.first = 1;
  p.n = 0;
  REQUIRE(surprise_piece(p, nullptr) == cudaErrorInvalidValue);  // beyond the vocabulary
}

TEST_CASE("surprise kernel refuses parameters that make no sense, without a device") {
  SurpriseParams p;
  REQUIRE(token_surprise(p, nullptr) == cudaErrorInvalidValue);  // vocab 0
  p.vocab = p.row_stride = 8;
  REQUIRE(token_surprise(p, nullptr) == cudaSuccess);  // no rows
  p.n = 1;
  REQUIRE(token_surprise(p, nullptr) == cudaErrorInvalidValue);  // null pointers
  p.row_stride = 7;
  REQUIRE(token_surprise(p, nullptr) == cudaErrorInvalidValue);
}

}  // namespace surprise_test
