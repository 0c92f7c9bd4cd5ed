// SPDX-License-Identifier: Apache-2.0
// What the dense families read of config.json beyond LLaMA's keys, the text parts of models that
// see, and queries that grow with their position. Their numbers: families_test.cpp.

#include "support/test.hpp"

#include <cmath>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "expected_logits.hpp"
#include "support/refusal.hpp"

using namespace episodic;
using Json = nlohmann::json;

namespace families_dense_test {

Json tiny(const char* model_type) {
  return {{"model_type", model_type}, {"vocab_size", 50},
          {"hidden_size", 64},        {"intermediate_size", 40},
          {"num_hidden_layers", 4},   {"num_attention_heads", 4},
          {"num_key_value_heads", 2}, {"max_position_embeddings", 64}};
}

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "", "dir"); }

void refuses(const Json& json, const std::string& because) {
  const std::string error = refusal<FileError>([&] { parse(json); });
  INFO(error);
  REQUIRE(mentions(error, because));
}

Json with(Json json, const Json& more) {
  json.update(more);
  return json;
}

std::vector<std::int64_t> windows(const ModelConfig& c) {
  std::vector<std::int64_t> all;
  for (const LayerSpec& layer : c.layers) all.push_back(layer.window);
  return all;
}

std::vector<int> ropes(const ModelConfig& c) {
  std::vector<int> all;
  for (const LayerSpec& layer : c.layers) all.push_back(layer.rope);
  return all;
}

TEST_CASE("dense families: what config.json leaves out is what the reference's classes take") {
  const ModelConfig ministral = parse(tiny("ministral3"));
  REQUIRE(ministral.query_scale == QueryScale{0.1, 16384});
  REQUIRE(ministral.head_dim == 128);
  REQUIRE(ministral.ropes[0].table.attention_factor == 1.0);  // mscale over mscale_all_dim
  REQUIRE(ministral.query_scale.at(16383) == 1.0);
  REQUIRE(std::abs(ministral.query_scale.at(3 * 16384) - (1 + 0.1 * std::log(4.0))) < 1e-12);

  const ModelConfig olmo = parse(tiny("olmo3"));
  REQUIRE(windows(olmo) == std::vector<std::int64_t>{4096, 4096, 4096, 0});
  REQUIRE(ropes(olmo) == std::vector<int>{1, 1, 1, 0});
  REQUIRE(olmo.memory_layers() == std::vector<std::int64_t>{3});

  const ModelConfig exaone = parse(tiny("exaone4"));
  REQUIRE(windows(exaone) == std::vector<std::int64_t>{4096, 4096, 4096, 0});
  REQUIRE(ropes(exaone) == std::vector<int>{0, 0, 0, -1});
  const ModelConfig all_full = parse(with(tiny("exaone4"), {{"sliding_window", nullptr}}));
  REQUIRE(windows(all_full) == std::vector<std::int64_t>(4, 0));
  REQUIRE(ropes(all_full) == std::vector<int>(4, 0));

  const ModelConfig cohere = parse(with(tiny("cohere2"), {{"sliding_window_pattern", 2}}));
  REQUIRE(ropes(cohere) == std::vector<int>{0, -1, 0, -1});
  REQUIRE(cohere.logit_multiplier == 0.0625);
  REQUIRE(cohere.rms_norm_eps == 1e-5);
  REQUIRE(cohere.tie_word_embeddings);
  REQUIRE(cohere.ropes[0].table.pairs == RotaryPairs::interleaved);
  REQUIRE_FALSE(cohere.pairs_moved);  // Hugging Face's own order

  const ModelConfig glm = parse(tiny("glm4"));
  REQUIRE(glm.ropes[0].table.rotary_dim() == 64);  // half of 128
  REQUIRE(glm.layers[0].qkv_bias);
  REQUIRE_FALSE(glm.layers[0].o_bias);
  REQUIRE(parse(tiny("stablelm")).ropes[0].table.rotary_dim() == 4);
  REQUIRE(parse(tiny("nemotron")).ropes[0].table.rotary_dim() == 8);
  REQUIRE(parse(tiny("nemotron")).layers[0].activation == Activation::relu_squared);
  REQUIRE(parse(tiny("apertus")).layers[0].activation == Activation::xielu);
  REQUIRE(parse(tiny("starcoder2")).layers[0].activation == Activation::gelu_tanh);
}

TEST_CASE("dense families: what is not computed is refused by key") {
  refuses(with(tiny("cohere"), {{"use_qk_norm", true}}), "use_qk_norm is true");
  refuses(with(tiny("stablelm"), {{"qk_layernorm", true}}), "qk_layernorm is true");
  refuses(with(tiny("ministral3"), {{"rope_parameters", {{"rope_type", "yarn"}, {"factor", 4.0}}}}),
          "llama_4_scaling_beta");
  refuses(with(tiny("exaone4"), {{"sliding_window_pattern", "LLLG"}}), "sliding_window_pattern");
  refuses(with(tiny("olmo3"), {{"sliding_window", nullptr}}), "sliding_window is missing");
  refuses(with(tiny("llama"), {{"hidden_act", "relu2"}}), "hidden_act = \"relu2\"");
  refuses(with(tiny("arcee"), {{"hidden_act", "gelu"}}), "hidden_act = \"gelu\"");
  refuses(with(tiny("olmo3"), {{"layer_types", Json::array({"full_attention"})}}), "layer_types");
}

TEST_CASE("models that see: the text part is read, by the names of either release") {
  struct Case {
    const char* folder;
    const char* model_type;
    const char* note;
  };
  for (const Case& c : {Case{"gemma3_sees", "gemma3_text", "multi_modal_projector (2 tensors)"},
                        Case{"mistral_small3", "mistral", "vision_tower (11 tensors)"},
                        Case{"ministral3_sees", "ministral3", "vision_tower ("}}) {
    INFO(c.folder);
    const OpenModel model = open_model(family_checkpoint(c.folder));
    REQUIRE(model.config.model_type == c.model_type);
    const bool told = std::any_of(model.notes.begin(), model.notes.end(),
                                  [&](const std::string& note) { return mentions(note, c.note); });
    REQUIRE(told);
    for (const StoredTensor* t : model.tensors->tensors()) {
      const bool of_text = t->name.starts_with("model.") || t->name == "lm_head.weight";
      REQUIRE(of_text);
      REQUIRE_FALSE(mentions(t->name, "vision"));
    }
    REQUIRE(parse_model_config(model.config_json, "", "again").n_layers == model.config.n_layers);
  }
}

TEST_CASE("models that see: their settings are those of text_config") {
  // as the files of Gemma 3 4B have it, whose class knows the rest
  const Json gemma = {{"model_type", "gemma3"},
                      {"eos_token_id", {1, 106}},
                      {"vision_config", {{"hidden_size", 1152}}},
                      {"text_config",
                       {{"hidden_size", 2560},
                        {"intermediate_size", 10240},
                        {"model_type", "gemma3_text"},
                        {"num_hidden_layers", 34},
                        {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                        {"sliding_window", 1024}}}};
  const ModelConfig c = parse(gemma);
  REQUIRE(c.text_part_of == "gemma3");
  REQUIRE(c.model_type == "gemma3_text");
  REQUIRE(c.vocab_size == 262208);
  REQUIRE(c.n_heads == 8);
  REQUIRE(c.n_kv_heads == 4);
  REQUIRE(c.head_dim == 256);
  REQUIRE(c.tie_word_embeddings);
  REQUIRE(c.eos_tokens == std::vector<std::int64_t>{1, 106});
  REQUIRE(c.layers[0].window == 1024);
  Json none = gemma;
  none.erase("text_config");
  refuses(none, "text_config is missing");
  Json bad = gemma;
  bad["text_config"]["num_hidden_layers"] = 0;
  refuses(bad, "text_config.num_hidden_layers");
}

TEST_CASE("queries that grow with their position end, in a memory, with that of far keys") {
  const std::vector<std::int64_t> ids = ExpectedLogits(family_checkpoint("ministral3")).ids;
  MemoryConfig config;
  config.n_init = 2, config.n_local = 14, config.chunk = 4, config.n_mem = 8;
  config.min_block = 2, config.max_block = 4;
  config.segmenter = SegmenterKind::fixed;  // the same steps recall, whatever attention says
  config.refine = Refinement::none;
  /// Queries of the first layer, whose input does not depend on attention.
  const auto shown = [&](bool grow) {
    OpenModel model = open_model(family_checkpoint("ministral3"));
    if (!grow) model.config.query_scale = {};
    Decoder decoder = Decoder::load(model);
    const auto memory = patch(decoder, config);
    std::vector<std::vector<float>> all;
    memory->set_recall_hook([&](const RecalledEvents& of) {
      if (of.layer == 0) all.emplace_back(of.query.begin(), of.query.end());
    });
    std::vector<std::int64_t> positions;
    for (std::size_t at = 0; at < ids.size(); ++at) {
      const std::size_t before = all.size();
      decoder.step(std::span(ids).subspan(at, 1));
      if (all.size() > before) positions.push_back(static_cast<std::int64_t>(at));
    }
    return std::pair(all, positions);
  };
  const auto [plain, at] = shown(false);
  const auto [grown, at_too] = shown(true);
  REQUIRE(at == at_too);
  REQUIRE(at.size() > 10);
  const QueryScale scale{0.4, 6};  // of the checkpoint
  bool capped = false;
  for (std::size_t i = 0; i < at.size(); ++i) {
    const double factor = scale.at(std::min<std::int64_t>(at[i], config.n_local - 1));
    capped = capped || scale.at(at[i]) != factor;
    for (std::size_t c = 0; c < plain[i].size(); ++c) {
      const double wanted = factor * static_cast<double>(plain[i][c]);
      REQUIRE(std::abs(static_cast<double>(grown[i][c]) - wanted) <= 1e-5 * (1 + std::abs(wanted)));
    }
  }
  REQUIRE(capped);
}

}  // namespace families_dense_test
