// SPDX-License-Identifier: Apache-2.0
// Gemma 4: heads of full and sliding layers differ, the last layers attend to keys of earlier ones,
// each layer has an input of its own, and a mixture may be beside the dense network.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "family.hpp"

namespace episodic {
namespace {

void require_causal(const JsonObject& in) {
  const char* key = "use_bidirectional_attention";
  // "vision" is of the tokens of pictures, which a text has none of
  if (const std::string said = in.string(key, "vision"); said != "vision")
    in.fail(key, fmt::format("is \"{}\"; only causal decoders are supported", said));
}

MixtureSpec mixture_beside(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c) {
  const std::int64_t experts = in.integer("num_experts", 1, kMostExperts);
  const std::int64_t chosen = in.integer("top_k_experts", 1, kMostExperts);
  if (chosen > experts)
    in.fail("top_k_experts", fmt::format("= {} exceeds num_experts = {}", chosen, experts));
  const nlohmann::json usual = {{"num_experts_per_tok", chosen}};
  MixtureSpec m =
      read_mixture(in.changed_by(JsonObject(usual, "config.json")), d, c, "num_experts");
  m.width = in.integer("moe_intermediate_size", 1, kMostWidth);
  m.normalised = true;
  m.tensors = MixtureTensors::gemma;
  return m;
}

void gemma4(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  require_causal(in);
  c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  const char* cap = "final_logit_softcapping";
  c.logit_soft_cap = in.has(cap) ? in.number(cap, 1e-6, kMostMultiplier) : 0.0;
  each.scale = 1;
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.norms = NormPlace::both;
  each.qk_norm = QkNorm::head;
  each.value_norm = each.layer_scalar = true;
  const char* width = "hidden_size_per_layer_input";
  c.per_layer_width = in.null(width) ? 0 : in.integer(width, 0, kMostWidth, 256);
  if (c.per_layer_width > 0) {
    if (c.per_layer_width > kMostWidth / c.n_layers)
      in.fail(width, fmt::format("= {} in each of {} layers is wider than {}", c.per_layer_width,
                                 c.n_layers, kMostWidth));
    const char* vocab = "vocab_size_per_layer_input";
    c.per_layer_vocab = in.integer(vocab, 1, kMostVocabulary, 262144);
    if (c.per_layer_vocab < c.vocab_size)
      in.fail(vocab, fmt::format("= {} is less than vocab_size = {}: some tokens would have no "
                                 "input of the layers",
                                 c.per_layer_vocab, c.vocab_size));
  }
  if (in.boolean("enable_moe_block", false)) {
    each.mixture = mixture_beside(in, d, c);
    each.dense_beside = true;
  }
}

/// Heads of full layers: in keys of their own, or layer by layer (transformers 5.24).
void read_full_heads(const JsonObject& in, const ModelConfig& c, std::int64_t layer, bool same_kv,
                     LayerSpec& s) {
  const auto heads = in.object("per_layer_config");
  const char* dim = "head_dim";
  const char* kv = "num_key_value_heads";
  if (heads) {
    const auto own = heads->object(std::to_string(layer).c_str());
    if (!own) return;
    s.head_dim = own->integer(dim, 1, kMostHeadDim, c.head_dim);
    s.n_kv_heads = own->integer(kv, 1, kMostHeads, c.n_kv_heads);
  } else {
    dim = "global_head_dim";
    kv = "num_global_key_value_heads";
    s.head_dim = in.integer(dim, 1, kMostHeadDim, 512);
    if (same_kv) s.n_kv_heads = in.integer(kv, 1, kMostHeads, c.n_kv_heads);
  }
  if (s.head_dim > kMostWidth / s.n_heads)
    in.fail(dim,
            fmt::format("= {} times {} heads is wider than {}", s.head_dim, s.n_heads, kMostWidth));
  if (s.n_heads % s.n_kv_heads != 0)
    in.fail(kv, fmt::format("= {} of layer {} does not divide num_attention_heads = {}",
                            s.n_kv_heads, layer, s.n_heads));
}

/// Which layers attend to the keys of which: the last `num_kv_shared_layers`, to those of the last
/// layer before them that slides as they do.
void share_keys(const JsonObject& in, ModelConfig& c) {
  const char* key = "num_kv_shared_layers";
  const std::int64_t shared = in.integer(key, 0, kMostLayers, 0);
  if (shared >= c.n_layers && shared > 0)
    in.fail(key, fmt::format("= {} leaves none of {} layers with keys", shared, c.n_layers));
  const bool wide = in.boolean("use_double_wide_mlp", false);
  for (std::int64_t l = c.n_layers - shared; l < c.n_layers; ++l) {
    LayerSpec& s = c.layers[static_cast<std::size_t>(l)];
    for (s.keys_of = c.n_layers - shared - 1; s.keys_of >= 0; --s.keys_of)
      if (c.layers[static_cast<std::size_t>(s.keys_of)].window == s.window) break;
    if (s.keys_of < 0)
      in.fail(key, fmt::format("= {} leaves layer {} without an earlier one of its type to share "
                               "keys with",
                               shared, l));
    if (wide) s.intermediate_size *= 2;
  }
}

/// The two tables, each of its own heads. \param full a layer of full attention
void read_gemma4_ropes(const JsonObject& in, const FamilyDefaults& d, const LayerSpec& full,
                       ModelConfig& c) {
  const auto both = in.object("rope_parameters");
  RopeAround around = rope_around(in, d, c);
  around.of_layer_type = true;
  const auto add = [&](const char* type, std::int64_t head_dim, double theta) {
    around.head_dim = head_dim;
    around.theta = theta;
    c.ropes.push_back(read_rope(in, both ? both->object(type) : std::nullopt, around));
  };
  if (both && !both->has("full_attention") && !both->has("sliding_attention"))
    in.fail("rope_parameters",
            "is not given by type of layer; expected are full_attention and sliding_attention");
  add("full_attention", full.head_dim, 1e6);
  add("sliding_attention", c.head_dim, 1e4);
}

void gemma4_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  const std::int64_t window = read_as::window(in, d.window);
  mix_windows(in, window, false, c, [](std::int64_t l) { return (l + 1) % 6 != 0; });
  LayerSpec& last = c.layers.back();
  if (last.window > 0) {
    last.window = 0;
    c.notes.push_back("layer_types: the last layer sees all tokens, as in transformers");
  }
  const bool same = in.boolean("attention_k_eq_v", false);
  for (std::int64_t l = 0; l < c.n_layers; ++l) {
    LayerSpec& s = c.layers[static_cast<std::size_t>(l)];
    s.rope = s.window > 0 ? 1 : 0;
    if (s.window > 0) continue;
    s.keys_are_values = same;
    read_full_heads(in, c, l, same, s);
  }
  for (std::int64_t l = 0; l < c.n_layers; ++l)
    if (const LayerSpec& s = c.layers[static_cast<std::size_t>(l)];
        s.window == 0 && (s.head_dim != last.head_dim || s.n_kv_heads != last.n_kv_heads))
      in.fail("per_layer_config",
              fmt::format("gives layer {} other heads than layer {}, which is of its type", l,
                          c.n_layers - 1));
  read_gemma4_ropes(in, d, last, c);
  share_keys(in, c);
  c.head_dim = last.head_dim;
  c.n_kv_heads = last.n_kv_heads;
}

constexpr Family kGemma4[] = {
    {"gemma4_text",
     {.n_kv_heads = 4,
      .head_dim = 256,
      .tied = true,
      .window = 512,
      .activation = "gelu_pytorch_tanh",
      .positions = 131072,
      .rope = R"({"full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25,
                                     "rope_theta": 1e6},
                  "sliding_attention": {"rope_type": "default", "rope_theta": 1e4}})",
      .n_heads = 8,
      .vocab = 262144,
      .gemma = true,
      .own_ropes = true},
     gemma4,
     gemma4_layers},
};

}  // namespace

std::span<const Family> gemma4_families() { return kGemma4; }

}  // namespace episodic
