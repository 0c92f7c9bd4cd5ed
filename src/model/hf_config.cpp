// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/hf_config.hpp"

#include <fmt/format.h>

#include <cmath>
#include <numbers>
#include <optional>
#include <system_error>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/base/mapped_file.hpp"

namespace episodic {
namespace {

using Json = nlohmann::json;

// Far above any model that exists, and small enough that products of three stay within 63 bits.
constexpr std::int64_t kMostWidth = 1 << 20;
constexpr std::int64_t kMostVocabulary = 1 << 24;
constexpr std::int64_t kMostLayers = 1 << 14;
constexpr std::int64_t kMostHeads = 1 << 14;
constexpr std::int64_t kMostHeadDim = 1 << 14;
constexpr std::int64_t kMostPositions = std::int64_t{1} << 40;

/// Reads keys of one JSON object of a file; null counts as absent, as Hugging Face has it.
class Object {
 public:
  Object(const Json& object, std::string file, std::string prefix = "")
      : object_(object), file_(std::move(file)), prefix_(std::move(prefix)) {
    if (!object.is_object()) fail("", "expected a JSON object");
  }

  bool has(const char* key) const { return find(key) != nullptr; }

  std::optional<Object> object(const char* key) const {
    const Json* v = find(key);
    if (!v) return std::nullopt;
    if (!v->is_object()) fail(key, "expected an object or null");
    return Object(*v, file_, prefix_ + key + ".");
  }

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most) const {
    const Json* v = find(key);
    if (!v) fail(key, fmt::format("is missing; expected an integer in [{}, {}]", least, most));
    return integer(key, *v, least, most);
  }

  std::int64_t integer(const char* key, std::int64_t least, std::int64_t most,
                       std::int64_t otherwise) const {
    return has(key) ? integer(key, least, most) : otherwise;
  }

  double positive(const char* key, std::optional<double> otherwise = std::nullopt) const {
    const Json* v = find(key);
    if (!v && otherwise) return *otherwise;
    if (!v) fail(key, "is missing; expected a positive number");
    const double x = v->is_number() ? v->get<double>() : 0;
    if (!(x > 0) || !std::isfinite(x))
      fail(key, fmt::format("is {}, expected a positive number", text(*v)));
    return x;
  }

  bool boolean(const char* key, bool otherwise) const {
    const Json* v = find(key);
    if (!v) return otherwise;
    if (!v->is_boolean()) fail(key, fmt::format("is {}, expected true or false", text(*v)));
    return v->get<bool>();
  }

  std::string string(const char* key, const char* otherwise) const {
    const Json* v = find(key);
    if (!v) return otherwise;
    if (!v->is_string()) fail(key, fmt::format("is {}, expected a string", text(*v)));
    return v->get<std::string>();
  }

  /// One token id or a list of them.
  std::vector<std::int64_t> tokens(const char* key) const {
    const Json* v = find(key);
    std::vector<std::int64_t> ids;
    if (!v) return ids;
    if (!v->is_array()) return {integer(key, *v, -1, kMostVocabulary)};
    for (const Json& id : *v) ids.push_back(integer(key, id, -1, kMostVocabulary));
    return ids;
  }

  [[noreturn]] void fail(const std::string& key, const std::string& what) const {
    throw FileError(key.empty() ? fmt::format("{}: {}", file_, what)
                                : fmt::format("{}: {}{} {}", file_, prefix_, key, what));
  }

 private:
  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  std::int64_t integer(const char* key, const Json& v, std::int64_t least,
                       std::int64_t most) const {
    const bool whole = v.is_number_integer();
    const bool huge = v.is_number_unsigned() && v.get<std::uint64_t>() > (std::uint64_t{1} << 62);
    if (!whole || huge || v.get<std::int64_t>() < least || v.get<std::int64_t>() > most)
      fail(key, fmt::format("is {}, expected an integer in [{}, {}]", text(v), least, most));
    return v.get<std::int64_t>();
  }

  static std::string text(const Json& v) { return printable_value(v); }

  const Json& object_;
  std::string file_, prefix_;
};

// -- rope scaling as data: each kind turns plain inverse frequencies into others --

void scale_linear(const Object& scaling, RotaryTable& table) {
  const double factor = scaling.positive("factor");
  for (double& f : table.inverse_frequency) f /= factor;
}

/// Llama 3.1: wavelengths that are long for the original window are stretched by `factor`, short
/// ones kept, those between blended by where they lie.
void scale_llama3(const Object& scaling, RotaryTable& table) {
  const double factor = scaling.positive("factor");
  const double low = scaling.positive("low_freq_factor");
  const double high = scaling.positive("high_freq_factor");
  const double window = scaling.positive("original_max_position_embeddings");
  if (!(high > low))
    scaling.fail("high_freq_factor",
                 fmt::format("is {}, must exceed low_freq_factor = {}", high, low));
  for (double& f : table.inverse_frequency) {
    const double turns = window * f / (2 * std::numbers::pi);  // of this channel over the window
    if (turns >= high) continue;
    const double kept = turns <= low ? 0.0 : (turns - low) / (high - low);
    f *= kept + (1 - kept) / factor;
  }
}

struct RopeKind {
  const char* name;
  void (*apply)(const Object& scaling, RotaryTable& table);
};

constexpr RopeKind kRopeKinds[] = {
    {"default", nullptr},
    {"linear", scale_linear},
    {"llama3", scale_llama3},
};

RotaryTable read_rotary(const Object& config, std::int64_t head_dim) {
  // 5.x puts everything into rope_parameters; before, theta stood outside and scaling in a dict
  const auto parameters = config.object("rope_parameters");
  const auto scaling = parameters ? parameters : config.object("rope_scaling");
  const Object& base = parameters ? *parameters : config;
  const double theta =
      base.has("rope_theta") ? base.positive("rope_theta") : config.positive("rope_theta", 10000.0);
  const double share = base.has("partial_rotary_factor")
                           ? base.positive("partial_rotary_factor")
                           : config.positive("partial_rotary_factor", 1.0);
  const auto rotary_dim =
      static_cast<std::int64_t>(std::floor(static_cast<double>(head_dim) * std::min(share, 1.0)));
  if (share > 1 || rotary_dim < 2 || rotary_dim % 2 != 0)
    config.fail("head_dim",
                fmt::format("times partial_rotary_factor gives {} rotary channels; must be "
                            "even and in [2, {}]",
                            share * static_cast<double>(head_dim), head_dim));
  RotaryTable table = plain_rotary(rotary_dim, theta);
  const std::string kind =
      scaling ? scaling->string("rope_type", scaling->string("type", "default").c_str())
              : "default";
  std::string names;
  for (const RopeKind& known : kRopeKinds) {
    if (kind == known.name) {
      if (known.apply) known.apply(*scaling, table);
      return table;
    }
    names += fmt::format("{}{}", names.empty() ? "" : ", ", known.name);
  }
  scaling->fail("rope_type", fmt::format("= \"{}\" is not supported; supported are: {}",
                                         printable(kind), names));
}

void check_family(const Object& config, const ModelConfig& c) {
  if (c.model_type != "llama" && c.model_type != "mistral")
    config.fail("model_type",
                fmt::format("= \"{}\" is not supported; supported are: llama, and mistral "
                            "without a sliding window",
                            printable(c.model_type)));
  if (c.model_type == "mistral" && config.has("sliding_window"))
    config.fail("sliding_window",
                "is set; only mistral models without a sliding window (null) are "
                "supported");
  const std::string act = config.string("hidden_act", "silu");
  if (act != "silu" && act != "swish")
    config.fail("hidden_act",
                fmt::format("= \"{}\" is not supported; supported is: silu", printable(act)));
}

Json parse_file(std::string_view text, const std::string& file) {
  return parse_strict(text, file, {.depth = 12, .array_length = 1 << 16, .keys = 1 << 16});
}

std::string_view text_of(const MappedFile& file) {
  constexpr std::size_t kLongest = 16 << 20;
  if (file.bytes().size() > kLongest)
    throw FileError(
        fmt::format("{}: {} bytes are too many for a configuration; is it the right file?",
                    file.path().string(), file.bytes().size()));
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

ModelConfig parse_model_config(std::string_view config_json, std::string_view generation_json,
                               std::string_view label) {
  const std::string file = fmt::format("{}/config.json", label);
  const Json json = parse_file(config_json, file);
  const Object in(json, file);
  ModelConfig c;
  c.model_type = in.string("model_type", "");
  check_family(in, c);
  c.vocab_size = in.integer("vocab_size", 1, kMostVocabulary);
  c.hidden_size = in.integer("hidden_size", 1, kMostWidth);
  c.intermediate_size = in.integer("intermediate_size", 1, kMostWidth);
  c.n_layers = in.integer("num_hidden_layers", 1, kMostLayers);
  c.n_heads = in.integer("num_attention_heads", 1, kMostHeads);
  const std::int64_t default_groups =
      c.model_type == "mistral" ? std::min<std::int64_t>(8, c.n_heads) : c.n_heads;
  c.n_kv_heads = in.integer("num_key_value_heads", 1, kMostHeads, default_groups);
  if (c.n_heads % c.n_kv_heads != 0)
    in.fail("num_key_value_heads",
            fmt::format("= {} does not divide num_attention_heads = {}", c.n_kv_heads, c.n_heads));
  if (!in.has("head_dim") && c.hidden_size % c.n_heads != 0)
    in.fail("head_dim", fmt::format("is missing, and num_attention_heads = {} does not divide "
                                    "hidden_size = {}",
                                    c.n_heads, c.hidden_size));
  c.head_dim = in.integer("head_dim", 1, kMostHeadDim, c.hidden_size / c.n_heads);
  if (c.n_heads * c.head_dim > kMostWidth)
    in.fail("head_dim",
            fmt::format("= {} times {} heads is wider than {}", c.head_dim, c.n_heads, kMostWidth));
  c.max_positions = in.integer("max_position_embeddings", 0, kMostPositions, 0);
  c.rms_norm_eps = in.positive("rms_norm_eps", 1e-6);
  c.tie_word_embeddings = in.boolean("tie_word_embeddings", false);
  c.attention_bias = in.boolean("attention_bias", false);
  c.mlp_bias = in.boolean("mlp_bias", false);
  c.rotary = read_rotary(in, c.head_dim);

  auto bos = in.tokens("bos_token_id");
  c.eos_tokens = in.tokens("eos_token_id");
  if (!generation_json.empty()) {
    const std::string generation_file = fmt::format("{}/generation_config.json", label);
    const Json generation = parse_file(generation_json, generation_file);
    const Object g(generation, generation_file);
    if (g.has("bos_token_id")) bos = g.tokens("bos_token_id");
    if (g.has("eos_token_id")) c.eos_tokens = g.tokens("eos_token_id");
  }
  if (!bos.empty()) c.bos_token = bos[0];
  return c;
}

ModelConfig load_model_config(const std::filesystem::path& dir) {
  const MappedFile config(dir / "config.json");
  std::optional<MappedFile> generation;
  std::error_code ignored;
  if (std::filesystem::exists(dir / "generation_config.json", ignored))
    generation.emplace(dir / "generation_config.json");
  return parse_model_config(text_of(config), generation ? text_of(*generation) : "", dir.string());
}

}  // namespace episodic
