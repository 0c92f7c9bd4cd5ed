// SPDX-License-Identifier: Apache-2.0
// Checkpoints whose configuration and weights contradict each other: what is computed with them.

#include "support/test.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/model/patch.hpp"
#include "episodic/model/quantize.hpp"
#include "expected_logits.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "tiny_adapter.hpp"
#include "tiny_llama.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace odd_models_test {

using Json = nlohmann::json;

Json read_json(const fs::path& file) {
  std::ifstream in(file);
  return Json::parse(in);
}

std::vector<float> logits_of(const OpenModel& model, const std::vector<std::int64_t>& ids) {
  Decoder decoder = Decoder::load(model);
  const LogitsView logits = decoder.forward(ids);
  return {logits.floats().begin(), logits.floats().end()};
}

/// A directory's tensors, to be written anew with others.
struct Copy {
  explicit Copy(const fs::path& from)
      : file(std::make_shared<SafetensorsFile>(from / "model.safetensors")),
        config(read_json(from / "config.json")) {
    for (const StoredTensor& t : file->tensors())
      tensors.push_back({t.name, t.type, t.shape, t.data});
  }
  const TensorToWrite* find(const std::string& name) const {
    for (const TensorToWrite& t : tensors)
      if (t.name == name) return &t;
    return nullptr;
  }
  void write(const fs::path& to) const {
    fs::create_directories(to);
    std::ofstream(to / "config.json") << config.dump();
    write_safetensors(to / "model.safetensors", tensors);
  }
  std::shared_ptr<SafetensorsFile> file;  // what `tensors` point into
  Json config;
  std::vector<TensorToWrite> tensors;
};

const std::vector<std::int64_t> kIds{3, 14, 15, 9, 2, 6, 5, 35, 8, 9, 7, 9, 32, 38, 46, 26, 43, 38};

TEST_CASE("odd models: a head that is there and differs is used in every family, tied or not") {
  const TempDir dir;
  int families = 0;
  for (const fs::path& checkpoint : family_checkpoints()) {
    INFO(checkpoint.filename().string());
    Copy copy(checkpoint);
    if (copy.config.contains("text_config")) continue;  // under names of its own
    const TensorToWrite* embedding = copy.find("model.embed_tokens.weight");
    REQUIRE(embedding);
    std::vector<float> head(static_cast<std::size_t>(embedding->shape[0] * embedding->shape[1]));
    for (std::size_t i = 0; i < head.size(); ++i) head[i] = std::sin(static_cast<float>(i) * 0.7f);
    const std::vector<std::int64_t> shape = embedding->shape;
    std::erase_if(copy.tensors, [](const TensorToWrite& t) { return t.name == "lm_head.weight"; });
    Copy same = copy;
    copy.config.erase("tie_embedding");  // LFM2's makers' word for it, which goes before the other
    copy.tensors.push_back({"lm_head.weight", TensorType::f32, shape, head.data()});
    copy.config["tie_word_embeddings"] = false;
    copy.write(dir / "said");
    copy.config["tie_word_embeddings"] = true;
    copy.write(dir / "unsaid");
    const OpenModel said = open_model(dir / "said"), unsaid = open_model(dir / "unsaid");
    REQUIRE(said.notes.empty());
    REQUIRE(unsaid.notes.size() == 1);
    CHECK(mentions(unsaid.notes[0], "tie_word_embeddings true, but lm_head.weight is there"));
    const std::vector<float> expected = logits_of(said, kIds);
    CHECK(logits_of(unsaid, kIds) == expected);

    // rounded, and as a GGUF file, it is still there
    OpenModel rounded = open_model(dir / "unsaid");
    bool can_round = true;
    try {
      quantize_weights(rounded, TensorType::q8_0);
    } catch (const ConfigError&) {
      can_round = false;  // rows of this one are no multiple of a block
    }
    if (can_round) {
      OpenModel other = open_model(dir / "said");
      quantize_weights(other, TensorType::q8_0);
      CHECK(logits_of(rounded, kIds) == logits_of(other, kIds));
    }
    std::string gguf = refusal<Error>([&] {
      write_gguf(unsaid, dir / "m.gguf", true);
      const OpenModel read = open_model(dir / "m.gguf");
      CHECK_FALSE(read.config.tie_word_embeddings);
      const StoredTensor* t = read.tensors->find("lm_head.weight");
      REQUIRE(t);
      CHECK(std::memcmp(t->data, head.data(), head.size() * 4) == 0);
    });
    CHECK((gguf == "no error" || mentions(gguf, "cannot be said in a GGUF file")));

    // an equal head is no second matrix
    same.tensors.push_back(
        {"lm_head.weight", TensorType::f32, shape, same.find("model.embed_tokens.weight")->data});
    same.config["tie_word_embeddings"] = true;
    same.write(dir / "same");
    const OpenModel equal = open_model(dir / "same");
    CHECK(equal.notes.empty());
    CHECK(equal.config.tie_word_embeddings);
    ++families;
  }
  REQUIRE(families > 15);
}

TEST_CASE(
    "odd models: an adapter of the head goes to the head that is used; the log is told once") {
  const TempDir dir;
  const TinyLlama tiny({.tied = false}, 7);
  tiny.write(dir.path());
  Json config = tiny.config();
  config["tie_word_embeddings"] = true;
  std::ofstream(dir / "config.json") << config.dump();
  std::vector<std::string> lines;
  ModelOptions options;
  options.log = [&](LogLevel level, std::string_view line) {
    CHECK(level == LogLevel::warning);
    lines.emplace_back(line);
  };
  const OpenModel model = open_model(dir.path(), options);
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == model.notes[0]);
  identity_of(dir.path(), options);
  CHECK(lines.size() == 1);
  const auto expected = tiny.logits(kIds);
  const std::vector<float> got = logits_of(model, kIds);
  for (std::size_t i = 0; i < kIds.size(); ++i)
    for (std::size_t c = 0; c < expected[i].size(); ++c)
      REQUIRE(std::abs(got[i * expected[i].size() + c] - expected[i][c]) < 1e-3);
}

TEST_CASE("odd models: names under a prefix of a wrapper's are read as what they are") {
  const TempDir dir;
  const TinyLlama tiny({.tied = false}, 8), tied({.tied = true}, 9);
  const auto write = [&](const TinyLlama& model, const auto& rename) {
    std::vector<TensorToWrite> tensors = model.tensors();
    for (TensorToWrite& t : tensors) t.name = rename(t.name);
    std::ofstream(dir / "config.json") << model.config().dump();
    write_safetensors(dir / "model.safetensors", tensors);
  };
  const auto check = [&](const TinyLlama& model) {
    const OpenModel opened = open_model(dir.path());
    REQUIRE(opened.notes.size() == 1);
    CHECK(mentions(opened.notes[0], "read as \"model.\""));
    const auto expected = model.logits(kIds);
    const std::vector<float> got = logits_of(opened, kIds);
    for (std::size_t i = 0; i < kIds.size(); ++i)
      for (std::size_t c = 0; c < expected[i].size(); ++c)
        REQUIRE(std::abs(got[i * expected[i].size() + c] - expected[i][c]) < 1e-3);
  };
  for (const char* prefix : {"language_model.", "base_model.model.", "_orig_mod.", "module."}) {
    INFO(prefix);
    write(tiny, [&](const std::string& name) { return prefix + name; });
    check(tiny);
    write(tied, [&](const std::string& name) { return prefix + name; });
    check(tied);
  }
  write(tiny, [](std::string name) {  // as newer classes of models that see have it
    return name.starts_with("model.") ? "model.language_model." + name.substr(6) : name;
  });
  check(tiny);
  write(tied, [](const std::string& name) { return name.substr(6); });  // of a model without a head
  check(tied);
  // a tied model whose one matrix was saved by its other name
  write(tied, [](const std::string& name) {
    return name == "model.embed_tokens.weight" ? std::string("lm_head.weight") : name;
  });
  const auto expected = tied.logits(kIds);
  const std::vector<float> got = logits_of(open_model(dir.path()), kIds);
  REQUIRE(std::abs(got[5] - expected[0][5]) < 1e-3);
  // not plain: parts of another model beside it
  write(tiny, [&](const std::string& name) {
    return name == "model.norm.weight" ? std::string("vision.norm.weight")
                                       : "language_model." + name;
  });
  CHECK(mentions(refusal<FileError>([&] { Decoder::load(dir.path()); }),
                 "under a prefix of their own"));
}

TEST_CASE("odd models: an adapter may carry the base's own embedding and head") {
  const TempDir dir;
  for (const bool tied : {false, true}) {
    INFO(tied);
    const TinyLlama tiny({.tied = tied}, 10);
    tiny.write(dir.path());
    const OpenModel model = open_model(dir.path());
    const std::string module = "model.layers.0.self_attn.q_proj";
    const StoredTensor& own = *model.tensors->find("model.embed_tokens.weight");
    const StoredTensor& head = *model.tensors->find(tied ? own.name : "lm_head.weight");
    const std::vector<float> a(2 * 24, 0.1f), b(48 * 2, 0.2f);
    const auto attempt = [&](float change, std::int64_t more_rows, const char* which) {
      const StoredTensor& from = which == std::string("lm_head") ? head : own;
      std::vector<float> numbers(static_cast<std::size_t>(from.elements() + more_rows * 24), 0.5f);
      std::memcpy(numbers.data(), from.data, static_cast<std::size_t>(from.bytes));
      numbers[3] += change;
      const std::string p = "base_model.model.";
      const std::vector<TensorToWrite> tensors{
          {p + module + ".lora_A.weight", TensorType::f32, {2, 24}, a.data()},
          {p + module + ".lora_B.weight", TensorType::f32, {48, 2}, b.data()},
          {p + which + ".weight", TensorType::f32, {61 + more_rows, 24}, numbers.data()}};
      fs::create_directories(dir / "adapter");
      write_safetensors(dir / "adapter/adapter_model.safetensors", tensors);
      std::ofstream(dir / "adapter/adapter_config.json")
          << R"({"peft_type":"LORA","r":2,"lora_alpha":4,"target_modules":["layers.0.self_attn.q_proj"]})";
      return refusal<FileError>([&] { LoraAdapter::load(dir / "adapter", model); });
    };
    for (const char* which : {"lm_head", "model.embed_tokens"}) {
      INFO(which);
      CHECK(attempt(0, 0, which) == "no error");
      CHECK(mentions(attempt(1, 0, which), "is not what the model has"));
      CHECK(mentions(attempt(0, 2, which), "of shape [63, 24] where the model has [61, 24]"));
    }
  }
}

MemoryConfig small_memory() {
  MemoryConfig config;
  config.n_init = 2;
  config.n_local = 32;
  config.n_mem = 8;
  config.chunk = 16;
  return config;
}

/// Reading the weights shows itself by what it finds.
TEST_CASE("odd models: weights are read for NaN only when a step's numbers are not finite") {
  const TempDir dir;
  const TinyLlama tiny({}, 11);
  std::vector<TensorToWrite> tensors = tiny.tensors();
  std::vector<float> embedding(61 * 24);
  for (TensorToWrite& t : tensors)
    if (t.name == "model.embed_tokens.weight") {
      std::memcpy(embedding.data(), t.data, embedding.size() * 4);
      embedding[60 * 24] = std::numeric_limits<float>::quiet_NaN();
      t.data = embedding.data();
    }
  tiny.write(dir.path());
  write_safetensors(dir / "model.safetensors", tensors);
  Decoder damaged = Decoder::load(dir.path());
  patch(damaged, small_memory());
  const std::vector<std::int64_t> few{3, 14, 15}, many(17, 3), with_it{3, 60, 4};
  // a caller's mistake, before and after a step: token 60's row is not looked at
  CHECK(mentions(refusal<DataError>([&] { damaged.forward(many); }), "chunk = 16"));
  damaged.forward(few);
  CHECK(mentions(refusal<DataError>([&] { damaged.forward(many); }), "chunk = 16"));
  // a slot that refuses for a reason of its own
  struct Refusing final : AttentionSlot {
    void forward(const TensorView&, const TensorView&, const TensorView&,
                 const MutableTensorView&) override {
      throw DataError("a reason of its own");
    }
  };
  const auto kept = damaged.attention(0);
  damaged.attention(0) = std::make_shared<Refusing>();
  CHECK(refusal<Error>([&] { damaged.forward(few); }) == "a reason of its own");
  damaged.attention(0) = kept;
  CHECK(mentions(refusal<Error>([&] { damaged.forward(with_it); }),
                 "'model.embed_tokens.weight' holds NaN or infinity in row 60"));
  damaged.forward(few);
}

TEST_CASE("odd models: weights that are all 0 or all 1e38 are refused, from either kind of file") {
  const TempDir dir;
  const TinyLlama tiny({.tied = true}, 12);
  for (const float number : {0.0f, 1e38f, -1e38f}) {
    INFO(number);
    std::vector<TensorToWrite> tensors = tiny.tensors();
    std::vector<float> all(61 * 44 * 24, number);
    for (TensorToWrite& t : tensors) t.data = all.data();
    Json config = tiny.config();
    config["max_position_embeddings"] = 64;
    std::ofstream(dir / "config.json") << config.dump();
    tiny.write(dir.path());
    std::ofstream(dir / "config.json") << config.dump();
    write_gguf(open_model(dir.path()), dir / "good.gguf", true);
    write_safetensors(dir / "model.safetensors", tensors);
    const auto run = [&](const fs::path& path) {
      return refusal<Error>([&] {
        Decoder model = Decoder::load(path);
        patch(model, small_memory());
        model.forward(std::span(kIds).first(16));
      });
    };
    const auto says_nothing = [](const fs::path& path) {  // no memory to refuse what it is given
      Decoder model = Decoder::load(path);
      const LogitsView logits = model.forward(kIds, LogitRows::last);
      return std::isnan(logits.floats().data()[0]);  // which no token is sampled from
    };
    const std::string error = run(dir.path());
    INFO(error);
    CHECK(error != "no error");
    if (number == 0)
      CHECK(mentions(error, "all numbers of tensor"));
    else
      CHECK(says_nothing(dir.path()));
    // the same as GGUF: every float of the data replaced where it lies
    std::ifstream in(dir / "good.gguf", std::ios::binary);
    std::string bytes((std::istreambuf_iterator<char>(in)), {});
    const GgufFile good(dir / "good.gguf");
    std::size_t data = 0;
    for (const StoredTensor* t : good.tensors()) data += static_cast<std::size_t>(t->bytes);
    REQUIRE(data > 0);
    const GgufContent content = parse_gguf(std::as_bytes(std::span(bytes)), "g");
    for (const StoredTensor& t : content.tensors)
      for (std::int64_t i = 0; i < t.bytes; i += 4)
        std::memcpy(bytes.data() + (reinterpret_cast<const char*>(t.data) - bytes.data()) + i,
                    &number, 4);
    dir.write("bad.gguf", bytes);
    const std::string of_gguf = run(dir / "bad.gguf");
    INFO(of_gguf);
    CHECK(of_gguf != "no error");
    if (number == 0)
      CHECK(mentions(of_gguf, "all numbers of tensor"));
    else
      CHECK(says_nothing(dir / "bad.gguf"));
  }
}

}  // namespace odd_models_test
