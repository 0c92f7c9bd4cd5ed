// SPDX-License-Identifier: Apache-2.0
// Latent attention beyond the reference's logits (families_test.cpp): what a memory holds of it,
// kept memories, batches, weights in blocks, experts in groups, and settings that are refused.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/model/weight_plan.hpp"
#include "episodic/session/engine.hpp"
#include "expected_logits.hpp"
#include "model/mixture.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace latent_test {

using Json = nlohmann::json;

MemoryConfig small_memory() {
  return parse_memory_config(
      R"({"n_init": 4, "n_local": 32, "n_mem": 32, "chunk": 16, "min_block": 4, "max_block": 16})");
}

std::vector<std::int64_t> long_text(const std::filesystem::path& dir) {
  const ExpectedLogits expected(dir);
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 5; ++i) ids.insert(ids.end(), expected.ids.begin(), expected.ids.end());
  return ids;
}

std::vector<float> row(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

TEST_CASE("latent attention: a memory has one short row of a token for all heads") {
  Decoder model = Decoder::load(family_checkpoint("deepseek_v3"));
  const auto memory = patch(model, small_memory());
  REQUIRE(memory->shape().n_layers == 3);
  REQUIRE(memory->shape().n_heads == 4);
  REQUIRE(memory->shape().n_kv_heads == 1);
  REQUIRE(memory->shape().head_dim == 10 + 4);
  REQUIRE(memory->shape().rotary.rotary_dim() == 4);
}

TEST_CASE("latent attention: a kept memory goes on to the bit, and recalls") {
  const std::filesystem::path dir = family_checkpoint("deepseek_v3");
  const TempDir scratch;
  const std::vector<std::int64_t> ids = long_text(dir);
  const std::span<const std::int64_t> text(ids);
  const std::size_t half = 120;
  const auto read = [&](std::int64_t n_mem) {
    const auto engine = load_engine(dir);
    MemoryConfig config = small_memory();
    config.n_mem = n_mem;
    engine->attach(config);
    engine->read(text.first(half));
    engine->read(text.subspan(half));
    return row(engine->logits());
  };
  const std::vector<float> wanted = read(32);
  REQUIRE(wanted != read(0));

  KeptFolder folder;
  folder.dir = scratch / "kept";
  {
    const auto engine = load_engine(dir);
    engine->attach(std::make_shared<EpisodicMemory>(create_memory(dir, folder, small_memory())));
    engine->read(text.first(half));
    engine->commit();
  }
  const auto engine = load_engine(dir);
  const auto memory = engine->attach(folder);
  REQUIRE(memory->events().size() > 2);
  engine->read(text.subspan(half));
  REQUIRE(row(engine->logits()) == wanted);
  engine->rewind(112);  // between two steps of the first reading
  engine->read(text.subspan(112, 8));
  engine->read(text.subspan(half));
  REQUIRE(row(engine->logits()) == wanted);
}

TEST_CASE("latent attention: a sequence's bits do not depend on its company") {
  for (const char* name : {"deepseek_v3", "deepseek_v2_lite", "glm4_moe_lite"}) {
    INFO(name);
    const std::filesystem::path dir = family_checkpoint(name);
    const std::vector<std::int64_t> ids = long_text(dir);
    const std::span<const std::int64_t> text(ids);
    Decoder alone = Decoder::load(dir);
    Decoder first = alone.share_weights(), second = alone.share_weights();
    patch(first, small_memory());
    patch(alone, small_memory());
    alone.step(text.first(16));
    alone.step(text.subspan(16, 9));
    alone.step(text.subspan(25, 1));
    const std::vector<float> wanted = row(alone.logits());
    const auto step = [&](std::size_t at, std::size_t n, std::size_t other) {
      const Decoder::SequenceStep batch[] = {{&second, text.subspan(40, other)},
                                             {&first, text.subspan(at, n)}};
      Decoder::step_batch(batch);
    };
    step(0, 16, 5);
    step(16, 9, 1);
    step(25, 1, 12);
    REQUIRE(row(first.logits()) == wanted);
  }
}

/// The checkpoint again with rows that blocks fit: weights of a larger model, by a formula.
void write_wide(const std::filesystem::path& to) {
  std::ifstream file(family_checkpoint("deepseek_v3") / "config.json");
  Json config = Json::parse(file);
  for (const auto& [key, value] : {std::pair{"hidden_size", 64},
                                   {"intermediate_size", 64},
                                   {"moe_intermediate_size", 32},
                                   {"kv_lora_rank", 32},
                                   {"q_lora_rank", 32},
                                   {"qk_nope_head_dim", 32},
                                   {"v_head_dim", 16}})
    config[key] = value;
  std::filesystem::create_directories(to);
  std::ofstream(to / "config.json") << config.dump();
  std::vector<std::vector<float>> numbers;
  std::vector<TensorToWrite> tensors;
  float at = 0;
  std::set<std::string> done;
  for (const WeightEntry& e : weight_plan(parse_model_config(config.dump(), "", "here"))) {
    if (!done.insert(e.tensor).second) continue;
    std::int64_t count = 1;
    for (const std::int64_t n : e.tensor_shape) count *= n;
    std::vector<float>& x = numbers.emplace_back(static_cast<std::size_t>(count));
    const bool matrix = e.tensor_shape.size() > 1;
    const float scale = matrix ? 1.6f / std::sqrt(static_cast<float>(e.tensor_shape.back())) : 0.3f;
    for (float& v : x) v = (matrix ? 0.0f : 1.0f) + scale * std::sin(at += 1.7f);
    tensors.push_back({e.tensor, TensorType::f32, e.tensor_shape, nullptr});
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) tensors[i].data = numbers[i].data();
  write_safetensors(to / "model.safetensors", tensors);
}

TEST_CASE("latent attention: weights in blocks give what their numbers give") {
  const ExactActivations exact;
  const TempDir dir;
  write_wide(dir.path());
  OpenModel blocks = open_model(dir.path());
  quantize_weights(blocks, TensorType::q8_0);
  REQUIRE(blocks.tensors->find("model.layers.1.self_attn.kv_b_proj.weight")->type ==
          TensorType::q8_0);
  Decoder rounded = Decoder::load(blocks), plain = Decoder::load(dir.path());
  const std::vector<std::int64_t> ids{3, 14, 15, 9, 26, 5, 35, 8};
  const LogitsView a = rounded.forward(ids), b = plain.forward(ids);
  double square = 0, difference = 0;
  for (std::size_t i = 0; i < a.floats().size(); ++i) {
    square += std::pow(b.floats()[i], 2.0);
    difference += std::pow(a.floats()[i] - b.floats()[i], 2.0);
  }
  REQUIRE(square > 1);
  CHECK(difference > 0);
  CHECK(difference < 1e-3 * square);
}

TEST_CASE("latent attention: layers of a drafting head are left out, others are not") {
  std::ifstream file(family_checkpoint("deepseek_v3") / "config.json");
  Json config = Json::parse(file);
  const OpenModel model = open_model(family_checkpoint("deepseek_v3"));
  REQUIRE(model.config.drafting_layers == 1);
  config["num_hidden_layers"] = 2;  // the third layer's tensors are then those of a head
  const ModelConfig fewer = parse_model_config(config.dump(), "", "here");
  PlannedWeights(fewer, model.tensors);
  config["num_nextn_predict_layers"] = 0;
  CHECK(mentions(refusal<FileError>([&] {
                   PlannedWeights(parse_model_config(config.dump(), "", "here"), model.tensors);
                 }),
                 "model.layers.2."));
  config["num_hidden_layers"] = 1;
  config["num_nextn_predict_layers"] = 1;
  CHECK(mentions(refusal<FileError>([&] {
                   PlannedWeights(parse_model_config(config.dump(), "", "here"), model.tensors);
                 }),
                 "model.layers.2."));
}

TEST_CASE("mixture: only experts of the best groups are looked at") {
  MixtureSpec spec;
  spec.experts = 6;
  spec.chosen = 2;
  spec.groups = 3;
  spec.chosen_groups = 1;
  const auto chosen = [&](std::vector<float> products, const float* bias) {
    std::vector<ChosenExpert> to(2);
    choose_experts(spec, bias, products.data(), to.data());
    return std::vector<std::int64_t>{to[0].expert, to[1].expert};
  };
  // by the best expert of a group: the third
  CHECK(chosen({1, 2, 2.5f, 2.4f, 3, -9}, nullptr) == std::vector<std::int64_t>{4, 5});
  // by its two best: the second
  spec.group_by_two = true;
  CHECK(chosen({1, 2, 2.5f, 2.4f, 3, -9}, nullptr) == std::vector<std::int64_t>{2, 3});
  // equal groups: the lower one
  CHECK(chosen({1, 2, 2, 1, 2, 1}, nullptr) == std::vector<std::int64_t>{0, 1});
  spec.scoring = RouterScoring::sigmoid;
  spec.bias = RouterBias::choice;
  const float bias[] = {0, 0, 0, 0, 0.9f, 0.9f};
  CHECK(chosen({1, 2, 2.5f, 2.4f, 0, 0}, bias) == std::vector<std::int64_t>{4, 5});
  spec.chosen_groups = 2;
  CHECK(chosen({9, 9, 2.5f, 2.4f, -9, 0}, bias) == std::vector<std::int64_t>{0, 5});
}

TEST_CASE("latent attention: settings that make no model are refused by their key") {
  const auto refused = [&](const char* from, const char* key, const Json& value) {
    std::ifstream file(family_checkpoint(from) / "config.json");
    Json config = Json::parse(file);
    config[key] = value;
    return refusal<FileError>([&] { parse_model_config(config.dump(), "", "here"); });
  };
  const std::tuple<const char*, const char*, Json> cases[] = {
      {"deepseek_v3", "kv_lora_rank", 0},
      {"deepseek_v3", "kv_lora_rank", 1 << 15},
      {"deepseek_v3", "q_lora_rank", -1},
      {"deepseek_v3", "qk_rope_head_dim", 3},
      {"deepseek_v3", "qk_nope_head_dim", 0},
      {"deepseek_v3", "v_head_dim", "wide"},
      {"deepseek_v3", "num_key_value_heads", 2},
      {"deepseek_v3", "n_group", 3},
      {"deepseek_v3", "topk_group", 5},
      {"deepseek_v3", "topk_group", 1},
      {"deepseek_v3", "num_experts_per_tok", 9},
      {"deepseek_v3", "n_routed_experts", 1 << 20},
      {"deepseek_v3", "n_shared_experts", -1},
      {"deepseek_v3", "scoring_func", "softmax"},
      {"deepseek_v3", "topk_method", "greedy"},
      {"deepseek_v3", "moe_layer_freq", 2},
      {"deepseek_v3", "routed_scaling_factor", 0},
      {"deepseek_v2", "topk_method", "noaux_tc"},
      {"deepseek_v2", "norm_topk_prob", true},
      {"deepseek_v2", "mlp_bias", true},
      {"deepseek_v2", "num_experts_per_tok", Json()},
      {"glm4_moe_lite", "mlp_layer_types", Json{"dense", "sparse", "wide"}},
      {"glm4_moe_lite", "mlp_layer_types", Json{"dense"}},
  };
  for (const auto& [from, key, value] : cases) {
    const std::string said = refused(from, key, value);
    INFO(from << " " << key << " " << value.dump() << ": " << said);
    const std::string named = std::string(key) == "qk_rope_head_dim" ? "head_dim" : key;
    CHECK(mentions(said, named));
    CHECK(said != "no error");
  }
  std::ifstream file(family_checkpoint("deepseek_v3") / "config.json");
  Json config = Json::parse(file);
  config["n_group"] = 8;
  config["topk_group"] = 4;
  CHECK(mentions(refusal<FileError>([&] { parse_model_config(config.dump(), "", "here"); }),
                 "n_group = 8 leaves no two experts in a group"));
}

}  // namespace latent_test
