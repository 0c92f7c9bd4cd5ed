// SPDX-License-Identifier: Apache-2.0
// Decoding through one episodic layer (or several) at a context, as a fraction of memory bandwidth.

#include <fmt/format.h>

#include <cstdio>

#include "support/environment.hpp"
#include "support/layer_flags.hpp"
#include "support/layer_run.hpp"
#include "support/references.hpp"

namespace episodic::bench {
namespace {

void print_table(const LayerFlags& f, const Json& r) {
  const auto ms = [](const Json& seconds) { return 1e3 * seconds.get<double>(); };
  const Json& s = r["seconds_per_layer_token"];
  fmt::print(stderr, "{} at {} tokens, {} threads, load {:.1f}\n", f.variant, f.context,
             r["environment"]["threads"].get<int>(),
             r["environment"]["load_average_at_start"].get<double>());
  fmt::print(stderr, "  layer-token   {:10.3f} ms  (min {:.3f}, max {:.3f})\n", ms(s["median"]),
             ms(s["min"]), ms(s["max"]));
  fmt::print(stderr, "  must move     {:10.2f} MB  at {:.1f} GB/s: {:.3f} ms\n",
             1e-6 * r["bytes"].get<double>(), 1e-9 * r["bandwidth"].get<double>(),
             1e3 * r["bytes"].get<double>() / r["bandwidth"].get<double>());
  fmt::print(stderr, "  fraction of bandwidth {:.2f}, recall's share of the time {:.2f}\n",
             r["fraction_of_bandwidth"].get<double>(), r["recall_share"].get<double>());
  for (const auto& [name, seconds] : r["parts"].items())
    fmt::print(stderr, "    {:<12}{:10.4f} ms\n", name, ms(seconds));
}

void run(LayerFlags f, std::int64_t tokens) {
  f.apply();
  Json result{{"program", "bench_decode"}, {"environment", environment()}, {"flags", f.to_json()}};
  result["flags"]["tokens"] = tokens;
  LayerRun bench(f);
  result["fill_seconds"] = bench.fill(f.context);
  ReadReference read;
  bench.step(1);  // the first token makes the scratch memory of decoding

  std::vector<StepTimes> steps;
  std::vector<double> wall, cpu, bytes, kv, representatives, fraction, share;
  for (std::int64_t i = 0; i < f.chunks * tokens; ++i) {
    // Also turns the cache over: in a real model the other layers and the weights do.
    const double rate = read.rate();
    const StepTimes t = bench.step(1);
    bench.check_output();
    const StepWork& w = bench.work();
    steps.push_back(t);
    wall.push_back(t.wall);
    cpu.push_back(t.cpu);
    kv.push_back(w.kv_bytes(f));
    representatives.push_back(w.representative_bytes);
    bytes.push_back(kv.back() + representatives.back());
    fraction.push_back(bytes.back() / (t.wall * rate));
    share.push_back(t.recall / t.wall);
  }
  result["seconds_per_layer_token"] = summary(wall);
  result["cpu_seconds_per_layer_token"] = summary(cpu);
  result["parts"] = parts_json(steps);
  result["bytes"] = median(bytes);
  result["bytes_parts"] = {{"keys_and_values", median(kv)},
                           {"representatives", median(representatives)}};
  result["read"] = read.to_json();
  result["bandwidth"] = result["read"]["bytes_per_second"]["median"];
  result["fraction_of_bandwidth"] = median(fraction);
  result["recall_share"] = median(share);
  result["memory"] = bench.state_json();
  print_table(f, result);
  tools::write_json(f.json, result);
}

}  // namespace
}  // namespace episodic::bench

int main(int argc, char** argv) {
  episodic::tools::CommandLine app{
      "Decoding through episodic attention on random q, k, v, beside a plain read of memory",
      "bench_decode"};
  app.footer(
      "Keys of the result: see benchmarks/README.md. A table goes to stderr.\n\n"
      "Example:\n"
      "  bench_decode --context 65536 --chunks 3 --tokens 16 --json out.json");
  episodic::bench::LayerFlags flags;
  std::int64_t tokens = 16;
  flags.add_to(app, "Rounds of --tokens decoded tokens that are timed");
  app.option("--tokens", tokens, "Decoded tokens of a round").positive().shows_default();
  return episodic::bench::run_program(app, argc, argv,
                                      [&] { episodic::bench::run(flags, tokens); });
}
