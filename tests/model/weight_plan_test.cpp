// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/weight_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace weight_plan_test {

const fs::path kFamilies = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families";

/// The tensors of another source, some of them changed.
class Changed final : public TensorSource {
 public:
  explicit Changed(std::shared_ptr<const TensorSource> from) : from_(std::move(from)) {
    for (const StoredTensor* t : from_->tensors()) views[t->name] = *t;
  }
  const StoredTensor* find(std::string_view name) const override {
    const auto it = views.find(name);
    return it == views.end() ? nullptr : &it->second;
  }
  std::vector<const StoredTensor*> tensors() const override {
    std::vector<const StoredTensor*> all;
    for (const auto& [name, view] : views) all.push_back(&view);
    return all;
  }
  fs::path file_of(std::string_view) const override { return "weights"; }

  std::map<std::string, StoredTensor, std::less<>> views;

 private:
  std::shared_ptr<const TensorSource> from_;
};

/// The refusal of a checkpoint after `change` was done to its tensors.
template <class F>
std::string refused(const char* family, F change) {
  const OpenModel model = open_model(kFamilies / family);
  auto source = std::make_shared<Changed>(model.tensors);
  change(source->views);
  return refusal<FileError>([&] { PlannedWeights(model.config, source); });
}

TEST_CASE("weight plan: rows of fused tensors lie behind each other") {
  const OpenModel model = open_model(kFamilies / "phi3");
  const ModelConfig& c = model.config;
  const PlannedWeights weights(c, model.tensors);
  const StoredTensor& qkv = *model.tensors->find("model.layers.1.self_attn.qkv_proj.weight");
  const WeightView q = weights.at(WeightRole::q, 1), k = weights.at(WeightRole::k, 1),
                   v = weights.at(WeightRole::v, 1);
  REQUIRE(q.data == qkv.data);
  REQUIRE(q.rows == c.n_heads * c.head_dim);
  REQUIRE(q.columns == c.hidden_size);
  REQUIRE(k.data == q.data + q.rows * q.row_bytes());
  REQUIRE(v.data == k.data + k.rows * k.row_bytes());
  REQUIRE(v.data + v.rows * v.row_bytes() == qkv.data + qkv.bytes);
  const WeightView gate = weights.at(WeightRole::gate, 0), up = weights.at(WeightRole::up, 0);
  REQUIRE(up.data == gate.data + gate.rows * gate.row_bytes());
}

TEST_CASE("weight plan: names, products and adapters come from the table of roles") {
  std::set<WeightRole> seen;
  // norms on both sides, and of heads; a mixture with a shared expert
  for (const char* family : {"gemma3", "qwen2_moe"}) {
    const OpenModel model = open_model(kFamilies / family);
    for (const WeightEntry& e : weight_plan(model.config)) {
      const WeightRoleInfo& info = info_of(e.role);
      seen.insert(e.role);
      INFO(e.tensor);
      CHECK(std::string(info.name) == name_of(e.role));
      CHECK((e.tensor_shape.size() == 2) ==
            (!e.bias && (info.product || e.role == WeightRole::embedding)));
      if (e.role == WeightRole::head && model.config.tie_word_embeddings) continue;
      if (e.bias) continue;
      std::string name = std::string(info.hugging_face) + ".weight";
      if (e.role == WeightRole::attended_norm || e.role == WeightRole::feed_norm)
        if (model.config.layers[0].norms == NormPlace::before) continue;  // another's name
      if (const std::size_t at = name.find("{}"); at != std::string::npos)
        name.replace(at, 2, std::to_string(e.expert));
      CHECK(e.tensor ==
            (e.layer < 0 ? name : "model.layers." + std::to_string(e.layer) + "." + name));
    }
  }
  // names of their own
  for (const char* family :
       {"gpt_oss", "lfm2", "qwen3_5", "granite4", "gemma4", "gemma4_moe", "deepseek_v3"})
    for (const WeightEntry& e : weight_plan(open_model(kFamilies / family).config))
      seen.insert(e.role);
  // together they have a weight of each role, but for those of an activation
  CHECK(seen.size() + std::size(kXieluRoles) == kWeightRoles.size());
  std::string products;
  for (const WeightRole role : kLayerProducts) products += std::string(name_of(role)) + " ";
  CHECK(products == "q k v o gate up down ");
  for (const WeightRoleInfo& info : kWeightRoles)
    CHECK(info.adapted == (std::find(kLayerProducts.begin(), kLayerProducts.end(), info.role) !=
                           kLayerProducts.end()));
}

TEST_CASE("weight plan: a family's own names, numbers without a shape, and biases of norms") {
  const auto tensor = [](const char* family, WeightRole role, bool bias) -> std::string {
    for (const WeightEntry& e : weight_plan(open_model(kFamilies / family).config))
      if (e.role == role && e.layer < 1 && e.bias == bias) return e.tensor;
    return "none";
  };
  CHECK(tensor("apertus", WeightRole::input_norm, false) ==
        "model.layers.0.attention_layernorm.weight");
  CHECK(tensor("apertus", WeightRole::xielu_beta, false) == "model.layers.0.mlp.act_fn.beta");
  CHECK(tensor("apertus", WeightRole::gate, false) == "none");
  CHECK(tensor("glm4", WeightRole::feed_norm, false) ==
        "model.layers.0.post_attention_layernorm.weight");
  CHECK(tensor("cohere", WeightRole::feed_norm, false) == "none");
  CHECK(tensor("nemotron", WeightRole::final_norm, true) == "model.norm.bias");
  CHECK(tensor("starcoder2", WeightRole::up, true) == "model.layers.0.mlp.c_fc.bias");
}

TEST_CASE("weight plan: what a family has and has not") {
  const auto planned = [](const char* family) {
    const OpenModel model = open_model(kFamilies / family);
    return PlannedWeights(model.config, model.tensors);
  };
  using Role = WeightRole;
  const PlannedWeights llama = planned("llama2"), gemma = planned("gemma3"),
                       olmo = planned("olmo2"), qwen = planned("qwen2");
  REQUIRE(llama.at(Role::input_norm, 0).offset == 0);
  REQUIRE_FALSE(llama.has(Role::fed_norm, 0));
  REQUIRE_FALSE(llama.has(Role::q, 0, true));
  REQUIRE_FALSE(llama.has(Role::q, 2));
  REQUIRE_FALSE(llama.has(Role::q, -1));
  REQUIRE(llama.has(Role::head));
  REQUIRE(llama.at(Role::head).data != llama.at(Role::embedding).data);
  REQUIRE(gemma.at(Role::q_norm, 2).offset == 1);
  REQUIRE(gemma.at(Role::final_norm).offset == 1);
  REQUIRE(gemma.has(Role::attended_norm, 2));
  REQUIRE(gemma.at(Role::head).data == gemma.at(Role::embedding).data);
  REQUIRE_FALSE(olmo.has(Role::input_norm, 1));
  REQUIRE(olmo.at(Role::q_norm, 1).rows == 24);
  REQUIRE(qwen.has(Role::v, 1, true));
  REQUIRE_FALSE(qwen.has(Role::o, 1, true));
  REQUIRE_THROWS_AS(qwen.at(Role::o, 1, true), DataError);
}

TEST_CASE("weight plan: a checkpoint that does not fit is refused by the tensor") {
  REQUIRE(refused("qwen3", [](auto&) {}) == "no error");
  REQUIRE(
      mentions(refused("qwen3", [](auto& t) { t.erase("model.layers.1.self_attn.k_norm.weight"); }),
               "weights: has no tensor 'model.layers.1.self_attn.k_norm.weight', which "
               "model_type \"qwen3\" calls for"));
  const auto add = [](const char* name) {
    return [name](auto& t) {
      t[name] = t.begin()->second;
      t[name].name = name;
    };
  };
  REQUIRE(mentions(refused("llama3", add("model.layers.0.self_attn.q_norm.weight")),
                   "'model.layers.0.self_attn.q_norm.weight' has no place in a model of model_type "
                   "\"llama\""));
  REQUIRE(mentions(refused("llama3", add("model.layers.7.mlp.up_proj.weight")), "has no place"));
  REQUIRE(refused("llama3", add("model.layers.0.self_attn.rotary_emb.inv_freq")) == "no error");
  REQUIRE(refused("llama3", add("lm_head.weight")) == "no error");  // tied
  REQUIRE(mentions(
      refused("llama2", [](auto& t) { t.at("model.norm.weight").type = TensorType::q8_0; }),
      "tensor 'model.norm.weight' is stored as Q8_0"));
}

TEST_CASE("weight plan: a weight that is NaN or infinite is named, with its row") {
  std::vector<float> numbers;
  const auto damage = [&](const char* name, std::size_t at, float with) {
    return [&numbers, name, at, with](auto& t) {
      StoredTensor& view = t.at(name);
      numbers.resize(static_cast<std::size_t>(view.elements()));
      std::memcpy(numbers.data(), view.data, static_cast<std::size_t>(view.bytes));
      numbers[at] = with;
      view.data = reinterpret_cast<const std::byte*>(numbers.data());
    };
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  // norms and biases when the model is opened
  REQUIRE(
      mentions(refused("llama3", damage("model.layers.1.input_layernorm.weight", 3, NAN)),
               "weights: tensor 'model.layers.1.input_layernorm.weight' holds NaN or infinity in "
               "row 3"));
  REQUIRE(mentions(refused("qwen2", damage("model.layers.0.self_attn.k_proj.bias", 1, kInfinity)),
                   "'model.layers.0.self_attn.k_proj.bias' holds NaN or infinity in row 1"));
  // the rest where someone asks
  const auto found = [&](const char* family, const char* name, std::size_t row, float with) {
    const OpenModel model = open_model(kFamilies / family);
    auto source = std::make_shared<Changed>(model.tensors);
    const auto columns = static_cast<std::size_t>(source->views.at(name).shape[1]);
    damage(name, row * columns + columns - 1, with)(source->views);
    const PlannedWeights weights(model.config, source);
    return refusal<FileError>([&] { weights.require_finite(); });
  };
  REQUIRE(mentions(found("llama3", "model.embed_tokens.weight", 5, -kInfinity),
                   "'model.embed_tokens.weight' holds NaN or infinity in row 5"));
  const char* fused = "model.layers.1.mlp.gate_up_proj.weight";
  const OpenModel phi = open_model(kFamilies / "phi3");
  const auto last = static_cast<std::size_t>(phi.tensors->find(fused)->shape[0] - 1);
  REQUIRE(mentions(found("phi3", fused, last, NAN), "in row " + std::to_string(last)));
  REQUIRE(refusal<FileError>([&] { PlannedWeights(phi.config, phi.tensors).require_finite(); }) ==
          "no error");
}

TEST_CASE("open model: a path that is no model says what to give") {
  const TempDir dir;
  REQUIRE(mentions(refusal<FileError>([&] { open_model("google/gemma-3-270m"); }),
                   "google/gemma-3-270m: no such directory"));
  dir.write("weights.bin", "");
  REQUIRE(mentions(refusal<FileError>([&] { open_model(dir / "weights.bin"); }),
                   "too few for a GGUF file"));
  REQUIRE(mentions(refusal<FileError>([&] { open_model(dir.path()); }),
                   "config.json: cannot be opened"));
}

TEST_CASE("open model: the identity knows what decides about the first and last token") {
  const TempDir dir;
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(kFamilies / "llama3" / name, dir / name);
  const MemoryIdentity bare = identity_of(open_model(dir.path()));
  REQUIRE(bare.tokenizer.empty());
  dir.write("tokenizer.json", "{}");
  const MemoryIdentity with_tokenizer = identity_of(open_model(dir.path()));
  REQUIRE(with_tokenizer.weights == bare.weights);
  dir.write("tokenizer_config.json", R"({"add_bos_token":false})");
  const MemoryIdentity without_bos = identity_of(open_model(dir.path()));
  REQUIRE(without_bos.tokenizer != with_tokenizer.tokenizer);
  dir.write("tokenizer_config.json", R"({"add_bos_token":true})");
  REQUIRE(identity_of(open_model(dir.path())).tokenizer != without_bos.tokenizer);
  REQUIRE(identity_of(open_model(dir.path())).weights == bare.weights);
}

}  // namespace weight_plan_test
