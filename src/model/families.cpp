// SPDX-License-Identifier: Apache-2.0
#include "families.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "base/strict_json.hpp"
#include "families_lfm2.hpp"
#include "family.hpp"
#include "rope.hpp"
#include "text_part.hpp"

namespace episodic {

RopeAround rope_around(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c) {
  RopeAround around;
  around.head_dim = c.head_dim;
  around.max_positions = c.max_positions > 0 ? c.max_positions : d.positions;
  around.theta = d.rope_theta;
  around.original = d.original;
  around.share = d.share;
  around.interleaved = d.interleaved;
  // a GGUF file says how many channels turn, whatever the family
  around.partial = d.partial || in.has(kRopeInterleaved);
  return around;
}

void add_sliding_rope(const JsonObject& in, const FamilyDefaults& d, double theta, ModelConfig& c) {
  const auto both = in.object("rope_parameters");
  RopeAround around = rope_around(in, d, c);
  around.theta = theta;
  around.of_layer_type = true;
  c.ropes.push_back(read_rope(in, both ? both->object("sliding_attention") : std::nullopt, around));
  for (LayerSpec& layer : c.layers) layer.rope = layer.window > 0 ? 1 : 0;
}

namespace {

using Defaults = FamilyDefaults;

// -- rope --

/// The table of all layers, or of those of full attention. The 5.x releases of transformers put
/// everything into rope_parameters; before, theta stood outside and scaling in a dict of its own,
/// which goes before the other where both are there.
Rope read_main_rope(const JsonObject& in, const Defaults& d, const ModelConfig& c) {
  const RopeAround around = rope_around(in, d, c);
  const auto scaling = in.object("rope_scaling"), parameters = in.object("rope_parameters");
  if (parameters && (parameters->has("full_attention") || parameters->has("sliding_attention")))
    in.fail("rope_parameters",
            fmt::format("is given by type of layer, which \"{}\" has not; give one for all layers",
                        c.model_type));
  return read_rope(in, scaling && !scaling->empty() ? scaling : parameters, around);
}

/// The table of the layers of full attention, where sliding ones have their own: settings by type
/// of layer, or a dict of the older releases.
Rope read_full_rope(const JsonObject& in, const Defaults& d, const ModelConfig& c) {
  RopeAround around = rope_around(in, d, c);
  around.theta = in.number("rope_theta", 1e-3, 1e18, d.rope_theta);
  around.of_layer_type = true;
  const auto scaling = in.object("rope_scaling"), both = in.object("rope_parameters");
  const auto full = both ? both->object("full_attention") : std::nullopt;
  if (both && !both->empty() && !full && !both->has("sliding_attention"))
    in.fail("rope_parameters",
            "is not given by type of layer; expected are full_attention and sliding_attention");
  if (!full || !scaling) return read_rope(in, scaling ? scaling : full, around);
  return read_rope(in, full->changed_by(*scaling), around);
}

}  // namespace

namespace read_as {

std::int64_t window(const JsonObject& in, std::int64_t otherwise) {
  if (in.null("sliding_window")) return 0;
  return in.integer("sliding_window", 1, kMostPositions, otherwise);
}

void llama(const JsonObject& in, const Defaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.mlp_bias = in.boolean("mlp_bias", false);
}

void qwen3(const JsonObject& in, const Defaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.qk_norm = QkNorm::head;
}

void olmo2(const JsonObject& in, const Defaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.norms = NormPlace::after;
  each.qk_norm = QkNorm::row;
}

void qwen_layers(const JsonObject& in, const Defaults& d, ModelConfig& c) {
  const bool used = in.boolean("use_sliding_window", false);
  const std::int64_t first = in.integer("max_window_layers", 0, kMostLayers, 28);
  const std::int64_t window = used ? read_as::window(in, d.window) : 0;
  mix_windows(in, window, true, c, [&](std::int64_t l) { return window > 0 && l >= first; });
}

void granite(const JsonObject& in, const Defaults& d, ModelConfig& c, LayerSpec& each) {
  llama(in, d, c, each);
  const auto multiplier = [&](const char* key) {
    return in.number(key, 1 / kMostMultiplier, kMostMultiplier, 1.0);
  };
  c.embedding_multiplier = multiplier("embedding_multiplier");
  c.residual_multiplier = multiplier("residual_multiplier");
  c.logit_multiplier = 1 / multiplier("logits_scaling");
  each.scale = multiplier("attention_multiplier");
}

void gemma2_layers(const JsonObject& in, const Defaults& d, ModelConfig& c) {
  mix_windows(in, read_as::window(in, d.window), false, c,
              [](std::int64_t l) { return l % 2 == 0; });
}

}  // namespace read_as

namespace {

// -- families --

void mistral(const JsonObject& in, const Defaults& d, ModelConfig&, LayerSpec& each) {
  each.window = read_as::window(in, d.window);
}

void qwen2(const JsonObject&, const Defaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = true;
}

void phi3(const JsonObject& in, const Defaults&, ModelConfig&, LayerSpec& each) {
  each.window = read_as::window(in, 0);
  each.fused_qkv = each.fused_gate_up = true;
}

void gemma2(const JsonObject& in, const Defaults&, ModelConfig& c, LayerSpec& each) {
  const auto cap = [&](const char* key, double otherwise) {
    return in.null(key) ? 0.0 : in.number(key, 1e-6, kMostMultiplier, otherwise);
  };
  c.norm_offset = 1;
  c.embedding_multiplier = std::sqrt(static_cast<double>(c.hidden_size));
  c.logit_soft_cap = cap("final_logit_softcapping", 30);
  each.soft_cap = cap("attn_logit_softcapping", 50);
  each.scale = 1 / std::sqrt(in.number("query_pre_attn_scalar", 1e-9, 1e12, 256));
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.norms = NormPlace::both;
}

void gemma3(const JsonObject& in, const Defaults& d, ModelConfig& c, LayerSpec& each) {
  gemma2(in, d, c, each);
  if (!in.has("final_logit_softcapping")) c.logit_soft_cap = 0;
  if (!in.has("attn_logit_softcapping")) each.soft_cap = 0;
  each.qk_norm = QkNorm::head;
  if (in.boolean("use_bidirectional_attention", false))
    in.fail("use_bidirectional_attention", "is true; only causal decoders are supported");
}

/// Sliding layers turn by a table of their own.
void gemma3_layers(const JsonObject& in, const Defaults& d, ModelConfig& c) {
  const std::int64_t pattern = in.integer("sliding_window_pattern", 1, kMostLayers, 6);
  mix_windows(in, read_as::window(in, d.window), false, c,
              [&](std::int64_t l) { return (l + 1) % pattern != 0; });
  add_sliding_rope(in, d, in.number("rope_local_base_freq", 1e-3, 1e18, 10000.0), c);
}

/// Some layers do not rotate; windows, if there are any, are in those.
void smollm3_layers(const JsonObject& in, const Defaults& d, ModelConfig& c) {
  const std::int64_t interval = in.integer("no_rope_layer_interval", 1, kMostLayers, 4);
  const auto rotated = in.integers("no_rope_layers", c.n_layers, 0, 1);
  const bool used = in.boolean("use_sliding_window", false);
  const std::int64_t window = used ? read_as::window(in, d.window) : 0;
  const auto turns = [&](std::int64_t l) {
    return rotated ? (*rotated)[static_cast<std::size_t>(l)] == 1 : (l + 1) % interval != 0;
  };
  mix_windows(in, window, true, c, [&](std::int64_t l) { return window > 0 && !turns(l); });
  for (std::int64_t l = 0; l < c.n_layers; ++l)
    if (!turns(l)) c.layers[static_cast<std::size_t>(l)].rope = -1;
}

void lfm2(const JsonObject& in, const Defaults&, ModelConfig&, LayerSpec& each) {
  read_lfm2(in, each);
}

void lfm2_layers(const JsonObject& in, const Defaults&, ModelConfig& c) { read_lfm2_layers(in, c); }

const Family kFamilies[] = {
    {"llama", {}, read_as::llama, nullptr},
    {"mistral", {.n_kv_heads = 8, .window = 4096, .positions = 131072}, mistral, nullptr},
    {"qwen2", {.n_kv_heads = 32, .window = 4096, .positions = 32768}, qwen2, read_as::qwen_layers},
    {"qwen3",
     {.n_kv_heads = 32, .head_dim = 128, .window = 4096, .positions = 32768},
     read_as::qwen3,
     read_as::qwen_layers},
    {"phi3",
     {.rms_norm_eps = 1e-5, .positions = 4096, .original = 4096, .partial = true},
     phi3,
     nullptr},
    {"gemma2",
     {.n_kv_heads = 4,
      .head_dim = 256,
      .tied = true,
      .window = 4096,
      .activation = "gelu_pytorch_tanh",
      .positions = 8192,
      .gemma = true},
     gemma2,
     read_as::gemma2_layers},
    {"gemma3_text",
     {.n_kv_heads = 4,
      .head_dim = 256,
      .rope_theta = 1e6,
      .tied = true,
      .window = 4096,
      .activation = "gelu_pytorch_tanh",
      .positions = 131072,
      .layered_rope = true,
      .n_heads = 8,
      .vocab = 262208,
      .gemma = true},
     gemma3,
     gemma3_layers},
    {"smollm3",
     {.n_kv_heads = 4, .rope_theta = 2e6, .tied = true, .positions = 32768},
     read_as::llama,
     smollm3_layers},
    {"olmo2", {.rms_norm_eps = 1e-5}, read_as::olmo2, nullptr},
    {"granite", {}, read_as::granite, nullptr},
    {"lfm2",
     {.n_kv_heads = 8, .rope_theta = 1e6, .positions = 128000},
     lfm2,
     lfm2_layers,
     kLfm2Names,
     lfm2_usual_keys},
};

/// The tables of all files of families.
std::array<std::span<const Family>, 7> all_families() {
  return {kFamilies,         mixture_families(), gpt_oss_families(), dense_families(),
          hybrid_families(), gemma4_families(),  latent_families()};
}

Activation read_activation(const JsonObject& in, const FamilyDefaults& d, bool gated) {
  // Gemma says hidden_activation, and its hidden_act is not to be believed
  const char* key = in.has("hidden_activation") ? "hidden_activation" : "hidden_act";
  const std::string name =
      d.gemma && !in.has("hidden_activation") ? d.activation : in.string(key, d.activation);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu_pytorch_tanh" || name == "gelu_new") return Activation::gelu_tanh;
  if (!gated && name == "relu2") return Activation::relu_squared;
  if (!gated && name == "xielu") return Activation::xielu;
  in.unsupported(key, name,
                 gated ? "silu, swish, gelu_pytorch_tanh, gelu_new"
                       : "silu, swish, gelu_pytorch_tanh, gelu_new, relu2, xielu");
}

const Family& family_of(const JsonObject& in, const std::string& model_type) {
  std::string names;
  for (const std::span<const Family> rows : all_families())
    for (const Family& family : rows) {
      if (model_type == family.model_type) return family;
      names += fmt::format("{}{}", names.empty() ? "" : ", ", family.model_type);
    }
  for (const std::string_view sees : models_with_text_part()) names += fmt::format(", {}", sees);
  in.unsupported("model_type", model_type, names);
}

/// With the class's own rope_parameters where none are said.
JsonObject with_usual_rope(const JsonObject& in, const FamilyDefaults& d) {
  const auto scaling = in.object("rope_scaling");
  if (!d.rope || (scaling && !scaling->empty()) || in.object("rope_parameters")) return in;
  const nlohmann::json usual = {{"rope_parameters", parse_strict(d.rope, "rope_parameters", {})}};
  return in.changed_by(JsonObject(usual, "rope_parameters"));
}

void read_sizes(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  const auto said_or = [&](const char* key, std::int64_t most, std::int64_t otherwise) {
    return otherwise > 0 ? in.integer(key, 1, most, otherwise) : in.integer(key, 1, most);
  };
  c.vocab_size = said_or("vocab_size", kMostVocabulary, d.vocab);
  c.hidden_size = in.integer("hidden_size", 1, kMostWidth);
  c.intermediate_size = in.integer("intermediate_size", 1, kMostWidth);
  c.n_layers = in.integer("num_hidden_layers", 1, kMostLayers);
  c.n_heads = said_or("num_attention_heads", kMostHeads, d.n_heads);
  // null says as many as heads, whatever the class has as its default
  const bool all = d.n_kv_heads == 0 || in.null("num_key_value_heads");
  c.n_kv_heads = in.integer("num_key_value_heads", 1, kMostHeads, all ? c.n_heads : d.n_kv_heads);
  if (c.n_heads % c.n_kv_heads != 0)
    in.fail("num_key_value_heads",
            fmt::format("= {} does not divide num_attention_heads = {}", c.n_kv_heads, c.n_heads));
  const bool divided = d.head_dim == 0 || in.null("head_dim");
  if (!in.has("head_dim") && divided && c.hidden_size % c.n_heads != 0)
    in.fail("head_dim", fmt::format("is missing, and num_attention_heads = {} does not divide "
                                    "hidden_size = {}",
                                    c.n_heads, c.hidden_size));
  c.head_dim =
      in.integer("head_dim", 1, kMostHeadDim, divided ? c.hidden_size / c.n_heads : d.head_dim);
  if (c.n_heads * c.head_dim > kMostWidth)
    in.fail("head_dim",
            fmt::format("= {} times {} heads is wider than {}", c.head_dim, c.n_heads, kMostWidth));
  c.max_positions = in.integer("max_position_embeddings", 0, kMostPositions, 0);
  c.rms_norm_eps = in.number(d.eps_key, 1e-30, 1, d.rms_norm_eps);
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", d.tied);
}

}  // namespace

void read_family(const JsonObject& said, ModelConfig& c) {
  c.model_type = said.string("model_type", "");
  const Family& family = family_of(said, c.model_type);
  const FamilyDefaults& d = family.defaults;
  const JsonObject in = with_usual_rope(family.usual_keys ? family.usual_keys(said) : said, d);
  read_sizes(in, d, c);
  if (!d.own_ropes)
    c.ropes.push_back(d.layered_rope ? read_full_rope(in, d, c) : read_main_rope(in, d, c));
  c.pairs_moved = in.boolean(kRopeInterleaved, false) && !d.interleaved;
  c.names = family.names;
  LayerSpec each;
  each.n_heads = c.n_heads;
  each.n_kv_heads = c.n_kv_heads;
  each.head_dim = c.head_dim;
  each.intermediate_size = c.intermediate_size;
  each.scale = 1 / std::sqrt(static_cast<double>(c.head_dim));
  family.read(in, d, c, each);
  each.activation = read_activation(in, d, each.gated);
  c.layers.assign(static_cast<std::size_t>(c.n_layers), each);
  if (family.layers) family.layers(in, d, c);
}

double QueryScale::at(std::int64_t position) const {
  return 1 + beta * std::log1p(static_cast<double>(position / original));
}

std::vector<std::string_view> model_families() {
  std::vector<std::string_view> names;
  for (const std::span<const Family> rows : all_families())
    for (const Family& family : rows) names.emplace_back(family.model_type);
  return names;
}

std::vector<std::int64_t> ModelConfig::memory_layers() const {
  const auto own_keys = [](const LayerSpec& layer) {
    return layer.mixer == Mixer::attention && layer.keys_of < 0;
  };
  const auto full = [&](const LayerSpec& layer) { return layer.window == 0 && own_keys(layer); };
  const bool some_full = std::any_of(layers.begin(), layers.end(), full);
  std::vector<std::int64_t> served;
  for (std::int64_t l = 0; l < n_layers; ++l) {
    const LayerSpec& layer = layers[static_cast<std::size_t>(l)];
    if (some_full ? full(layer) : own_keys(layer)) served.push_back(l);
  }
  return served;
}

}  // namespace episodic
