// SPDX-License-Identifier: Apache-2.0
// A GGUF file as if it were a Hugging Face directory. What is undone here is what llama.cpp's
// conversion from Hugging Face's format did.
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/gguf.hpp"
#include "gguf_names.hpp"
#include "gguf_tokenizer.hpp"
#include "rope.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

// -- names
// -----------------------------------------------------------------------------------------

/// Read into config.json, no tensors of the model.
constexpr const char* kRopeTensors[] = {"rope_freqs.weight", "rope_factors_long.weight",
                                        "rope_factors_short.weight"};

const GgufArchitecture& architecture_of(const GgufFile& file) {
  const auto name = file.string("general.architecture");
  if (!name) file.fail("general.architecture", "is missing; convert the file again");
  std::string known;
  for (const GgufArchitecture& a : gguf_architectures()) {
    if (*name == a.gguf) return a;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", a.gguf);
  }
  file.fail("general.architecture",
            fmt::format("= '{}' is not supported; supported are: {}", printable(*name), known));
}

/// Whether this begins or ends so; takes it away.
bool take(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}
bool take_end(std::string_view& text, std::string_view suffix) {
  if (!text.ends_with(suffix)) return false;
  text.remove_suffix(suffix.size());
  return true;
}

/// "blk.12.attn_q.weight" -> "model.layers.12.self_attn.q_proj.weight"; empty if not known.
std::string hugging_face_name(const GgufArchitecture& a, std::string_view name,
                              std::int64_t layers) {
  const char* suffix = ".weight";
  if (!take_end(name, suffix)) {
    suffix = ".bias";
    if (!take_end(name, suffix)) return "";
  }
  for (const GgufName& top : gguf_top_names())
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
      if (name == n.gguf) return fmt::format("model.layers.{}.{}{}", layer, n.hugging_face, suffix);
  return "";
}

// -- settings
// --------------------------------------------------------------------------------------

/// A float32 of the file as the decimal number that was meant: 1e-6, not 9.99999997e-7.
double as_written(double x) {
  return std::strtod(fmt::format("{}", static_cast<float>(x)).c_str(), nullptr);
}

/// Keys below the architecture's name.
class Settings {
 public:
  Settings(const GgufFile& file, const GgufArchitecture& a) : file_(file), prefix_(a.gguf) {}

  std::string key(const char* name) const { return fmt::format("{}.{}", prefix_, name); }
  std::int64_t integer(const char* name) const {
    const auto value = file_.integer(key(name));
    if (!value) file_.fail(key(name), "is missing; convert the file again");
    if (*value < 1 || *value > kMost)
      file_.fail(key(name), fmt::format("= {} is out of range [1, {}]", *value, kMost));
    return *value;
  }
  std::int64_t integer(const char* name, std::int64_t otherwise) const {
    return file_.integer(key(name)) ? integer(name) : otherwise;
  }
  std::optional<double> number(const char* name) const {
    const auto value = file_.number(key(name));
    return value ? std::optional(as_written(*value)) : std::nullopt;
  }
  void copy(const char* name, Json& config, const char* to) const {
    if (const auto value = number(name)) config[to] = *value;
  }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const GgufFile& file_;
  std::string prefix_;
};

/// The factors by which a tensor divides the rotation's frequencies.
Json factors_of(const GgufFile& file, const char* name) {
  const TensorView& t = *file.find(name);
  if (t.type != TensorType::f32 || t.shape.size() != 1 || t.bytes > 4 << 14)
    file.fail(name, "is no list of F32; convert the file again");
  Json list = Json::array();
  for (std::int64_t i = 0; i < t.bytes; i += 4) {
    float x;
    std::memcpy(&x, t.data + i, 4);
    list.push_back(as_written(static_cast<double>(x)));
  }
  return list;
}

Json rope_scaling(const GgufFile& file, const Settings& in, std::int64_t positions) {
  const std::int64_t trained = in.integer("rope.scaling.original_context_length", positions);
  if (file.find("rope_factors_short.weight") && file.find("rope_factors_long.weight")) {
    Json scaling = {{"rope_type", "longrope"},
                    {"type", "longrope"},
                    {"short_factor", factors_of(file, "rope_factors_short.weight")},
                    {"long_factor", factors_of(file, "rope_factors_long.weight")},
                    {"original_max_position_embeddings", trained}};
    in.copy("rope.scaling.attn_factor", scaling, "attention_factor");
    return scaling;
  }
  if (file.find("rope_freqs.weight")) {
    // LLaMA 3.1's scaling, worked out: the same factors whatever the length
    const Json factors = factors_of(file, "rope_freqs.weight");
    return {{"rope_type", "longrope"}, {"type", "longrope"},
            {"short_factor", factors}, {"long_factor", factors},
            {"attention_factor", 1.0}, {"original_max_position_embeddings", trained}};
  }
  const std::string type(file.string(in.key("rope.scaling.type")).value_or("none"));
  auto factor = in.number("rope.scaling.factor");
  if (!factor) factor = in.number("rope.scale_linear");  // as older files call it
  if (type == "none" && !factor) return nullptr;
  if (type != "none" && type != "linear" && type != "yarn")
    file.fail(in.key("rope.scaling.type"),
              fmt::format("= '{}' is not supported here; supported are: none, linear, yarn, and "
                          "longrope with its factors",
                          printable(type)));
  if (!factor) file.fail(in.key("rope.scaling.factor"), "is missing; convert the file again");
  if (type != "yarn" && *factor == 1) return nullptr;
  const std::string kind = type == "yarn" ? "yarn" : "linear";
  Json scaling = {{"rope_type", kind}, {"type", kind}, {"factor", *factor}};
  if (kind == "yarn") scaling["original_max_position_embeddings"] = trained;
  return scaling;
}

/// Layers with a sliding window, and every n-th without.
void add_windows(const GgufFile& file, const Settings& in, std::int64_t layers, bool gemma3,
                 Json& config) {
  config["sliding_window"] = in.integer("attention.sliding_window");
  const std::string key = in.key("attention.sliding_window_pattern");
  const GgufValue* pattern = file.value(key);  // every how many layers, or a flag for each
  const auto* listed = pattern ? std::get_if<std::vector<bool>>(pattern) : nullptr;
  const std::int64_t every = listed != nullptr ? 1 : file.integer(key).value_or(gemma3 ? 6 : 2);
  if (every < 1 || (listed != nullptr && static_cast<std::int64_t>(listed->size()) < layers))
    file.fail(key, "does not say it for every layer; convert the file again");
  Json types = Json::array();
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool window = listed ? (*listed)[static_cast<std::size_t>(i)] : (i + 1) % every != 0;
    types.push_back(window ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
}

void add_gemma(const GgufFile& file, const Settings& in, const GgufArchitecture& a, Json& config) {
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
  add_windows(file, in, layers, gemma3, config);
}

void add_tokens(const GgufFile& file, Json& config) {
  if (const auto bos = file.integer("tokenizer.ggml.bos_token_id")) config["bos_token_id"] = *bos;
  const std::vector<std::int64_t> ends = end_tokens(file);
  if (!ends.empty()) config["eos_token_id"] = ends;
}

Json config_of(const GgufFile& file, const GgufArchitecture& a) {
  const Settings in(file, a);
  const TensorView* embedding = file.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2)
    file.fail("token_embd.weight", "is missing or no matrix; fetch or convert the file again");
  if (const auto experts = file.integer(in.key("expert_count")); experts && *experts > 0)
    file.fail(in.key("expert_count"),
              fmt::format("= {}: mixtures of experts are not supported", *experts));
  const std::int64_t hidden = in.integer("embedding_length");
  const std::int64_t heads = in.integer("attention.head_count");
  const std::int64_t positions = in.integer("context_length");
  if (!file.integer(in.key("attention.key_length")) && hidden % heads != 0)
    file.fail(in.key("attention.head_count"),
              fmt::format("= {} does not divide the width {}", heads, hidden));
  const std::int64_t head_dim = in.integer("attention.key_length", hidden / heads);
  if (in.integer("attention.value_length", head_dim) != head_dim)
    file.fail(in.key("attention.value_length"), "differs from key_length, which is not supported");
  const auto eps = in.number("attention.layer_norm_rms_epsilon");
  if (!eps)
    file.fail(in.key("attention.layer_norm_rms_epsilon"), "is missing; convert the file again");
  Json config = {
      {"model_type", a.model_type},
      {"vocab_size", embedding->shape[0]},
      {"hidden_size", hidden},
      {"intermediate_size", in.integer("feed_forward_length")},
      {"num_hidden_layers", in.integer("block_count")},
      {"num_attention_heads", heads},
      {"num_key_value_heads", in.integer("attention.head_count_kv", heads)},
      {"head_dim", head_dim},
      {"max_position_embeddings", positions},
      {"rms_norm_eps", *eps},
      {"hidden_act", "silu"},
      {"tie_word_embeddings", file.find("output.weight") == nullptr},
      {"rope_theta", in.number("rope.freq_base").value_or(10000.0)},
      {"rope_scaling", rope_scaling(file, in, positions)},
  };
  const std::int64_t rotary = in.integer("rope.dimension_count", head_dim);
  if (rotary != head_dim)
    config["partial_rotary_factor"] = static_cast<double>(rotary) / static_cast<double>(head_dim);
  const std::string_view name = a.gguf;
  if (name == "phi3") {
    config["original_max_position_embeddings"] =
        in.integer("rope.scaling.original_context_length", positions);
    if (file.integer(in.key("attention.sliding_window")).value_or(0) > 0)
      config["sliding_window"] = in.integer("attention.sliding_window");
  } else if (name != "qwen2") {  // whose attention always has biases
    config["attention_bias"] = file.find("blk.0.attn_q.bias") != nullptr;
    config["mlp_bias"] = file.find("blk.0.ffn_gate.bias") != nullptr;
  }
  if (name == "granite") {
    in.copy("attention.scale", config, "attention_multiplier");
    in.copy("embedding_scale", config, "embedding_multiplier");
    in.copy("residual_scale", config, "residual_multiplier");
    in.copy("logit_scale", config, "logits_scaling");
  }
  if (name == "smollm3") config["no_rope_layer_interval"] = 4;  // not in the file
  if (a.interleaved) config[kRopeInterleaved] = true;
  if (a.gemma) add_gemma(file, in, a, config);
  add_tokens(file, config);
  return config;
}

// -- tensors that cannot be used as they lie
// -------------------------------------------------------

/// Rows of rotary pairs side by side, which are used as they lie.
void check_pairs(const GgufFile& file, const TensorView& t, std::int64_t heads) {
  const std::int64_t rows = t.shape.empty() ? 0 : t.shape[0];
  if (rows == 0 || rows % (2 * heads) != 0)
    file.fail(t.name, fmt::format("has {} rows, no even number for each of {} heads; fetch or "
                                  "convert the file again",
                                  rows, heads));
}

std::vector<std::byte> minus_one(const GgufFile& file, const TensorView& t) {
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
  for (const TensorView* t : file_.tensors()) {
    if (std::find(std::begin(kRopeTensors), std::end(kRopeTensors), t->name) !=
        std::end(kRopeTensors))
      continue;
    TensorView view = *t;
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
    std::vector<std::byte> copy;
    if (a.gemma && is_one_of(view.name, {"norm."})) copy = minus_one(file_, *t);
    if (!copy.empty()) {
      copies_.push_back(std::move(copy));
      view.data = copies_.back().data();
    }
    std::string name = view.name;
    places_.emplace(std::move(name), Place{std::move(view), file_.file_of(t->name)});
  }
  config_json_ = config.dump(1);
}

const TensorView* GgufSource::find(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? nullptr : &it->second.view;
}

std::vector<const TensorView*> GgufSource::tensors() const {
  std::vector<const TensorView*> all;
  for (const auto& [name, place] : places_) all.push_back(&place.view);
  return all;
}

std::filesystem::path GgufSource::file_of(std::string_view name) const {
  const auto it = places_.find(name);
  return it == places_.end() ? file_.path() : it->second.file;
}

}  // namespace episodic
