// SPDX-License-Identifier: Apache-2.0
// Adapters made by PEFT (models/reference/make_adapters.py) and adapters of our own that are wrong.
#include "episodic/model/lora.hpp"

#include "support/test.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "episodic/model/safetensors.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "tiny_adapter.hpp"
#include "tiny_llama.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace lora_test {

const fs::path kModels = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families";
const fs::path kAdapters = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/adapters";

struct Case {
  const char *name, *base;
};
constexpr Case kCases[] = {{"llama2_all", "llama2"},
                           {"llama2_rslora", "llama2"},
                           {"phi3_fused", "phi3"},
                           {"llama3_head", "llama3"},
                           {"gemma3_attention", "gemma3"}};

std::vector<float> floats(const StoredTensor& t) {
  std::vector<float> out(static_cast<std::size_t>(t.elements()));
  std::memcpy(out.data(), t.data, out.size() * sizeof(float));
  return out;
}

std::vector<float> floats(const LogitsView& t) { return {t.floats().begin(), t.floats().end()}; }

std::vector<std::int64_t> ids_of(const SafetensorsFile& file) {
  const StoredTensor& t = file.at("ids");
  std::vector<std::int32_t> ids(static_cast<std::size_t>(t.elements()));
  std::memcpy(ids.data(), t.data, ids.size() * sizeof(std::int32_t));
  return {ids.begin(), ids.end()};
}

/// The largest difference, of the largest magnitude; infinity for a NaN.
double difference(const std::vector<float>& got, const std::vector<float>& expected) {
  REQUIRE(got.size() == expected.size());
  double most = 0, largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - expected[i]);
    most = std::isnan(d) ? std::numeric_limits<double>::infinity() : std::max(most, d);
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  REQUIRE(largest > 0.1);
  return most / largest;
}

ModelOptions with(const std::vector<LoraChoice>& lora, bool merge = false) {
  ModelOptions options;
  options.lora = lora;
  options.merge_lora = merge;
  return options;
}

const std::vector<std::int64_t> kIds{3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 32, 38, 46, 26, 43, 38};

/// A model's tensors, those of block types widened to float32.
struct Widened final : TensorSource {
  explicit Widened(std::shared_ptr<const TensorSource> from) : base(std::move(from)) {
    for (const StoredTensor* t : base->tensors()) {
      StoredTensor& view = views[t->name] = *t;
      if (block_elements(t->type) == 1) continue;
      std::vector<float>& numbers = widened[t->name];
      numbers.resize(static_cast<std::size_t>(t->elements()));
      cpu::widen_row(t->type, t->data, t->elements(),
                     numbers.data());  // rows lie one after another
      view.type = TensorType::f32;
      view.data = reinterpret_cast<const std::byte*>(numbers.data());
      view.bytes = t->elements() * 4;
    }
  }
  const StoredTensor* find(std::string_view name) const override {
    const auto it = views.find(std::string(name));
    return it == views.end() ? nullptr : &it->second;
  }
  std::vector<const StoredTensor*> tensors() const override {
    std::vector<const StoredTensor*> all;
    for (const auto& [name, view] : views) all.push_back(&view);
    return all;
  }
  fs::path file_of(std::string_view name) const override { return base->file_of(name); }
  std::shared_ptr<const TensorSource> base;
  std::map<std::string, StoredTensor> views;
  std::map<std::string, std::vector<float>> widened;
};

TEST_CASE("lora: beside and merged, the logits are the reference's", "[proof]") {
  for (const Case& c : kCases) {
    INFO(c.name);
    const SafetensorsFile expected(kAdapters / c.name / "expected.safetensors");
    const std::vector<std::int64_t> ids = ids_of(expected);
    const std::vector<float> logits = floats(expected.at("logits"));
    Decoder base = Decoder::load(kModels / c.base);
    REQUIRE(difference(floats(base.forward(ids)), logits) > 0.1);  // it matters

    const std::vector<LoraChoice> lora{{kAdapters / c.name, 1.0}};
    Decoder beside = Decoder::load(open_model(kModels / c.base, with(lora)));
    REQUIRE(beside.adapters().size() == 1);
    const std::vector<float> whole = floats(beside.forward(ids));
    REQUIRE(difference(whole, logits) < 1e-4);
    beside.reset();
    std::vector<float> pieces;
    for (std::size_t at = 0; at < ids.size(); at += 5) {
      const std::size_t n = std::min<std::size_t>(5, ids.size() - at);
      const auto rows = floats(beside.forward(std::span(ids).subspan(at, n)));
      pieces.insert(pieces.end(), rows.begin(), rows.end());
    }
    REQUIRE(difference(pieces, logits) < 1e-4);

    Decoder merged = Decoder::load(open_model(kModels / c.base, with(lora, true)));
    REQUIRE(merged.adapters().empty());
    const std::vector<float> together = floats(merged.forward(ids));
    REQUIRE(difference(together, logits) < 1e-4);
    REQUIRE(difference(together, whole) < 2e-5);
  }
}

TEST_CASE("lora: through a memory, and where only surprise is asked for") {
  for (const Case& c : kCases) {
    INFO(c.name);
    const SafetensorsFile expected(kAdapters / c.name / "expected.safetensors");
    const std::vector<std::int64_t> ids = ids_of(expected);
    const std::vector<float> logits = floats(expected.at("logits"));
    Decoder model = Decoder::load(open_model(kModels / c.base, with({{kAdapters / c.name, 1.0}})));
    Decoder own = model.share_weights();
    REQUIRE(own.adapters().size() == 1);
    MemoryConfig config;
    config.n_init = 4;
    const std::int64_t window =
        model.config().layers[static_cast<std::size_t>(model.config().memory_layers()[0])].window;
    config.n_local = window > 0 ? window : 64;
    config.chunk = 64;
    patch(model, config);
    const std::size_t n = window > 0 ? static_cast<std::size_t>(window) : ids.size();
    const auto few = std::span(ids).first(n);
    std::vector<float> memory_nll(n - 1), own_nll(n - 1);
    const auto last = floats(model.forward_surprise(few, memory_nll));
    const auto width = static_cast<std::ptrdiff_t>(last.size());
    const auto row = logits.begin() + (static_cast<std::ptrdiff_t>(n) - 1) * width;
    REQUIRE(difference(last, {row, row + width}) < 1e-4);
    own.forward_surprise(few, own_nll);
    for (std::size_t i = 0; i + 1 < n; ++i) {
      const auto at = logits.begin() + static_cast<std::ptrdiff_t>(i) * width;
      double sum = 0;
      for (std::ptrdiff_t t = 0; t < width; ++t) sum += std::exp(static_cast<double>(at[t]));
      const double nll = std::log(sum) - at[static_cast<std::ptrdiff_t>(ids[i + 1])];
      REQUIRE(std::abs(memory_nll[i] - nll) < 1e-2);
      REQUIRE(std::abs(own_nll[i] - nll) < 1e-2);
    }
  }
}

TEST_CASE("lora: a GGUF file has its rows in another order, and the same logits", "[proof]") {
  const TempDir dir;
  for (const Case& c : kCases) {
    if (std::string_view(c.base).starts_with("gemma")) continue;  // is not written as GGUF
    INFO(c.name);
    const fs::path file = dir / (std::string(c.name) + ".gguf");
    write_gguf(open_model(kModels / c.base), file);
    const SafetensorsFile expected(kAdapters / c.name / "expected.safetensors");
    const std::vector<std::int64_t> ids = ids_of(expected);
    const std::vector<float> logits = floats(expected.at("logits"));
    const std::vector<LoraChoice> lora{{kAdapters / c.name, 1.0}};
    for (const bool merge : {false, true}) {
      Decoder model = Decoder::load(open_model(file, with(lora, merge)));
      REQUIRE(difference(floats(model.forward(ids)), logits) < 1e-4);
    }
    // an adapter is the same whatever it is put beside
    REQUIRE(LoraAdapter::load(kAdapters / c.name, open_model(file))->fingerprint() ==
            LoraAdapter::load(kAdapters / c.name, open_model(kModels / c.base))->fingerprint());
  }
}

TEST_CASE("lora: several at once, with scales, in any order", "[proof]") {
  const SafetensorsFile expected(kAdapters / "llama2_rslora" / "expected.safetensors");
  const std::vector<std::int64_t> ids = ids_of(expected);
  const std::vector<float> both = floats(expected.at("both"));
  const LoraChoice half{kAdapters / "llama2_rslora", 0.5}, all{kAdapters / "llama2_all", 1.0};
  for (const bool merge : {false, true})
    for (const auto& order : {std::vector{half, all}, std::vector{all, half}}) {
      Decoder model = Decoder::load(open_model(kModels / "llama2", with(order, merge)));
      REQUIRE(difference(floats(model.forward(ids)), both) < 1e-4);
    }
}

TEST_CASE("lora: switched between steps and sessions without loading anything") {
  const OpenModel opened = open_model(kModels / "llama2");
  const auto all = LoraAdapter::load(kAdapters / "llama2_all", opened);
  const auto some = LoraAdapter::load(kAdapters / "llama2_rslora", opened);
  REQUIRE(all->name() == "llama2_all");
  REQUIRE(all->bytes() > some->bytes());
  Decoder first = Decoder::load(opened), second = first.share_weights();
  const std::vector<float> plain = floats(first.forward(kIds));
  const auto alone = [&](const std::shared_ptr<const LoraAdapter>& adapter) {
    Decoder model = first.share_weights();
    model.use_adapters({{adapter, 1.0}});
    return floats(model.forward(kIds));
  };
  const std::vector<float> with_all = alone(all), with_some = alone(some);

  // two sequences on the same weights, each with its own
  first.reset();
  first.use_adapters({{all, 1.0}});
  second.use_adapters({{some, 1.0}});
  REQUIRE(floats(first.forward(kIds)) == with_all);
  REQUIRE(floats(second.forward(kIds)) == with_some);
  // one sequence, another adapter from one step to the next: what was cached stays
  first.use_adapters({{some, 1.0}});
  const std::vector<float> mixed = floats(first.forward(kIds));
  REQUIRE(difference(mixed, with_some) > 1e-3);
  for (auto* model : {&first, &second}) {
    model->use_adapters({});
    model->reset();
    REQUIRE(floats(model->forward(kIds)) == plain);
  }

  Decoder other = Decoder::load(kModels / "phi3");
  REQUIRE(mentions(refusal<ConfigError>([&] {
                     other.use_adapters({{all, 1.0}});
                   }),
                   "was loaded for another model"));
  REQUIRE(mentions(refusal<ConfigError>([&] { first.use_adapters({{nullptr, 1.0}}); }), "null"));
  REQUIRE(mentions(refusal<ConfigError>([&] {
                     first.use_adapters({{all, NAN}});
                   }),
                   "the scale of an adapter is nan"));
  REQUIRE(floats(first.share_weights().forward(kIds)) == plain);
}

TEST_CASE("lora: on stored types, beside bfloat16 and quantised weights, merged with bfloat16") {
  TinyShape shape;
  shape.hidden = 32;
  shape.inner = 64;
  shape.dim = 16;
  shape.type = TensorType::bf16;
  const TempDir dir;
  fs::create_directories(dir / "model");
  TinyLlama(shape, 3).write(dir / "model");
  TinyAdapter(shape).write(dir / "adapter");
  const std::vector<LoraChoice> lora{{dir / "adapter", 1.0}};
  const auto logits = [&](const OpenModel& model) {
    return floats(Decoder::load(model).forward(kIds));
  };
  const std::vector<float> beside = logits(open_model(dir / "model", with(lora)));
  // rounding to bfloat16 is the only difference
  const OpenModel merged = open_model(dir / "model", with(lora, true));
  REQUIRE(merged.tensors->find("model.layers.0.self_attn.q_proj.weight")->type == TensorType::bf16);
  REQUIRE(difference(logits(merged), beside) < 0.03);
  REQUIRE(difference(logits(open_model(dir / "model")), beside) > 0.1);

  for (const TensorType type : {TensorType::q8_0, TensorType::q4_0}) {
    ModelOptions options = with(lora);
    options.quantize = type;
    const OpenModel quantised = open_model(dir / "model", options);
    OpenModel wide = quantised;
    wide.tensors = std::make_shared<Widened>(quantised.tensors);
    wide.merged = true;
    merge_lora(wide, quantised.adapters);
    // rounding the activations to 8 bits is the only difference; the adapter makes a larger one
    REQUIRE(difference(logits(quantised), logits(wide)) < 0.07);
    OpenModel plain = quantised;
    plain.adapters.clear();
    REQUIRE(difference(logits(plain), logits(wide)) > 0.1);
    OpenModel refused = quantised;
    REQUIRE(mentions(refusal<ConfigError>([&] { merge_lora(refused, quantised.adapters); }),
                     std::string("is stored as ") + name_of(type)));
  }
}

TEST_CASE("lora: what a memory is made with names the adapters") {
  const fs::path model = kModels / "llama2";
  const LoraChoice half{kAdapters / "llama2_rslora", 0.5}, all{kAdapters / "llama2_all", 1.0};
  const MemoryIdentity plain = identity_of(model, {});
  REQUIRE(plain == identity_of(model));
  const MemoryIdentity adapted = identity_of(model, with({half, all}));
  REQUIRE(adapted.model == "llama2 with adapter llama2_rslora x 0.5 with adapter llama2_all");
  REQUIRE(adapted.weights != plain.weights);
  REQUIRE(adapted.weights == identity_of(model, with({all, half}, true)).weights);
  REQUIRE(adapted.weights == identity_of(open_model(model, with({half, all}, true))).weights);
  REQUIRE(adapted.weights != identity_of(model, with({half})).weights);
  REQUIRE(adapted.weights != identity_of(model, with({all, {half.dir, 0.25}})).weights);
}

TEST_CASE("lora: what is wrong with an adapter is one error that names it") {
  const TinyShape shape;
  const TempDir dir;
  fs::create_directories(dir / "model");
  TinyLlama(shape, 3).write(dir / "model");
  const OpenModel model = open_model(dir / "model");
  const TinyAdapter good(shape);
  const std::string q = "base_model.model.model.layers.0.self_attn.q_proj.";
  const auto said = [&](const TinyAdapter& adapter) {
    adapter.write(dir / "adapter");
    return refusal<FileError>([&] { LoraAdapter::load(dir / "adapter", model); });
  };
  const auto with_setting = [&](const char* key, const nlohmann::json& value) {
    TinyAdapter adapter = good;
    adapter.config[key] = value;
    return said(adapter);
  };
  REQUIRE(said(good) == "no error");

  SECTION("settings") {
    for (const auto& [key, value] :
         std::map<std::string, nlohmann::json>{{"use_dora", true},
                                               {"modules_to_save", {"embed_tokens"}},
                                               {"lora_bias", true},
                                               {"layer_replication", {{0, 1}}},
                                               {"trainable_token_indices", {1, 2}},
                                               {"a_setting_of_tomorrow", 3},
                                               {"bias", "all"},
                                               {"peft_type", "ADALORA"},
                                               {"init_lora_weights", "pissa"},
                                               {"layers_pattern", "blocks"},
                                               {"r", 0},
                                               {"lora_alpha", "much"},
                                               {"use_rslora", "yes"},
                                               {"rank_pattern", {{"^q.*", 2}}},
                                               {"alpha_pattern", {{"q_proj", -1}}},
                                               {"target_modules", {1}}}) {
      const std::string error = with_setting(key.c_str(), value);
      INFO(error);
      REQUIRE(mentions(error, "adapter_config.json: " + key));
    }
    // what is off, or without effect
    REQUIRE(with_setting("use_dora", false) == "no error");
    REQUIRE(with_setting("a_setting_of_tomorrow", nullptr) == "no error");
    REQUIRE(with_setting("loftq_config", nlohmann::json::object()) == "no error");
    REQUIRE(with_setting("fan_in_fan_out", true) == "no error");
    REQUIRE(with_setting("layers_pattern", "layers") == "no error");
    REQUIRE(with_setting("target_modules", "all-linear") == "no error");
    REQUIRE(with_setting("init_lora_weights", "gaussian") == "no error");
    REQUIRE(mentions(with_setting("rank_pattern", {{"q_proj", 2}, {"self_attn.q_proj", 3}}),
                     "both mean model.layers.0.self_attn.q_proj"));
  }
  SECTION("tensors") {
    const auto changed = [&](auto&& change) {
      TinyAdapter adapter = good;
      change(adapter.factors);
      return said(adapter);
    };
    using Factors = decltype(good.factors);
    const auto renamed = [&](const std::string& from, const std::string& to) {
      return changed([&](Factors& f) { f[to] = f.extract(from).mapped(); });
    };
    REQUIRE(
        mentions(renamed(q + "lora_A.weight", q + "lora_C.weight"), "lora_C.weight' is not known"));
    REQUIRE(mentions(renamed(q + "lora_A.weight", "lora_A.weight"), "is not known"));
    REQUIRE(mentions(renamed(q + "lora_A.weight",
                             "base_model.model.model.layers.7.self_attn.q_proj.lora_A.weight"),
                     "has no place in a model of model_type \"llama\" with 2 layers"));
    REQUIRE(mentions(
        renamed(q + "lora_A.weight", "base_model.model.model.embed_tokens.lora_embedding_A"),
        "embedding's adapter, which is not supported"));
    REQUIRE(mentions(
        renamed(q + "lora_A.weight", "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"),
        "is none that"));
    REQUIRE(mentions(changed([&](Factors& f) { f.erase(q + "lora_B.weight"); }),
                     "has no tensor '" + q + "lora_B.weight'"));
    REQUIRE(mentions(changed([&](Factors& f) {
                       f.erase(q + "lora_A.weight");
                       f.erase(q + "lora_B.weight");
                     }),
                     "has no tensor '" + q + "lora_A.weight'"));
    REQUIRE(mentions(changed([&](Factors& f) { f.clear(); }), "holds no adapter's tensors"));
    REQUIRE(mentions(changed([&](Factors& f) {
                       f[q + "lora_A.weight"].shape = {24, 2};
                     }),
                     "lora_A.weight' has shape [24, 2], expected [2, 24]"));
    REQUIRE(mentions(changed([&](Factors& f) { f[q + "lora_B.weight"].numbers[5] = NAN; }),
                     "lora_B.weight' holds NaN or infinity"));
    REQUIRE(mentions(changed([&](Factors& f) {
                       f[q + "lora_A.weight"].numbers[5] = std::numeric_limits<float>::infinity();
                     }),
                     "holds NaN or infinity"));
    REQUIRE(mentions(with_setting("r", 3), "with r = 3"));
    // a model's own weight beside the adapter must be that of the model
    const auto with_base = [&](float first) {
      TinyAdapter adapter = good;
      const StoredTensor& own = *model.tensors->find("model.layers.0.self_attn.q_proj.weight");
      adapter.factors[q + "base_layer.weight"] = {own.shape, floats(own)};
      adapter.factors[q + "base_layer.weight"].numbers[0] += first;
      return said(adapter);
    };
    REQUIRE(with_base(0) == "no error");
    REQUIRE(mentions(with_base(1), "base_layer.weight' is not what the model has"));
  }
  SECTION("files") {
    REQUIRE(mentions(refusal<FileError>([&] { LoraAdapter::load(dir / "nowhere", model); }),
                     "there is no such directory"));
    fs::create_directories(dir / "empty");
    REQUIRE(mentions(refusal<FileError>([&] { LoraAdapter::load(dir / "empty", model); }),
                     "adapter_config.json: cannot be opened"));
    good.write(dir / "pickled");
    fs::rename(dir / "pickled/adapter_model.safetensors", dir / "pickled/adapter_model.bin");
    REQUIRE(mentions(refusal<FileError>([&] { LoraAdapter::load(dir / "pickled", model); }),
                     "adapter_model.bin: is not read"));
    good.write(dir / "cut");
    fs::resize_file(dir / "cut/adapter_model.safetensors", 900);
    REQUIRE(mentions(refusal<FileError>([&] { LoraAdapter::load(dir / "cut", model); }),
                     "adapter_model.safetensors"));
    std::ofstream(dir / "cut/adapter_config.json") << "{\"r\": ";
    REQUIRE(mentions(refusal<FileError>([&] { LoraAdapter::load(dir / "cut", model); }),
                     "adapter_config.json"));
  }
  SECTION("another model") {
    for (const char* other : {"phi3", "llama3", "gemma3"}) {
      const OpenModel opened = open_model(kModels / other);
      const std::string error =
          refusal<FileError>([&] { LoraAdapter::load(kAdapters / "llama2_all", opened); });
      INFO(error);
      REQUIRE(mentions(error, "adapter_model.safetensors: "));
    }
  }
  SECTION("scales") {
    good.write(dir / "adapter");
    REQUIRE(mentions(refusal<ConfigError>([&] {
                       open_model(dir / "model", with({{dir / "adapter", INFINITY}}));
                     }),
                     "the scale of an adapter is inf, must be within 1000000 of 0"));
    // merged, this one leaves the range of the weights' type
    TinyShape half = shape;
    half.type = TensorType::f16;
    fs::create_directories(dir / "half");
    TinyLlama(half, 3).write(dir / "half");
    REQUIRE(mentions(refusal<DataError>([&] {
                       open_model(dir / "half", with({{dir / "adapter", 1e6}}, true));
                     }),
                     "is not finite as F16"));
    REQUIRE_NOTHROW(open_model(dir / "half", with({{dir / "adapter", 1e6}})));
  }
}

}  // namespace lora_test
