// SPDX-License-Identifier: Apache-2.0
// Gemma 4 beyond the reference's logits (families_test.cpp): layers that attend to another layer's
// keys through a memory, kept memories, batches, and settings that are refused.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/session/engine.hpp"
#include "expected_logits.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace gemma4_test {

MemoryConfig small_memory() {
  MemoryConfig config;
  config.n_init = 4;
  config.n_local = 32;
  config.n_mem = 32;
  config.chunk = 16;
  config.min_block = 4;
  config.max_block = 16;
  return config;
}

/// Tokens beyond the windows and the memory's own.
std::vector<std::int64_t> long_text(const std::filesystem::path& dir) {
  const ExpectedLogits expected(dir);
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 5; ++i) ids.insert(ids.end(), expected.ids.begin(), expected.ids.end());
  return ids;
}

std::vector<float> row(std::span<const float> logits) { return {logits.begin(), logits.end()}; }

TEST_CASE("gemma 4: a memory serves full layers that have keys, others share them") {
  const ModelConfig c = open_model(family_checkpoint("gemma4")).config;
  REQUIRE(c.memory_layers() == std::vector<std::int64_t>{1, 3});
  REQUIRE(c.layers[6].keys_of == 3);
  REQUIRE(c.layers[5].keys_of == 2);
  REQUIRE(c.layers[4].keys_of == 2);
  REQUIRE(c.layers[6].intermediate_size == 2 * c.layers[3].intermediate_size);
  REQUIRE(c.layers[3].head_dim == 16);
  REQUIRE(c.layers[2].head_dim == 8);
  // as the reference writes them, layer by layer
  const ModelConfig wide = open_model(family_checkpoint("gemma4_wide")).config;
  REQUIRE(wide.layers[1].head_dim == 512);
  REQUIRE(wide.layers[1].n_kv_heads == 1);
  REQUIRE(wide.layers[0].n_kv_heads == 2);
}

/// Steps of a memory; every layer attends once more by other queries where `again` says so.
struct Stepped {
  Stepped(const MemoryConfig& config, bool again) {
    MemoryShape shape;
    shape.n_layers = 2;
    shape.n_heads = 4;
    shape.n_kv_heads = 2;
    shape.head_dim = 8;
    shape.rotary = plain_rotary(8, 10000);
    EpisodicMemory memory(config, shape);
    std::uint32_t state = 7;
    const auto draw = [&](std::int64_t n) {
      std::vector<float> x(static_cast<std::size_t>(n));
      for (float& v : x) {
        state = state * 1664525 + 1013904223;
        v = static_cast<float>(state >> 8) / (1 << 23) - 1;
      }
      return x;
    };
    const std::int64_t n = 8, q_size = n * 4 * 8, kv_size = n * 2 * 8;
    for (int step = 0; step < 20; ++step) {
      memory.begin_step(n);
      for (std::int64_t l = 0; l < 2; ++l) {
        const std::vector<float> q = draw(q_size), k = draw(kv_size), v = draw(kv_size);
        const std::vector<float> other = draw(q_size);
        std::vector<float> out(q.size()), same(q.size()), third(q.size());
        memory.attend(l, q.data(), k.data(), v.data(), out.data());
        outs.insert(outs.end(), out.begin(), out.end());
        if (!again) continue;
        const TensorSizes sizes{n, 4, 8};
        memory.attend_again(l, {q.data(), sizes}, {same.data(), sizes});
        REQUIRE(same == out);  // to the bit, with what the layer recalled
        memory.attend_again(l, {other.data(), sizes}, {third.data(), sizes});
        REQUIRE(third != out);
      }
      recalled = std::max(recalled, memory.recalled(memory.lanes() - 1).recalled().size());
      const std::vector<float> surprise = draw(n);
      memory.end_step(surprise.data());
    }
    digest = memory.digest();
  }

  std::vector<float> outs;
  std::size_t recalled = 0;
  std::uint64_t digest = 0;
};

TEST_CASE("memory: a layer that attends again sees its events and leaves nothing behind") {
  MemoryConfig plain = small_memory(), by_head = plain, weighed = plain, on_disk = plain;
  by_head.scope = EventScope::head;
  weighed.reweight = Reweighting::exact;
  const TempDir scratch;
  on_disk.disk_dir = (scratch / "events").string();
  on_disk.host_bytes = 1 << 16;
  on_disk.kv_dtype = DType::bfloat16;
  for (const MemoryConfig& config : {plain, by_head, weighed, on_disk}) {
    INFO(to_json(config));
    if (!config.disk_dir.empty()) std::filesystem::create_directories(config.disk_dir);
    const Stepped once(config, false);
    const Stepped again(config, true);
    REQUIRE(again.recalled > 1);
    REQUIRE(again.outs == once.outs);
    REQUIRE(again.digest == once.digest);
  }
}

TEST_CASE("memory: attending again before attending is refused") {
  MemoryShape shape;
  shape.n_layers = 1;
  shape.n_heads = shape.n_kv_heads = 1;
  shape.head_dim = 4;
  shape.rotary = plain_rotary(4, 10000);
  EpisodicMemory memory(small_memory(), shape);
  const std::vector<float> x(4, 0.5f);
  std::vector<float> out(4);
  const TensorSizes sizes{1, 1, 4};
  const auto again = [&] { memory.attend_again(0, {x.data(), sizes}, {out.data(), sizes}); };
  REQUIRE_THROWS_AS(again(), DataError);
  memory.begin_step(1);
  REQUIRE(mentions(refusal<DataError>(again), "has not attended in this step"));
  memory.attend(0, x.data(), x.data(), x.data(), out.data());
  again();
  const TensorSizes wrong{1, 2, 4};
  REQUIRE(mentions(refusal<DataError>([&] {
                     memory.attend_again(0, {x.data(), wrong}, {out.data(), wrong});
                   }),
                   "attend_again"));
}

TEST_CASE("gemma 4: a kept memory goes on to the bit, shared layers too") {
  const std::filesystem::path dir = family_checkpoint("gemma4");
  const TempDir scratch;
  const std::vector<std::int64_t> ids = long_text(dir);
  const std::span<const std::int64_t> text(ids);
  const std::size_t half = 120;
  const auto whole = load_engine(dir);
  whole->attach(small_memory());
  whole->read(text.first(half));
  whole->read(text.subspan(half));
  const std::vector<float> wanted = row(whole->logits());

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
  REQUIRE(memory->shape().n_layers == 2);
  engine->read(text.subspan(half));
  REQUIRE(row(engine->logits()) == wanted);
}

TEST_CASE("gemma 4: what is recalled reaches the layers that share keys") {
  const std::filesystem::path dir = family_checkpoint("gemma4");
  const std::vector<std::int64_t> ids = long_text(dir);
  const auto last = [&](std::int64_t n_mem) {
    Decoder model = Decoder::load(dir);
    MemoryConfig config = small_memory();
    config.n_mem = n_mem;
    const auto memory = patch(model, config);
    for (std::size_t at = 0; at < ids.size(); at += 16)
      model.step(std::span(ids).subspan(at, std::min<std::size_t>(16, ids.size() - at)));
    REQUIRE(memory->recalled(1).recalled().empty() == (n_mem == 0));
    return row(model.logits());
  };
  REQUIRE(last(32) != last(0));
}

TEST_CASE("gemma 4: a sequence's bits do not depend on its company") {
  for (const char* name : {"gemma4", "gemma4_moe", "gemma4_wide"}) {
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

TEST_CASE("gemma 4: a state goes back to its snapshot") {
  const std::filesystem::path dir = family_checkpoint("gemma4");
  const std::vector<std::int64_t> ids = long_text(dir);
  const std::span<const std::int64_t> text(ids);
  Decoder model = Decoder::load(dir);
  patch(model, small_memory());
  for (int i = 0; i < 5; ++i) model.step(text.subspan(static_cast<std::size_t>(i) * 16, 16));
  const auto snapshot = model.state()->snapshot();
  model.step(text.subspan(80, 16));
  const std::vector<float> wanted = row(model.logits());
  model.step(text.subspan(96, 16));
  model.state()->restore(*snapshot);
  model.step(text.subspan(80, 16));
  REQUIRE(row(model.logits()) == wanted);
}

TEST_CASE("gemma 4: settings that make no model are refused by their key") {
  const TempDir scratch;
  const auto refused = [&](const char* from, const auto& change) {
    std::ifstream file(family_checkpoint(from) / "config.json");
    nlohmann::json config = nlohmann::json::parse(file);
    change(config);
    return refusal<FileError>([&] { parse_model_config(config.dump(), "", "here"); });
  };
  using Json = nlohmann::json;
  const auto set = [](const char* key, const Json& value) {
    return [key, value](Json& c) { c[key] = value; };
  };
  CHECK(mentions(refused("gemma4", set("num_kv_shared_layers", 7)), "num_kv_shared_layers = 7"));
  CHECK(mentions(refused("gemma4", set("num_kv_shared_layers", 6)), "num_kv_shared_layers = 6"));
  CHECK(mentions(refused("gemma4", set("num_kv_shared_layers", -1)), "num_kv_shared_layers"));
  CHECK(mentions(refused("gemma4", set("vocab_size_per_layer_input", 71)),
                 "vocab_size_per_layer_input = 71 is less than vocab_size"));
  CHECK(mentions(refused("gemma4", set("hidden_size_per_layer_input", 1 << 20)),
                 "hidden_size_per_layer_input"));
  CHECK(mentions(refused("gemma4", set("use_bidirectional_attention", "all")),
                 "use_bidirectional_attention"));
  CHECK(mentions(refused("gemma4", set("global_head_dim", 0)), "global_head_dim"));
  CHECK(mentions(refused("gemma4", set("final_logit_softcapping", 0)), "final_logit_softcapping"));
  CHECK(mentions(refused("gemma4", set("rope_parameters", Json{{"rope_type", "default"}})),
                 "rope_parameters"));
  CHECK(mentions(refused("gemma4_moe", set("top_k_experts", 7)), "top_k_experts = 7 exceeds"));
  CHECK(mentions(refused("gemma4_moe", set("num_experts", Json())), "num_experts"));
  CHECK(mentions(refused("gemma4_moe", set("moe_intermediate_size", Json())),
                 "moe_intermediate_size"));
  CHECK(mentions(
      refused("gemma4_moe", [](Json& c) { c["per_layer_config"]["2"]["num_key_value_heads"] = 3; }),
      "num_key_value_heads = 3"));
  CHECK(mentions(refused("gemma4_wide",
                         [](Json& c) {
                           c["layer_types"] = {"full_attention", "full_attention"};
                         }),
                 "per_layer_config"));
  // the class makes the last layer full
  std::ifstream file(family_checkpoint("gemma4_moe") / "config.json");
  Json config = Json::parse(file);
  config["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  config.erase("per_layer_config");
  const ModelConfig c = parse_model_config(config.dump(), "", "here");
  CHECK(c.layers[2].window == 0);
  REQUIRE(c.notes.size() == 1);
  CHECK(mentions(c.notes[0], "layer_types"));
}

TEST_CASE("gemma 4: a tensor that is missing, and one that a shared layer has no use for") {
  const OpenModel model = open_model(family_checkpoint("gemma4"));
  ModelConfig other = model.config;
  for (LayerSpec& layer : other.layers) layer.keys_of = -1;  // wants the shared layers' own keys
  CHECK(mentions(refusal<FileError>([&] { PlannedWeights(other, model.tensors); }),
                 "has no tensor 'model.layers.4.self_attn.k_proj.weight'"));
  ModelConfig fewer = model.config;
  fewer.per_layer_width = 0;
  CHECK(mentions(refusal<FileError>([&] { PlannedWeights(fewer, model.tensors); }), "per_layer"));
  ModelConfig wider = model.config;
  wider.layers[6].intermediate_size /= 2;
  CHECK(mentions(refusal<FileError>([&] { PlannedWeights(wider, model.tensors); }),
                 "model.layers.6.mlp.gate_proj.weight"));
}

}  // namespace gemma4_test
