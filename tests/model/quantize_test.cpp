// SPDX-License-Identifier: Apache-2.0
// Weights rounded in memory and written as GGUF. That the rounding is ggml's, bit by bit, is shown
// in tests/cpu/weights_test.cpp on vectors that the package gguf made.
#include "episodic/model/quantize.hpp"

#include <sys/resource.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/cpu/weights.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/identity.hpp"
#include "episodic/model/open_model.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"
#include "tiny_llama.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace quantize_test {

const fs::path kFamilies = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/families";
const fs::path kShipped = fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6";

ModelOptions as(TensorType type) {
  ModelOptions options;
  options.quantize = type;
  return options;
}

TinyShape rounded_shape() {
  TinyShape shape;
  shape.hidden = 64;
  shape.inner = 96;
  shape.dim = 16;
  return shape;
}

std::vector<std::byte> bytes_of(const StoredTensor& t) { return {t.data, t.data + t.bytes}; }

std::vector<float> floats_of(const StoredTensor& t) {
  std::vector<float> x(static_cast<std::size_t>(t.elements()));
  cpu::widen_row(t.type, t.data, t.elements(), x.data());
  return x;
}

/// Rows of q and k as GGUF has those of llama: row p * half + j of each head is its row 2 j + p.
template <class T>
std::vector<T> as_gguf_has_it(const OpenModel& model, const StoredTensor& t, std::vector<T> rows) {
  const bool q = t.name.find(".q_proj.") != std::string::npos;
  if (!q && t.name.find(".k_proj.") == std::string::npos) return rows;
  const auto heads = static_cast<std::size_t>(q ? model.config.n_heads : model.config.n_kv_heads);
  const std::size_t width = rows.size() / static_cast<std::size_t>(t.shape[0]);
  const std::size_t half = static_cast<std::size_t>(t.shape[0]) / heads / 2;
  std::vector<T> out(rows.size());
  for (std::size_t r = 0; r < static_cast<std::size_t>(t.shape[0]); ++r) {
    const std::size_t h = r / (2 * half), p = r / half % 2, j = r % half;
    for (std::size_t c = 0; c < width; ++c)
      out[(h * 2 * half + 2 * j + p) * width + c] = rows[r * width + c];
  }
  return out;
}

TEST_CASE("quantize: each row of a matrix is rounded, all else stays") {
  const TempDir dir;
  TinyLlama(rounded_shape(), 5).write(dir.path());
  const OpenModel plain = open_model(dir.path());
  for (const TensorType type : {TensorType::q8_0, TensorType::q4_0}) {
    const OpenModel model = open_model(dir.path(), as(type));
    REQUIRE(model.quantized == type);
    REQUIRE(model.tensors->tensors().size() == plain.tensors->tensors().size());
    for (const StoredTensor* was : plain.tensors->tensors()) {
      INFO(was->name);
      const StoredTensor& is = *model.tensors->find(was->name);
      REQUIRE(is.shape == was->shape);
      if (was->shape.size() == 1) {
        REQUIRE(is.type == was->type);
        REQUIRE((bytes_of(is) == bytes_of(*was)));
        continue;
      }
      const bool vocabulary =
          was->name == "model.embed_tokens.weight" || was->name == "lm_head.weight";
      REQUIRE(is.type == (vocabulary ? TensorType::q8_0 : type));
      const std::vector<float> numbers = floats_of(*was);
      std::vector<std::byte> row(static_cast<std::size_t>(cpu::row_bytes(is.type, was->shape[1])));
      for (std::int64_t r = 0; r < was->shape[0]; ++r) {
        cpu::quantize_row(is.type, numbers.data() + r * was->shape[1], was->shape[1], row.data());
        REQUIRE(std::memcmp(row.data(), is.data + r * static_cast<std::int64_t>(row.size()),
                            row.size()) == 0);
      }
    }
    // a memory made with the rounded model is another memory, whoever rounded it
    REQUIRE(identity_of(model).weights == identity_of(dir.path(), as(type)).weights);
    REQUIRE(identity_of(model).weights != identity_of(plain).weights);
  }
  REQUIRE(identity_of(dir.path(), as(TensorType::q8_0)).weights !=
          identity_of(dir.path(), as(TensorType::q4_0)).weights);
}

TEST_CASE("quantize: rows that no block fits stay, and a model of them is refused") {
  const OpenModel phi = open_model(kFamilies / "phi3_partial", as(TensorType::q4_0));
  // 32 numbers wide, but for what the feed-forward network computes
  REQUIRE(phi.tensors->find("model.layers.0.self_attn.qkv_proj.weight")->type == TensorType::q4_0);
  REQUIRE(phi.tensors->find("model.layers.0.mlp.down_proj.weight")->type == TensorType::f32);
  REQUIRE(
      mentions(refusal<ConfigError>([] { open_model(kFamilies / "llama2", as(TensorType::q8_0)); }),
               "no matrix has rows of a multiple of 32 numbers"));
}

TEST_CASE("quantize: what cannot be rounded is one error that names it") {
  const TempDir dir;
  for (const float bad : {NAN, std::numeric_limits<float>::infinity(), -3e38f}) {
    TinyLlama model(rounded_shape(), 5);
    model.write(dir.path());
    {
      // into a file that is right but for one number
      const OpenModel opened = open_model(dir.path());
      const StoredTensor& t = *opened.tensors->find("model.layers.1.mlp.up_proj.weight");
      std::vector<std::vector<std::byte>> copies;
      std::vector<TensorToWrite> tensors;
      for (const StoredTensor* view : opened.tensors->tensors()) {
        copies.push_back(bytes_of(*view));
        if (view == &t) std::memcpy(copies.back().data() + 4 * 64 * 3, &bad, 4);
      }
      std::size_t i = 0;
      for (const StoredTensor* view : opened.tensors->tensors())
        tensors.push_back({view->name, view->type, view->shape, copies[i++].data()});
      write_safetensors(dir / "bad.safetensors", tensors);
    }
    fs::rename(dir / "bad.safetensors", dir / "model.safetensors");
    const std::string error =
        refusal<DataError>([&] { open_model(dir.path(), as(TensorType::q8_0)); });
    INFO(error);
    REQUIRE(mentions(error, "model.layers.1.mlp.up_proj.weight'"));
    REQUIRE(mentions(error, "in row 3"));
  }
  TinyLlama(rounded_shape(), 5).write(dir.path());
  REQUIRE(mentions(refusal<ConfigError>([&] { open_model(dir.path(), as(TensorType::q4_k)); }),
                   "use q8_0 or q4_0"));
  OpenModel twice = open_model(dir.path(), as(TensorType::q8_0));
  REQUIRE(mentions(refusal<ConfigError>([&] { quantize_weights(twice, TensorType::q8_0); }),
                   "is quantised already (Q8_0)"));
  REQUIRE(quantized_type("q8_0") == TensorType::q8_0);
  REQUIRE(quantized_type("Q4_K") == std::nullopt);
}

TEST_CASE("gguf writer: what is written is read back as the same model") {
  const TempDir dir;
  int written = 0;
  for (const char* name :
       {"llama2", "llama3", "llama_biases", "rope_linear", "mistral", "mistral_nemo", "qwen2",
        "qwen3", "phi3", "phi3_longrope", "phi3_partial", "olmo2", "gemma2", "gemma3",
        "gemma3_linear", "granite", "smollm3", "rope_yarn"}) {
    INFO(name);
    const OpenModel model = open_model(kFamilies / name);
    const fs::path file = dir / (std::string(name) + ".gguf");
    write_gguf(model, file);
    const OpenModel read = open_model(file);
    const bool interleaved = read.config.ropes[0].table.pairs == RotaryPairs::interleaved;
    const std::string& type = model.config.model_type;
    REQUIRE(interleaved ==
            (type == "llama" || type == "mistral" || type == "granite" || type == "smollm3"));
    REQUIRE(read.config.n_layers == model.config.n_layers);
    std::vector<LayerSpec> layers = read.config.layers;
    for (std::size_t l = 0; l < layers.size(); ++l) {  // GGUF's numbers are float32
      const LayerSpec& was = model.config.layers.at(l);
      REQUIRE(std::abs(layers[l].scale - was.scale) <= 1e-6 * was.scale);
      layers[l].scale = was.scale;
    }
    REQUIRE((layers == model.config.layers));
    REQUIRE(read.config.eos_tokens == model.config.eos_tokens);
    for (const StoredTensor* was : model.tensors->tensors()) {
      INFO(was->name);
      const StoredTensor* is = read.tensors->find(was->name);
      REQUIRE(is != nullptr);
      REQUIRE(is->shape == was->shape);
      std::vector<float> expected = floats_of(*was);
      if (interleaved) expected = as_gguf_has_it(model, *was, expected);
      const std::vector<float> got = floats_of(*is);
      if (type.starts_with("gemma") && was->shape.size() == 1) {  // 1 is added, and taken away
        for (std::size_t i = 0; i < got.size(); ++i)
          REQUIRE(std::abs(got[i] - expected[i]) <= 0x1p-22f);
      } else {
        REQUIRE(got == expected);
      }
    }
    ++written;
  }
  REQUIRE(written == 18);
}

TEST_CASE("gguf writer: the shipped model in 8 bits keeps its numbers and its tokenizer") {
  const TempDir dir;
  const OpenModel model = open_model(kShipped, as(TensorType::q8_0));
  write_gguf(model, dir / "m.gguf");
  const OpenModel read = open_model(dir / "m.gguf");
  for (const StoredTensor* was : model.tensors->tensors()) {
    INFO(was->name);
    const StoredTensor* is = read.tensors->find(was->name);
    REQUIRE(is != nullptr);
    if (was->shape.size() == 1) {
      REQUIRE(floats_of(*is) == floats_of(*was));
      continue;
    }
    REQUIRE(is->type == TensorType::q8_0);
    REQUIRE((bytes_of(*is) == as_gguf_has_it(model, *was, bytes_of(*was))));
  }
  const auto one = load_model_tokenizer(kShipped), other = load_model_tokenizer(dir / "m.gguf");
  for (const char* text : {"The pass key is 60453.", "", "na\xc3\xafve <|bos|> \n\n 12"})
    REQUIRE(one->encode(text) == other->encode(text));
  REQUIRE(one->bos() == other->bos());
  REQUIRE(one->eos() == other->eos());
  REQUIRE(identity_of(read).tokenizer != "");
}

TEST_CASE("gguf writer: what GGUF has no words for is refused, and no file is left") {
  const TempDir dir;
  const auto said = [&](const char* family) {
    const OpenModel model = open_model(kFamilies / family);
    return refusal<ConfigError>([&] { write_gguf(model, dir / "m.gguf"); });
  };
  REQUIRE(mentions(said("mistral_window"), "its sliding windows cannot be said"));
  REQUIRE(mentions(said("rope_dynamic"), "its rope cannot be said"));
  ModelOptions beside;
  beside.lora = {{fs::path(EPISODIC_SOURCE_DIR) / "tests/model/adapters/llama2_all", 1.0}};
  const OpenModel adapted = open_model(kFamilies / "llama2", beside);
  REQUIRE(mentions(refusal<ConfigError>([&] { write_gguf(adapted, dir / "m.gguf"); }),
                   "adapters beside the weights have no place"));
  REQUIRE(fs::is_empty(dir.path()));
  // Only tokenizer.json and tokenizer_config.json find a place in the file.
  const TempDir more;
  fs::copy(kShipped, more.path());
  more.write("special_tokens_map.json", R"({"bos_token": "<|bos|>"})");
  write_gguf(open_model(more.path()), dir / "m.gguf");  // says nothing new
  fs::remove(dir / "m.gguf");
  more.write("added_tokens.json", R"({"<|tool|>": 1024})");
  REQUIRE(
      mentions(refusal<ConfigError>([&] { write_gguf(open_model(more.path()), dir / "m.gguf"); }),
               "added_tokens.json"));
  REQUIRE(fs::is_empty(dir.path()));
}

TEST_CASE("gguf writer: a file that is there, a folder that is not, a full disk") {
  const TempDir dir;
  const OpenModel model = open_model(kFamilies / "llama2");
  dir.write("there.gguf", "kept");
  REQUIRE(mentions(refusal<FileError>([&] { write_gguf(model, dir / "there.gguf"); }),
                   "there.gguf: is there already"));
  REQUIRE(fs::file_size(dir / "there.gguf") == 4);
  REQUIRE(mentions(refusal<FileError>([&] { write_gguf(model, dir / "no/m.gguf"); }),
                   "cannot be written"));
  REQUIRE(
      mentions(refusal<FileError>([&] { write_gguf(model, dir.path(), true); }), "is a directory"));

  // a disk that takes the first 4 KB: the old file stays, the new one leaves nothing behind
  struct rlimit before {};
  ::getrlimit(RLIMIT_FSIZE, &before);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit little{4096, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &little);
  const std::string full = refusal<FileError>([&] { write_gguf(model, dir / "there.gguf", true); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, old_handler);
  REQUIRE(mentions(full, "there.gguf: cannot be written"));
  REQUIRE(fs::file_size(dir / "there.gguf") == 4);
  REQUIRE(std::distance(fs::directory_iterator(dir.path()), fs::directory_iterator()) == 1);

  REQUIRE_NOTHROW(write_gguf(model, dir / "there.gguf", true));
  const OpenModel read = open_model(dir / "there.gguf");
  REQUIRE(read.config.n_layers == 2);
  REQUIRE(mentions(refusal<ConfigError>([&] { write_gguf(read, dir / "again.gguf"); }),
                   "is one file already"));
}

}  // namespace quantize_test
