// SPDX-License-Identifier: Apache-2.0
#include "support/layer_flags.hpp"

#include <CLI/CLI.hpp>
#include <algorithm>

namespace episodic::bench {

void LayerFlags::add_to(CLI::App& app, const char* chunks_help) {
  const CLI::Range positive(std::int64_t{1}, std::int64_t{1} << 40);
  app.add_option("--heads", heads, "Query heads H")->check(positive)->capture_default_str();
  app.add_option("--kv-heads", kv_heads, "Key/value heads G")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--head-dim", head_dim, "Channels of a head")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--n-init", n_init, "Sink tokens")->capture_default_str();
  app.add_option("--n-local", n_local, "Local window, tokens")->capture_default_str();
  app.add_option("--n-mem", n_mem, "Retrieval budget, tokens")->capture_default_str();
  app.add_option("--chunk", chunk, "Tokens of a prefill step")->capture_default_str();
  app.add_option("--n-repr", n_repr, "Representatives of an event and head")->capture_default_str();
  app.add_option("--max-block", max_block, "Longest event, tokens")->capture_default_str();
  app.add_option("--min-block", min_block, "Shortest event, tokens")->capture_default_str();
  app.add_option("--context", context, "Tokens read before the clock starts")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--chunks", chunks, chunks_help)->check(positive)->capture_default_str();
  app.add_option("--layers", layers, "Layers; seconds are per layer")
      ->check(positive)
      ->capture_default_str();
  app.add_option("--variant", variant, "S: surprise, SM: and modularity, SC: and conductance")
      ->check(CLI::IsMember({"S", "SM", "SC"}))
      ->capture_default_str();
  app.add_option("--contiguity", contiguity, "Share of the budget for neighbours in time")
      ->capture_default_str();
  app.add_option("--gamma", gamma, "Threshold in deviations above the mean")->capture_default_str();
  app.add_option("--dtype", dtype, "Of keys and values in events")
      ->check(CLI::IsMember({"float32", "bfloat16"}))
      ->capture_default_str();
  app.add_option("--boundary-every", boundary_every,
                 "Tokens from one surprise to the next, on average")
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--seed", seed, "Seed of queries, keys, values and surprise")
      ->capture_default_str();
  app.add_flag("--quick", quick, "A shorter context and fewer repetitions: to see that it runs");
  app.add_option("--json", json, "Result file (default: stdout)");
  common.add_to(app);
}

void LayerFlags::apply() {
  common.apply_on_host();
  if (quick) {
    context = std::min(context, n_local + n_mem);
    chunks = std::min<std::int64_t>(chunks, 2);
  }
}

MemoryConfig LayerFlags::config() const {
  MemoryConfig c;
  c.n_init = n_init;
  c.n_local = n_local;
  c.n_mem = n_mem;
  c.chunk = chunk;
  c.n_repr = n_repr;
  c.min_block = min_block;
  c.max_block = max_block;
  c.gamma = gamma;
  c.contiguity = contiguity;
  c.kv_dtype = dtype == "bfloat16" ? DType::bfloat16 : DType::float32;
  c.refine = variant == "SM"   ? Refinement::modularity
             : variant == "SC" ? Refinement::conductance
                               : Refinement::none;
  return c;
}

MemoryShape LayerFlags::shape() const {
  return {layers, heads, kv_heads, head_dim, plain_rotary(head_dim / 2 * 2, 10000.0)};
}

tools::Json LayerFlags::to_json() const {
  return {{"heads", heads},
          {"kv_heads", kv_heads},
          {"head_dim", head_dim},
          {"n_init", n_init},
          {"n_local", n_local},
          {"n_mem", n_mem},
          {"chunk", chunk},
          {"n_repr", n_repr},
          {"max_block", max_block},
          {"min_block", min_block},
          {"context", context},
          {"chunks", chunks},
          {"layers", layers},
          {"variant", variant},
          {"contiguity", contiguity},
          {"gamma", gamma},
          {"dtype", dtype},
          {"boundary_every", boundary_every},
          {"seed", seed}};
}

}  // namespace episodic::bench
