// SPDX-License-Identifier: Apache-2.0
// Products with stored weights: bytes of weights per second for each type and number of rows,
// beside a plain read of memory and float32 sgemv and sgemm of the BLAS that the build found,
// in one process.

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <limits>
#include <random>
#include <vector>

#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/cpu/weights.hpp"
#include "support/environment.hpp"

extern "C" void sgemm_(const char* trans_a, const char* trans_b, const int* m, const int* n,
                       const int* k, const float* alpha, const float* a, const int* lda,
                       const float* b, const int* ldb, const float* beta, float* c, const int* ldc);
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int n);

namespace episodic::bench {
namespace {

using namespace episodic::cpu;

struct Flags {
  tools::CommonFlags common;
  std::int64_t megabytes = 512, in = 4096, many = 512, repeats = 5;
  tools::JsonFlag json;
};

constexpr double kNever = std::numeric_limits<double>::infinity();

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

constexpr int kFewRows[] = {1, 2, 4, 8, 16};
constexpr TensorType kTypes[] = {
    TensorType::f32,  TensorType::f16,  TensorType::bf16,   TensorType::q8_0, TensorType::q4_0,
    TensorType::q4_k, TensorType::q6_k, TensorType::q5_k,   TensorType::q3_k, TensorType::q5_0,
    TensorType::q4_1, TensorType::q5_1, TensorType::iq4_nl, TensorType::q2_k};

void run(const Flags& flags) {
  flags.common.apply_on_host();
  const std::int64_t in = flags.in, out = flags.megabytes * (1 << 20) / 4 / in;
  if (in % 256 != 0) throw tools::UsageError("--in: K-quants have rows of multiples of 256");
  if (out < 128)
    throw tools::UsageError(fmt::format("--megabytes: {} rows; a product wants 128", out));
  const std::int64_t part = std::min<std::int64_t>(out, 2048);  // of the rows, with many of x
  const std::int64_t n_most = std::max<std::int64_t>(flags.many, 128);
  std::vector<float> x(static_cast<std::size_t>(n_most * in)),
      y(static_cast<std::size_t>(n_most * out));
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  for (float& v : x) v = normal(random);
  std::vector<unsigned char> weights(
      static_cast<std::size_t>(out * row_bytes(TensorType::f32, in)));
  std::vector<float> row(static_cast<std::size_t>(in));
  for (float& v : row) v = normal(random);
  Json result{{"program", "bench_weights"},
              {"environment", environment()},
              {"kernels", kernels().name},
              {"rows", out},
              {"columns", in},
              {"many", flags.many}};
  flags.json.say(
      fmt::format("{}, {} threads, [{}, {}], best of {}\n{:<7} {:>8} {:>8} | GB/s of weights, "
                  "rows: sgemv      1  "
                  "    2      4      8     16 | many: GFLOP/s, sgemm's\n",
                  kernels().name, max_threads(), out, in, flags.repeats, "type", "MB", "read"));
  for (const TensorType type : kTypes) {
    const std::int64_t bytes = out * row_bytes(type, in);
    std::vector<unsigned char> line(static_cast<std::size_t>(row_bytes(type, in)));
    if (!quantize_row(type, row.data(), in, line.data()))
      for (unsigned char& b : line) b = static_cast<unsigned char>(random() % 64);
    for (std::int64_t o = 0; o < out; ++o)
      std::memcpy(weights.data() + o * row_bytes(type, in), line.data(), line.size());
    const auto product = [&](std::int64_t n, std::int64_t outputs) {
      const WeightProduct p{.type = type,
                            .weight = weights.data(),
                            .out = outputs,
                            .in = in,
                            .x = x.data(),
                            .x_stride = in,
                            .y = y.data(),
                            .y_stride = outputs};
      multiply_weights(n, {&p, 1}, {.rows = n > 16 ? RowClass::many : RowClass::few});
    };
    double read = kNever, sgemv = kNever, few[std::size(kFewRows)], mine = kNever, gemm = kNever;
    std::fill(std::begin(few), std::end(few), kNever);
    [[maybe_unused]] static volatile std::uint64_t kept;  // so that the read is made
    for (std::int64_t r = 0; r < flags.repeats; ++r) {
      read = std::min(read, seconds([&] { kept = read_all(weights.data(), bytes); }));
      if (type == TensorType::f32)
        sgemv = std::min(sgemv, seconds([&] {
                           parallel_for(out / 64, [&](std::int64_t i) {
                             blas(1, 64, in, x.data(), in,
                                  reinterpret_cast<const float*>(weights.data()) + i * 64 * in, in,
                                  0, y.data() + i * 64, out);
                           });
                         }));
      for (std::size_t i = 0; i < std::size(kFewRows); ++i)
        few[i] = std::min(few[i], seconds([&] { product(kFewRows[i], out); }));
    }
    for (std::int64_t r = 0; flags.many > 0 && r < std::min<std::int64_t>(flags.repeats, 3); ++r) {
      mine = std::min(mine, seconds([&] { product(flags.many, part); }));
      gemm = std::min(
          gemm, seconds([&] {
            parallel_for(part / 128, [&](std::int64_t i) {  // any floats: speed is the same
              blas(flags.many, 128, in, x.data(), in, x.data(), in, 0, y.data() + i * 128, part);
            });
          }));
    }
    const auto rate = [&](double t) { return static_cast<double>(bytes) / t * 1e-9; };
    const auto gflops = [&](double t) {
      return 2e-9 * static_cast<double>(flags.many * in * part) / t;
    };
    Json rates = Json::object();
    for (std::size_t i = 0; i < std::size(kFewRows); ++i)
      rates[std::to_string(kFewRows[i])] = rate(few[i]);
    result["types"].push_back({{"type", name_of(type)},
                               {"bytes", bytes},
                               {"read_gbytes_per_s", rate(read)},
                               {"sgemv_gbytes_per_s", sgemv < kNever ? Json(rate(sgemv)) : Json()},
                               {"gbytes_per_s_by_rows", rates},
                               {"many_gflops", gflops(mine)},
                               {"sgemm_gflops", gflops(gemm)}});
    flags.json.say(fmt::format(
        "{:<7} {:>8.1f} {:>8.1f} | {:>28} {:>6.1f} {:>6.1f} {:>6.1f} {:>6.1f} {:>6.1f} | {:>13.0f} "
        "{:>8.0f}\n",
        name_of(type), static_cast<double>(bytes) * 1e-6, rate(read),
        sgemv < kNever ? fmt::format("{:.1f}", rate(sgemv)) : "", rate(few[0]), rate(few[1]),
        rate(few[2]), rate(few[3]), rate(few[4]), gflops(mine), gflops(gemm)));
  }
  flags.json.write(result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  episodic::tools::CommandLine app{
      "Products with stored weights of every type, beside a plain read and a BLAS",
      "bench_weights"};
  episodic::bench::Flags flags;
  episodic::tools::add_count(app, "--megabytes", flags.megabytes, "Of the weights, as float32", 1);
  episodic::tools::add_count(app, "--in", flags.in, "Columns: a multiple of 256", 256);
  episodic::tools::add_count(app, "--repeats", flags.repeats, "The best of so many counts", 1);
  episodic::tools::add_count(app, "--many", flags.many,
                             "Rows of activations in the last columns; 0 leaves them out");
  flags.json.add_to(app);
  flags.common.add_to(app, false);
  app.footer(
      "With one thread the time is the processor's, for the machine may be busy.\n\n"
      "Example:\n  bench_weights --megabytes 64 --in 2048 --repeats 3 --threads 1");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
