// SPDX-License-Identifier: Apache-2.0
// What GGUF files of the dense families beyond LLaMA's closest kin say in words of their own.
#include <algorithm>

#include "gguf_settings.hpp"
#include "rope.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

/// Ministral 3's file says what its queries grow by; without that it is a Mistral.
void add_mistral3(const GgufSettings& in, Json& config) {
  Json& rope = config["rope_scaling"];
  const bool yarn = rope.is_object() && rope["rope_type"] == "yarn";
  // yarn's factor of cosines and sines is that of mscale over that of mscale_all_dim
  if (yarn)
    rope["mscale"] = rope["mscale_all_dim"] =
        in.number("rope.scaling.yarn_log_multiplier").value_or(0);
  const char* scale = "attention.temperature_scale";
  const double beta = in.number(scale).value_or(0);
  if (beta == 0) {
    config["model_type"] = "mistral";
    config["sliding_window"] = nullptr;
    return;
  }
  if (!yarn)
    in.fail(scale, fmt::format("= {} needs rope.scaling.type yarn, whose original context it is "
                               "said of; convert the file again",
                               beta));
  rope["llama_4_scaling_beta"] = beta;
}

/// OLMo 3 is OLMo 2 with windows, whose layers turn by the plain table.
void add_olmo2(const GgufFile& file, const GgufSettings& in, Json& config) {
  if (file.integer(in.key("attention.sliding_window")).value_or(0) <= 0) return;
  config["model_type"] = "olmo3";
  add_gguf_windows(file, in, 4, config);
  const Json theta = config["rope_theta"];
  Json full =
      config["rope_scaling"].is_null() ? Json{{"rope_type", "default"}} : config["rope_scaling"];
  full["rope_theta"] = theta;
  config["rope_parameters"] = {
      {"full_attention", full},
      {"sliding_attention",
       {{"rope_type", "default"},
        {"rope_theta", in.number("rope.freq_base_swa").value_or(theta.get<double>())}}}};
  config.erase("rope_scaling");
  config.erase("rope_theta");
}

void add_exaone4(const GgufFile& file, const GgufSettings& in, Json& config) {
  if (file.integer(in.key("attention.sliding_window")).value_or(0) > 0)
    return add_gguf_windows(file, in, 4, config);
  config["sliding_window"] = nullptr;
  config["layer_types"] = std::vector<std::string>(config["num_hidden_layers"], "full_attention");
}

}  // namespace

void add_gguf_windows(const GgufFile& file, const GgufSettings& in, std::int64_t usual,
                      Json& config) {
  const std::int64_t layers = config["num_hidden_layers"];
  config["sliding_window"] = in.integer("attention.sliding_window");
  const std::string key = in.key("attention.sliding_window_pattern");
  const GgufValue* pattern = file.value(key);  // every how many layers, or a flag for each
  const auto* listed = pattern ? std::get_if<std::vector<bool>>(pattern) : nullptr;
  const std::int64_t every = listed != nullptr ? 1 : file.integer(key).value_or(usual);
  if (every < 1 || (listed != nullptr && static_cast<std::int64_t>(listed->size()) < layers))
    file.fail(key, "does not say it for every layer; convert the file again");
  Json types = Json::array();
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool window = listed ? (*listed)[static_cast<std::size_t>(i)] : (i + 1) % every != 0;
    types.push_back(window ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
}

std::vector<XieluRow> xielu_rows(const GgufFile& file, const GgufArchitecture& a,
                                 const Json& config) {
  std::vector<XieluRow> rows;
  if (!a.traits.xielu) return rows;
  const auto layers = config["num_hidden_layers"].get<std::size_t>();
  for (const WeightRole role : kXieluRoles) {
    const std::string key = info_of(role).gguf;
    const GgufValue* value = file.value(key);
    const auto* list = value ? std::get_if<std::vector<double>>(value) : nullptr;
    if (!list || list->size() != layers)
      file.fail(key, fmt::format("is no list of a number for each of {} layers; convert the file "
                                 "again",
                                 layers));
    const bool listed = role == WeightRole::xielu_alpha_p || role == WeightRole::xielu_alpha_n;
    for (std::size_t l = 0; l < layers; ++l)
      rows.push_back({fmt::format("model.layers.{}.{}", l, info_of(role).hugging_face),
                      std::vector<std::int64_t>(listed ? 1 : 0, 1),
                      static_cast<float>((*list)[l])});
  }
  return rows;
}

void add_dense_settings(const GgufFile& file, const GgufSettings& in, const GgufArchitecture& a,
                        Json& config) {
  const std::string_view name = a.gguf;
  if (name == "mistral3") add_mistral3(in, config);
  if (name == "olmo2") add_olmo2(file, in, config);
  if (name == "exaone4") add_exaone4(file, in, config);
  if (name == "cohere2") add_gguf_windows(file, in, 4, config);
  if (a.traits.parallel) in.copy("logit_scale", config, "logit_scale");
  if (a.traits.activation) config["hidden_act"] = a.traits.activation;
  // by the names that a family has for them
  if (a.traits.layer_norm)
    config["layer_norm_eps"] = config["norm_eps"] = config["norm_epsilon"] = config["rms_norm_eps"];
  const bool biased = config.value("attention_bias", false);
  if (name == "seed_oss")
    config["attention_out_bias"] = file.find("blk.0.attn_output.bias") != nullptr;
  if (name == "ernie4_5" || name == "starcoder2") config["use_bias"] = biased;
  if (name == "stablelm") {
    config["use_qkv_bias"] = biased;
    config["use_parallel_residual"] = file.find("blk.0.ffn_norm.weight") == nullptr;
  }
  if (!a.traits.partial) return;
  config.erase(kRopeInterleaved);  // the family's own pairs
  if (!config.contains("partial_rotary_factor")) config["partial_rotary_factor"] = 1.0;
}

}  // namespace episodic
