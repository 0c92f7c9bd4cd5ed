// SPDX-License-Identifier: Apache-2.0
// What is LFM2's own: its settings, its GGUF files, and what has no place for a convolution.

#include "support/test.hpp"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/memory_layers.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/recurrent_state.hpp"
#include "episodic/model/weight_plan.hpp"
#include "expected_logits.hpp"
#include "support/gguf_writer.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;

namespace lfm2_test {

using Json = nlohmann::json;

/// As LFM2-350M's, but for sizes.
Json tiny() {
  return {{"model_type", "lfm2"},
          {"vocab_size", 50},
          {"hidden_size", 24},
          {"block_ff_dim", 54},
          {"block_multiple_of", 8},
          {"block_ffn_dim_multiplier", 1.0},
          {"block_auto_adjust_ff_dim", true},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"full_attn_idxs", {1, 3}},
          {"conv_L_cache", 3},
          {"conv_bias", false},
          {"norm_eps", 1e-5},
          {"rope_theta", 1e6},
          {"tie_embedding", true}};
}

Json with(Json json, const char* key, const Json& value) {
  json[key] = value;
  return json;
}

Json without(Json json, const char* key) {
  json.erase(key);
  return json;
}

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "", "dir"); }

void refuses(const Json& json, const std::string& key) {
  const std::string error = refusal<FileError>([&] { parse(json); });
  INFO(json.dump() << " -> " << error);
  REQUIRE(mentions(error, "dir/config.json: " + key));
}

TEST_CASE("lfm2: the settings of its makers and of transformers") {
  const ModelConfig c = parse(tiny());
  REQUIRE(c.intermediate_size == 40);  // 36, in multiples of 8
  REQUIRE(c.tie_word_embeddings);
  REQUIRE(c.rms_norm_eps == 1e-5);
  REQUIRE(c.memory_layers() == std::vector<std::int64_t>{1, 3});
  for (const std::size_t l : {0, 2}) {
    REQUIRE(c.layers[l].mixer == Mixer::short_convolution);
    REQUIRE(c.layers[l].conv_taps == 3);
    REQUIRE(recurrent_floats(c, c.layers[l]) == 2 * 24);
  }
  for (const std::size_t l : {1, 3}) {
    REQUIRE(c.layers[l].mixer == Mixer::attention);
    REQUIRE(c.layers[l].qk_norm == QkNorm::head);
    REQUIRE(recurrent_floats(c, c.layers[l]) == 0);
  }
  // transformers 5 writes its own keys, where those of the makers win
  REQUIRE(parse(with(tiny(), "intermediate_size", 999)).intermediate_size == 40);
  Json written = without(without(tiny(), "block_ff_dim"), "full_attn_idxs");
  written["intermediate_size"] = 54;
  written["layer_types"] = {"conv", "full_attention", "conv", "full_attention"};
  REQUIRE(parse(written).layers == c.layers);
  // the width as it is, or without a multiplier, or with one
  REQUIRE(parse(with(tiny(), "block_auto_adjust_ff_dim", false)).intermediate_size == 54);
  REQUIRE(parse(with(tiny(), "block_ffn_dim_multiplier", nullptr)).intermediate_size == 36);
  REQUIRE(parse(with(tiny(), "block_ffn_dim_multiplier", 1.3)).intermediate_size == 48);
  REQUIRE(parse(with(with(tiny(), "block_ff_dim", 12288), "block_multiple_of", 256))
              .intermediate_size == 8192);  // LFM2-1.2B
  // all layers attend where nothing is said, as in transformers
  REQUIRE(parse(without(tiny(), "full_attn_idxs")).memory_layers().size() == 4);
}

TEST_CASE("lfm2: settings that make no sense are refused by key") {
  refuses(with(tiny(), "full_attn_idxs", {1, 4}), "full_attn_idxs names layer 4");
  refuses(with(tiny(), "full_attn_idxs", {-1}), "full_attn_idxs names layer -1");
  refuses(with(tiny(), "full_attn_idxs", Json::array()), "full_attn_idxs names no layer");
  refuses(with(tiny(), "layer_types", {"conv", "conv", "conv", "conv"}), "layer_types names no");
  refuses(with(tiny(), "layer_types", {"conv", "full_attention"}), "layer_types has 2 entries");
  refuses(with(tiny(), "layer_types", {"conv", "mamba", "conv", "full_attention"}),
          "layer_types = \"mamba\" is not supported");
  refuses(with(tiny(), "conv_L_cache", 0), "conv_L_cache");
  refuses(with(tiny(), "conv_L_cache", 1 << 20), "conv_L_cache");
  refuses(with(tiny(), "conv_bias", 1), "conv_bias");
  refuses(with(tiny(), "block_ff_dim", 0), "block_ff_dim");
  refuses(with(tiny(), "block_multiple_of", 0), "block_multiple_of");
  refuses(with(tiny(), "block_ffn_dim_multiplier", 1e6), "block_ffn_dim_multiplier");
  refuses(with(tiny(), "norm_eps", -1), "norm_eps");
  refuses(without(tiny(), "block_ff_dim"), "intermediate_size is missing");
}

TEST_CASE("lfm2: tensors are called by their names in files, and missed by them") {
  const ModelConfig c = load_model_config(family_checkpoint("lfm2_biases"));
  std::vector<std::string> names;
  for (const WeightEntry& e : weight_plan(c)) names.push_back(e.tensor);
  for (const char* name :
       {"model.layers.0.conv.conv.bias", "model.layers.0.conv.in_proj.weight",
        "model.layers.1.self_attn.q_layernorm.weight", "model.layers.2.feed_forward.w2.weight",
        "model.layers.2.operator_norm.weight", "model.embedding_norm.weight"})
    REQUIRE(std::count(names.begin(), names.end(), name) == 1);
  // the weights of one under the settings of another
  OpenModel model = open_model(family_checkpoint("lfm2"));
  Json json = Json::parse(model.config_json);
  json["full_attn_idxs"] = {0, 1, 3};
  model.config = parse(json);
  REQUIRE(mentions(refusal<FileError>([&] { Decoder::load(model); }),
                   "'model.layers.0.self_attn.q_proj.weight'"));
  json["full_attn_idxs"] = {1, 3};
  json["conv_bias"] = true;
  model.config = parse(json);
  REQUIRE(mentions(refusal<FileError>([&] { Decoder::load(model); }), "conv_bias"));
  json["conv_bias"] = false;
  json["conv_L_cache"] = 4;
  model.config = parse(json);
  REQUIRE(mentions(refusal<FileError>([&] { Decoder::load(model); }), "conv_L_cache"));
}

TEST_CASE("lfm2: a GGUF file of llama.cpp's names gives its logits, and the reference's",
          "[proof]") {
  const std::filesystem::path dir =
      std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/model/gguf_lfm2";
  const ExpectedLogits expected(family_checkpoint("lfm2"));
  std::ifstream in(dir / "llama.json");
  const auto of_llama = Json::parse(in)["logits"].get<std::vector<float>>();
  Decoder model = Decoder::load(dir / "lfm2.gguf");
  const LogitsView logits = model.forward(expected.ids);
  const std::span<const float> got = logits.row(logits.rows - 1);
  REQUIRE(got.size() == of_llama.size());
  const float* reference = expected.logits.data() + expected.logits.size() - got.size();
  for (std::size_t i = 0; i < got.size(); ++i) {
    REQUIRE(std::abs(got[i] - reference[i]) <= 1e-4f * expected.largest());
    REQUIRE(std::abs(got[i] - of_llama[i]) <= 1e-3f * expected.largest());
  }
}

TEST_CASE("lfm2: a GGUF file whose layers make no sense is refused by key") {
  const std::filesystem::path file =
      std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/model/gguf_lfm2/lfm2.gguf";
  const GgufFile tensors(file);
  const TempDir dir;
  const auto attempt = [&](const std::vector<std::int32_t>& kv_heads, std::uint32_t taps) {
    GgufWriter w;
    w.put("general.architecture", std::string("lfm2"));
    for (const auto& [key, value] :
         std::map<std::string, std::uint32_t>{{"context_length", 512},
                                              {"embedding_length", 24},
                                              {"block_count", 4},
                                              {"feed_forward_length", 40},
                                              {"attention.head_count", 4}})
      w.put("lfm2." + key, value);
    if (taps > 0) w.put("lfm2.shortconv.l_cache", taps);
    w.put_array("lfm2.attention.head_count_kv", GgufWriter::i32, kv_heads);
    w.put("lfm2.attention.layer_norm_rms_epsilon", 1e-5f);
    w.put("lfm2.rope.freq_base", 1e6f);
    w.put("tokenizer.ggml.model", std::string("no_vocab"));
    for (const StoredTensor* t : tensors.tensors())
      w.tensor(
          t->name, 0, {t->shape.begin(), t->shape.end()},
          std::string(reinterpret_cast<const char*>(t->data), static_cast<std::size_t>(t->bytes)));
    dir.write("m.gguf", w.bytes());
    return refusal<FileError>([&] { Decoder::load(dir / "m.gguf"); });
  };
  REQUIRE(attempt({0, 2, 0, 2}, 3) == "no error");
  REQUIRE(mentions(attempt({0, 2, 0}, 3), "attention.head_count_kv has 3 numbers for 4 layers"));
  REQUIRE(mentions(attempt({0, 2, 0, 4}, 3), "attention.head_count_kv differs"));
  REQUIRE(mentions(attempt({0, 0, 0, 0}, 3), "attention.head_count_kv"));
  REQUIRE(mentions(attempt({0, -2, 0, -2}, 3), "attention.head_count_kv"));
  REQUIRE(mentions(attempt({2, 2, 0, 2}, 3), "layers.0"));
  REQUIRE(mentions(attempt({0, 2, 0, 2}, 0), "shortconv.l_cache"));
  REQUIRE(mentions(attempt({0, 2, 0, 2}, 4), "conv"));
}

TEST_CASE("lfm2: what attends only says so by name") {
  const ModelConfig c = load_model_config(family_checkpoint("lfm2"));
  REQUIRE(mentions(refusal<ConfigError>([&] { require_attention_in_all_layers(c, "training"); }),
                   "training: layer 0 of this lfm2 model has a convolution"));
  require_attention_in_all_layers(load_model_config(family_checkpoint("qwen3")), "training");
}

TEST_CASE("lfm2: products around a convolution may be rounded, the convolution is not") {
  OpenModel model = open_model(family_checkpoint("lfm2_biases"));  // 32 wide
  quantize_weights(model, TensorType::q8_0);
  REQUIRE(model.tensors->find("model.layers.0.conv.in_proj.weight")->type == TensorType::q8_0);
  REQUIRE(model.tensors->find("model.layers.0.conv.conv.weight")->type == TensorType::f32);
  const ExpectedLogits expected(family_checkpoint("lfm2_biases"));
  Decoder rounded = Decoder::load(model);
  const LogitsView logits = rounded.forward(expected.ids);
  double off = 0, size = 0;
  for (std::size_t i = 0; i < expected.logits.size(); ++i) {
    off += std::abs(logits.floats()[i] - expected.logits[i]);
    size += std::abs(expected.logits[i]);
  }
  REQUIRE(off < 0.1 * size);
  REQUIRE(off > 0);
}

}  // namespace lfm2_test
