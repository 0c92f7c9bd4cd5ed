// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/sizes.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/sizes.hpp"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace sizes_detail {

/// A setting, and the bytes that it asks for, or its share of them.
struct Ask {
  const char* name;
  std::int64_t value;
};

/// Refuses what no machine holds, by the name of the setting that asks for most. Every sum and
/// product of lengths that is made of settings behind this stays far from the end of an int64.
inline void require_bytes(double bytes, const char* of_what, std::initializer_list<Ask> asks) {
  constexpr double kMost = 1125899906842624.0;  // 2^50
  if (bytes <= kMost) return;
  const Ask& most = *std::max_element(asks.begin(), asks.end(),
                                      [](const Ask& a, const Ask& b) { return a.value < b.value; });
  throw ConfigError(concat("memory configuration: ", most.name, " = ", most.value, ": ", of_what,
                           " would take ", bytes, " bytes with this model's shape, at most ", kMost,
                           " are possible; lower ", most.name));
}

inline void check_sizes(const MemoryConfig& c, const MemoryShape& shape) {
  const auto real = [](std::int64_t x) { return static_cast<double>(x); };
  const double layers = real(shape.n_layers), heads = real(shape.n_heads),
               kv_heads = real(shape.n_kv_heads), d = real(shape.head_dim);
  // Keys and values are float32 at most; a block has scales and a header, and is padded.
  const double token = 2 * 4 * kv_heads * d, block = 8 * kv_heads + 256;
  const double ring = real(c.n_local) + real(c.max_block) + 2 * real(c.chunk);
  require_bytes(layers * ((2 * ring + real(c.n_init)) * token + 2 * ring * 4 * heads),
                "the windows",
                {{"n_local", c.n_local},
                 {"max_block", c.max_block},
                 {"chunk", c.chunk},
                 {"n_init", c.n_init}});
  require_bytes(real(c.chunk) * heads * d * 4 * 4, "a step", {{"chunk", c.chunk}});
  require_bytes(4 * layers * (real(c.max_block) * token + kv_heads * block), "an event",
                {{"max_block", c.max_block}});
  const double recalled = real(most_recalled_tokens(c));
  // Each lane's events, all in tokens by themselves.
  require_bytes(
      layers * (recalled * (token + kv_heads * block)), "what is recalled",
      {{"n_mem", c.n_mem},
       {"n_init", c.n_init},
       {"chunk", c.chunk},
       {"max_block", c.max_block},
       {"reweight_top", c.reweight == Reweighting::narrow || c.reweight == Reweighting::broad
                            ? c.reweight_top
                            : 0}});
  if (c.score == RepresentativeScore::max)
    // An event's vectors lie in one piece.
    require_bytes(1048576.0 * (real(c.n_repr) * heads * d * 4), "a million events' representatives",
                  {{"n_repr", c.n_repr}});
}

/// What the ranks of a group cannot do without messages that they do not send.
inline void check_ranks(const MemoryConfig& c, const MemoryShape& shape) {
  if (shape.ranks == 1) return;
  const auto refuse = [&](const char* what, const char* instead) {
    throw ConfigError(
        concat("memory configuration: ", what, " among ", shape.ranks, " ranks: ", instead));
  };
  if (shape.ranks < 1 || shape.rank < 0 || shape.rank >= shape.ranks)
    throw ConfigError(
        concat("memory shape: rank ", shape.rank, " of ", shape.ranks, " ranks is none"));
  if (c.retention)
    refuse("retention", "what forgets reads the attention of all heads; run it in one process");
  if (c.scope == EventScope::head) return;
  if (c.segmenter == SegmenterKind::k_similarity || c.segmenter == SegmenterKind::gaussian)
    refuse("a segmenter that reads the keys of all heads",
           "set scope to \"head\", where each head reads its own, or another segmenter");
  if (!shape.recall_together) return;
  if (c.index == IndexKind::faiss)
    refuse("index = \"faiss\"",
           "it searches whole vectors, of which a rank has a part; set index "
           "to \"exact\", or recall_groups to a multiple of the ranks");
  if (c.reweight != Reweighting::none)
    refuse("reweight", "a cosine is of all heads; set recall_groups to a multiple of the ranks");
}

}  // namespace sizes_detail

EPISODIC_INLINE void check_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const auto positive = [](const char* name, std::int64_t value) {
    constexpr std::int64_t kMost = 1 << 20;  // as of a shape that is read
    if (value < 1 || value > kMost)
      throw ConfigError(
          concat("memory shape: ", name, " = ", value, ", must be in [1, ", kMost, "]"));
  };
  positive("n_layers", shape.n_layers);
  positive("n_heads", shape.n_heads);
  positive("n_kv_heads", shape.n_kv_heads);
  positive("head_dim", shape.head_dim);
  if (shape.n_heads % shape.n_kv_heads != 0)
    throw ConfigError(concat("memory shape: n_heads = ", shape.n_heads,
                             " is no multiple of n_kv_heads = ", shape.n_kv_heads));
  if (shape.layers.empty() && shape.rotary.inverse_frequency.empty())
    throw ConfigError(
        "memory shape: rotary is empty, which would turn nothing; give plain_rotary(head_dim, "
        "theta) "
        "or the model's own table, or, for layers without rotary embedding, list them in `layers`");
  if (!shape.layers.empty() && static_cast<std::int64_t>(shape.layers.size()) != shape.n_layers)
    throw ConfigError(concat("memory shape: ", shape.layers.size(),
                             " layers are listed, n_layers is ", shape.n_layers));
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    const LayerShape layer = shape.layer(l);
    if (layer.rotary.rotary_dim() > shape.head_dim)
      throw ConfigError(concat("memory shape: rotary_dim = ", layer.rotary.rotary_dim(),
                               " of layer ", l, " exceeds head_dim = ", shape.head_dim));
    if (!std::isfinite(layer.scale) || layer.scale < 0)
      throw ConfigError(concat("memory shape: scale = ", layer.scale, " of layer ", l,
                               ", must be >= 0 (0: 1 / sqrt(head_dim))"));
    if (!std::isfinite(layer.softcap) || layer.softcap < 0)
      throw ConfigError(concat("memory shape: softcap = ", layer.softcap, " of layer ", l,
                               ", must be >= 0 (0: none)"));
  }
  sizes_detail::check_sizes(config, shape);
  sizes_detail::check_ranks(config, shape);
  if (const std::int64_t groups = config.lanes_per_layer(shape.n_kv_heads);
      shape.n_kv_heads % groups != 0)
    throw ConfigError(concat("memory configuration: recall_groups = ", groups,
                             " does not divide the model's ", shape.n_kv_heads,
                             " key/value heads"));
  if (config.retention && config.retention->layer >= 0 &&
      (config.retention->layer >= shape.n_layers || !recalls(config, config.retention->layer)))
    throw ConfigError(concat("memory configuration: retention names layer ",
                             config.retention->layer,
                             ", which the model has not or which does not recall"));
  if (config.retention && recalling_layers(config, shape) == 0)
    throw ConfigError(
        "memory configuration: retention needs a layer that recalls, recall_layers names none");
  if (config.refine != Refinement::none && config.refine_layers >= shape.n_layers)
    throw ConfigError(concat("memory configuration: refine_layers = ", config.refine_layers,
                             ", but the model has only layers 0 to ", shape.n_layers - 1));
  for (const std::int64_t l : config.recall_layers.value_or(std::vector<std::int64_t>{}))
    if (l >= shape.n_layers)
      throw ConfigError(concat("memory configuration: recall_layers names layer ", l,
                               ", but the model has only layers 0 to ", shape.n_layers - 1));
}

EPISODIC_INLINE MemoryConfig share_of(const MemoryConfig& config, MemoryShape& shape) {
  MemoryConfig mine = config;
  if (shape.ranks == 1 || config.scope == EventScope::head) return mine;
  const std::int64_t groups = config.recall_groups;
  shape.recall_together = groups == 1;
  if (shape.recall_together) return mine;
  if (groups % shape.ranks != 0)
    throw ConfigError(concat("memory configuration: recall_groups = ", groups, " among ",
                             shape.ranks,
                             " ranks; give 1, by which all ranks recall together, or a multiple of "
                             "the ranks"));
  mine.recall_groups = groups / shape.ranks;
  return mine;
}

EPISODIC_INLINE std::int64_t ring_capacity(const MemoryConfig& c) {
  return c.n_local + c.max_block + 2 * c.chunk;
}

EPISODIC_INLINE std::int64_t most_recalled_tokens(const MemoryConfig& c) {
  if (c.reweight == Reweighting::narrow) return c.reweight_top * c.max_block;
  if (c.reweight == Reweighting::broad) return 3 * c.reweight_top * c.max_block;
  return c.n_init + c.chunk + c.n_mem + 2 * c.max_block;
}

EPISODIC_INLINE std::int64_t most_leased_tokens(const MemoryConfig& config,
                                                const MemoryShape& shape) {
  return config.lanes_per_layer(shape.n_kv_heads) * most_recalled_tokens(config);
}

EPISODIC_INLINE bool recalls(const MemoryConfig& config, std::int64_t layer) {
  if (!config.recall) return false;
  if (!config.recall_layers) return true;
  return std::find(config.recall_layers->begin(), config.recall_layers->end(), layer) !=
         config.recall_layers->end();
}

EPISODIC_INLINE std::int64_t recalling_layers(const MemoryConfig& config,
                                              const MemoryShape& shape) {
  std::int64_t n = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l) n += recalls(config, l);
  return n;
}

EPISODIC_INLINE std::int64_t retention_layer(const MemoryConfig& config, const MemoryShape& shape) {
  if (config.retention->layer >= 0) return config.retention->layer;
  std::vector<std::int64_t> recalling;
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    if (recalls(config, l)) recalling.push_back(l);
  return recalling[recalling.size() / 2];
}

EPISODIC_INLINE LaneShape lane_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const std::int64_t per_layer = config.lanes_per_layer(shape.n_kv_heads);
  return {per_layer * recalling_layers(config, shape), per_layer, shape.n_heads / per_layer,
          shape.n_kv_heads / per_layer};
}

EPISODIC_INLINE StoreShape store_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const LaneShape lanes = lane_shape(config, shape);
  return {lanes.n_lanes, lanes.n_kv_heads, shape.head_dim, config.kv_dtype};
}

}  // namespace EPISODIC_NAMESPACE
