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

namespace {

using episodic::DType;
using episodic::kernels::SurpriseParams;
using episodic::kernels::token_surprise;
using episodic_test::DeviceArray;

struct Result {
  std::vector<float> surprise, log_sum_exp;
};

/// Runs the kernel on `logits` stored as `dtype`, starting `shift` elements into the memory.
/// `logits` is rounded to what is stored.
Result run(std::vector<float>& logits, DType dtype, std::int64_t n, std::int64_t vocab,
           std::int64_t row_stride, std::int64_t shift, const std::vector<std::int64_t>& targets) {
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
  REQUIRE(token_surprise(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return {d_surprise.host(), d_sum.host()};
}

}  // namespace

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
          const Result result = run(logits, dtype, n, vocab, row_stride, shift, targets);
          const Result again = run(logits, dtype, n, vocab, row_stride, shift, targets);
          for (std::size_t i = 0; i < targets.size(); ++i) {
            const float* row = logits.data() + static_cast<std::int64_t>(i) * row_stride;
            double sum = 0;
            for (std::int64_t j = 0; j < vocab; ++j) sum += std::exp(static_cast<double>(row[j]));
            REQUIRE(std::abs(static_cast<double>(result.log_sum_exp[i]) - std::log(sum)) <
                    1e-5 * (1 + std::abs(std::log(sum))));
            REQUIRE(std::abs(static_cast<double>(result.surprise[i]) -
                             (std::log(sum) - static_cast<double>(row[targets[i]]))) < 3e-5);
            REQUIRE(std::memcmp(&result.surprise[i], &again.surprise[i], 4) == 0);
          }
        }
}

TEST_CASE("surprise kernel shows NaN rows and unknown targets as NaN, other rows untouched") {
  EPISODIC_NEEDS_DEVICE();
  std::vector<float> logits(4 * 700, 0.5f);
  logits[700 + 699] = std::numeric_limits<float>::quiet_NaN();
  const Result result = run(logits, DType::float32, 4, 700, 700, 0, {3, 0, 700, -1});
  REQUIRE(std::abs(result.surprise[0] - std::log(700.0f)) < 1e-4f);
  for (const int i : {1, 2, 3}) REQUIRE(std::isnan(result.surprise[static_cast<std::size_t>(i)]));
  REQUIRE(std::isfinite(result.log_sum_exp[2]));
}

TEST_CASE("surprise kernel refuses the rows that the host refuses, and is never below 0") {
  EPISODIC_NEEDS_DEVICE();
  const float inf = std::numeric_limits<float>::infinity();
  constexpr std::size_t kVocab = 700;
  std::vector<float> logits(6 * kVocab, 0.25f);
  const auto row = [&](std::size_t i) { return logits.begin() + static_cast<long>(i * kVocab); };
  row(0)[5] = inf;  // +inf beside the target
  row(1)[3] = inf;  // +inf is the target
  std::fill_n(row(2), kVocab, -inf);
  row(3)[3] = -inf;  // cannot come, and comes
  std::fill_n(row(4), kVocab, -inf);
  row(4)[3] = 17.3f;  // nothing else can come
  row(5)[3] = 90.0f;  // hardly anything else
  const Result result =
      run(logits, DType::float32, 6, kVocab, kVocab, 0, std::vector<std::int64_t>(6, 3));
  for (const std::size_t i : {0, 1, 2}) REQUIRE(std::isnan(result.surprise[i]));
  REQUIRE(result.surprise[3] == inf);
  for (const std::size_t i : {4, 5}) {
    REQUIRE(result.surprise[i] == 0.0f);
    REQUIRE_FALSE(std::signbit(result.surprise[i]));
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
