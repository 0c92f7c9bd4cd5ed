// SPDX-License-Identifier: Apache-2.0
// Families of dense decoders beyond LLaMA's closest kin. What they need is in LayerSpec and
// ModelConfig: a further one is a row here, with a function that sets those fields.
#include "family.hpp"

namespace episodic {
namespace {

/// Whether a layer slides where every n-th does not.
auto every_nth_sees_all(std::int64_t n) {
  return [n](std::int64_t layer) { return (layer + 1) % n != 0; };
}

JsonObject rope_said(const JsonObject& in) {
  const auto scaling = in.object("rope_scaling");
  return scaling && !scaling->empty() ? *scaling : *in.object("rope_parameters");
}

/// Mistral's block; queries grow with their position.
void ministral3(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  each.window = read_as::window(in, d.window);
  const JsonObject rope = rope_said(in);
  c.query_scale.beta = rope.number("llama_4_scaling_beta", 0, 1e3);
  const char* original = "original_max_position_embeddings";
  const JsonObject& where = in.has(original) ? in : rope;
  c.query_scale.original = where.integer(original, 1, kMostPositions);
}

constexpr const char* kMinistral3Rope =
    R"({"rope_type": "yarn", "rope_theta": 1e6, "factor": 16, "beta_fast": 32, "beta_slow": 1,
        "original_max_position_embeddings": 16384, "mscale": 1, "mscale_all_dim": 1,
        "llama_4_scaling_beta": 0.1})";

/// OLMo 2's block; three sliding layers to one full, which alone has the scaled table.
void olmo3_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  mix_windows(in, read_as::window(in, d.window), false, c, every_nth_sees_all(4));
  add_sliding_rope(in, d, d.rope_theta, c);
}

/// Norms behind the blocks and of queries and keys.
void exaone4(const JsonObject&, const FamilyDefaults&, ModelConfig&, LayerSpec& each) {
  each.norms = NormPlace::after;
  each.qk_norm = QkNorm::head;
}

/// Full layers do not rotate where there are sliding ones.
void exaone4_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  const std::int64_t window = read_as::window(in, d.window);
  const std::int64_t pattern = window > 0 && !in.has("layer_types")
                                   ? in.integer("sliding_window_pattern", 1, kMostLayers, 4)
                                   : 1;
  mix_windows(in, window, true, c, every_nth_sees_all(pattern));
  for (LayerSpec& layer : c.layers)
    if (window > 0 && layer.window == 0) layer.rope = -1;
}

/// A parallel block with one LayerNorm.
void cohere(const JsonObject& in, const FamilyDefaults&, ModelConfig& c, LayerSpec& each) {
  c.layer_norm = true;
  c.logit_multiplier = in.number("logit_scale", 1 / kMostMultiplier, kMostMultiplier, 0.0625);
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.parallel = true;
  if (in.boolean("use_qk_norm", false))
    in.fail("use_qk_norm", "is true: LayerNorms of queries and keys are not supported");
}

/// Full layers do not rotate.
void cohere2_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  const std::int64_t pattern = in.integer("sliding_window_pattern", 1, kMostLayers, 4);
  mix_windows(in, read_as::window(in, d.window), true, c, every_nth_sees_all(pattern));
  for (LayerSpec& layer : c.layers)
    if (layer.window == 0) layer.rope = -1;
}

void glm(const JsonObject& in, const FamilyDefaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = in.boolean("attention_bias", true);
  each.fused_gate_up = true;
}

/// Norms on both sides of a block.
void glm4(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  glm(in, d, c, each);
  each.norms = NormPlace::both;
}

constexpr WeightName kGlm4Names[] = {{WeightRole::attended_norm, "post_self_attn_layernorm"},
                                     {WeightRole::feed_norm, "post_attention_layernorm"},
                                     {WeightRole::fed_norm, "post_mlp_layernorm"}};

void seed_oss(const JsonObject& in, const FamilyDefaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = in.boolean("attention_bias", true);
  each.o_bias = in.boolean("attention_out_bias", false);
  each.mlp_bias = in.boolean("mlp_bias", false);
}

void ernie4_5(const JsonObject& in, const FamilyDefaults&, ModelConfig&, LayerSpec& each) {
  each.qkv_bias = each.o_bias = each.mlp_bias = in.boolean("use_bias", false);
}

void arcee(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  read_as::llama(in, d, c, each);
  each.gated = false;
}

void apertus(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  read_as::qwen3(in, d, c, each);
  each.gated = false;
}

constexpr WeightName kApertusNames[] = {{WeightRole::input_norm, "attention_layernorm"},
                                        {WeightRole::feed_norm, "feedforward_layernorm"}};
constexpr const char* kApertusRope =
    R"({"rope_type": "llama3", "rope_theta": 12e6, "factor": 8, "low_freq_factor": 1,
        "high_freq_factor": 4, "original_max_position_embeddings": 8192})";

/// LayerNorms that hold w for 1 + w.
void nemotron(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  arcee(in, d, c, each);
  c.layer_norm = c.norm_bias = true;
  c.norm_offset = 1;
}

void starcoder2(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  c.layer_norm = c.norm_bias = true;
  each.gated = false;
  each.window = read_as::window(in, d.window);
  each.qkv_bias = each.o_bias = each.mlp_bias = in.boolean("use_bias", true);
}

constexpr WeightName kStarcoder2Names[] = {{WeightRole::up, "mlp.c_fc"},
                                           {WeightRole::down, "mlp.c_proj"}};

void stablelm(const JsonObject& in, const FamilyDefaults&, ModelConfig& c, LayerSpec& each) {
  c.layer_norm = c.norm_bias = true;
  each.qkv_bias = in.boolean("use_qkv_bias", false);
  each.parallel = in.boolean("use_parallel_residual", false);
  if (in.boolean("qk_layernorm", false))
    in.fail("qk_layernorm", "is true: LayerNorms of queries and keys are not supported");
}

const Family kDenseFamilies[] = {
    {"ministral3",
     {.n_kv_heads = 8,
      .head_dim = 128,
      .rms_norm_eps = 1e-5,
      .positions = 262144,
      .rope = kMinistral3Rope},
     ministral3},
    {"olmo3",
     {.rms_norm_eps = 1e-5, .rope_theta = 5e5, .window = 4096, .layered_rope = true},
     read_as::olmo2,
     olmo3_layers},
    {"exaone4", {.n_kv_heads = 32, .rms_norm_eps = 1e-5, .window = 4096}, exaone4, exaone4_layers},
    {"cohere2",
     {.rms_norm_eps = 1e-5,
      .tied = true,
      .window = 4096,
      .positions = 8192,
      .interleaved = true,
      .eps_key = "layer_norm_eps"},
     cohere,
     cohere2_layers},
    {"cohere",
     {.rms_norm_eps = 1e-5,
      .rope_theta = 5e5,
      .tied = true,
      .positions = 8192,
      .interleaved = true,
      .eps_key = "layer_norm_eps"},
     cohere},
    {"glm4",
     {.n_kv_heads = 2,
      .head_dim = 128,
      .rms_norm_eps = 1.5625e-7,
      .positions = 131072,
      .partial = true,
      .share = 0.5,
      .interleaved = true},
     glm4,
     nullptr,
     kGlm4Names},
    {"glm",
     {.n_kv_heads = 2,
      .head_dim = 128,
      .rms_norm_eps = 1.5625e-7,
      .positions = 131072,
      .partial = true,
      .share = 0.5,
      .interleaved = true},
     glm},
    {"seed_oss", {.n_kv_heads = 8, .head_dim = 128, .positions = 524288}, seed_oss},
    {"apertus",
     {.rms_norm_eps = 1e-5,
      .rope_theta = 12e6,
      .activation = "xielu",
      .positions = 65536,
      .rope = kApertusRope},
     apertus,
     nullptr,
     kApertusNames},
    {"arcee", {.rms_norm_eps = 1e-5, .activation = "relu2", .positions = 4096}, arcee},
    {"ernie4_5",
     {.n_kv_heads = 2,
      .head_dim = 128,
      .rms_norm_eps = 1e-5,
      .rope_theta = 5e5,
      .tied = true,
      .positions = 131072,
      .interleaved = true},
     ernie4_5},
    {"nemotron",
     {.rms_norm_eps = 1e-5,
      .activation = "relu2",
      .positions = 4096,
      .partial = true,
      .share = 0.5,
      .eps_key = "norm_eps"},
     nemotron},
    {"starcoder2",
     {.n_kv_heads = 2,
      .rms_norm_eps = 1e-5,
      .tied = true,
      .activation = "gelu_pytorch_tanh",
      .positions = 4096,
      .eps_key = "norm_epsilon"},
     starcoder2,
     nullptr,
     kStarcoder2Names},
    {"stablelm",
     {.n_kv_heads = 32,
      .rms_norm_eps = 1e-5,
      .positions = 4096,
      .partial = true,
      .share = 0.25,
      .eps_key = "layer_norm_eps"},
     stablelm},
};

}  // namespace

std::span<const Family> dense_families() { return kDenseFamilies; }

}  // namespace episodic
