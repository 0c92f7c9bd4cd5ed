// SPDX-License-Identifier: Apache-2.0
#include "kernels/surprise.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "support/test.hpp"

namespace {

using episodic::DType;
using episodic::kernels::SurpriseParams;
using episodic::kernels::token_surprise;

bool no_gpu() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
}

/// A copy in device memory.
class DeviceBytes {
 public:
  explicit DeviceBytes(std::size_t size) : size_(size) {
    REQUIRE(cudaMalloc(&data_, size + 1) == cudaSuccess);
  }
  DeviceBytes(const void* host, std::size_t size) : DeviceBytes(size) {
    REQUIRE(cudaMemcpy(data_, host, size, cudaMemcpyHostToDevice) == cudaSuccess);
  }
  ~DeviceBytes() { cudaFree(data_); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;

  void* data() const { return data_; }
  std::vector<float> floats() const {
    std::vector<float> out(size_ / sizeof(float));
    REQUIRE(cudaMemcpy(out.data(), data_, size_, cudaMemcpyDeviceToHost) == cudaSuccess);
    return out;
  }

 private:
  void* data_ = nullptr;
  std::size_t size_;
};

std::uint16_t to_half(float x) {  // normal numbers of its range only
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  const std::uint32_t rounded = u + 0xfffu + ((u >> 13) & 1u);
  return static_cast<std::uint16_t>(((u >> 16) & 0x8000u) |
                                    (((rounded & 0x7fffffffu) - 0x38000000u) >> 13));
}

float from_half(std::uint16_t h) {
  const std::uint32_t u = ((h & 0x8000u) << 16) | (((h & 0x7fffu) << 13) + 0x38000000u);
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

struct Result {
  std::vector<float> surprise, log_sum_exp;
};

/// Runs the kernel on `logits` stored as `dtype`, starting `shift` elements into the memory.
/// `logits` is rounded to what is stored.
Result run(std::vector<float>& logits, DType dtype, std::int64_t n, std::int64_t vocab,
           std::int64_t row_stride, std::int64_t shift, const std::vector<std::int64_t>& targets) {
  const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
  std::vector<unsigned char> stored((logits.size() + static_cast<std::size_t>(shift)) * element);
  for (std::size_t i = 0; i < logits.size(); ++i) {
    unsigned char* at = stored.data() + (i + static_cast<std::size_t>(shift)) * element;
    if (dtype == DType::float32) {
      std::memcpy(at, &logits[i], 4);
    } else {
      const std::uint16_t h =
          dtype == DType::bfloat16 ? episodic::to_bfloat16(logits[i]) : to_half(logits[i]);
      logits[i] = dtype == DType::bfloat16 ? episodic::from_bfloat16(h) : from_half(h);
      std::memcpy(at, &h, 2);
    }
  }
  const DeviceBytes d_logits(stored.data(), stored.size());
  const DeviceBytes d_targets(targets.data(), targets.size() * sizeof(std::int64_t));
  const DeviceBytes d_surprise(static_cast<std::size_t>(n) * 4),
      d_sum(static_cast<std::size_t>(n) * 4);
  SurpriseParams p;
  p.logits =
      static_cast<unsigned char*>(d_logits.data()) + static_cast<std::size_t>(shift) * element;
  p.dtype = dtype;
  p.n = n;
  p.vocab = vocab;
  p.row_stride = row_stride;
  p.targets = static_cast<const std::int64_t*>(d_targets.data());
  p.surprise = static_cast<float*>(d_surprise.data());
  p.maybe_log_sum_exp = static_cast<float*>(d_sum.data());
  REQUIRE(token_surprise(p, nullptr) == cudaSuccess);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  return {d_surprise.floats(), d_sum.floats()};
}

}  // namespace

TEST_CASE("surprise kernel agrees with float64 for every dtype, size and alignment") {
  if (no_gpu()) EPISODIC_SKIP("no CUDA device");
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.0f, 4.0f);
  for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16})
    for (const std::int64_t vocab : {1, 3, 511, 512, 1025, 32003, 128256})
      for (const std::int64_t n : {1, 5})
        for (const std::int64_t shift : {0, 1}) {
          const std::int64_t row_stride = vocab + shift * 3;
          std::vector<float> logits(static_cast<std::size_t>(n * row_stride));
          for (float& x : logits) {
            do x = normal(random);
            while (std::abs(x) < 1e-3f);  // inside the range of to_half
          }
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
                    1e-5 * (1 + std::log(sum)));
            REQUIRE(std::abs(static_cast<double>(result.surprise[i]) -
                             (std::log(sum) - static_cast<double>(row[targets[i]]))) < 3e-5);
            REQUIRE(std::memcmp(&result.surprise[i], &again.surprise[i], 4) == 0);
          }
        }
}

TEST_CASE("surprise kernel shows NaN rows and unknown targets as NaN, other rows untouched") {
  if (no_gpu()) EPISODIC_SKIP("no CUDA device");
  std::vector<float> logits(4 * 700, 0.5f);
  logits[700 + 699] = std::numeric_limits<float>::quiet_NaN();
  const Result result = run(logits, DType::float32, 4, 700, 700, 0, {3, 0, 700, -1});
  REQUIRE(std::abs(result.surprise[0] - std::log(700.0f)) < 1e-4f);
  for (const int i : {1, 2, 3}) REQUIRE(std::isnan(result.surprise[static_cast<std::size_t>(i)]));
  REQUIRE(std::isfinite(result.log_sum_exp[2]));
}

TEST_CASE("surprise kernel takes more rows than a grid has blocks") {
  if (no_gpu()) EPISODIC_SKIP("no CUDA device");
  constexpr std::int64_t kRows = 70001;
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
