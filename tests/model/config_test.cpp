// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "episodic/base/error.hpp"
#include "episodic/model/hf_config.hpp"
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
      with(with(tiny(), "head_dim", 8), "rope_parameters",
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
          "rope_scaling.factor gives frequencies beyond all numbers");
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
  REQUIRE(bad.ends_note.find("50, -1 is no token of the 50") != std::string::npos);
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
  refuses(with(tiny(), "partial_rotary_factor", 2), "rotary channels");
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

}  // namespace config_test
