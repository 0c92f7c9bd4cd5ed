// SPDX-License-Identifier: Apache-2.0
// The GGUF file of a real model beside what was made of it for Hugging Face, if they are there:
// scripts or tools that fetch them say how (docs/weights.md).
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>

#include "episodic/cpu/weights.hpp"
#include "episodic/model/gguf.hpp"
#include "episodic/model/safetensors.hpp"
#include "episodic/text/tokenizer.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

namespace fs = std::filesystem;

/// The package's file, beside its converted form.
std::optional<fs::path> gguf_file() {
  const auto dir = real_model_dir();
  if (!dir) return std::nullopt;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(*dir, error))
    if (entry.path().extension() == ".gguf") return entry.path();
  return std::nullopt;
}

}  // namespace

TEST_CASE("gguf, a real model: it agrees with its converted form") {
  const auto path = gguf_file();
  if (!path) EPISODIC_SKIP("no GGUF file of the real model; scripts/real_model fetches it");
  const GgufSource source(*path);
  const fs::path dir = path->parent_path();
  if (!fs::exists(dir / "model.safetensors")) EPISODIC_SKIP("no converted form beside it");

  const Weights converted(dir);
  const auto names = [](const TensorSource& s) {
    std::vector<std::string> out;
    for (const StoredTensor* t : s.tensors()) out.push_back(t->name);
    return out;
  };
  REQUIRE(names(source) == names(converted));
  std::int64_t elements = 0;
  for (const StoredTensor* t : source.tensors()) {
    const StoredTensor* other = converted.find(t->name);
    INFO(t->name);
    REQUIRE(t->shape == other->shape);
    elements += t->elements();
    const std::int64_t width = t->shape.back();
    const std::int64_t rows = t->elements() / width;
    std::vector<float> a(static_cast<std::size_t>(width)), b(a);
    for (std::int64_t r = 0; r<rows; r += rows> 3000 ? 997 : 1) {
      cpu::widen_row(t->type, t->data + r * cpu::row_bytes(t->type, width), width, a.data());
      cpu::widen_row(other->type, other->data + r * cpu::row_bytes(other->type, width), width,
                     b.data());
      for (std::size_t c = 0; c < a.size(); ++c)  // it was rounded to bfloat16
        if (!(std::abs(a[c] - b[c]) <= std::abs(a[c]) * 0.00391f))
          REQUIRE(std::abs(a[c] - b[c]) <= std::abs(a[c]) * 0.00391f);
    }
  }
  REQUIRE(elements > 260'000'000);
}

TEST_CASE("gguf, a real model: its settings are those of the converted form") {
  const auto path = gguf_file();
  if (!path) EPISODIC_SKIP("no GGUF file of the real model; scripts/real_model fetches it");
  const auto config = nlohmann::json::parse(GgufSource(*path).config_json());
  const MappedFile file(path->parent_path() / "config.json");
  const auto wanted = nlohmann::json::parse(
      std::string_view(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()));
  for (const char* key : {"model_type",          "vocab_size",        "hidden_size",
                          "intermediate_size",   "num_hidden_layers", "num_attention_heads",
                          "num_key_value_heads", "head_dim",          "max_position_embeddings",
                          "rms_norm_eps",        "hidden_activation", "tie_word_embeddings",
                          "rope_theta",          "rope_scaling",      "rope_local_base_freq",
                          "sliding_window",      "layer_types",       "query_pre_attn_scalar",
                          "attention_bias",      "bos_token_id"}) {
    INFO(key << ": " << config[key] << ", expected " << wanted[key]);
    CHECK(config[key] == wanted[key]);
  }
}

TEST_CASE("gguf, a real model: its tokenizer gives the ids of the converted form") {
  const auto path = gguf_file();
  if (!path) EPISODIC_SKIP("no GGUF file of the real model; scripts/real_model fetches it");
  const GgufFile file(*path);
  const auto tokenizer = load_tokenizer(file);
  const auto converted = load_tokenizer(path->parent_path());
  REQUIRE(tokenizer->vocab_size() == converted->vocab_size());
  REQUIRE(tokenizer->bos() == converted->bos());
  REQUIRE_FALSE(chat_template(file).has_value());
  for (const char* text :
       {"", "Hello, world!", "  two  spaces\n\n\nlines\t\ttabs",
        "<start_of_turn>user\nhi<end_of_turn>",
        "caf\xc3\xa9 \xe4\xbd\xa0\xe5\xa5\xbd \xf0\x9f\x98\x80 \xd0\x9c\xd0\xb8\xd1\x80",
        "def f(x):\n    return x ** 2  # 12345.678", "<table><b>x</b></table>"}) {
    INFO(text);
    const auto ids = tokenizer->encode(text);
    CHECK(ids == converted->encode(text));
    CHECK(tokenizer->decode(ids) == converted->decode(ids));
  }
  const auto shared = shared_dir();
  if (!shared || !fs::exists(*shared / "golden/gemma3_270m/tokenizer_vectors.json")) return;
  const MappedFile vectors(*shared / "golden/gemma3_270m/tokenizer_vectors.json");
  const auto golden = nlohmann::json::parse(std::string_view(
      reinterpret_cast<const char*>(vectors.bytes().data()), vectors.bytes().size()));
  REQUIRE(golden.size() > 0);
  for (const auto& v : golden) {
    const std::string text = v["text"];
    INFO(text);
    const auto ids = v["ids"].get<std::vector<std::int64_t>>();
    CHECK(tokenizer->encode(text) == ids);
    CHECK(tokenizer->decode(ids) == converted->decode(ids));
  }
}
