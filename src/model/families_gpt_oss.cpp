// SPDX-License-Identifier: Apache-2.0
// gpt-oss: sink logits in all attention, sliding and full layers in turn, experts with biases and a
// clamped gate.
#include "family.hpp"

namespace episodic {
namespace {

void gpt_oss(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  // its class would take a scaling of its own, and files always have one
  if (!in.has("rope_parameters") && !in.has("rope_scaling"))
    in.fail("rope_parameters", "is missing; give the config.json that the model's makers wrote");
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", true);
  each.sink_logits = true;
  each.mixture = read_mixture(in, d, c, "num_local_experts");
  each.mixture.normalised = true;  // a softmax of the chosen alone
  each.mixture.bias = RouterBias::product;
  each.mixture.expert_bias = true;
  each.mixture.tensors = MixtureTensors::stacked;
  each.mixture.slope = in.number("swiglu_alpha", 1e-3, kMostMultiplier, 1.702);
  each.mixture.limit = in.number("swiglu_limit", 1e-3, kMostMultiplier, 7.0);
}

constexpr Family kGptOss[] = {
    {"gpt_oss",
     {.n_kv_heads = 8,
      .head_dim = 64,
      .rms_norm_eps = 1e-5,
      .rope_theta = 150000,
      .window = 128,
      .positions = 131072,
      .experts = 128,
      .chosen = 4},
     gpt_oss,
     read_as::gemma2_layers},
};

}  // namespace

std::span<const Family> gpt_oss_families() { return kGptOss; }

}  // namespace episodic
