// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <numbers>
#include <sstream>

#include "episodic/base/error.hpp"
#include "episodic/model/hf_config.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
using Json = nlohmann::json;

namespace config_test {

Json tiny() {
  return {{"model_type", "llama"},    {"vocab_size", 50},       {"hidden_size", 24},
          {"intermediate_size", 40},  {"num_hidden_layers", 2}, {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"rms_norm_eps", 1e-5},   {"rope_theta", 500.0},
          {"bos_token_id", 1},        {"eos_token_id", 2}};
}

Json with(Json json, const char* key, const Json& value) {
  json[key] = value;
  return json;
}

Json without(Json json, const char* key) {
  json.erase(key);
  return json;
}

ModelConfig parse(const Json& json, const std::string& generation = "") {
  return parse_model_config(json.dump(), generation, "dir");
}

void refuses(const std::string& text, const std::string& because) {
  std::string error = "no error";
  try {
    parse_model_config(text, "", "dir");
  } catch (const FileError& e) {
    error = e.what();
  }
  INFO(text << " -> " << error);
  REQUIRE(error.find("dir/config.json: ") == 0);
  REQUIRE(error.find(because) != std::string::npos);
}

void refuses(const Json& json, const std::string& because) { refuses(json.dump(), because); }

/// Equal but for float32's rounding in the reference.
struct ApproxOf {
  double value;
  explicit ApproxOf(double v) : value(v) {}
  friend bool operator==(double x, const ApproxOf& a) {
    return std::abs(x - a.value) <= 3e-6 * std::abs(a.value);
  }
};

/// Equal but for rounding.
struct Near {
  double value;
  friend bool operator==(double x, const Near& n) {
    return std::abs(x - n.value) <= 1e-12 * std::abs(n.value);
  }
};

double plain(double theta, int channel, int dim) { return std::pow(theta, -2.0 * channel / dim); }

TEST_CASE("config: a plain LLaMA") {
  const ModelConfig c = parse(tiny());
  REQUIRE(c.vocab_size == 50);
  REQUIRE(c.hidden_size == 24);
  REQUIRE(c.intermediate_size == 40);
  REQUIRE(c.n_layers == 2);
  REQUIRE(c.n_heads == 4);
  REQUIRE(c.n_kv_heads == 2);
  REQUIRE(c.head_dim == 6);
  REQUIRE(c.rms_norm_eps == 1e-5);
  REQUIRE_FALSE(c.tie_word_embeddings);
  REQUIRE(c.bos_token == 1);
  REQUIRE(c.eos_tokens == std::vector<std::int64_t>{2});
  REQUIRE(c.ropes[0].table.inverse_frequency.size() == 3);
  for (int i = 0; i < 3; ++i)
    REQUIRE(c.ropes[0].table.inverse_frequency[static_cast<std::size_t>(i)] ==
            Near{plain(500, i, 6)});
}

TEST_CASE("config: defaults of what may be absent") {
  Json json = tiny();
  for (const char* key :
       {"num_key_value_heads", "rms_norm_eps", "rope_theta", "bos_token_id", "eos_token_id"})
    json.erase(key);
  json["rope_scaling"] = nullptr;
  const ModelConfig c = parse(json);
  REQUIRE(c.n_kv_heads == 4);
  REQUIRE(c.rms_norm_eps == 1e-6);
  REQUIRE(c.ropes[0].table.inverse_frequency[1] == Near{plain(10000, 1, 6)});
  REQUIRE(c.bos_token == -1);
  REQUIRE(c.eos_tokens.empty());
  REQUIRE(c.max_positions == 0);
  REQUIRE(parse(with(tiny(), "head_dim", 12)).head_dim == 12);
  REQUIRE(parse(with(tiny(), "tie_word_embeddings", true)).tie_word_embeddings);
}

TEST_CASE("config: both generations of rope settings") {
  const Json scaling{{"rope_type", "linear"}, {"factor", 4.0}};
  const ModelConfig old_style = parse(with(tiny(), "rope_scaling", scaling));
  const ModelConfig older =
      parse(with(tiny(), "rope_scaling", {{"type", "linear"}, {"factor", 4.0}}));
  Json parameters = scaling;
  parameters["rope_theta"] = 500.0;
  const ModelConfig new_style =
      parse(with(without(tiny(), "rope_theta"), "rope_parameters", parameters));
  for (int i = 0; i < 3; ++i) {
    const auto c = static_cast<std::size_t>(i);
    REQUIRE(old_style.ropes[0].table.inverse_frequency[c] == Near{plain(500, i, 6) / 4});
    REQUIRE(older.ropes[0].table.inverse_frequency[c] ==
            old_style.ropes[0].table.inverse_frequency[c]);
    REQUIRE(new_style.ropes[0].table.inverse_frequency[c] ==
            old_style.ropes[0].table.inverse_frequency[c]);
  }
  const ModelConfig partial = parse(
      with(with(with(tiny(), "model_type", "phi3"), "head_dim", 8), "rope_parameters",
           {{"rope_type", "default"}, {"rope_theta", 100.0}, {"partial_rotary_factor", 0.5}}));
  REQUIRE(partial.ropes[0].table.rotary_dim() == 4);
  REQUIRE(partial.ropes[0].table.inverse_frequency[1] == Near{0.1});
}

TEST_CASE("config: llama3 scaling keeps, blends and stretches") {
  const double theta = 500000, factor = 8, low = 1, high = 4, window = 8192;
  Json json = with(with(tiny(), "head_dim", 128), "rope_theta", theta);
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", factor},
                          {"low_freq_factor", low},
                          {"high_freq_factor", high},
                          {"original_max_position_embeddings", window}};
  const auto table = parse(json).ropes[0].table.inverse_frequency;
  REQUIRE(table.size() == 64);
  int kept = 0, blended = 0, stretched = 0;
  for (int i = 0; i < 64; ++i) {
    const double f = plain(theta, i, 128), wavelength = 2 * std::numbers::pi / f;
    double expected;
    if (wavelength < window / high) {
      expected = f;
      ++kept;
    } else if (wavelength > window / low) {
      expected = f / factor;
      ++stretched;
    } else {
      const double smooth = (window / wavelength - low) / (high - low);
      expected = (1 - smooth) * f / factor + smooth * f;
      ++blended;
    }
    REQUIRE(table[static_cast<std::size_t>(i)] == Near{expected});
  }
  REQUIRE((kept > 0 && blended > 0 && stretched > 0));
  json["rope_scaling"].erase("low_freq_factor");
  refuses(json, "rope_scaling.low_freq_factor is missing");
  json["rope_scaling"]["low_freq_factor"] = 4.0;
  refuses(json, "rope_scaling.high_freq_factor is 4, must exceed");
}

TEST_CASE("config: scaling that is not supported is refused by name") {
  refuses(with(tiny(), "rope_scaling", {{"rope_type", "ntk"}, {"factor", 2.0}}),
          "rope_scaling.rope_type = \"ntk\" is not supported; supported are: default, linear, "
          "dynamic, llama3, yarn, longrope");
  refuses(with(tiny(), "rope_scaling", {{"type", "linear"}}), "rope_scaling.factor is missing");
  refuses(with(tiny(), "rope_scaling", "linear"), "rope_scaling expected an object");
}

TEST_CASE("config: families") {
  const Json mistral = with(tiny(), "model_type", "mistral");
  REQUIRE(parse(mistral).model_type == "mistral");
  refuses(with(tiny(), "model_type", "gpt2"),
          "model_type = \"gpt2\" is not supported; supported are: llama, mistral, qwen2, qwen3, "
          "phi3, gemma2, gemma3_text, smollm3, olmo2, granite");
  refuses(without(tiny(), "model_type"), "model_type");
  refuses(with(tiny(), "hidden_act", "gelu"), "hidden_act = \"gelu\" is not supported");
}

TEST_CASE("config: what the reference's classes take where a key is absent or null") {
  Json mistral = with(tiny(), "model_type", "mistral");
  REQUIRE(parse(mistral).layers[1].window == 4096);
  REQUIRE(parse(with(mistral, "sliding_window", nullptr)).layers[1].window == 0);
  REQUIRE(parse(with(mistral, "sliding_window", 7)).layers[0].window == 7);
  refuses(with(mistral, "sliding_window", 0), "sliding_window is 0");
  mistral = without(with(mistral, "num_attention_heads", 24), "num_key_value_heads");
  mistral["head_dim"] = 2;
  REQUIRE(parse(mistral).n_kv_heads == 8);
  REQUIRE(parse(with(mistral, "num_key_value_heads", nullptr)).n_kv_heads == 24);
  const Json gemma = with(tiny(), "model_type", "gemma3_text");
  REQUIRE(parse(gemma).head_dim == 256);
  REQUIRE(parse(gemma).tie_word_embeddings);
  REQUIRE(parse(gemma).layers[0].window == 4096);
  REQUIRE(parse(gemma).layers[0].activation == Activation::gelu_tanh);
  REQUIRE(parse(with(gemma, "head_dim", nullptr)).head_dim == 6);
  REQUIRE(parse(with(tiny(), "model_type", "phi3")).rms_norm_eps == 1e-5);
}

TEST_CASE("config: which layers slide, and which a memory serves") {
  Json gemma = with(with(tiny(), "model_type", "gemma3_text"), "num_hidden_layers", 7);
  gemma["sliding_window"] = 16;
  const auto windows = [](const ModelConfig& c) {
    std::vector<std::int64_t> all;
    for (const LayerSpec& layer : c.layers) all.push_back(layer.window);
    return all;
  };
  using List = std::vector<std::int64_t>;
  REQUIRE(windows(parse(gemma)) == List{16, 16, 16, 16, 16, 0, 16});
  REQUIRE(parse(gemma).memory_layers() == List{5});
  REQUIRE(windows(parse(with(gemma, "sliding_window_pattern", 2))) ==
          List{16, 0, 16, 0, 16, 0, 16});
  REQUIRE(parse(gemma).layers[5].rope == 0);
  REQUIRE(parse(gemma).layers[6].rope == 1);
  gemma["layer_types"] = Json::array({"full_attention", "full_attention"});
  refuses(gemma, "layer_types has 2 entries, expected 7");
  gemma["num_hidden_layers"] = 2;
  REQUIRE(parse(gemma).memory_layers() == List{0, 1});
  gemma["layer_types"][1] = "chunked_attention";
  refuses(gemma, "layer_types = \"chunked_attention\" is not supported; supported are");

  Json qwen = with(with(tiny(), "model_type", "qwen2"), "num_hidden_layers", 3);
  qwen["sliding_window"] = 8;
  qwen["max_window_layers"] = 1;
  REQUIRE(windows(parse(qwen)) == List{0, 0, 0});
  qwen["use_sliding_window"] = true;
  REQUIRE(windows(parse(qwen)) == List{0, 8, 8});
  REQUIRE(parse(qwen).memory_layers() == List{0});

  const Json mistral = with(with(tiny(), "model_type", "mistral"), "sliding_window", 8);
  REQUIRE(parse(mistral).memory_layers() == List{0, 1});
  Json smol = with(with(tiny(), "model_type", "smollm3"), "num_hidden_layers", 5);
  REQUIRE(parse(smol).layers[3].rope == -1);
  REQUIRE(parse(smol).layers[4].rope == 0);
  smol["no_rope_layers"] = List{1, 0, 1, 1, 1};
  REQUIRE(parse(smol).layers[1].rope == -1);
  smol["no_rope_layers"] = List{1, 2, 1, 1, 1};
  refuses(smol, "no_rope_layers is 2");
}

TEST_CASE("config: ropes that depend on the length of the context") {
  const Json around = with(with(tiny(), "head_dim", 8), "max_position_embeddings", 64);
  const Rope dynamic =
      parse(with(around, "rope_scaling", {{"type", "dynamic"}, {"factor", 3.0}})).ropes[0];
  REQUIRE(dynamic.original == 64);
  REQUIRE(dynamic.at(64).inverse_frequency == dynamic.table.inverse_frequency);
  const double base = 500 * std::pow(3.0 * 96 / 64 - 2, 8.0 / 6);
  REQUIRE(dynamic.at(96).inverse_frequency[2] == Near{plain(base, 2, 8)});

  Json scaling{{"type", "su"},
               {"short_factor", {1.0, 1.0, 2.0, 2.0}},
               {"long_factor", {1.0, 2.0, 3.0, 4.0}}};
  Json phi = with(with(around, "model_type", "phi3"), "original_max_position_embeddings", 16);
  phi["rope_scaling"] = scaling;
  const Rope longrope = parse(phi).ropes[0];
  REQUIRE(longrope.at(16).inverse_frequency[2] == Near{plain(500, 2, 8) / 2});
  REQUIRE(longrope.at(17).inverse_frequency[3] == Near{plain(500, 3, 8) / 4});
  REQUIRE(longrope.at(17).attention_factor == Near{std::sqrt(1.5)});  // 64 / 16 = 16^0.5
  phi["rope_scaling"]["type"] = "yarn";  // as the first files of Phi-3 have it
  REQUIRE(parse(phi).ropes[0] == longrope);
  phi["rope_scaling"]["long_factor"] = {1.0, 2.0};
  refuses(phi, "rope_scaling.long_factor has 2 entries, expected 4");
  phi["rope_scaling"].erase("short_factor");
  phi["rope_scaling"]["type"] = "longrope";
  refuses(phi, "rope_scaling.short_factor is missing");

  const Rope yarn =
      parse(with(around, "rope_scaling", {{"type", "yarn"}, {"factor", 4.0}})).ropes[0];
  REQUIRE_FALSE(yarn.depends_on_length());
  REQUIRE(yarn.table.attention_factor == Near{0.1 * std::log(4.0) + 1});
  refuses(with(around, "rope_scaling",
               {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 1e300}}),
          "rope_scaling.original_max_position_embeddings is 1e+300");
  refuses(with(around, "rope_scaling", {{"type", "linear"}, {"factor", 1e-320}}),
          "rope_scaling.factor is 1e-320, expected a number in [0.001, 1000000]");
}

TEST_CASE("config: end tokens, from either file") {
  REQUIRE(parse(with(tiny(), "eos_token_id", {3, 4})).eos_tokens ==
          std::vector<std::int64_t>{3, 4});
  const ModelConfig c = parse(tiny(), R"({"eos_token_id":[7,8],"bos_token_id":5})");
  REQUIRE(c.eos_tokens == std::vector<std::int64_t>{7, 8, 2});  // either file ends an answer
  REQUIRE(c.ends_note.find("7, 8, 2") != std::string::npos);
  REQUIRE(c.bos_token == 5);
  REQUIRE(parse(tiny(), "{}").eos_tokens == std::vector<std::int64_t>{2});
  REQUIRE(parse(tiny(), "{}").ends_note.empty());
  const ModelConfig same = parse(tiny(), R"({"eos_token_id":[7,2]})");
  REQUIRE(same.eos_tokens == std::vector<std::int64_t>{7, 2});
  REQUIRE(same.ends_note.empty());  // that one file says more is usual
  const ModelConfig bad = parse(with(tiny(), "eos_token_id", {2, -1}), R"({"eos_token_id":50})");
  REQUIRE(bad.eos_tokens == std::vector<std::int64_t>{2});
  REQUIRE(bad.notes.size() == 2);
  REQUIRE(mentions(bad.notes[0], "eos_token_id = 50 is not among the 50 tokens"));
  REQUIRE(mentions(bad.notes[1], "eos_token_id = -1 is not among the 50 tokens"));
  refuses(with(tiny(), "eos_token_id", {"x"}), "eos_token_id");
  try {
    parse(tiny(), R"({"eos_token_id":1.5})");
    FAIL("taken");
  } catch (const FileError& e) {
    REQUIRE(std::string(e.what()).find("dir/generation_config.json: eos_token_id") == 0);
  }
}

TEST_CASE("config: numbers out of range") {
  for (const char* key : {"vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers",
                          "num_attention_heads"}) {
    refuses(without(tiny(), key), std::string(key) + " is missing");
    for (const Json& bad : {Json(0), Json(-1), Json(1.5), Json("4"), Json(std::int64_t{1} << 40),
                            Json(18446744073709551615ull), Json::array()})
      refuses(with(tiny(), key, bad), key);
  }
  refuses(with(tiny(), "num_key_value_heads", 3), "does not divide num_attention_heads");
  refuses(with(tiny(), "num_key_value_heads", 0), "num_key_value_heads");
  refuses(with(tiny(), "hidden_size", 25), "head_dim is missing");
  refuses(with(tiny(), "head_dim", 0), "head_dim");
  refuses(with(tiny(), "head_dim", 7), "rotary channels");
  refuses(with(tiny(), "rms_norm_eps", 0), "rms_norm_eps");
  refuses(with(tiny(), "rope_theta", -1), "rope_theta");
  refuses(with(tiny(), "partial_rotary_factor", 2), "partial_rotary_factor is 2");
  refuses(with(tiny(), "partial_rotary_factor", 0.5), "whose heads turn as a whole");
  refuses(with(tiny(), "tie_word_embeddings", 1), "tie_word_embeddings");
  refuses(with(with(tiny(), "num_attention_heads", 16384), "head_dim", 16384), "wider");
}

TEST_CASE("config: no JSON, no object, a repeated key") {
  refuses(std::string(), "not valid JSON");
  refuses(std::string("{\"vocab_size\":"), "not valid JSON");
  refuses(std::string("[1]"), "expected a JSON object");
  refuses(std::string(R"({"vocab_size":1,"vocab_size":2})"), "'vocab_size' stands twice");
  refuses(std::string(100000, '['), "deep");
}

TEST_CASE("config: files of a directory") {
  const TempDir dir;
  try {
    load_model_config(dir.path());
    FAIL("loaded");
  } catch (const FileError& e) {
    REQUIRE(std::string(e.what()).find("config.json: cannot be opened") != std::string::npos);
  }
  dir.write("config.json", tiny().dump());
  REQUIRE(load_model_config(dir.path()).eos_tokens == std::vector<std::int64_t>{2});
  dir.write("generation_config.json", R"({"eos_token_id":9})");
  REQUIRE(load_model_config(dir.path()).eos_tokens == std::vector<std::int64_t>{9, 2});
}

/// Python's json writes numbers that JSON has not.
std::string python_dump(Json value) {
  if (value.is_object() || value.is_array()) {
    std::string out;
    for (const auto& [key, v] : value.items())
      out += (out.empty() ? "" : ",") + (value.is_object() ? Json(key).dump() + ":" : "") +
             python_dump(v);
    return value.is_object() ? "{" + out + "}" : "[" + out + "]";
  }
  if (!value.is_number_float() || std::isfinite(value.get<double>())) return value.dump();
  return std::isnan(value.get<double>()) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
}

const double kNan = std::numeric_limits<double>::quiet_NaN();
const double kInfinity = std::numeric_limits<double>::infinity();

/// One case of rope_vectors.json: a line of a JSON list, but for NaN and infinities in "config".
struct RopeCase {
  std::string config;
  Json rest;
};

std::vector<RopeCase> rope_cases() {
  std::ifstream in(std::string(EPISODIC_SOURCE_DIR) + "/tests/model/rope_vectors.json");
  std::vector<RopeCase> cases;
  for (std::string line; std::getline(in, line);) {
    constexpr std::string_view kStart = "{\"config\": ";
    if (!line.starts_with(kStart)) continue;
    // the config ends where the object that it is does
    std::size_t end = kStart.size();
    int depth = 0;
    do {
      depth += line[end] == '{' ? 1 : line[end] == '}' ? -1 : 0;
    } while (++end < line.size() && depth > 0);
    std::string rest = "{" + line.substr(std::min(line.size(), end + 2));
    while (rest.back() != '}') rest.pop_back();
    cases.push_back({line.substr(kStart.size(), end - kStart.size()), Json::parse(rest)});
  }
  return cases;
}

TEST_CASE("config: rope settings give transformers' frequencies, or are refused by their key") {
  const std::vector<RopeCase> cases = rope_cases();
  REQUIRE(cases.size() > 400);
  int compared = 0, refused = 0;
  for (const RopeCase& c : cases) {
    INFO(c.config);
    // stricter than transformers, which warns of these or looks away
    const auto says = [&](const char* text) { return c.config.find(text) != std::string::npos; };
    const bool phi3 = says("\"phi3\"");
    const bool strange = says("\"factor\": Infinity") || says("\"factor\": -") ||
                         says("\"factor\": true") ||
                         (says("partial_rotary_factor") && !phi3 && !says("proportional")) ||
                         (says("gemma3_text") && says("\"rope_parameters\": {\"rope_type"));
    // and wider: Phi-3's class takes longrope alone, and no other class its first name
    const bool wider = says("\"su\"") || (phi3 && !says("longrope"));
    ModelConfig config;
    const std::string error =
        refusal<FileError>([&] { config = parse_model_config(c.config, "", "dir"); });
    INFO(error);
    if (error != "no error") {
      CHECK((c.rest.contains("refused") || strange));
      CHECK((mentions(error, "rope") || mentions(error, "partial_rotary_factor")));
      ++refused;
      continue;
    }
    if (c.rest.contains("refused")) {
      CHECK(wider);
      continue;
    }
    for (const char* kind : {"full", "sliding"}) {
      if (!c.rest.contains(kind)) continue;
      const Json& rows = c.rest[kind];
      const Rope& rope = config.ropes.at(kind == std::string("full") ? 0 : 1);
      // a row holds up to the next one's length
      for (const std::int64_t length : {1, 40, 128, 129, 300}) {
        const Json* row = &rows[0];
        for (const Json& later : rows)
          if (later[0] <= length) row = &later;
        const RotaryTable table = rope.at(length);
        INFO(kind << ' ' << length);
        REQUIRE(table.attention_factor == ApproxOf((*row)[1].get<double>()));
        REQUIRE(table.inverse_frequency.size() == (*row)[2].size());
        for (std::size_t i = 0; i < table.inverse_frequency.size(); ++i)
          REQUIRE(table.inverse_frequency[i] == ApproxOf((*row)[2][i].get<double>()));
        ++compared;
      }
    }
  }
  REQUIRE(compared > 1000);
  REQUIRE(refused > 20);
}

TEST_CASE(
    "config: NaN and infinities as Python writes them are numbers, refused where they count") {
  for (const char* number : {"NaN", "Infinity", "-Infinity"}) {
    INFO(number);
    const auto text = [&](const std::string& key) {
      std::string json = tiny().dump();
      json.pop_back();
      return json + ",\"" + key + "\":" + number + "}";
    };
    REQUIRE_NOTHROW(parse_model_config(text("some_time_limit"), "", "dir"));
    refuses(text("max_position_embeddings"), "max_position_embeddings is " + std::string(number));
    refuses(text("partial_rotary_factor"), "partial_rotary_factor is " + std::string(number));
    std::string scaled = tiny().dump();
    scaled.pop_back();
    refuses(scaled + R"(,"rope_scaling":{"rope_type":"linear","factor":)" + number + "}}",
            "rope_scaling.factor is " + std::string(number));
  }
  refuses(std::string(R"({"vocab_size":NaNs})"), "not valid JSON");
  refuses(std::string(R"({"vocab_size":-NaN})"), "not valid JSON");
  refuses(std::string(R"({"vocab_size":NaN5})"), "not valid JSON");
  REQUIRE(parse(with(tiny(), "name", "NaN, \"Infinity\" and -Infinity")).vocab_size == 50);
}

TEST_CASE("config: every numeric key takes what it can mean and refuses the rest by its name") {
  struct Key {
    const char* name;
    const char* family;
    bool whole, needed, nullable;
    double good;
  };
  const Key keys[] = {
      {"vocab_size", "llama", true, true, false, 50},
      {"hidden_size", "llama", true, true, false, 24},
      {"intermediate_size", "llama", true, true, false, 40},
      {"num_hidden_layers", "llama", true, true, false, 2},
      {"num_attention_heads", "llama", true, true, false, 4},
      {"num_key_value_heads", "llama", true, false, true, 2},
      {"head_dim", "llama", true, false, true, 6},
      {"rms_norm_eps", "llama", false, false, true, 1e-5},
      {"rope_theta", "llama", false, false, true, 500},
      {"sliding_window", "mistral", true, false, true, 16},
      {"max_window_layers", "qwen2", true, false, true, 1},
      {"original_max_position_embeddings", "phi3", false, false, true, 16},
      {"query_pre_attn_scalar", "gemma2", false, false, true, 8},
      {"attn_logit_softcapping", "gemma2", false, false, true, 50},
      {"final_logit_softcapping", "gemma2", false, false, true, 30},
      {"rope_local_base_freq", "gemma3_text", false, false, true, 100},
      {"sliding_window_pattern", "gemma3_text", true, false, true, 2},
      {"no_rope_layer_interval", "smollm3", true, false, true, 4},
      {"embedding_multiplier", "granite", false, false, true, 12},
      {"residual_multiplier", "granite", false, false, true, 0.2},
      {"attention_multiplier", "granite", false, false, true, 0.1},
      {"logits_scaling", "granite", false, false, true, 8},
  };
  for (const Key& key : keys) {
    Json base = with(with(tiny(), "model_type", key.family), "head_dim", 6);
    if (key.name == std::string("original_max_position_embeddings"))
      base["rope_scaling"] = {
          {"type", "longrope"}, {"short_factor", {1, 1, 1}}, {"long_factor", {1, 2, 3}}};
    INFO(key.family << ' ' << key.name);
    const auto attempt = [&](const Json& value) {
      const std::string text = python_dump(with(base, key.name, value));
      return refusal<FileError>([&] { parse_model_config(text, "", "dir"); });
    };
    const auto refused = [&](const Json& value) {
      const std::string error = attempt(value);
      INFO(python_dump(value) << " -> " << error);
      CHECK(mentions(error, key.name));
    };
    const Json good = key.whole ? Json(static_cast<std::int64_t>(key.good)) : Json(key.good);
    CHECK(attempt(good) == "no error");
    if (!key.whole) CHECK(attempt(std::max<std::int64_t>(1, std::int64_t(key.good))) != "");
    if (key.needed) {
      refused(nullptr);
      refuses(without(base, key.name), std::string(key.name) + " is missing");
    } else if (key.nullable) {
      CHECK(attempt(nullptr) == "no error");
      REQUIRE_NOTHROW(parse(without(base, key.name)));
    }
    for (const Json& bad :
         {Json("4"), Json(true), Json::array({4}), Json(Json::object()), Json(-1), Json(kNan),
          Json(kInfinity), Json(-kInfinity), Json(1e308), Json(std::int64_t{1} << 62)})
      refused(bad);
    if (key.name != std::string("max_window_layers")) refused(0);
    if (key.whole) refused(key.good + 0.5);
  }
}

TEST_CASE("config: token ids that no step can give are ignored with a note") {
  const ModelConfig c =
      parse(with(with(tiny(), "bos_token_id", 99999), "eos_token_id", {2, -1, 50}));
  CHECK(c.bos_token == -1);
  CHECK(c.eos_tokens == std::vector<std::int64_t>{2});
  REQUIRE(c.notes.size() == 3);
  CHECK(mentions(c.notes[0], "bos_token_id = 99999 is not among the 50 tokens"));
  CHECK(mentions(c.notes[2], "eos_token_id = 50"));
  CHECK(parse(tiny()).notes.empty());
}

TEST_CASE("config: what a family passes over is noted") {
  const auto note = [](const char* key, const Json& value, const char* family = "llama") {
    const ModelConfig c = parse(with(with(tiny(), "model_type", family), key, value));
    return c.notes.empty() ? std::string() : c.notes[0];
  };
  CHECK(mentions(note("num_local_experts", 8), "num_local_experts = 8"));
  CHECK(note("num_local_experts", 1).empty());
  for (const Json& window : {Json(-1), Json(0), Json(std::int64_t{1} << 62)})
    CHECK(mentions(note("sliding_window", window), "sliding_window"));
  CHECK(note("sliding_window", nullptr).empty());
  CHECK(note("sliding_window", 8, "mistral").empty());
  CHECK(note("torch_dtype", 5).empty());  // the weights say their type
}

TEST_CASE("config: windows that a class can switch off") {
  const Json types = Json::array({"sliding_attention", "full_attention"});
  for (const char* family : {"qwen2", "qwen3", "smollm3"}) {
    INFO(family);
    const Json base = with(with(tiny(), "model_type", family), "layer_types", types);
    CHECK(parse(with(base, "sliding_window", 8)).layers[0].window == 0);
    const Json on = with(base, "use_sliding_window", true);
    CHECK(parse(with(on, "sliding_window", 8)).layers[0].window == 8);
    CHECK(parse(with(on, "sliding_window", nullptr)).layers[0].window == 0);
    CHECK(parse(with(on, "sliding_window", 8)).layers[1].window == 0);
  }
}

TEST_CASE("config: what is said of quantised weights") {
  const auto said = [](const char* key, const Json& value) {
    return parse(with(tiny(), key, value)).quantization;
  };
  const char* q = "quantization_config";
  CHECK(parse(tiny()).quantization.empty());
  CHECK(said(q, nullptr).empty());
  CHECK(said(q, Json::object()).empty());
  CHECK(said(q, {{"quant_method", "gptq"}, {"bits", 4}}) == "gptq");
  CHECK(said(q, {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}}) == "bitsandbytes_4bit");
  CHECK(said(q, {{"load_in_8bit", true}}) == "bitsandbytes_8bit");
  CHECK(said(q, {{"quant_method", "bitsandbytes"}, {"load_in_4bit", false}}).empty());
  CHECK(said("quantization", {{"group_size", 64}, {"bits", 4}}) == "mlx");
  CHECK(said("compression_config", {{"config_groups", Json::object()}}) == "compressed-tensors");
  CHECK(said(q, {{"producer", {{"name", "modelopt"}}}, {"quant_algo", "FP8"}}) == "modelopt");
  CHECK(said(q, {{"quant_method", "of the future"}}) == "of the future");
}

}  // namespace config_test
