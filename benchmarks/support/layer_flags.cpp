// SPDX-License-Identifier: Apache-2.0
#include "support/layer_flags.hpp"

#include <algorithm>
#include <array>

#include "episodic/base/error.hpp"

namespace episodic::bench {

void LayerFlags::add_to(tools::Command& app, const char* chunks_help) {
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  app.option("--heads", heads, "Query heads H").between(1, kMost).shows_default();
  app.option("--kv-heads", kv_heads, "Key/value heads G").between(1, kMost).shows_default();
  app.option("--head-dim", head_dim, "Channels of a head").between(1, kMost).shows_default();
  app.option("--n-init", n_init, "Sink tokens").shows_default();
  app.option("--n-local", n_local, "Local window, tokens").shows_default();
  app.option("--n-mem", n_mem, "Retrieval budget, tokens").shows_default();
  app.option("--chunk", chunk, "Tokens of a prefill step").shows_default();
  app.option("--n-repr", n_repr, "Representatives of an event and head").shows_default();
  app.option("--max-block", max_block, "Longest event, tokens").shows_default();
  app.option("--min-block", min_block, "Shortest event, tokens").shows_default();
  app.option("--context", context, "Tokens read before the clock starts")
      .not_negative()
      .shows_default();
  app.option("--chunks", chunks, chunks_help).between(1, kMost).shows_default();
  app.option("--layers", layers, "Layers; seconds are per layer").between(1, kMost).shows_default();
  app.option("--variant", variant, "S: surprise, SM: and modularity, SC: and conductance")
      .one_of({"S", "SM", "SC"})
      .shows_default();
  app.option("--segmenter", segmenter, "What sets boundaries")
      .one_of({"surprise", "k_similarity", "gaussian"})
      .shows_default();
  app.option("--scope", scope, "Whose events: the sequence's, or each key/value head's")
      .one_of({"sequence", "head"})
      .shows_default();
  app.option("--reweight", reweight, "How recalled events count in attention (EpMAN)")
      .one_of({"none", "exact", "narrow", "broad"})
      .shows_default();
  app.option("--retention", retention, "What is forgotten")
      .one_of({"none", "memoria"})
      .shows_default();
  app.option("--contiguity", contiguity, "Share of the budget for neighbours in time")
      .shows_default();
  app.option("--gamma", gamma, "Threshold in deviations above the mean").shows_default();
  app.option("--dtype", dtype, "Of keys and values in events")
      .one_of({"float32", "bfloat16"})
      .shows_default();
  app.option("--boundary-every", boundary_every, "Tokens from one surprise to the next, on average")
      .between(2, 1 << 30)
      .shows_default();
  app.option("--seed", seed, "Seed of queries, keys, values and surprise").shows_default();
  app.flag("--quick", quick, "A shorter context and fewer repetitions: to see that it runs");
  app.option("--json", json, "Result file (default: stdout)");
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
  const auto named = [](const std::string& name, const auto& kinds) {
    for (const auto kind : kinds)
      if (name == name_of(kind)) return kind;
    throw ConfigError("no such setting: " + name);
  };
  c.segmenter = named(segmenter, std::array{SegmenterKind::surprise, SegmenterKind::k_similarity,
                                            SegmenterKind::gaussian});
  c.scope = named(scope, std::array{EventScope::sequence, EventScope::head});
  c.reweight = named(reweight, std::array{Reweighting::none, Reweighting::exact,
                                          Reweighting::narrow, Reweighting::broad});
  if (retention == "memoria") c.retention.emplace();
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
          {"segmenter", segmenter},
          {"scope", scope},
          {"reweight", reweight},
          {"retention", retention},
          {"contiguity", contiguity},
          {"gamma", gamma},
          {"dtype", dtype},
          {"boundary_every", boundary_every},
          {"seed", seed}};
}

}  // namespace episodic::bench
