// SPDX-License-Identifier: Apache-2.0
// attend() against what bounds it: sgemm for prefill, a plain read of the same bytes for decoding.
// Both sides alternate in one process and the least time of the repetitions counts, so that other
// work on the machine disturbs the ratios little.
//
// masses_... and softcap_... are attend() that also gives segment masses, or caps its scores,
// against attend() that does not.
//
// cpu_... compare CPU time instead of wall time: steadier on a busy machine.

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <functional>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "episodic/attention/attend.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "support/environment.hpp"

extern "C" void sgemm_(const char* ta, const char* tb, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b,
                       const int* ldb, const float* beta, float* c, const int* ldc);

namespace episodic::bench {
namespace {

struct Flags {
  tools::CommonFlags common;
  std::int64_t repetitions = 5;
  tools::JsonFlag json;
};

struct Time {
  double wall = 1e30, cpu = 1e30;  // seconds; cpu: of all threads of the process
};

double cpu_now() {
  timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Least times of each of the works, run in turn.
std::vector<Time> race(const std::vector<std::function<void()>>& works, std::int64_t repetitions) {
  std::vector<Time> least(works.size());
  for (const auto& work : works) work();
  for (std::int64_t r = 0; r < repetitions; ++r) {
    for (std::size_t i = 0; i < works.size(); ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const double cpu = cpu_now();
      works[i]();
      least[i].cpu = std::min(least[i].cpu, cpu_now() - cpu);
      const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - begin;
      least[i].wall = std::min(least[i].wall, wall.count());
    }
  }
  return least;
}

std::vector<float> random_floats(std::int64_t n, unsigned seed) {
  std::vector<float> x(static_cast<std::size_t>(n));
  std::minstd_rand random(seed);
  for (float& v : x) v = static_cast<float>(random()) / 1.1e9f - 1.0f;
  return x;
}

// Sinks, scattered events and a window as a memory holds them, keys and values in float32.
struct Problem {
  AttendShape shape;
  std::vector<float> keys, values, q_relative, q_fixed, out, columns;
  std::vector<double> masses;
  std::vector<KvSegment> list;
  std::int64_t seen = 0;  // keys that each query sees

  Problem(std::int64_t heads, std::int64_t kv_heads, std::int64_t d, std::int64_t n_init,
          std::int64_t n_local, std::int64_t n_mem, std::int64_t n) {
    const std::int64_t window = n_local + n - 1;  // tokens that some query has in its window
    const std::int64_t first = 100'000;
    shape = {.n_queries = n,
             .n_heads = heads,
             .n_kv_heads = kv_heads,
             .head_dim = d,
             .first_position = first,
             .n_local = n_local};
    const std::int64_t total = n_init + 2 * n_mem + window;
    keys = random_floats(total * kv_heads * d, 1);
    values = random_floats(total * kv_heads * d, 2);
    q_relative = random_floats(n * heads * d, 3);
    q_fixed = random_floats(n * heads * d, 4);
    out.resize(static_cast<std::size_t>(n * heads * d));
    columns.resize(static_cast<std::size_t>(window * heads));
    std::int64_t at = 0;
    const auto add = [&](std::int64_t length, std::int64_t token, Position position) {
      KvSegment s;
      s.key = keys.data() + at * kv_heads * d;
      s.value = values.data() + at * kv_heads * d;
      s.length = length;
      s.first_token = token;
      s.head_stride = length * d;
      s.row_stride = d;
      s.position = position;
      list.push_back(s);
      at += length;
    };
    add(n_init, 0, Position::fixed);
    std::minstd_rand random(5);
    for (std::int64_t left = n_mem; left > 0;) {  // events of 8 to 20 tokens, mean 14
      const std::int64_t length =
          std::min<std::int64_t>(left, 8 + static_cast<std::int64_t>(random() % 13));
      add(length, 1000 + 2 * (n_mem - left), Position::fixed);
      at += static_cast<std::int64_t>(random() % 14);  // what was not recalled lies between
      left -= length;
    }
    at = n_init + 2 * n_mem;
    add(window, first - n_local + 1, Position::relative);
    seen = n_init + n_mem + n_local;
    masses.resize(list.size() * static_cast<std::size_t>(heads));
  }

  void attend(AttendWorkspace& workspace, bool with_masses = false, float softcap = 0) {
    const std::span<const KvSegment> lists[] = {list};
    float* const column_sums[] = {columns.data()};
    AttendShape capped = shape;
    capped.softcap = softcap;
    AttendOutput output;
    output.out = {out.data(), shape.of_outputs()};
    output.column_sums = column_sums;
    if (with_masses) output.segment_mass = masses.data();
    const TensorSizes sizes = shape.of_queries();
    episodic::attend(capped, {{q_relative.data(), sizes}, {q_fixed.data(), sizes}, lists}, output,
                     workspace);
  }
  // attend(), with masses, with a soft-cap: the first three works of a race
  std::vector<std::function<void()>> works(AttendWorkspace& workspace) {
    return {[&] { attend(workspace); }, [&] { attend(workspace, true); },
            [&] { attend(workspace, false, 50.0f); }};
  }

  double flops() const {
    return 4.0 * static_cast<double>(shape.n_queries * shape.n_heads * shape.head_dim * seen);
  }
  double bytes() const {
    return 8.0 * static_cast<double>(seen * shape.n_kv_heads * shape.head_dim);
  }

  // Sums as many bytes as a decoding step must read, on the same threads.
  void read() {
    constexpr std::int64_t kRun = 1 << 16;
    const auto n = static_cast<std::int64_t>(bytes() / 8);  // floats of keys, and of values
    const std::vector<float> ones(1024, 1.0f);
    sums.assign(static_cast<std::size_t>((n + kRun - 1) / kRun * 2), 0.0f);
    parallel_for((n + kRun - 1) / kRun, [&](std::int64_t run) {
      std::vector<float> rows(kRun / 1024);
      const std::int64_t count = std::min(kRun, n - run * kRun) / 1024;
      for (int side = 0; side < 2; ++side) {
        const float* from = (side == 0 ? keys : values).data() + run * kRun;
        cpu::kernels().dots(ones.data(), from, count, 1024, 1024, rows.data());
        for (std::int64_t i = 0; i < count; ++i) sums[2 * run + side] += rows[i];
      }
    });
  }
  std::vector<float> sums;
};

Json prefill(const char* name, Problem problem, std::int64_t repetitions) {
  const int m = 1024;
  const std::vector<float> a = random_floats(m * m, 6), b = random_floats(m * m, 7);
  std::vector<float> c(a.size());
  const double product = 2.0 * m * m * m;
  // about the flops of the problem, in products of one size; the rest is scaled
  const int products = std::max(1, static_cast<int>(problem.flops() / product + 0.5));
  AttendWorkspace workspace;
  auto works = problem.works(workspace);
  works.push_back([&] {
    const float one = 1.0f, zero = 0.0f;
    for (int i = 0; i < products; ++i) {
      sgemm_("N", "N", &m, &m, &m, &one, a.data(), &m, b.data(), &m, &zero, c.data(), &m);
    }
  });
  const auto times = race(works, repetitions);
  const Time& sgemm = times.back();
  const double scale = problem.flops() / (product * products);
  return {{"case", name},
          {"gflop", problem.flops() * 1e-9},
          {"attend_ms", times[0].wall * 1e3},
          {"sgemm_ms", sgemm.wall * scale * 1e3},
          {"sgemm_gflops", product * products / sgemm.wall * 1e-9},
          {"ratio_to_sgemm", times[0].wall / (sgemm.wall * scale)},
          {"cpu_ratio_to_sgemm", times[0].cpu / (sgemm.cpu * scale)},
          {"cpu_masses_ratio", times[1].cpu / times[0].cpu},
          {"cpu_softcap_ratio", times[2].cpu / times[0].cpu},
          {"workspace_bytes", workspace.bytes()}};
}

Json decode(const char* name, Problem problem, std::int64_t repetitions) {
  AttendWorkspace workspace;
  auto works = problem.works(workspace);
  works.push_back([&] { problem.read(); });
  const auto times = race(works, repetitions);
  const Time& read = times.back();
  return {{"case", name},
          {"mbytes", problem.bytes() * 1e-6},
          {"attend_ms", times[0].wall * 1e3},
          {"read_ms", read.wall * 1e3},
          {"read_gbytes_per_s", problem.bytes() / read.wall * 1e-9},
          {"share_of_read_bandwidth", read.wall / times[0].wall},
          {"cpu_share_of_read_bandwidth", read.cpu / times[0].cpu},
          {"cpu_masses_ratio", times[1].cpu / times[0].cpu},
          {"cpu_softcap_ratio", times[2].cpu / times[0].cpu},
          {"workspace_bytes", workspace.bytes()}};
}

void run(const Flags& flags) {
  flags.common.apply_on_host();
  const std::int64_t n = flags.repetitions;
  const Json cases = {prefill("prefill large", Problem(32, 8, 128, 128, 4096, 2048, 512), n),
                      decode("decode large", Problem(32, 8, 128, 128, 4096, 2048, 1), 10 * n),
                      prefill("prefill small", Problem(8, 4, 64, 16, 512, 512, 128), 20 * n),
                      decode("decode small", Problem(8, 4, 64, 16, 512, 512, 1), 100 * n)};
  for (const Json& c : cases)
    for (const auto& [what, ratio, unit] :
         {std::tuple("sgemm_ms", "ratio_to_sgemm", "times an sgemm of its flops"),
          std::tuple("read_ms", "share_of_read_bandwidth", "of a plain read's bandwidth")})
      if (c.contains(what))
        flags.json.say(fmt::format("{:<14} {:>9.3f} ms, {:.2f} {} ({:.3f} ms)\n",
                                   c["case"].get<std::string>(), c["attend_ms"].get<double>(),
                                   c[ratio].get<double>(), unit, c[what].get<double>()));
  flags.json.write({{"program", "bench_attend"},
                    {"environment", environment()},
                    {"kernels", cpu::kernels().name},
                    {"threads", max_threads()},
                    {"cases", cases}});
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::limit_spinning(argv);
  episodic::tools::CommandLine app{"Attention over segments beside what bounds it, in turn",
                                   "bench_attend"};
  episodic::bench::Flags flags;
  episodic::tools::add_count(app, "--repetitions", flags.repetitions,
                             "Of the slowest case; the least time counts", 1);
  flags.json.add_to(app);
  flags.common.add_to(app, false);
  app.footer("Example:\n  bench_attend --repetitions 5 --threads 1 --json attend.json");
  return episodic::bench::run_program(app, argc, argv, [&] { episodic::bench::run(flags); });
}
