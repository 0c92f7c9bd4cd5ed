// SPDX-License-Identifier: Apache-2.0
// A tiny random encoder against a float64 run of sentence-transformers
// (models/reference/make_sentence_encoder.py).
#include "episodic/model/sentence_encoder.hpp"

#include "support/test.hpp"

#include <cmath>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>

#include "episodic/base/dtype.hpp"
#include "episodic/base/error.hpp"
#include "episodic/model/safetensors.hpp"
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"

using namespace episodic;
namespace fs = std::filesystem;
using Json = nlohmann::json;
using Floats = std::vector<float>;

namespace {

const fs::path kFolder = fs::path(EPISODIC_SOURCE_DIR) / "tests/model/sentence_encoder";

Json json_of(const fs::path& file) {
  std::ifstream in(file);
  return Json::parse(in);
}

const std::vector<std::string>& texts() {
  static const auto all = json_of(kFolder / "texts.json").get<std::vector<std::string>>();
  return all;
}

Floats floats_of(const StoredTensor& t) {
  Floats out(static_cast<std::size_t>(t.elements()));
  std::memcpy(out.data(), t.data, out.size() * sizeof(float));
  return out;
}

Floats expected(const char* name) {
  return floats_of(SafetensorsFile(kFolder / "expected.safetensors").at(name));
}

double largest_difference(const Floats& a, const Floats& b) {
  REQUIRE(a.size() == b.size());
  double most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    REQUIRE(std::isfinite(a[i]));
    most = std::max(most, std::abs(static_cast<double>(a[i]) - static_cast<double>(b[i])));
  }
  return most;
}

/// A copy of the tiny encoder that a test may spoil.
struct Copy {
  TempDir dir;

  Copy() { fs::copy(kFolder / "tiny", dir.path(), fs::copy_options::recursive); }
  void change(const std::string& file, const std::function<void(Json&)>& change) const {
    Json json = json_of(dir / file);
    change(json);
    dir.write(file, json.dump());
  }
  void set(const std::string& file, const std::string& key, const Json& value) const {
    change(file, [&](Json& json) { json[key] = value; });
  }
  /// Writes the weights again. \param rename the name that a tensor gets; empty: it is left out
  void rewrite(TensorType type, const std::function<std::string(const std::string&)>& rename,
               float factor = 1) const {
    std::vector<TensorToWrite> tensors;
    std::vector<std::vector<std::uint16_t>> halves;
    std::vector<Floats> floats;
    const SafetensorsFile file(kFolder / "tiny/model.safetensors");
    halves.reserve(file.tensors().size());
    floats.reserve(file.tensors().size());
    for (const StoredTensor& t : file.tensors()) {
      const std::string name = rename(t.name);
      if (name.empty()) continue;
      floats.push_back(floats_of(t));
      for (float& x : floats.back()) x *= factor;
      halves.emplace_back();
      for (const float x : floats.back())
        halves.back().push_back(type == TensorType::f16 ? to_float16(x) : to_bfloat16(x));
      const void* data = halves.back().data();
      if (type == TensorType::f32) data = floats.back().data();
      tensors.push_back({name, type, t.shape, data});
    }
    write_safetensors(dir / "model.safetensors", tensors);
  }
  std::string refused() const {
    return refusal<FileError>([&] { SentenceEncoder::open(dir.path()); });
  }
};

std::string same_name(const std::string& name) { return name; }

}  // namespace

TEST_CASE("sentence vectors are sentence-transformers'") {
  const auto encoder = SentenceEncoder::open(kFolder / "tiny");
  CHECK(encoder.width() == 24);
  CHECK(encoder.max_tokens() == 32);
  const Floats reference = expected("tiny");
  REQUIRE(reference.size() == texts().size() * 24);
  Floats alone;
  for (const std::string& text : texts()) {
    const Floats v = encoder.encode(text);
    CHECK(std::inner_product(v.begin(), v.end(), v.begin(), 0.0) == Approx(1).epsilon(1e-6));
    alone.insert(alone.end(), v.begin(), v.end());
  }
  CHECK(largest_difference(alone, reference) < 2e-6);
  CHECK(largest_difference(encoder.encode_all(texts()), reference) < 2e-6);
  CHECK(encoder.encode_all({}).empty());
}

TEST_CASE("many texts at once are what each of them is") {
  const auto encoder = SentenceEncoder::open(kFolder / "tiny");
  std::vector<std::string> many;
  Floats one_by_one;
  for (int i = 0; i < 120; ++i) {  // more tokens than go through the layers at once
    many.push_back(texts()[static_cast<std::size_t>(i) % texts().size()] + " " + std::to_string(i));
    const Floats v = encoder.encode(many.back());
    one_by_one.insert(one_by_one.end(), v.begin(), v.end());
  }
  CHECK(largest_difference(encoder.encode_all(many), one_by_one) < 2e-6);
}

TEST_CASE("pooling by the first token") {
  const Copy copy;
  copy.set("1_Pooling/config.json", "pooling_mode_mean_tokens", false);
  copy.set("1_Pooling/config.json", "pooling_mode_cls_token", true);
  const auto encoder = SentenceEncoder::open(copy.dir.path());
  CHECK(largest_difference(encoder.encode_all(texts()), expected("tiny_first")) < 2e-6);
}

TEST_CASE("a directory without sentence-transformers' files takes means, and all positions") {
  const Copy copy;
  fs::remove_all(copy.dir / "1_Pooling");
  fs::remove(copy.dir / "modules.json");
  fs::remove(copy.dir / "sentence_bert_config.json");
  CHECK(SentenceEncoder::open(copy.dir.path()).max_tokens() == 40);
  CHECK(SentenceEncoder::open(kFolder / "tiny", SentenceEncoder::kAllPositions).max_tokens() == 40);
  const auto encoder = SentenceEncoder::open(copy.dir.path(), 32);
  CHECK(encoder.max_tokens() == 32);
  CHECK(largest_difference(encoder.encode_all(texts()), expected("tiny")) < 2e-6);
}

TEST_CASE("a long text is read up to max_tokens") {
  const auto encoder = SentenceEncoder::open(kFolder / "tiny", 6);  // 4 of the text
  const Floats four = encoder.encode(". . . .");
  CHECK(encoder.count_tokens("") == 2);
  CHECK(encoder.count_tokens(". . . .") == 6);
  CHECK(encoder.count_tokens(". . . . . . . .") == 10);  // what is left out is counted
  CHECK(largest_difference(four, encoder.encode(". . . . grass green")) == 0);
  CHECK(largest_difference(four, encoder.encode(". . . grass green")) > 1e-3);
  CHECK(largest_difference(four, encoder.encode(". . .")) > 1e-3);
  for (const std::int64_t n : {-2, 1, 2, 41})
    CHECK(mentions(refusal<ConfigError>([&] { SentenceEncoder::open(kFolder / "tiny", n); }),
                   "max_tokens = " + std::to_string(n)));
}

TEST_CASE("weights of two bytes, and those of a model with a head on top") {
  const Floats reference = expected("tiny");
  for (const TensorType type : {TensorType::f16, TensorType::bf16}) {
    const Copy copy;
    copy.rewrite(type, [](const std::string& name) { return "bert." + name; });
    const Floats v = SentenceEncoder::open(copy.dir.path()).encode_all(texts());
    // rounded weights: 2^-11 and 2^-8 each
    CHECK(largest_difference(v, reference) < (type == TensorType::f16 ? 5e-3 : 4e-2));
  }
}

TEST_CASE("vocab.txt stands in for tokenizer.json") {
  const Copy copy;
  const Json vocab = json_of(copy.dir / "tokenizer.json")["model"]["vocab"];
  std::vector<std::string> lines(vocab.size());
  for (const auto& [entry, id] : vocab.items()) lines[id.get<std::size_t>()] = entry;
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  copy.dir.write("vocab.txt", text);
  fs::remove(copy.dir / "tokenizer.json");
  CHECK(largest_difference(SentenceEncoder::open(copy.dir.path()).encode_all(texts()),
                           expected("tiny")) < 2e-6);
}

TEST_CASE("an encoder's fingerprint tells its weights") {
  const Copy same, other;
  other.rewrite(TensorType::f32, same_name, 1.5f);
  const auto of = [](const fs::path& dir) { return SentenceEncoder::open(dir).fingerprint(); };
  CHECK(of(same.dir.path()) == of(kFolder / "tiny"));
  CHECK(of(other.dir.path()) != of(kFolder / "tiny"));
}

TEST_CASE("what is no such encoder is refused by file and key") {
  struct Row {
    const char *file, *key;
    Json value;
    std::vector<std::string> words;
  };
  const Row rows[] = {
      {"config.json", "model_type", "llama", {"config.json", "model_type", "llama", "bert"}},
      {"config.json", "hidden_act", "relu", {"config.json", "hidden_act", "relu"}},
      {"config.json", "position_embedding_type", "relative_key", {"position_embedding_type"}},
      {"config.json", "is_decoder", true, {"is_decoder"}},
      {"config.json", "num_attention_heads", 5, {"num_attention_heads", "hidden_size"}},
      {"config.json", "hidden_size", 32, {"model.safetensors", "embeddings", "[", "32"}},
      {"config.json", "num_hidden_layers", 3, {"encoder.layer.2."}},
      {"config.json", "layer_norm_eps", -1, {"layer_norm_eps"}},
      {"1_Pooling/config.json", "pooling_mode_max_tokens", true, {"1_Pooling", "max_tokens"}},
      {"1_Pooling/config.json", "pooling_mode_cls_token", true, {"one of them"}},
      {"modules.json",
       "",
       Json::array({{{"type", "sentence_transformers.models.Dense"}}}),
       {"modules.json", "Dense"}},
      {"modules.json", "", 3, {"modules.json"}},
      {"sentence_bert_config.json", "max_seq_length", 100, {"max_seq_length"}},
      {"tokenizer.json", "post_processor", nullptr, {"special tokens"}},
  };
  for (const Row& row : rows) {
    const Copy copy;
    copy.change(row.file, [&](Json& json) { (*row.key ? json[row.key] : json) = row.value; });
    const std::string message = copy.refused();
    INFO(row.file << " " << row.key << ": " << message);
    for (const std::string& word : row.words) CHECK(mentions(message, word));
  }
  const Copy none;
  fs::remove(none.dir / "config.json");
  CHECK(mentions(none.refused(), "config.json"));
  const Copy tokens;
  tokens.change("tokenizer.json", [](Json& json) {
    json["added_tokens"].push_back({{"id", json["model"]["vocab"].size()}, {"content", "<more>"}});
  });
  CHECK(mentions(tokens.refused(), "vocab_size"));
  const Copy missing;
  const std::string lost = "encoder.layer.1.output.LayerNorm.bias";
  missing.rewrite(TensorType::f32,
                  [&](const std::string& name) { return name == lost ? "" : name; });
  CHECK(mentions(missing.refused(), lost));
}

TEST_CASE("weights that are no numbers give no vector") {
  const Copy copy;
  copy.rewrite(TensorType::f32, same_name, std::numeric_limits<float>::quiet_NaN());
  const auto encoder = SentenceEncoder::open(copy.dir.path());
  CHECK(mentions(refusal<DataError>([&] { encoder.encode("a text"); }), "weights are damaged"));
}
