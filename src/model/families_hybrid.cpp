// SPDX-License-Identifier: Apache-2.0
// Families most of whose layers have a recurrence in place of attention (RecurrenceSpec), and
// layers of full attention among them, which a memory serves.
#include <fmt/format.h>

#include <algorithm>
#include <tuple>

#include "family.hpp"

namespace episodic {
namespace {

constexpr std::int64_t kMostConvolved = 256;                      // tokens
constexpr std::int64_t kMostFloatsOfAll = std::int64_t{1} << 29;  // of all layers
constexpr std::int64_t kMostFloats = std::int64_t{1} << 26;       // of a layer and sequence

// -- what they share --

/// \throws FileError naming the keys of sizes that no model has
void check_recurrence(const JsonObject& in, const RecurrenceSpec& r, const char* heads_key,
                      const char* key_heads_key, const char* key_dim_key) {
  if (r.heads % r.key_heads != 0)
    in.fail(key_heads_key,
            fmt::format("= {} does not divide {} = {}", r.key_heads, heads_key, r.heads));
  if (r.channels() > kMostWidth)
    in.fail(heads_key, fmt::format("= {} and the sizes of heads make a layer {} wide, must be at "
                                   "most {}",
                                   r.heads, r.channels(), kMostWidth));
  if (r.floats() > kMostFloats)
    in.fail(key_dim_key,
            fmt::format("= {} times {} heads of {} channels are more than the {} numbers that a "
                        "layer may carry",
                        r.key_dim, r.heads, r.value_dim, kMostFloats));
}

/// Which layers attend, by either generation's words for them.
std::vector<bool> attending_layers(const JsonObject& in, const char* key,
                                   const std::vector<std::string>& types) {
  std::vector<bool> attends;
  for (const std::string& type : types) {
    attends.push_back(type == "full_attention" || type == "attention");
    if (!attends.back() && type != "linear_attention" && type != "mamba")
      in.unsupported(key, type, "full_attention, linear_attention, attention, mamba");
  }
  return attends;
}

/// Every layer has attention or the recurrence, not both.
void part_layers(const JsonObject& in, const char* key, const std::vector<bool>& attends,
                 ModelConfig& c) {
  if (std::find(attends.begin(), attends.end(), true) == attends.end())
    in.fail(key, "names no layer of full attention, which a memory would serve");
  if (c.layers.front().activation != Activation::silu)
    in.unsupported("hidden_act", in.string("hidden_act", ""), "silu, swish");
  const std::int64_t recurrent = std::count(attends.begin(), attends.end(), false);
  if (recurrent > kMostFloatsOfAll / c.layers.front().recurrence.floats())
    in.fail(
        "num_hidden_layers",
        fmt::format("= {}: {} layers that carry {} numbers each are more than the {} that a "
                    "model may carry",
                    c.n_layers, recurrent, c.layers.front().recurrence.floats(), kMostFloatsOfAll));
  for (std::size_t l = 0; l < attends.size(); ++l) {
    LayerSpec& layer = c.layers[l];
    if (attends[l]) {
      layer.recurrence = {};
      continue;
    }
    layer.mixer = Mixer::recurrence;
    layer.qk_norm = QkNorm::none;
    layer.rope = -1;
    layer.qkv_bias = layer.o_bias = layer.output_gate = false;
  }
}

// -- Qwen3-Next and Qwen3.5 --

RecurrenceSpec read_delta(const JsonObject& in) {
  RecurrenceSpec r;
  r.kind = RecurrenceKind::gated_delta;
  r.heads = in.integer("linear_num_value_heads", 1, kMostHeads, 32);
  r.key_heads = in.integer("linear_num_key_heads", 1, kMostHeads, 16);
  r.key_dim = in.integer("linear_key_head_dim", 1, kMostHeadDim, 128);
  r.value_dim = in.integer("linear_value_head_dim", 1, kMostHeadDim, 128);
  r.taps = in.integer("linear_conv_kernel_dim", 1, kMostConvolved, 4);
  r.tiled = in.boolean(kTiledHeads, false);
  check_recurrence(in, r, "linear_num_value_heads", "linear_num_key_heads", "linear_key_head_dim");
  return r;
}

/// Norms that hold w for 1 + w, norms of heads, a gate behind attention.
void qwen3_5(const JsonObject& in, const FamilyDefaults&, ModelConfig& c, LayerSpec& each) {
  c.norm_offset = 1;
  each.qkv_bias = each.o_bias = in.boolean("attention_bias", false);
  each.qk_norm = QkNorm::head;
  each.output_gate = true;
  each.recurrence = read_delta(in);
}

/// One layer of attention in four, unless it is said.
void qwen3_5_layers(const JsonObject& in, const FamilyDefaults&, ModelConfig& c) {
  if (const auto types = in.strings("layer_types", c.n_layers))
    return part_layers(in, "layer_types", attending_layers(in, "layer_types", *types), c);
  const std::int64_t interval = in.integer("full_attention_interval", 1, kMostLayers, 4);
  std::vector<bool> attends;
  for (std::int64_t l = 0; l < c.n_layers; ++l) attends.push_back((l + 1) % interval == 0);
  part_layers(in, "full_attention_interval", attends, c);
}

void qwen3_5_moe(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  qwen3_5(in, d, c, each);
  each.mixture = read_mixture(in, d, c, "num_experts");
  each.mixture.normalised = true;
  each.mixture.shared_width = in.integer("shared_expert_intermediate_size", 1, kMostWidth, 512);
  each.mixture.shared_gate = true;
  each.mixture.tensors = MixtureTensors::fused;
}

/// No layer is dense, and none has a width of its own.
JsonObject qwen3_5_moe_usual_keys(const JsonObject& said) {
  if (said.has("intermediate_size")) return said;
  const JsonObject::Json usual = {{"intermediate_size", 512}};
  return said.changed_by(JsonObject(usual, ""));
}

void qwen3_next(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each) {
  qwen3_5_moe(in, d, c, each);
  each.mixture.normalised = in.boolean("norm_topk_prob", true);
  each.mixture.tensors = MixtureTensors::qwen;
}

void qwen3_next_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c) {
  qwen3_5_layers(in, d, c);
  read_as::sparse_layers(in, c);
}

// -- Granite 4 --

RecurrenceSpec read_mamba2(const JsonObject& in, const ModelConfig& c) {
  RecurrenceSpec r;
  r.kind = RecurrenceKind::mamba2;
  r.heads = in.integer("mamba_n_heads", 1, kMostHeads, 128);
  r.key_heads = in.integer("mamba_n_groups", 1, kMostHeads, 1);
  r.key_dim = in.integer("mamba_d_state", 1, kMostHeadDim, 256);
  r.taps = in.integer("mamba_d_conv", 1, kMostConvolved, 4);
  r.conv_bias = in.boolean("mamba_conv_bias", true);
  r.bias = in.boolean("mamba_proj_bias", false);
  const std::int64_t expand = in.integer("mamba_expand", 1, 1 << 10, 2);
  const std::int64_t width = expand * c.hidden_size;
  if (width % r.heads != 0)
    in.fail("mamba_n_heads",
            fmt::format("= {} does not divide mamba_expand * hidden_size = {}", r.heads, width));
  r.value_dim = width / r.heads;
  if (in.has("mamba_d_head") && !in.is("mamba_d_head", "auto") &&
      in.integer("mamba_d_head", 1, kMostWidth) != r.value_dim)
    in.fail("mamba_d_head",
            fmt::format("times mamba_n_heads = {} is not mamba_expand * hidden_size = {}", r.heads,
                        width));
  if (r.value_dim > kMostHeadDim)
    in.fail("mamba_n_heads", fmt::format("= {} makes heads of {} channels, must be at most {}",
                                         r.heads, r.value_dim, kMostHeadDim));
  std::tie(r.least_step, r.most_step) = in.limits("time_step_limit", {r.least_step, r.most_step});
  check_recurrence(in, r, "mamba_n_heads", "mamba_n_groups", "mamba_d_state");
  return r;
}

/// Mamba2 and attention, which rotates only where it is said. Of the feed-forward network there is
/// the expert that every token uses, and perhaps a mixture beside it.
void granitemoehybrid(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c,
                      LayerSpec& each) {
  const std::int64_t width = in.integer("shared_intermediate_size", 1, kMostWidth, 1024);
  if (in.has("num_local_experts") && in.integer("num_local_experts", 0, kMostWidth) == 0) {
    read_as::granite(in, d, c, each);
    each.mlp_bias = false;
    c.intermediate_size = each.intermediate_size = width;
    each.fused_gate_up = !in.boolean(kSplitGateUp, false);
  } else {
    read_as::granitemoeshared(in, d, c, each);
    each.mixture.shared_width = width;
  }
  const std::string kind = in.string("position_embedding_type", "nope");
  if (kind != "nope" && kind != "rope")
    in.unsupported("position_embedding_type", kind, "nope, rope");
  if (kind == "nope") each.rope = -1;
  each.recurrence = read_mamba2(in, c);
}

void granitemoehybrid_layers(const JsonObject& in, const FamilyDefaults&, ModelConfig& c) {
  const char* key = in.has("layer_types") ? "layer_types" : "layers_block_type";
  const auto types = in.strings(key, c.n_layers);
  part_layers(in, key,
              types ? attending_layers(in, key, *types) : std::vector<bool>(c.layers.size()), c);
}

constexpr WeightName kGraniteHybridNames[] = {
    {WeightRole::mix_in, "mamba.in_proj"},         {WeightRole::mix_conv, "mamba.conv1d"},
    {WeightRole::mix_rate, "mamba.A_log"},         {WeightRole::mix_step_bias, "mamba.dt_bias"},
    {WeightRole::mix_norm, "mamba.norm"},          {WeightRole::mix_out, "mamba.out_proj"},
    {WeightRole::gate, "shared_mlp.input_linear"}, {WeightRole::down, "shared_mlp.output_linear"}};

const Family kHybridFamilies[] = {
    {"qwen3_5_text",
     {.n_kv_heads = 4,
      .head_dim = 256,
      .positions = 32768,
      .partial = true,
      .share = 0.25,
      .n_heads = 16,
      .vocab = 248320},
     qwen3_5,
     qwen3_5_layers},
    {"qwen3_5_moe_text",
     {.n_kv_heads = 2,
      .head_dim = 256,
      .positions = 32768,
      .partial = true,
      .experts = 256,
      .chosen = 8,
      .expert_width = 512,
      .share = 0.25,
      .n_heads = 16,
      .vocab = 248320},
     qwen3_5_moe,
     qwen3_5_layers,
     {},
     qwen3_5_moe_usual_keys},
    {"qwen3_next",
     {.n_kv_heads = 2,
      .head_dim = 256,
      .positions = 32768,
      .partial = true,
      .experts = 512,
      .chosen = 10,
      .expert_width = 512,
      .share = 0.25,
      .n_heads = 16,
      .vocab = 151936},
     qwen3_next,
     qwen3_next_layers},
    {"granitemoehybrid",
     {.experts = 8, .chosen = 2},
     granitemoehybrid,
     granitemoehybrid_layers,
     kGraniteHybridNames},
};

}  // namespace

std::span<const Family> hybrid_families() { return kHybridFamilies; }

}  // namespace episodic
