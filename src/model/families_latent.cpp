// SPDX-License-Identifier: Apache-2.0
// Families with latent attention (LatentSpec) and the mixtures that come with it: DeepSeek V2 and
// V3, GLM-4.7-Flash.
#include <fmt/format.h>

#include <cmath>
#include <string>

#include "family.hpp"

namespace episodic {
namespace {

/// What the classes take where config.json says nothing.
struct LatentDefaults {
  std::int64_t q_rank, still, value, shared_experts, first_sparse;
  double scaling;  // routed_scaling_factor
  std::int64_t groups, chosen_groups;
};

/// The settings of the one rotary table, whatever their generation; none: plain.
std::optional<JsonObject> rope_settings(const JsonObject& in) {
  const auto scaling = in.object("rope_scaling");
  return scaling && !scaling->empty() ? scaling : in.object("rope_parameters");
}

/// What scores are multiplied by beside 1 / sqrt(channels): yarn's mscale_all_dim, squared.
double yarn_scale(const JsonObject& in) {
  const auto rope = rope_settings(in);
  if (!rope || rope->string("rope_type", rope->string("type", "default")) == "default") return 1;
  const double all_dim = rope->number_or("mscale_all_dim", 1e6, 0);
  if (all_dim == 0) return 1;
  const double factor = rope->number("factor", 1e-3, 1e6);
  const double scale = factor <= 1 ? 1.0 : 0.1 * all_dim * std::log(factor) + 1.0;
  return scale * scale;
}

void read_latent(const JsonObject& in, const FamilyDefaults& d, const LatentDefaults& usual,
                 ModelConfig& c, LayerSpec& each) {
  LatentSpec& s = each.latent;
  const char* q_rank = "q_lora_rank";
  s.rank = in.integer("kv_lora_rank", 1, kMostHeadDim, 512);
  s.q_rank = in.null(q_rank) ? 0 : in.integer(q_rank, 1, kMostWidth, usual.q_rank);
  s.turning = in.integer("qk_rope_head_dim", 2, kMostHeadDim, 64);
  s.still = in.integer("qk_nope_head_dim", 1, kMostHeadDim, usual.still);
  s.value = in.integer("v_head_dim", 1, kMostHeadDim, usual.value);
  s.bias = each.o_bias = in.boolean("attention_bias", false);
  const auto fits = [&](const char* key, std::int64_t width) {
    if (width > kMostWidth / c.n_heads)
      in.fail(key, fmt::format("makes {} heads wider than {} together", c.n_heads, kMostWidth));
  };
  fits("kv_lora_rank", s.width());
  fits("qk_nope_head_dim", s.query());
  fits("v_head_dim", s.value);
  if (c.n_kv_heads != c.n_heads)
    in.fail("num_key_value_heads",
            fmt::format("= {}, but latent attention has keys for each of its {} heads",
                        c.n_kv_heads, c.n_heads));
  RopeAround around = rope_around(in, d, c);
  around.head_dim = s.turning;
  c.ropes.push_back(read_rope(in, rope_settings(in), around));
  if (!in.boolean("rope_interleave", true)) c.ropes.back().table.pairs = RotaryPairs::halves;
  c.n_kv_heads = each.n_kv_heads = 1;
  c.head_dim = each.head_dim = s.width();
  each.scale = yarn_scale(in) / std::sqrt(static_cast<double>(s.query()));
}

void require_word(const JsonObject& in, const char* key, const std::string& word) {
  if (const std::string said = in.string(key, word); said != word)
    in.unsupported(key, said, fmt::format("{} (for this model_type)", word));
}

/// Experts in groups of which the best few are looked at.
void read_groups(const JsonObject& in, const LatentDefaults& usual, MixtureSpec& m) {
  m.groups = in.integer("n_group", 1, kMostExperts, usual.groups);
  m.chosen_groups = in.integer("topk_group", 1, kMostExperts, usual.chosen_groups);
  if (m.experts % m.groups != 0)
    in.fail("n_group",
            fmt::format("= {} does not divide n_routed_experts = {}", m.groups, m.experts));
  if (m.chosen_groups > m.groups)
    in.fail("topk_group", fmt::format("= {} exceeds n_group = {}", m.chosen_groups, m.groups));
  const std::int64_t seen = m.experts / m.groups * m.chosen_groups;
  if (m.chosen > seen)
    in.fail("topk_group", fmt::format("= {} leaves {} experts to choose num_experts_per_tok = {} "
                                      "from",
                                      m.chosen_groups, seen, m.chosen));
  if (m.groups == m.chosen_groups) m.groups = m.chosen_groups = 0;  // all are looked at
}

MixtureSpec read_experts_and_shared(const JsonObject& in, const FamilyDefaults& d,
                                    const LatentDefaults& usual, const ModelConfig& c) {
  if (in.integer("moe_layer_freq", 1, kMostLayers, 1) != 1)
    in.fail("moe_layer_freq", "is not 1, which is not supported");
  MixtureSpec m = read_mixture(in, d, c, "n_routed_experts");
  const char* shared = "n_shared_experts";
  const std::int64_t n = in.null(shared) ? 0 : in.integer(shared, 0, 64, usual.shared_experts);
  m.shared_width = n * m.width;
  if (m.shared_width > kMostWidth)
    in.fail(shared,
            fmt::format("= {} experts of width {} are wider than {}", n, m.width, kMostWidth));
  m.scaling =
      in.number("routed_scaling_factor", 1 / kMostMultiplier, kMostMultiplier, usual.scaling);
  m.tensors = MixtureTensors::deepseek;
  return m;
}

/// Layers before `first` are dense; those of the drafting head behind the last are left out.
void dense_before(const JsonObject& in, std::int64_t first, ModelConfig& c) {
  for (std::int64_t l = 0; l < std::min(first, c.n_layers); ++l)
    c.layers[static_cast<std::size_t>(l)].mixture = {};
  const char* key =
      in.has("num_nextn_predict_layers") ? "num_nextn_predict_layers" : "num_mtp_layers";
  c.drafting_layers = in.integer(key, 0, kMostLayers, 0);
}

constexpr LatentDefaults kV2{1536, 128, 128, 2, 0, 1.0, 1, 1};

/// Probabilities, of the best group by its best expert.
void deepseek_v2(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  read_latent(in, d, kV2, c, each);
  if (in.boolean("mlp_bias", false)) in.fail("mlp_bias", "is true, which is not supported");
  if (in.boolean("norm_topk_prob", false))
    in.fail("norm_topk_prob",
            "is true, which transformers' class of this model_type does not compute");
  require_word(in, "scoring_func", "softmax");
  (void)in.integer("num_experts_per_tok", 1, kMostExperts);  // there is no usual number
  each.mixture = read_experts_and_shared(in, d, kV2, c);
  const std::string method = in.string("topk_method", "greedy");
  if (method == "group_limited_greedy")
    read_groups(in, kV2, each.mixture);
  else if (method != "greedy")
    in.unsupported("topk_method", method, "greedy, group_limited_greedy");
}

void deepseek_v2_layers(const JsonObject& in, const FamilyDefaults&, ModelConfig& c) {
  dense_before(in, in.integer("first_k_dense_replace", 0, kMostLayers, kV2.first_sparse), c);
}

/// Sigmoids, with a bias for the choice alone; of the best groups by their two best experts.
void noaux_tc(const JsonObject& in, const FamilyDefaults& d, const LatentDefaults& usual,
              ModelConfig& c, LayerSpec& each) {
  read_latent(in, d, usual, c, each);
  require_word(in, "scoring_func", "sigmoid");
  require_word(in, "topk_method", "noaux_tc");
  MixtureSpec& m = each.mixture = read_experts_and_shared(in, d, usual, c);
  m.scoring = RouterScoring::sigmoid;
  m.bias = RouterBias::choice;
  m.normalised = in.boolean("norm_topk_prob", true);
  read_groups(in, usual, m);
  if (m.groups > 0 && m.experts / m.groups < 2)
    in.fail("n_group", fmt::format("= {} leaves no two experts in a group", m.groups));
  m.group_by_two = true;
}

constexpr LatentDefaults kV3{1536, 128, 128, 1, 3, 2.5, 8, 4};

void deepseek_v3(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  noaux_tc(in, d, kV3, c, each);
}

void deepseek_v3_layers(const JsonObject& in, const FamilyDefaults&, ModelConfig& c) {
  dense_before(in, in.integer("first_k_dense_replace", 0, kMostLayers, kV3.first_sparse), c);
}

constexpr LatentDefaults kGlmLite{768, 192, 256, 1, 1, 1.8, 1, 1};

void glm4_moe_lite(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  noaux_tc(in, d, kGlmLite, c, each);
}

void glm4_moe_lite_layers(const JsonObject& in, const FamilyDefaults&, ModelConfig& c) {
  const auto types = in.strings("mlp_layer_types", c.n_layers);
  dense_before(
      in, types ? 0 : in.integer("first_k_dense_replace", 0, kMostLayers, kGlmLite.first_sparse),
      c);
  for (std::int64_t l = 0; types && l < c.n_layers; ++l) {
    const std::string& type = (*types)[static_cast<std::size_t>(l)];
    if (type != "dense" && type != "sparse")
      in.unsupported("mlp_layer_types", type, "dense, sparse");
    if (type == "dense") c.layers[static_cast<std::size_t>(l)].mixture = {};
  }
}

constexpr Family kLatentFamilies[] = {
    {"deepseek_v2",
     {.head_dim = 64,
      .positions = 2048,
      .experts = 64,
      .expert_width = 1407,
      .interleaved = true,
      .own_ropes = true},
     deepseek_v2,
     deepseek_v2_layers},
    {"deepseek_v3",
     {.head_dim = 64,
      .positions = 4096,
      .experts = 256,
      .chosen = 8,
      .expert_width = 2048,
      .interleaved = true,
      .own_ropes = true},
     deepseek_v3,
     deepseek_v3_layers},
    {"glm4_moe_lite",
     {.head_dim = 64,
      .rms_norm_eps = 1e-5,
      .positions = 202752,
      .experts = 64,
      .chosen = 4,
      .expert_width = 1536,
      .interleaved = true,
      .own_ropes = true},
     glm4_moe_lite,
     glm4_moe_lite_layers},
};

}  // namespace

std::span<const Family> latent_families() { return kLatentFamilies; }

}  // namespace episodic
