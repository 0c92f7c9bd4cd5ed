// SPDX-License-Identifier: Apache-2.0
// Models with a mixture of experts as wholes: rounded, written, adapted, in a batch, and by every
// name that their tensors may have.
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>

#include "episodic/base/error.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/model/weight_plan.hpp"
#include "expected_logits.hpp"
#include "model/mixture_plan.hpp"
#include "model/renamed_tensors.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace mixture_files_test {

using Json = nlohmann::json;

/// A random model whose rows are multiples of 32, written as its family's files are.
void write_model(const fs::path& dir, Json changes) {
  Json config = {{"vocab_size", 70},
                 {"hidden_size", 64},
                 {"intermediate_size", 96},
                 {"num_hidden_layers", 2},
                 {"num_attention_heads", 4},
                 {"num_key_value_heads", 2},
                 {"head_dim", 16},
                 {"num_experts_per_tok", 2},
                 {"moe_intermediate_size", 32},
                 {"max_position_embeddings", 512}};
  config.update(changes);
  std::ofstream(dir / "config.json") << config.dump();
  const ModelConfig c = parse_model_config(config.dump(), "", "random");
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  std::map<std::string, std::vector<float>> numbers;
  std::vector<TensorToWrite> tensors;
  for (const WeightEntry& e : weight_plan(c)) {
    if (numbers.count(e.tensor)) continue;
    std::int64_t n = 1;
    for (const std::int64_t d : e.tensor_shape) n *= d;
    std::vector<float>& x = numbers[e.tensor];
    x.resize(static_cast<std::size_t>(n));
    const float scale = 1.5f / std::sqrt(static_cast<float>(e.columns()));
    for (float& v : x) v = e.columns() == 1 ? 1.0f + 0.2f * normal(random) : scale * normal(random);
    tensors.push_back({e.tensor, TensorType::f32, e.tensor_shape, x.data()});
  }
  write_safetensors(dir / "model.safetensors", tensors);
}

std::vector<float> logits_of(Decoder model) {
  std::vector<std::int64_t> ids;
  for (int i = 0; i < 24; ++i) ids.push_back(3 + 5 * i % 60);
  const LogitsView logits = model.forward(ids);
  return {logits.floats().begin(), logits.floats().end()};
}

/// Root mean square of the differences, of the first one's own.
double apart(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double off = 0, all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += std::pow(static_cast<double>(a[i] - b[i]), 2);
    all += std::pow(static_cast<double>(a[i]), 2);
  }
  return std::sqrt(off / all);
}

const Json kKinds[] = {{{"model_type", "qwen3_moe"}, {"num_experts", 6}, {"norm_topk_prob", true}},
                       {{"model_type", "mixtral"}, {"num_local_experts", 6}},
                       {{"model_type", "granitemoeshared"},
                        {"num_local_experts", 6},
                        {"shared_intermediate_size", 32},
                        {"attention_multiplier", 0.25}}};

TEST_CASE("mixture files: experts are rounded, routers are not, and GGUF holds both") {
  for (const Json& kind : kKinds) {
    INFO(kind.dump());
    const TempDir dir;
    write_model(dir.path(), kind);
    const OpenModel plain = open_model(dir.path());
    const std::vector<float> wanted = logits_of(Decoder::load(plain));
    ModelOptions options;
    options.quantize = TensorType::q8_0;
    const OpenModel rounded = open_model(dir.path(), options);
    std::set<std::string> routers;
    for (const WeightEntry& e : weight_plan(rounded.config)) {
      const StoredTensor &is = *rounded.tensors->find(e.tensor),
                         &was = *plain.tensors->find(e.tensor);
      INFO(e.tensor);
      REQUIRE(is.shape == was.shape);
      const bool stays = e.role == WeightRole::router || e.tensor_shape.size() == 1;
      REQUIRE(is.type == (stays ? TensorType::f32 : TensorType::q8_0));
      if (e.role == WeightRole::router) routers.insert(e.tensor);
      std::vector<float> a(static_cast<std::size_t>(is.elements())), b(a.size());
      cpu::widen_row(is.type, is.data, is.elements(), a.data());
      cpu::widen_row(was.type, was.data, was.elements(), b.data());
      REQUIRE(apart(b, a) <= (stays ? 0.0 : 0.01));
    }
    REQUIRE(routers.size() == 2);
    const std::vector<float> near = logits_of(Decoder::load(rounded));
    REQUIRE(apart(wanted, near) < 0.3);  // of other weights 1.4; some choices of experts change
    REQUIRE(identity_of(rounded).weights != identity_of(plain).weights);

    write_gguf(plain, dir / "plain.gguf");
    REQUIRE(apart(wanted, logits_of(Decoder::load(dir / "plain.gguf"))) < 1e-5);
    write_gguf(rounded, dir / "rounded.gguf");
    const OpenModel read = open_model(dir / "rounded.gguf");
    REQUIRE(read.config.model_type == plain.config.model_type);
    // rows of q and k in another order change last bits, by which activations may be rounded apart
    REQUIRE(apart(near, logits_of(Decoder::load(read))) < 0.03);
  }
}

TEST_CASE("mixture files: what GGUF cannot say of a mixture is refused by name") {
  const auto refused = [](const Json& changes) {
    const TempDir dir;
    write_model(dir.path(), changes);
    const OpenModel model = open_model(dir.path());
    return refusal<ConfigError>([&] { write_gguf(model, dir / "m.gguf"); });
  };
  Json kind = kKinds[0];
  kind["decoder_sparse_step"] = 2;
  CHECK(mentions(refused(kind), "dense layers"));
  kind = kKinds[0];
  kind["norm_topk_prob"] = false;
  CHECK(mentions(refused(kind), "layers"));
}

TEST_CASE("mixture files: adapters of experts and routers are refused by the tensor") {
  const TempDir dir;
  write_model(dir.path(), kKinds[0]);
  const OpenModel model = open_model(dir.path());
  const auto attempt = [&](const std::string& module, std::int64_t in, std::int64_t out) {
    const fs::path adapter = dir / "adapter";
    fs::create_directories(adapter);
    const std::size_t dot = module.rfind('.');
    std::ofstream(adapter / "adapter_config.json")
        << Json{{"peft_type", "LORA"},
                {"r", 2},
                {"lora_alpha", 4},
                {"target_modules", {module.substr(dot + 1)}}};
    const std::vector<float> a(static_cast<std::size_t>(2 * in), 0.1f),
        b(static_cast<std::size_t>(2 * out), 0.1f);
    std::vector<TensorToWrite> tensors;
    for (const int layer : {0, 1}) {
      const std::string at =
          "base_model.model.model.layers." + std::to_string(layer) + "." + module;
      tensors.push_back({at + ".lora_A.weight", TensorType::f32, {2, in}, a.data()});
      tensors.push_back({at + ".lora_B.weight", TensorType::f32, {out, 2}, b.data()});
    }
    write_safetensors(adapter / "adapter_model.safetensors", tensors);
    return refusal<FileError>([&] { LoraAdapter::load(adapter, model); });
  };
  CHECK(mentions(attempt("mlp.experts.3.gate_proj", 64, 32), "experts or their router"));
  CHECK(mentions(attempt("mlp.experts.3.down_proj", 32, 64), "mlp.experts.3.down_proj"));
  CHECK(mentions(attempt("mlp.gate", 64, 6), "experts or their router"));
  CHECK(attempt("self_attn.q_proj", 64, 64) == "no error");
}

TEST_CASE("mixture files: a token in a batch has the bits of its step alone") {
  for (const char* family : {"qwen3_moe", "qwen2_moe", "qwen3_moe_sparse", "granitemoe"}) {
    INFO(family);
    const std::vector<std::int64_t> ids = ExpectedLogits(family_checkpoint(family)).ids;
    const std::span<const std::int64_t> text(ids);
    Decoder first = Decoder::load(family_checkpoint(family));
    std::vector<Decoder> together, alone;
    for (int i = 0; i < 5; ++i) {
      together.push_back(first.share_weights());
      alone.push_back(first.share_weights());
    }
    for (const std::vector<std::size_t>& lengths :
         {std::vector<std::size_t>{7, 1, 3, 5, 1}, {1, 1, 1, 1, 1}, {2, 9, 1, 4, 6}}) {
      std::vector<Decoder::SequenceStep> batch;
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::span<const std::int64_t> part = text.subspan(2 * i, lengths[i]);
        batch.push_back({&together[i], part, StepKind::decode});
        alone[i].step(part);
      }
      Decoder::step_batch(batch);
      for (std::size_t i = 0; i < lengths.size(); ++i) {
        const std::span<const float> a = alone[i].logits(), b = together[i].logits();
        REQUIRE(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
      }
    }
  }
}

TEST_CASE("mixture files: Granite's tensors as transformers 5 holds them are read too") {
  const std::vector<std::int64_t> ids = ExpectedLogits(family_checkpoint("granitemoeshared")).ids;
  OpenModel model = open_model(family_checkpoint("granitemoeshared"));
  const auto logits = [&](const OpenModel& of) {
    Decoder decoder = Decoder::load(of);
    const LogitsView made = decoder.forward(ids);
    return std::vector<float>(made.floats().begin(), made.floats().end());
  };
  const std::vector<float> wanted = logits(model);
  REQUIRE(model.config.layers[0].mixture.tensors == MixtureTensors::granite);
  std::map<std::string, std::string> names;
  for (int l = 0; l < 2; ++l) {
    const std::string at = "model.layers." + std::to_string(l) + ".block_sparse_moe.";
    names[at + "input_linear.weight"] = at + "experts.gate_up_proj";
    names[at + "output_linear.weight"] = at + "experts.down_proj";
    names[at + "router.layer.weight"] = at + "router.weight";
  }
  model.tensors = std::make_shared<RenamedTensors>(model.tensors, names);
  find_mixture_tensors(*model.tensors, model.config);
  REQUIRE(model.config.layers[0].mixture.tensors == MixtureTensors::granite_fused);
  REQUIRE(logits(model) == wanted);
}

}  // namespace mixture_files_test
