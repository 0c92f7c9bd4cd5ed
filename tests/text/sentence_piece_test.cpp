// SPDX-License-Identifier: Apache-2.0
// tokenizer.model files, as the Python package sentencepiece reads them
// (make_sentencepiece_vectors.py).
#include <cstdlib>

#include "episodic/base/error.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace {

namespace fs = std::filesystem;

fs::path vectors_dir() { return fs::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors"; }

Json sentencepiece_vectors() {
  std::ifstream file(vectors_dir() / "sentencepiece.json");
  return Json::parse(file);
}

/// Where the model's file lies; empty if it is not at hand.
fs::path file_of(const Json& model) {
  const auto name = model["file"].get<std::string>();
  if (fs::exists(vectors_dir() / name)) return vectors_dir() / name;
  if (const auto shared = shared_dir(); shared && fs::exists(*shared / "data" / name))
    return *shared / "data" / name;
  const char* real = std::getenv("EPISODIC_REAL_MODEL");
  if (real && model["name"] == "gemma" && fs::exists(fs::path(real) / name))
    return fs::path(real) / name;
  return {};
}

/// A tokenizer of that file alone; null in a build without the library.
std::unique_ptr<Tokenizer> load_file(const fs::path& file, const TempDir& dir) {
  fs::copy_file(file, dir.path() / "tokenizer.model", fs::copy_options::overwrite_existing);
  try {
    return load_tokenizer(dir.path());
  } catch (const NotBuiltError&) {
    return nullptr;
  }
}

}  // namespace

TEST_CASE("tokenizer.model: ids and texts are those of the reference package") {
  const Json all = sentencepiece_vectors();
  int read = 0;
  for (const Json& model : all["models"]) {
    const fs::path file = file_of(model);
    if (file.empty()) continue;
    ++read;
    const TempDir dir;
    const auto tokenizer = load_file(file, dir);
    if (!tokenizer) EPISODIC_SKIP("built without the library SentencePiece");
    const auto bos = model["bos"].get<std::int64_t>();
    REQUIRE(tokenizer->vocab_size() == model["vocab"].get<std::int64_t>());
    REQUIRE(tokenizer->bos() == bos);
    REQUIRE(tokenizer->eos() == model["eos"].get<std::int64_t>());
    for (std::size_t i = 0; i < all["texts"].size(); ++i) {
      const auto text = all["texts"][i].get<std::string>();
      auto ids = model["ids"][i].get<std::vector<std::int64_t>>();
      INFO(model["name"].get<std::string>() << ": '" << text << "'");
      CHECK(tokenizer->encode(text, false) == ids);
      const Json& decoded = model["decoded"][i];
      CHECK(tokenizer->decode(ids) == (decoded.is_boolean() ? text : decoded.get<std::string>()));
      if (bos >= 0) ids.insert(ids.begin(), bos);
      CHECK(tokenizer->encode(text) == ids);
    }
  }
  REQUIRE(read >= 2);  // those of this repository
}

TEST_CASE("tokenizer.model: special tokens, bytes and what tokenizer_config.json says") {
  const TempDir dir;
  const auto tokenizer = load_file(vectors_dir() / "spm_bpe.model", dir);
  if (!tokenizer) EPISODIC_SKIP("built without the library SentencePiece");
  const std::vector<std::int64_t> hello = tokenizer->encode("hello", false);
  REQUIRE(tokenizer->decode(tokenizer->encode("hello")) == "hello");
  REQUIRE(tokenizer->decode(tokenizer->encode("hello"), false) == "<s>hello");
  // the text of a special token stays text
  for (const std::int64_t id : tokenizer->encode("</s>", false)) REQUIRE(id != tokenizer->eos());
  // bytes of a character that is not whole yet are handed on as they are
  const std::int64_t first = tokenizer->id_of("<0xC3>"), second = tokenizer->id_of("<0xA9>");
  REQUIRE(first >= 0);
  REQUIRE(tokenizer->decode({first}) == "\xc3");
  StreamDecoder stream(*tokenizer);
  REQUIRE(stream.push(first).empty());
  REQUIRE(stream.push(second) == "\xc3\xa9");
  REQUIRE(tokenizer->id_of("no such piece") == -1);
  REQUIRE(tokenizer->token(tokenizer->bos()) == "<s>");
  REQUIRE_THROWS_AS(tokenizer->decode({-1}), DataError);
  REQUIRE_THROWS_AS(tokenizer->token(tokenizer->vocab_size()), DataError);

  dir.write("tokenizer_config.json",
            R"({"add_bos_token": false, "add_eos_token": true, "eos_token": {"content": "</s>"}})");
  std::vector<std::int64_t> ended = hello;
  ended.push_back(tokenizer->eos());
  REQUIRE(load_tokenizer(dir.path())->encode("hello") == ended);
  dir.write("tokenizer_config.json", R"({"bos_token": "<none>"})");
  REQUIRE_THROWS_AS(load_tokenizer(dir.path()), FileError);
}

TEST_CASE("tokenizer.model: a file of another kind is refused by name") {
  const TempDir dir;
  if (!load_file(vectors_dir() / "spm_bpe.model", dir))
    EPISODIC_SKIP("built without the library SentencePiece");
  for (const char* text : {"", "IQ== 0\nIg== 1\n", "\x0a\xff\xff\xff\xff\xff\x0f"}) {
    dir.write("tokenizer.model", text);
    REQUIRE_THROWS_AS(load_tokenizer(dir.path()), FileError);
  }
  std::ifstream in(vectors_dir() / "spm_bpe.model", std::ios::binary);
  const std::string whole(std::istreambuf_iterator<char>(in), {});
  for (std::size_t n = 1; n < whole.size(); n += 97) {
    dir.write("tokenizer.model", whole.substr(0, n));
    try {
      load_tokenizer(dir.path());  // a prefix may be a model of fewer pieces
    } catch (const FileError&) {
    }
  }
}
