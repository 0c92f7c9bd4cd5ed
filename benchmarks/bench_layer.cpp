// SPDX-License-Identifier: Apache-2.0
// Prefill through one episodic layer (or several) at steady state, as a multiple of sgemm.

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>

#include "support/environment.hpp"
#include "support/layer_flags.hpp"
#include "support/layer_run.hpp"
#include "support/option_costs.hpp"
#include "support/references.hpp"

namespace episodic::bench {
namespace {

/// Prefix sums of the keys and three dot products per candidate, a candidate per token at most.
double refine_flops(const LayerFlags& f) {
  return f.variant == "S" ? 0.0 : 7.0 * static_cast<double>(f.chunk * f.kv_heads * f.head_dim);
}

/// Queries in, outputs out, new keys and values in.
double step_bytes(const LayerFlags& f) {
  return 4.0 * static_cast<double>(f.chunk * f.head_dim * (2 * f.heads + 2 * f.kv_heads));
}

void print_table(const LayerFlags& f, const Json& r) {
  const auto ms = [](const Json& seconds) { return 1e3 * seconds.get<double>(); };
  const Json& s = r["seconds_per_layer_chunk"];
  fmt::print(stderr, "{} at {} tokens, {} threads, load {:.1f}\n", f.variant, f.context,
             r["environment"]["threads"].get<int>(),
             r["environment"]["load_average_at_start"].get<double>());
  fmt::print(stderr, "  layer-chunk   {:10.2f} ms  (min {:.2f}, max {:.2f})\n", ms(s["median"]),
             ms(s["min"]), ms(s["max"]));
  fmt::print(stderr, "  sgemm         {:10.2f} ms  {:.0f} GFLOP/s, same flops\n",
             1e-6 * r["flops"].get<double>() / r["gemm"]["gflops"].get<double>(),
             r["gemm"]["gflops"].get<double>());
  fmt::print(stderr,
             "  multiple      {:10.2f}     of processor time {:.2f}, masked pairs counted {:.2f}\n",
             r["layer_chunk_multiple_of_gemm"].get<double>(),
             r["layer_chunk_multiple_of_gemm_cpu"].get<double>(),
             r["layer_chunk_multiple_of_gemm_listed"].get<double>());
  fmt::print(stderr, "  attend at     {:10.2f}     of the sgemm rate\n",
             r["attend_fraction_of_gemm"].get<double>());
  for (const auto& [name, seconds] : r["parts"].items())
    fmt::print(stderr, "    {:<12}{:10.3f} ms\n", name, ms(seconds));
}

void run(LayerFlags f) {
  f.apply();
  Json result{{"program", "bench_layer"}, {"environment", environment()}, {"flags", f.to_json()}};
  LayerRun bench(f);
  result["fill_seconds"] = bench.fill(f.context);
  bench.step(f.chunk);  // leaves the memory as full as in every timed chunk

  std::unique_ptr<GemmReference> gemm;
  std::vector<StepTimes> steps;
  std::vector<double> wall, cpu, flops, bytes, multiple, multiple_cpu, multiple_listed, fraction;
  for (std::int64_t i = 0; i < f.chunks; ++i) {
    const StepTimes t = bench.step(f.chunk);
    bench.check_output();
    const StepWork& w = bench.work();
    const double needed = w.flops(f) + refine_flops(f);
    if (!gemm) gemm = std::make_unique<GemmReference>(needed);
    const Laps::Times rate = gemm->rates();
    steps.push_back(t);
    wall.push_back(t.wall);
    cpu.push_back(t.cpu);
    flops.push_back(needed);
    bytes.push_back(w.kv_bytes(f) + w.representative_bytes + step_bytes(f));
    multiple.push_back(t.wall * rate.wall / needed);
    multiple_cpu.push_back(t.cpu * rate.cpu / needed);
    multiple_listed.push_back(t.wall * rate.wall / (w.flops_listed(f) + refine_flops(f)));
    fraction.push_back(w.flops(f) / (t.attend * rate.wall));
  }
  result["seconds_per_layer_chunk"] = summary(wall);
  result["cpu_seconds_per_layer_chunk"] = summary(cpu);
  result["parts"] = parts_json(steps);
  result["flops"] = median(flops);
  result["bytes"] = median(bytes);
  result["attend_fraction_of_gemm"] = median(fraction);
  result["layer_chunk_multiple_of_gemm"] = median(multiple);
  result["layer_chunk_multiple_of_gemm_cpu"] = median(multiple_cpu);
  result["layer_chunk_multiple_of_gemm_listed"] = median(multiple_listed);
  result["tokens_per_second_per_layer"] = static_cast<double>(f.chunk) / median(wall);
  result["gemm"] = gemm->to_json();
  result["memory"] = bench.state_json();
  print_table(f, result);
  tools::write_json(f.json, result);
}

void run_options(LayerFlags f, std::int64_t engrams, const std::string& only) {
  f.apply();
  if (f.quick) engrams = std::min<std::int64_t>(engrams, 1000);
  Json result{{"program", "bench_layer"}, {"environment", environment()}, {"flags", f.to_json()}};
  result["flags"]["engrams"] = engrams;
  result["options"] = option_costs(f, engrams, only);
  fmt::print(stderr, "{}", option_table(result["options"]));
  tools::write_json(f.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::CommandLine app{
      "Prefill through episodic attention on random q, k, v, beside an sgemm of equal flops",
      "bench_layer"};
  app.footer(
      "Keys of the result: see benchmarks/README.md. A table goes to stderr.\n\n"
      "Examples:\n"
      "  bench_layer --context 32768 --variant SM --json out.json\n"
      "  bench_layer --heads 8 --kv-heads 4 --head-dim 64 --n-local 512 --n-mem 512 --chunk 128 "
      "\\\n"
      "    --context 8192 --chunks 20 --threads 1 --json out.json\n"
      "  bench_layer --options --chunks 9 --json options.json\n"
      "  bench_layer --options --only reweight --chunks 101 --threads 1 --json reweight.json");
  episodic::bench::LayerFlags flags;
  flags.add_to(app, "Chunks that are timed");
  bool options = false;
  std::string only;
  std::int64_t engrams = 100000;
  app.flag("--options", options,
           "What each option costs instead: segmenters, scope, reweight, retention, each beside "
           "its counterpart in turn");
  app.option("--only", only, "With --options: those whose name holds this text (reweight, graph)");
  app.option("--engrams", engrams, "With --options: engrams in Memoria's graph (0: leave it out)")
      .not_negative()
      .shows_default();
  return episodic::bench::run_program(app, argc, argv, [&] {
    options ? episodic::bench::run_options(flags, engrams, only) : episodic::bench::run(flags);
  });
}
