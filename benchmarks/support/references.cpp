// SPDX-License-Identifier: Apache-2.0
#include "support/references.hpp"

#include <algorithm>
#include <cmath>

#include "episodic/base/parallel.hpp"

// Fortran BLAS, 32-bit integers.
extern "C" void sgemm_(const char* transa, const char* transb, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define EPISODIC_WIDEST_SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define EPISODIC_WIDEST_SIMD
#endif

namespace episodic::bench {
namespace {

constexpr std::int64_t kReadBlock = std::int64_t{1} << 17;  // words: 1 MiB a task

EPISODIC_WIDEST_SIMD std::uint64_t sum_words(const std::uint64_t* data, std::int64_t n) {
  // Several chains of additions, so that their latency does not hold up the loads.
  std::uint64_t lanes[32] = {};
  for (std::int64_t i = 0; i + 32 <= n; i += 32)
    for (int j = 0; j < 32; ++j) lanes[j] += data[i + j];
  std::uint64_t sum = 0;
  for (const std::uint64_t lane : lanes) sum += lane;
  return sum;
}

}  // namespace

GemmReference::GemmReference(double flops)
    : side_(std::max<std::int64_t>(16, 16 * std::llround(std::cbrt(flops / 2) / 16))) {
  const auto size = static_cast<std::size_t>(side_ * side_);
  a_.resize(size);
  b_.resize(size);
  c_.resize(size);
  for (std::size_t i = 0; i < size; ++i) {
    a_[i] = static_cast<float>(i % 17) - 8.0f;
    b_[i] = static_cast<float>(i % 13) - 6.0f;
  }
  rates();  // the first call makes the BLAS's threads and buffers
  wall_seconds_.clear();
}

Laps::Times GemmReference::rates() {
  const int n = static_cast<int>(side_);
  const float one = 1.0f, zero = 0.0f;
  Laps laps;
  sgemm_("N", "N", &n, &n, &n, &one, a_.data(), &n, b_.data(), &n, &zero, c_.data(), &n);
  const Laps::Times t = laps.lap();
  wall_seconds_.push_back(t.wall);
  const double flops = 2.0 * std::pow(static_cast<double>(side_), 3);
  return {flops / t.wall, flops / t.cpu};
}

Json GemmReference::to_json() const {
  const double flops = 2.0 * std::pow(static_cast<double>(side_), 3);
  return {
      {"what", "one square float32 sgemm of " EPISODIC_BLAS ", measured after every timed chunk"},
      {"m", side_},
      {"n", side_},
      {"k", side_},
      {"flops", flops},
      {"seconds", summary(wall_seconds_)},
      {"gflops", flops / median(wall_seconds_) * 1e-9}};
}

ReadReference::ReadReference() {
  const std::int64_t bytes =
      std::clamp(8 * last_level_cache_bytes(), std::int64_t{1} << 28, std::int64_t{1} << 30);
  data_.assign(static_cast<std::size_t>((bytes / 8 + kReadBlock - 1) / kReadBlock * kReadBlock), 1);
  sums_.resize(data_.size() / kReadBlock);
  rate();
  rates_.clear();
}

double ReadReference::rate() {
  Laps laps;
  parallel_for(static_cast<std::int64_t>(sums_.size()), [&](std::int64_t task) {
    sums_[static_cast<std::size_t>(task)] = sum_words(data_.data() + task * kReadBlock, kReadBlock);
  });
  const double rate = static_cast<double>(data_.size() * 8) / laps.lap().wall;
  // Uses the sums, so that the reads cannot be optimised away.
  std::uint64_t total = 0;
  for (const std::uint64_t s : sums_) total += s;
  rates_.push_back(total == data_.size() ? rate : 0.0);
  return rates_.back();
}

Json ReadReference::to_json() const {
  return {{"what", "sum over a buffer by all threads, measured after every timed token"},
          {"buffer_bytes", data_.size() * 8},
          {"bytes_per_second", summary(rates_)}};
}

}  // namespace episodic::bench
