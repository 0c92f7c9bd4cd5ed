// SPDX-License-Identifier: Apache-2.0
// What GGUF files of Gemma 4 say, whose layers differ in heads, widths and keys.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "family.hpp"
#include "gguf_settings.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

/// A number for each layer, from a list or from one for all.
std::vector<std::int64_t> of_layers(const GgufFile& file, const GgufSettings& in, const char* name,
                                    std::int64_t layers) {
  const GgufValue* value = file.value(in.key(name));
  const auto* list = value ? std::get_if<std::vector<std::int64_t>>(value) : nullptr;
  if (!list) return std::vector<std::int64_t>(static_cast<std::size_t>(layers), in.integer(name));
  if (static_cast<std::int64_t>(list->size()) != layers)
    in.fail(name, fmt::format("has {} numbers for {} layers; convert the file again", list->size(),
                              layers));
  return *list;
}

/// The part of full layers' heads that turns: the other pairs' frequencies are divided by 1e30.
double turning_share(const GgufFile& file, std::int64_t head_dim) {
  constexpr const char* kName = "rope_freqs.weight";
  const StoredTensor* t = file.find(kName);
  if (!t) file.fail(kName, "is missing; convert the file again");
  if (t->type != TensorType::f32 || t->shape != std::vector<std::int64_t>{head_dim / 2})
    file.fail(kName, fmt::format("is no list of {} F32; convert the file again", head_dim / 2));
  std::int64_t turning = 0;
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    float x;
    std::memcpy(&x, t->data + 4 * i, 4);
    if (x == 1 && turning == i)
      ++turning;
    else if (!(x >= 1e20f))
      file.fail(kName, fmt::format("holds {} for pair {}, which is not supported: pairs turn by 1, "
                                   "and those behind them stand still",
                                   x, i));
  }
  return 2.0 * static_cast<double>(turning) / static_cast<double>(head_dim);
}

/// Both lengths of a type of layers.
std::int64_t head_size(const GgufSettings& in, const char* key, const char* value,
                       const char* rotary) {
  const std::int64_t size = in.integer(key);
  for (const char* same : {value, rotary})
    if (in.integer(same, size) != size)
      in.fail(same, fmt::format("differs from {} = {}, which is not supported", key, size));
  return size;
}

void add_widths(const GgufFile& file, const GgufSettings& in, std::int64_t layers,
                std::int64_t shared, Json& config) {
  constexpr const char* kWidth = "feed_forward_length";
  const std::vector<std::int64_t> widths = of_layers(file, in, kWidth, layers);
  const std::int64_t own = widths.front();
  const bool wide = shared > 0 && widths.back() == 2 * own;
  for (std::int64_t l = 0; l < layers; ++l)
    if (widths[static_cast<std::size_t>(l)] != (wide && l >= layers - shared ? 2 * own : own))
      in.fail(kWidth, fmt::format("= {} of layer {} is not supported",
                                  widths[static_cast<std::size_t>(l)], l));
  config["intermediate_size"] = own;
  config["use_double_wide_mlp"] = wide;
}

}  // namespace

Json gguf_gemma4_config(const GgufFile& file, const GgufSettings& in) {
  const std::int64_t layers = in.integer("block_count");
  if (layers > kMostLayers) in.fail("block_count", fmt::format("= {} is out of range", layers));
  const std::int64_t full =
      head_size(in, "attention.key_length", "attention.value_length", "rope.dimension_count");
  const std::int64_t sliding = head_size(in, "attention.key_length_swa",
                                         "attention.value_length_swa", "rope.dimension_count_swa");
  constexpr const char* kShared = "attention.shared_kv_layers";
  const std::int64_t shared = file.integer(in.key(kShared)).value_or(0);
  if (shared < 0 || shared >= layers)
    in.fail(kShared, fmt::format("= {} of {} layers", shared, layers));
  const StoredTensor* embedding = file.find("token_embd.weight");
  const auto eps = in.number("attention.layer_norm_rms_epsilon");
  if (!eps) in.fail("attention.layer_norm_rms_epsilon", "is missing; convert the file again");
  Json config = {{"model_type", "gemma4_text"},
                 {"vocab_size", embedding->shape[0]},
                 {"hidden_size", in.integer("embedding_length")},
                 {"num_hidden_layers", layers},
                 {"num_attention_heads", in.of_all_layers("attention.head_count", layers)},
                 {"head_dim", sliding},
                 {"max_position_embeddings", in.integer("context_length")},
                 {"rms_norm_eps", *eps},
                 {"num_kv_shared_layers", shared},
                 {"tie_word_embeddings", file.find("output.weight") == nullptr},
                 {"hidden_activation", "gelu_pytorch_tanh"}};
  add_widths(file, in, layers, shared, config);
  add_gguf_windows(file, in, 6, config);
  const std::vector<std::int64_t> kv = of_layers(file, in, "attention.head_count_kv", layers);
  Json of_full = Json::object();
  bool no_values = false;
  for (std::int64_t l = 0; l < layers; ++l) {
    const std::size_t at = static_cast<std::size_t>(l);
    if (config["layer_types"][at] == "full_attention") {
      of_full[std::to_string(l)] = {{"head_dim", full}, {"num_key_value_heads", kv[at]}};
      if (l < layers - shared)
        no_values = no_values || !file.find(fmt::format("blk.{}.attn_v.weight", l));
    } else if (config.contains("num_key_value_heads") && config["num_key_value_heads"] != kv[at]) {
      in.fail("attention.head_count_kv",
              fmt::format("differs between sliding layers, which is not supported"));
    } else {
      config["num_key_value_heads"] = kv[at];
    }
  }
  if (!config.contains("num_key_value_heads")) config["num_key_value_heads"] = kv.front();
  config["per_layer_config"] = of_full;
  config["attention_k_eq_v"] = no_values;
  const std::int64_t own = file.integer(in.key("embedding_length_per_layer_input")).value_or(0);
  config["hidden_size_per_layer_input"] = own;
  if (own != 0) {
    const StoredTensor* table = file.find("per_layer_token_embd.weight");
    if (!table || table->shape.size() != 2)
      file.fail("per_layer_token_embd.weight", "is missing or no matrix; convert the file again");
    config["vocab_size_per_layer_input"] = table->shape[0];
  }
  if (const std::int64_t experts = file.integer(in.key("expert_count")).value_or(0); experts > 0) {
    config["enable_moe_block"] = true;
    config["num_experts"] = experts;
    config["top_k_experts"] = in.integer("expert_used_count");
    config["moe_intermediate_size"] = in.integer("expert_feed_forward_length");
  }
  in.copy("final_logit_softcapping", config, "final_logit_softcapping");
  if (config.value("final_logit_softcapping", 0.0) == 0) config.erase("final_logit_softcapping");
  in.require("rope.scaling.factor", 1);
  config["rope_parameters"] = {
      {"full_attention",
       {{"rope_type", "proportional"},
        {"partial_rotary_factor", turning_share(file, full)},
        {"rope_theta", in.number("rope.freq_base").value_or(1e6)}}},
      {"sliding_attention",
       {{"rope_type", "default"}, {"rope_theta", in.number("rope.freq_base_swa").value_or(1e4)}}}};
  return config;
}

}  // namespace episodic
