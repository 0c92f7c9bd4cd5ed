// SPDX-License-Identifier: Apache-2.0
// A GGUF file as if it were a Hugging Face directory. What is undone here is what llama.cpp's
// conversion from Hugging Face's format did.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/gguf.hpp"
#include "gguf_names.hpp"
#include "gguf_settings.hpp"
#include "gguf_tokenizer.hpp"
#include "rope.hpp"
#include "take_end.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

// -- names
// -----------------------------------------------------------------------------------------

/// Read into config.json, no tensors of the model.
constexpr const char* kRopeTensors[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                        "rope_factors_short.weight"};

/// GGUF files that hold something else than a model, by general.type or general.architecture.
struct OtherContent {
  const char* name;
  const char* what;
};
constexpr OtherContent kOtherContent[] = {
    {"imatrix", "how often weights are used (an importance matrix), which quantising needs"},
    {"adapter", "an adapter; give the model's file, and the adapter as PEFT saves it"},
    {"mmproj", "the part of a model that sees or hears; give the file of its language model"},
    {"clip", "the part of a model that sees or hears; give the file of its language model"},
    {"controlvector", "a control vector"},
};

constexpr const char *kExpertCount = "expert_count", *kExpertWidth = "expert_feed_forward_length",
                     *kSharedWidth = "expert_shared_feed_forward_length";

/// Whether a file is of this one of the models that share an architecture's name.
bool is_variant(const GgufFile& file, const GgufArchitecture& a) {
  const auto number = [&](const char* key) {
    return file.integer(fmt::format("{}.{}", a.gguf, key)).value_or(0);
  };
  if (a.mixture != (number(kExpertCount) > 0)) return false;
  return !a.granite || !a.mixture || a.shared_expert() == (number(kSharedWidth) > 0);
}

const GgufArchitecture& architecture_of(const GgufFile& file) {
  const auto name = file.string("general.architecture");
  for (const char* key : {"general.type", "general.architecture"})
    for (const OtherContent& other : kOtherContent)
      if (file.string(key).value_or("") == other.name)
        file.fail(key,
                  fmt::format("= '{}': the file holds no model but {}", other.name, other.what));
  if (!name) file.fail("general.architecture", "is missing; convert the file again");
  std::string known;
  std::string_view before;
  const GgufArchitecture* named = nullptr;
  for (const GgufArchitecture& a : gguf_architectures()) {
    if (*name == a.gguf && is_variant(file, a)) return a;
    if (*name == a.gguf) named = &a;
    if (known.find(a.gguf) == std::string::npos || before != a.gguf)
      known += fmt::format("{}{}", known.empty() ? "" : ", ", a.gguf);
    before = a.gguf;
  }
  if (named && named->mixture)
    file.fail(fmt::format("{}.{}", named->gguf, kExpertCount),
              "is missing or 0, but the architecture is a mixture of experts; convert the file "
              "again");
  if (named) return *named;
  file.fail("general.architecture",
            fmt::format("= '{}' is not supported; supported are: {}", printable(*name), known));
}

/// Whether files of this architecture may have layers behind the model's.
bool guesses(const GgufArchitecture& a) {
  return a.traits.recurrence == GgufRecurrence::delta ||
         a.traits.recurrence == GgufRecurrence::tiled_delta;
}

/// Whether this begins or ends so; takes it away.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

bool has_suffix(std::string_view hugging_face) {
  return std::find(std::begin(kGgufWithoutSuffix), std::end(kGgufWithoutSuffix), hugging_face) ==
         std::end(kGgufWithoutSuffix);
}

/// Whether a tensor of a recurrence has no name behind its own, in either format.
bool is_named_alone(std::string_view name) {
  constexpr WeightRole kAlone[] = {WeightRole::mix_rate, WeightRole::mix_step_bias,
                                   WeightRole::mix_skip};
  return std::any_of(std::begin(kAlone), std::end(kAlone), [&](WeightRole role) {
    const std::string_view own = info_of(role).gguf;
    return name.ends_with(own) && name.size() > own.size() &&
           name[name.size() - own.size() - 1] == '.';
  });
}

/// "blk.12.attn_q.weight" -> "model.layers.12.self_attn.q_proj.weight"; empty if not known.
std::string hugging_face_name(const GgufArchitecture& a, std::string_view name,
                              std::int64_t layers) {
  const char* suffix = "";
  if (!is_named_alone(name)) {
    suffix = ".weight";
    if (!take_end(name, suffix)) {
      suffix = ".bias";
      if (!take_end(name, suffix)) suffix = "";
      if (*suffix == 0 && !name.ends_with(".scale")) return "";  // of routers and experts
    }
  }
  for (const GgufName& top : a.top)
    if (name == top.gguf) return std::string(top.hugging_face) + suffix;
  if (!take(name, "blk.")) return "";
  std::int64_t layer = 0;
  std::size_t digits = 0;
  for (; digits < name.size() && digits < 6 && name[digits] >= '0' && name[digits] <= '9'; ++digits)
    layer = layer * 10 + (name[digits] - '0');
  if (digits == 0 || (digits > 1 && name[0] == '0') || layer >= layers) return "";
  name.remove_prefix(digits);
  if (!take(name, ".")) return "";
  for (const auto& table : {a.attention, a.mlp, a.norms, a.head_norms})
    for (const GgufName& n : table)
      if (name == n.gguf)
        return fmt::format("model.layers.{}.{}{}", layer, n.hugging_face,
                           has_suffix(n.hugging_face) ? suffix : "");
  return "";
}

// -- settings
// --------------------------------------------------------------------------------------

/// The factors by which a tensor divides the rotation's frequencies.
std::vector<double> factors_of(const GgufFile& file, const char* name) {
  const StoredTensor& t = *file.find(name);
  if (t.type != TensorType::f32 || t.shape.size() != 1 || t.bytes > 4 << 14)
    file.fail(name, "is no list of F32; convert the file again");
  std::vector<double> list;
  for (std::int64_t i = 0; i < t.bytes; i += 4) {
    float x;
    std::memcpy(&x, t.data + i, 4);
    if (!(x > 0) || !std::isfinite(x))
      file.fail(name, fmt::format("holds {}, expected numbers above 0; convert the file again", x));
    list.push_back(as_written(static_cast<double>(x)));
  }
  return list;
}

/// What rope.scaling says, as llama.cpp takes it.
struct RopeScaling {
  std::string type;
  double factor = 1;     ///< positions are divided by it
  double attention = 1;  ///< of cosines and sines
  std::int64_t trained = 0;
};

/// \param scales_queries the architecture has yarn's own factor of cosines and sines
RopeScaling read_scaling(const GgufFile& file, const GgufSettings& in, std::int64_t positions,
                         bool scales_queries) {
  RopeScaling s;
  const char* kType = "rope.scaling.type";
  s.type = file.string(in.key(kType)).value_or("linear");
  if (s.type != "none" && s.type != "linear" && s.type != "yarn" && s.type != "longrope")
    in.fail(kType, fmt::format("= '{}' is not supported; supported are: none, linear, yarn, "
                               "longrope",
                               printable(s.type)));
  const bool named = in.has("rope.scaling.factor");
  const char* key = named ? "rope.scaling.factor" : "rope.scale_linear";  // as older files call it
  const double factor = in.number(key).value_or(0);
  if (factor < 0) in.fail(key, fmt::format("= {} must not be below 0", factor));
  if (factor > 0 && s.type != "none") s.factor = factor;  // 0 says nothing
  s.attention = in.number("rope.scaling.attn_factor").value_or(1.0);
  if (!(s.attention > 0))
    in.fail("rope.scaling.attn_factor", fmt::format("= {} must be above 0", s.attention));
  s.trained = in.integer("rope.scaling.original_context_length", positions);
  // llama.cpp reads these for other architectures alone
  const double usual = s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1.0;
  if (const auto said = in.number("rope.scaling.yarn_attn_factor");
      said && std::abs(*said - usual) > 1e-6)  // what it is in any case
    in.require("rope.scaling.yarn_attn_factor", 1);
  in.require("rope.scaling.yarn_beta_fast", 32);
  in.require("rope.scaling.yarn_beta_slow", 1);
  if (!scales_queries) in.require("rope.scaling.yarn_log_multiplier", 0);
  if (s.type == "yarn") in.require("rope.scaling.yarn_ext_factor", 1);
  return s;
}

/// Frequencies that are divided channel by channel, by the one list in short contexts and by the
/// other in long ones.
Json divided(std::vector<double> shorts, std::vector<double> longs, const RopeScaling& s) {
  for (auto* list : {&shorts, &longs})
    for (double& x : *list) x *= s.factor;
  return {{"rope_type", "longrope"},         {"type", "longrope"},
          {"short_factor", shorts},          {"long_factor", longs},
          {"attention_factor", s.attention}, {"original_max_position_embeddings", s.trained}};
}

/// \param pairs that turn
Json rope_scaling(const GgufFile& file, const GgufSettings& in, std::int64_t positions,
                  std::int64_t pairs, bool scales_queries) {
  const RopeScaling s = read_scaling(file, in, positions, scales_queries);
  constexpr const char *kShort = "rope_factors_short.weight", *kLong = "rope_factors_long.weight",
                       *kOne = "rope_freqs.weight";
  const bool shorts = file.find(kShort), longs = file.find(kLong), one = file.find(kOne);
  if (shorts != longs)
    file.fail(shorts ? kLong : kShort, "is missing; fetch or convert the file again");
  if ((one || shorts) && s.type == "yarn" && s.factor != 1)
    in.fail("rope.scaling.type", "= 'yarn' beside factors of frequencies is not supported");
  // LLaMA 3.1's scaling comes worked out: the same factors whatever the length
  if (one) return divided(factors_of(file, kOne), factors_of(file, kOne), s);
  if (shorts) return divided(factors_of(file, kShort), factors_of(file, kLong), s);
  if (s.factor == 1 && s.attention == 1) return nullptr;
  if (s.type == "yarn") {
    Json scaling = {{"rope_type", "yarn"},
                    {"type", "yarn"},
                    {"factor", s.factor},
                    {"original_max_position_embeddings", s.trained}};
    if (s.attention != 1)
      scaling["attention_factor"] =
          s.attention * (s.factor > 1 ? 0.1 * std::log(s.factor) + 1 : 1.0);
    return scaling;
  }
  if (s.attention == 1) return {{"rope_type", "linear"}, {"type", "linear"}, {"factor", s.factor}};
  const std::vector<double> plain(static_cast<std::size_t>(pairs), 1.0);
  return divided(plain, plain, s);
}

void add_gemma(const GgufFile& file, const GgufSettings& in, const GgufArchitecture& a,
               Json& config) {
  const bool gemma3 = std::string_view(a.gguf) == "gemma3";
  const std::int64_t layers = config["num_hidden_layers"], heads = config["num_attention_heads"];
  const std::int64_t hidden = config["hidden_size"];
  config.erase("hidden_act");
  config["hidden_activation"] = "gelu_pytorch_tanh";
  // usually not in the file: the largest of each family scales by its width, the others by the
  // head's
  const bool largest = layers == (gemma3 ? 62 : 46);
  config["query_pre_attn_scalar"] =
      largest ? hidden / heads : config["head_dim"].get<std::int64_t>();
  if (const auto scale = in.number("attention.scale"); scale && *scale > 0)
    config["query_pre_attn_scalar"] = 1 / (*scale * *scale);
  in.copy("attn_logit_softcapping", config, "attn_logit_softcapping");
  in.copy("final_logit_softcapping", config, "final_logit_softcapping");
  if (gemma3) config["rope_local_base_freq"] = in.number("rope.freq_base_swa").value_or(10000.0);
  add_gguf_windows(file, in, gemma3 ? 6 : 2, config);
}

/// Layers without key/value heads convolve.
void add_lfm2(const GgufFile& file, const GgufSettings& in, const std::vector<bool>& attends,
              Json& config) {
  Json types = Json::array();
  bool bias = false;
  for (std::size_t l = 0; l < attends.size(); ++l) {
    types.push_back(attends[l] ? "full_attention" : "conv");
    bias = bias || file.find(fmt::format("blk.{}.shortconv.in_proj.bias", l)) != nullptr;
  }
  config["layer_types"] = types;
  config["conv_L_cache"] = in.integer("shortconv.l_cache");
  config["conv_bias"] = bias;
  config["norm_eps"] = config["rms_norm_eps"];
  config["block_auto_adjust_ff_dim"] = false;  // the width is the one that there is
}

void add_tokens(const GgufFile& file, Json& config) {
  if (const auto bos = file.integer("tokenizer.ggml.bos_token_id")) config["bos_token_id"] = *bos;
  const std::vector<std::int64_t> ends = end_tokens(file);
  if (!ends.empty()) config["eos_token_id"] = ends;
}

/// Numbers of experts, by the keys of Hugging Face's families.
void add_mixture(const GgufFile& file, const GgufSettings& in, const GgufArchitecture& a,
                 Json& config) {
  const std::string_view type = a.model_type;
  const bool qwen = type == "qwen2_moe" || type == "qwen3_moe" || type == "qwen3_5_moe_text" ||
                    type == "qwen3_next";
  config[qwen || type == "olmoe" ? "num_experts" : "num_local_experts"] = in.integer(kExpertCount);
  config["num_experts_per_tok"] = in.integer("expert_used_count");
  config["norm_topk_prob"] = a.normalised;
  const std::int64_t inner = config["intermediate_size"];
  if (qwen) {
    config["moe_intermediate_size"] = in.integer(kExpertWidth, inner);
  } else if (in.integer(kExpertWidth, inner) != inner) {
    in.fail(kExpertWidth,
            fmt::format("= {} differs from feed_forward_length = {}, which is not supported "
                        "for this architecture",
                        in.integer(kExpertWidth), inner));
  }
  if (a.shared_expert())
    config[qwen ? "shared_expert_intermediate_size" : "shared_intermediate_size"] =
        in.integer(kSharedWidth, inner);
  // what llama.cpp reads for other architectures alone, and files say where they mean it
  in.require("expert_weights_scale", 1);
  const auto most = [&](const char* key, std::int64_t nothing) {
    if (const auto value = file.integer(in.key(key)); value && *value > nothing)
      in.fail(key, fmt::format("= {} is not supported for this architecture", *value));
  };
  most("leading_dense_block_count", 0);
  most("expert_group_count", 1);
  most("expert_gating_func", 1);  // a softmax
  if (file.boolean(in.key("expert_weights_norm")).value_or(a.normalised) != a.normalised)
    in.fail("expert_weights_norm",
            fmt::format("= {} is not supported for this architecture", !a.normalised));
}

/// Without those that guess further tokens, which stand last.
std::int64_t layers_of(const GgufSettings& in, const GgufArchitecture& a) {
  constexpr const char* kGuessing = "nextn_predict_layers";
  const std::int64_t layers = in.integer("block_count");
  if (!guesses(a) || !in.has(kGuessing) || in.number(kGuessing) == 0) return layers;
  const std::int64_t guessing = in.integer(kGuessing);
  if (guessing >= layers)
    in.fail(kGuessing, fmt::format("= {} leaves none of {} layers", guessing, layers));
  return layers - guessing;
}

Json config_of(const GgufFile& file, const GgufArchitecture& a) {
  const GgufSettings in(file, a);
  const StoredTensor* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    file.fail("token_embd.weight", "is missing or no matrix; fetch or convert the file again");
  if (std::string_view(a.gguf) == "gemma4") {
    Json config = gguf_gemma4_config(file, in);
    add_tokens(file, config);
    return config;
  }
  if (const auto experts = file.integer(in.key("expert_count")); experts && *experts > 0)
    if (!a.mixture)
      file.fail(in.key("expert_count"),
                fmt::format("= {}: mixtures of experts of this architecture are not supported",
                            *experts));
  if (!file.boolean(in.key("attention.causal")).value_or(true))
    in.fail("attention.causal", "= false: the model is no decoder, which is not supported");
  const std::int64_t hidden = in.integer("embedding_length");
  const std::int64_t layers = layers_of(in, a);
  const std::int64_t heads = in.of_all_layers("attention.head_count", layers);
  const bool lfm2 = std::string_view(a.gguf) == "lfm2";
  const bool by_layer = lfm2 || a.traits.recurrence == GgufRecurrence::mamba2;
  std::vector<bool> attends;
  const std::int64_t kv_heads =
      by_layer ? in.of_some_layers("attention.head_count_kv", layers, attends)
      : in.has("attention.head_count_kv") ? in.of_all_layers("attention.head_count_kv", layers)
                                          : heads;
  const std::int64_t positions = in.integer("context_length");
  if (!file.integer(in.key("attention.key_length")) && hidden % heads != 0)
    file.fail(in.key("attention.head_count"),
              fmt::format("= {} does not divide the width {}", heads, hidden));
  const std::int64_t head_dim = in.integer("attention.key_length", hidden / heads);
  if (in.integer("attention.value_length", head_dim) != head_dim)
    file.fail(in.key("attention.value_length"), "differs from key_length, which is not supported");
  const std::int64_t rotary = in.integer("rope.dimension_count", head_dim);
  if (rotary > head_dim || rotary % 2 != 0)
    in.fail(
        "rope.dimension_count",
        fmt::format("= {} is no even number of at most the head's {} channels", rotary, head_dim));
  if (rotary != head_dim && std::string_view(a.gguf) == "gemma3")
    in.fail("rope.dimension_count",
            fmt::format("= {} differs from the head's {} channels, which is not supported for this "
                        "architecture",
                        rotary, head_dim));
  const char* eps_key =
      a.traits.layer_norm ? "attention.layer_norm_epsilon" : "attention.layer_norm_rms_epsilon";
  const auto eps = in.number(eps_key);
  if (!eps) file.fail(in.key(eps_key), "is missing; convert the file again");
  Json config = {
      {"model_type", a.model_type},
      {"vocab_size", embedding->shape[0]},
      {"hidden_size", hidden},
      {"intermediate_size", a.mixture && !in.has("feed_forward_length")
                                ? in.integer(kExpertWidth)
                                : in.of_all_layers("feed_forward_length", layers)},
      {"num_hidden_layers", layers},
      {"num_attention_heads", heads},
      {"num_key_value_heads", kv_heads},
      {"head_dim", head_dim},
      {"max_position_embeddings", positions},
      {"rms_norm_eps", *eps},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", file.find("output.weight") == nullptr},
      {"rope_theta", in.number("rope.freq_base").value_or(10000.0)},
      {"rope_scaling", rope_scaling(file, in, positions, rotary / 2, a.traits.scales_queries)},
  };
  if (rotary != head_dim) {
    const auto width = static_cast<double>(head_dim);
    double share = static_cast<double>(rotary) / width;
    if (std::floor(share * width) < static_cast<double>(rotary)) share = std::nextafter(share, 1.0);
    config["partial_rotary_factor"] = share;
    config[kRopeInterleaved] = a.interleaved;
  }
  const std::string_view name = a.gguf;
  if (name == "phi3") {
    config["original_max_position_embeddings"] =
        in.integer("rope.scaling.original_context_length", positions);
    if (file.integer(in.key("attention.sliding_window")).value_or(0) > 0)
      config["sliding_window"] = in.integer("attention.sliding_window");
  } else if (name != "qwen2" && name != "qwen2moe") {  // whose attention always has biases
    config["attention_bias"] = file.find("blk.0.attn_q.bias") != nullptr;
    config["mlp_bias"] = file.find("blk.0.ffn_up.bias") != nullptr;
  }
  const double usual = 1 / std::sqrt(static_cast<double>(head_dim));
  if (a.granite) {
    // 0 and nothing are the usual scale there
    config["attention_multiplier"] = in.number("attention.scale").value_or(0);
    if (config["attention_multiplier"] == 0) config["attention_multiplier"] = usual;
    if (!in.has("logit_scale")) in.fail("logit_scale", "is missing; convert the file again");
    in.copy("embedding_scale", config, "embedding_multiplier");
    in.copy("residual_scale", config, "residual_multiplier");
    in.copy("logit_scale", config, "logits_scaling");
  }
  if (!a.granite) {
    for (const char* multiplier : {"embedding_scale", "residual_scale", "logit_scale"})
      if (!a.traits.parallel || multiplier != std::string_view("logit_scale"))
        in.require(multiplier, 1);
    if (!a.gemma && in.number("attention.scale").value_or(0) != 0)
      in.require("attention.scale", usual);
  }
  if (!a.gemma)
    for (const char* cap : {"attn_logit_softcapping", "final_logit_softcapping"})
      in.require(cap, 0);
  if (name == "smollm3") config["no_rope_layer_interval"] = 4;  // not in the file
  if (a.interleaved) config[kRopeInterleaved] = true;
  if (a.gemma) add_gemma(file, in, a, config);
  if (a.mixture) add_mixture(file, in, a, config);
  if (name == "gpt-oss") {
    add_gguf_windows(file, in, 2, config);
    // Hugging Face's class has a scaling of its own where nothing is said
    if (config["rope_scaling"].is_null()) config["rope_parameters"] = {{"rope_type", "default"}};
  }
  add_dense_settings(file, in, a, config);
  if (lfm2) add_lfm2(file, in, attends, config);
  add_hybrid_settings(file, in, a, attends, config);
  add_tokens(file, config);
  return config;
}

// -- tensors that cannot be used as they lie
// -------------------------------------------------------

/// Rows of rotary pairs side by side, which are used as they lie.
void check_pairs(const GgufFile& file, const StoredTensor& t, std::int64_t heads) {
  const std::int64_t rows = t.shape.empty() ? 0 : t.shape[0];
  if (rows == 0 || rows % (2 * heads) != 0)
    file.fail(t.name, fmt::format("has {} rows, no even number for each of {} heads; fetch or "
                                  "convert the file again",
                                  rows, heads));
}

/// "blk.12.attn_q.weight" is of a layer from 12 on.
bool is_of_layer_from(std::string_view name, std::int64_t first) {
  if (!take(name, "blk.")) return false;
  std::int64_t layer = 0;
  const auto end = std::from_chars(name.data(), name.data() + name.size(), layer);
  return end.ec == std::errc() && layer >= first;
}

std::vector<std::byte> minus_one(const GgufFile& file, const StoredTensor& t) {
  if (t.type != TensorType::f32)
    file.fail(t.name,
              fmt::format("is {}; norms must be F32: convert the file again", name_of(t.type)));
  std::vector<std::byte> out(static_cast<std::size_t>(t.bytes));
  for (std::int64_t i = 0; i < t.bytes; i += 4) {
    float x;
    std::memcpy(&x, t.data + i, 4);
    x -= 1.0f;
    std::memcpy(out.data() + i, &x, 4);
  }
  return out;
}

bool is_one_of(std::string_view name, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(),
                     [&](const char* part) { return name.find(part) != std::string_view::npos; });
}

}  // namespace

std::string gguf_config_json(const GgufFile& file) {
  return config_of(file, architecture_of(file)).dump(1);
}

GgufSource::GgufSource(const std::filesystem::path& path) : file_(path) {
  const GgufArchitecture& a = architecture_of(file_);
  const Json config = config_of(file_, a);
  for (const StoredTensor* t : file_.tensors()) {
    if (std::find(std::begin(kRopeTensors), std::end(kRopeTensors), t->name) !=
        std::end(kRopeTensors))
      continue;
    if (guesses(a) && is_of_layer_from(t->name, config["num_hidden_layers"])) continue;
    StoredTensor view = *t;
    view.name = hugging_face_name(a, t->name, config["num_hidden_layers"]);
    if (view.name.empty())
      throw FileError(
          fmt::format("{}: tensor '{}' is not known for the architecture '{}': the file is of "
                      "another model than it says, or of a variant that is not supported",
                      file_.file_of(t->name).string(), printable(t->name), a.gguf));
    if (a.interleaved && is_one_of(view.name, {".q_proj.", ".k_proj."}))
      check_pairs(file_, *t,
                  config[is_one_of(view.name, {".q_proj."}) ? "num_attention_heads"
                                                            : "num_key_value_heads"]);
    if (view.name.ends_with(".conv.conv.weight") && view.shape.size() == 2)
      view.shape.insert(view.shape.begin() + 1, 1);  // as Hugging Face's convolutions
    std::vector<std::byte> copy;
    if (a.traits.recurrence != GgufRecurrence::none) copy = as_hugging_face(file_, *t, view);
    if (a.traits.one_plus && is_one_of(view.name, {"norm.weight"}) &&
        !is_one_of(view.name, {".linear_attn."}))
      copy = minus_one(file_, *t);
    if (!copy.empty()) {
      copies_.push_back(std::move(copy));
      view.data = copies_.back().data();
    }
    std::string name = view.name;
    places_.emplace(std::move(name), Place{std::move(view), file_.file_of(t->name)});
  }
  for (const XieluRow& row : xielu_rows(file_, a, config)) {
    std::vector<std::byte> number(sizeof row.value);
    std::memcpy(number.data(), &row.value, sizeof row.value);
    copies_.push_back(std::move(number));
    StoredTensor view{row.name, TensorType::f32, row.shape, copies_.back().data(), 4};
    places_.emplace(row.name, Place{std::move(view), file_.path()});
  }
  config_json_ = config.dump(1);
}

const StoredTensor* GgufSource::find(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? nullptr : &it->second.view;
}

std::vector<const StoredTensor*> GgufSource::tensors() const {
  std::vector<const StoredTensor*> all;
  for (const auto& [name, place] : places_) all.push_back(&place.view);
  return all;
}

std::filesystem::path GgufSource::file_of(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? file_.path() : it->second.file;
}

}  // namespace episodic
