// SPDX-License-Identifier: Apache-2.0
// Products with stored weights: bytes of weights per second for each type and number of rows,
// beside a plain read of memory and float32 sgemv and sgemm of the BLAS inside torch, in one
// process.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string>
#include <vector>

#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/cpu/weights.hpp"

extern "C" void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int n);

namespace {

using namespace episodic;
using namespace episodic::cpu;

void blas(std::int64_t n, std::int64_t out, std::int64_t in, const float* x, std::int64_t x_stride,
          const float* w, std::int64_t w_stride, float beta, float* y, std::int64_t y_stride) {
  const int rows = static_cast<int>(n), cols = static_cast<int>(out), k = static_cast<int>(in);
  const int lx = static_cast<int>(x_stride), lw = static_cast<int>(w_stride);
  const int ly = static_cast<int>(y_stride);
  const float one = 1;
  const int before = MKL_Set_Num_Threads_Local ? MKL_Set_Num_Threads_Local(1) : 0;
  sgemm_("T", "N", &cols, &rows, &k, &one, w, &lw, x, &lx, &beta, y, &ly);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(before);
}

/// Of one thread the time it ran, for the machine may be busy; of several the time that passed.
double now() {
  timespec t{};
  clock_gettime(max_threads() == 1 ? CLOCK_THREAD_CPUTIME_ID : CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

double seconds(auto&& f) {
  const double begin = now();
  f();
  return now() - begin;
}

std::uint64_t read_all(const unsigned char* p, std::int64_t bytes) {
  constexpr std::int64_t kPiece = 1 << 20;
  std::vector<std::uint64_t> sums(static_cast<std::size_t>((bytes + kPiece - 1) / kPiece));
  parallel_for(static_cast<std::int64_t>(sums.size()), [&](std::int64_t i) {
    const auto* words = reinterpret_cast<const std::uint64_t*>(p + i * kPiece);
    const std::int64_t n = std::min(kPiece, bytes - i * kPiece) / 8;
    std::uint64_t s[8] = {};
    for (std::int64_t j = 0; j + 8 <= n; j += 8)
      for (int c = 0; c < 8; ++c) s[c] += words[j + c];
    for (const std::uint64_t v : s) sums[static_cast<std::size_t>(i)] += v;
  });
  std::uint64_t sum = 0;
  for (const std::uint64_t s : sums) sum += s;
  return sum;
}

}  // namespace

// bench_weights [MEGABYTES OF FLOAT32 [IN [REPEATS [MANY]]]]
int main(int argc, char** argv) {
  const auto argument = [&](int i, std::int64_t otherwise) {
    return argc > i ? std::atoll(argv[i]) : otherwise;
  };
  const std::int64_t in = argument(2, 4096), out = argument(1, 512) * (1 << 20) / 4 / in;
  const int repeats = static_cast<int>(argument(3, 5));
  const std::int64_t many = argument(4, 512);
  std::printf("# %s, %d threads, [%lld, %lld], best of %d\n", kernels().name, max_threads(),
              static_cast<long long>(out), static_cast<long long>(in), repeats);
  const std::int64_t n_most = std::max<std::int64_t>(many, 128);
  std::vector<float> x(static_cast<std::size_t>(n_most * in)),
      y(static_cast<std::size_t>(n_most * out));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  constexpr TensorType types[] = {
      TensorType::f32,  TensorType::f16,  TensorType::bf16,   TensorType::q8_0, TensorType::q4_0,
      TensorType::q4_k, TensorType::q6_k, TensorType::q5_k,   TensorType::q3_k, TensorType::q5_0,
      TensorType::q4_1, TensorType::q5_1, TensorType::iq4_nl, TensorType::q2_k};
  std::vector<unsigned char> weights(
      static_cast<std::size_t>(out * row_bytes(TensorType::f32, in)));
  std::vector<float> row(static_cast<std::size_t>(in));
  for (float& v : row) v = normal(random);
  std::printf("%-7s %8s %8s | GB/s of weights, rows: %6s %6s %6s %6s %6s %6s | many: %s\n", "type",
              "MB", "read", "sgemv", "1", "2", "4", "8", "16", "GFLOP/s, sgemm's");
  for (const TensorType type : types) {
    const std::int64_t bytes = out * row_bytes(type, in);
    std::vector<unsigned char> line(static_cast<std::size_t>(row_bytes(type, in)));
    if (!quantize_row(type, row.data(), in, line.data()))
      for (unsigned char& b : line) b = static_cast<unsigned char>(random() % 64);
    for (std::int64_t o = 0; o < out; ++o)
      std::memcpy(weights.data() + o * row_bytes(type, in), line.data(), line.size());
    double read = 1e9, sgemv = 1e9, gemm = 1e9, mine = 1e9;
    const int rows[] = {1, 2, 4, 8, 16};
    double times[] = {1e9, 1e9, 1e9, 1e9, 1e9};
    static volatile std::uint64_t kept;
    const auto product = [&](std::int64_t n) {
      const WeightProduct p{.type = type,
                            .weight = weights.data(),
                            .out = out,
                            .in = in,
                            .x = x.data(),
                            .x_stride = in,
                            .y = y.data(),
                            .y_stride = out};
      multiply_weights(n, {&p, 1}, {.sgemm = n > 16 ? blas : nullptr});
    };
    for (int r = 0; r < repeats; ++r) {
      read = std::min(read, seconds([&] { kept = read_all(weights.data(), bytes); }));
      if (type == TensorType::f32)
        sgemv = std::min(sgemv, seconds([&] {
                           parallel_for(out / 64, [&](std::int64_t i) {
                             blas(1, 64, in, x.data(), in,
                                  reinterpret_cast<const float*>(weights.data()) + i * 64 * in, in,
                                  0, y.data() + i * 64, out);
                           });
                         }));
      for (int i = 0; i < 5; ++i) times[i] = std::min(times[i], seconds([&] { product(rows[i]); }));
    }
    const std::int64_t part = std::min<std::int64_t>(out, 2048);
    if (many > 0) {
      const WeightProduct p{.type = type,
                            .weight = weights.data(),
                            .out = part,
                            .in = in,
                            .x = x.data(),
                            .x_stride = in,
                            .y = y.data(),
                            .y_stride = part};
      for (int r = 0; r < std::min(repeats, 3); ++r) {
        mine = std::min(mine, seconds([&] { multiply_weights(many, {&p, 1}, {.sgemm = blas}); }));
        gemm = std::min(
            gemm, seconds([&] {
              parallel_for(
                  part / 128, [&](std::int64_t i) {  // the bytes as floats: speed is the same
                    blas(many, 128, in, x.data(), in, x.data(), in, 0, y.data() + i * 128, part);
                  });
            }));
      }
    }
    const double flops = 2.0 * static_cast<double>(many * in * part) * 1e-9;
    const auto rate = [&](double t) { return static_cast<double>(bytes) / t * 1e-9; };
    std::printf("%-7s %8.1f %8.1f | %30.1f %6.1f %6.1f %6.1f %6.1f %6.1f | %8.0f %8.0f\n",
                name_of(type), static_cast<double>(bytes) * 1e-6, rate(read),
                type == TensorType::f32 ? rate(sgemv) : 0.0, rate(times[0]), rate(times[1]),
                rate(times[2]), rate(times[3]), rate(times[4]), flops / mine, flops / gemm);
    std::fflush(stdout);
  }
}
