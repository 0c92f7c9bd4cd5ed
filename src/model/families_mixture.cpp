// SPDX-License-Identifier: Apache-2.0
// Families whose layers have a mixture of experts in place of a feed-forward network.
#include <fmt/format.h>

#include <algorithm>

#include "family.hpp"

namespace episodic {
namespace {

/// Of all layers. Each has a few lines in a plan, before any tensor was looked at.
constexpr std::int64_t kMostExpertsOfAll = 1 << 17;

/// Either of the two names that the reference's classes have for the same number.
std::int64_t read_experts(const JsonObject& in, const char* key, const char* other,
                          std::int64_t otherwise) {
  const char* said = in.has(key) || !in.has(other) ? key : other;
  const std::int64_t experts = in.integer(said, 1, kMostExperts, otherwise);
  if (in.has(key) && in.has(other) && in.integer(other, 1, kMostExperts) != experts)
    in.fail(other, fmt::format("differs from {} = {}", key, experts));
  return experts;
}

}  // namespace

MixtureSpec read_mixture(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c,
                         const char* key) {
  const bool local = std::string_view(key) == "num_local_experts";
  MixtureSpec m;
  m.experts = read_experts(in, key, local ? "num_experts" : "num_local_experts", d.experts);
  if (m.experts * c.n_layers > kMostExpertsOfAll)
    in.fail(key, fmt::format("= {} in each of {} layers are more than {} experts", m.experts,
                             c.n_layers, kMostExpertsOfAll));
  m.chosen = in.integer("num_experts_per_tok", 1, kMostExperts, d.chosen);
  if (m.chosen > m.experts)
    in.fail("num_experts_per_tok", fmt::format("= {} exceeds {} = {}", m.chosen, key, m.experts));
  m.width = d.expert_width == 0
                ? c.intermediate_size
                : in.integer("moe_intermediate_size", 1, kMostWidth, d.expert_width);
  return m;
}

namespace read_as {

void sparse_layers(const JsonObject& in, ModelConfig& c) {
  const std::int64_t step = in.integer("decoder_sparse_step", 1, kMostLayers, 1);
  const std::vector<std::int64_t> dense = in.tokens("mlp_only_layers");
  for (std::int64_t l = 0; l < c.n_layers; ++l)
    if ((l + 1) % step != 0 || std::find(dense.begin(), dense.end(), l) != dense.end())
      c.layers[static_cast<std::size_t>(l)].mixture = {};
  if (!c.has_mixture())
    in.fail("decoder_sparse_step",
            fmt::format("= {} and mlp_only_layers leave no layer with experts", step));
}

}  // namespace read_as

namespace {

void qwen_mixture(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c,
                  LayerSpec& each) {
  each.mixture = read_mixture(in, d, c, "num_experts");
  each.mixture.normalised = in.boolean("norm_topk_prob", false);
}

void qwen2_moe(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  each.qkv_bias = in.boolean("qkv_bias", true);
  qwen_mixture(in, d, c, each);
  each.mixture.shared_width = in.integer("shared_expert_intermediate_size", 1, kMostWidth, 5632);
  each.mixture.shared_gate = true;
}

void qwen2_moe_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  read_as::qwen_layers(in, d, c);
  read_as::sparse_layers(in, c);
}

void qwen3_moe(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  read_as::qwen3(in, d, c, each);
  qwen_mixture(in, d, c, each);
  if (in.boolean("use_sliding_window", false)) each.window = read_as::window(in, d.window);
}

void qwen3_moe_layers(const JsonObject& in, const FamilyDefaults&, ModelConfig& c) {
  read_as::sparse_layers(in, c);
}

void mixtral(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  each.window = read_as::window(in, 0);
  each.mixture = read_mixture(in, d, c, "num_local_experts");
  each.mixture.normalised = true;
  each.mixture.tensors = MixtureTensors::mixtral;
}

void olmoe(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.qk_norm = QkNorm::row;
  if (in.has("clip_qkv")) in.fail("clip_qkv", "is set, which is not supported");
  qwen_mixture(in, d, c, each);
}

/// A softmax of the chosen alone is one of all, divided by the sum of the chosen.
void granitemoe(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  read_as::granite(in, d, c, each);
  each.mlp_bias = false;
  each.mixture = read_mixture(in, d, c, "num_local_experts");
  each.mixture.normalised = true;
  each.mixture.tensors = MixtureTensors::granite;
}

}  // namespace

namespace read_as {

void granitemoeshared(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c,
                      LayerSpec& each) {
  granitemoe(in, d, c, each);
  each.mixture.shared_width = in.integer("shared_intermediate_size", 0, kMostWidth, 0);
}

}  // namespace read_as

namespace {

constexpr Family kMixtureFamilies[] = {
    {"qwen2_moe",
     {.n_kv_heads = 16,
      .window = 4096,
      .positions = 32768,
      .experts = 60,
      .chosen = 4,
      .expert_width = 1408},
     qwen2_moe,
     qwen2_moe_layers},
    {"qwen3_moe",
     {.n_kv_heads = 4,
      .window = 4096,
      .positions = 32768,
      .experts = 128,
      .chosen = 8,
      .expert_width = 768},
     qwen3_moe,
     qwen3_moe_layers},
    {"mixtral",
     {.n_kv_heads = 8,
      .rms_norm_eps = 1e-5,
      .rope_theta = 1e6,
      .positions = 131072,
      .experts = 8,
      .chosen = 2},
     mixtral,
     nullptr},
    {"olmoe",
     {.rms_norm_eps = 1e-5, .positions = 4096, .experts = 64, .chosen = 8},
     olmoe,
     nullptr},
    {"granitemoe", {.experts = 8, .chosen = 2}, granitemoe, nullptr},
    {"granitemoeshared", {.experts = 8, .chosen = 2}, read_as::granitemoeshared, nullptr},
};

}  // namespace

std::span<const Family> mixture_families() { return kMixtureFamilies; }

bool ModelConfig::has_mixture() const {
  return std::any_of(layers.begin(), layers.end(),
                     [](const LayerSpec& layer) { return bool(layer.mixture); });
}

}  // namespace episodic
