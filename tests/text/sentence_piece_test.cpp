// SPDX-License-Identifier: Apache-2.0
// tokenizer.model files, as the Python package sentencepiece reads them
// (make_sentencepiece_vectors.py).
#include <cstdlib>
#include <random>

#include "episodic/base/error.hpp"
#include "random_texts.hpp"
#include "support/refusal.hpp"
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

/// A tokenizer of that file alone.
std::unique_ptr<Tokenizer> load_file(const fs::path& file, const TempDir& dir) {
  fs::copy_file(file, dir.path() / "tokenizer.model", fs::copy_options::overwrite_existing);
  return load_tokenizer(dir.path());
}

/// Calls f(vectors of one model, its tokenizer) for each model whose file is at hand.
template <class F>
void for_each_model(const Json& all, F&& f) {
  int read = 0;
  for (const Json& model : all["models"]) {
    const fs::path file = file_of(model);
    if (file.empty()) continue;
    ++read;
    const TempDir dir;
    f(model, *load_file(file, dir));
  }
  REQUIRE(read >= 4);  // those of this repository
}

}  // namespace

TEST_CASE("tokenizer.model: ids and texts are those of the reference package") {
  const Json all = sentencepiece_vectors();
  for_each_model(all, [&](const Json& model, const Tokenizer& tokenizer) {
    const auto bos = model["bos"].get<std::int64_t>();
    REQUIRE(tokenizer.vocab_size() == model["vocab"].get<std::int64_t>());
    REQUIRE(tokenizer.bos() == bos);
    REQUIRE(tokenizer.eos() == model["eos"].get<std::int64_t>());
    for (std::size_t i = 0; i < all["texts"].size(); ++i) {
      const auto text = all["texts"][i].get<std::string>();
      auto ids = model["ids"][i].get<std::vector<std::int64_t>>();
      INFO(model["name"].get<std::string>() << ": '" << text << "'");
      CHECK(tokenizer.encode(text, false) == ids);
      const Json& decoded = model["decoded"][i];
      CHECK(tokenizer.decode(ids) == (decoded.is_boolean() ? text : decoded.get<std::string>()));
      if (bos >= 0) ids.insert(ids.begin(), bos);
      CHECK(tokenizer.encode(text) == ids);
    }
  });
}

TEST_CASE("tokenizer.model: ids and texts of random texts are those of the reference package") {
  const Json all = sentencepiece_vectors();
  for_each_model(all, [&](const Json& model, const Tokenizer& tokenizer) {
    const Json& random = model["random"];
    RandomTexts texts;
    TextSums sums;
    for (auto n = random["count"].get<std::int64_t>(); n > 0; --n)
      sums.add(tokenizer, texts.next());
    INFO(model["name"].get<std::string>());
    CHECK(std::to_string(sums.ids) == random["ids"].get<std::string>());
    if (!random["texts"].is_null())
      CHECK(std::to_string(sums.texts) == random["texts"].get<std::string>());
  });
}

TEST_CASE("tokenizer.model: special tokens, bytes and what tokenizer_config.json says") {
  const TempDir dir;
  const auto tokenizer = load_file(vectors_dir() / "spm_bpe.model", dir);
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

TEST_CASE(
    "tokenizer.model: tokens that the files beside it add are refused, not spelt in letters") {
  const TempDir dir;
  std::filesystem::copy_file(vectors_dir() / "spm_bpe.model", dir / "tokenizer.model");
  for (const auto& [file, text] :
       {std::pair("added_tokens.json", R"({"<|im_end|>": 32000})"),
        std::pair("special_tokens_map.json", R"({"additional_special_tokens": ["<|im_end|>"]})"),
        std::pair("tokenizer_config.json",
                  R"({"added_tokens_decoder": {"999": {"content": "<|im_end|>"}}})")}) {
    dir.write(file, text);
    const std::string said = refusal<FileError>([&] { load_tokenizer(dir.path()); });
    CHECK(mentions(said, "'<|im_end|>'"));
    CHECK(mentions(said, "save_pretrained"));
    std::filesystem::remove(dir / file);
  }
  // a token of the model, and one that fills batches, change no text
  dir.write("tokenizer_config.json", R"({"eos_token": "</s>", "pad_token": "<pad>"})");
  CHECK(load_tokenizer(dir.path())->eos() == load_tokenizer(dir.path())->id_of("</s>"));
}

TEST_CASE("tokenizer.model: a file of another kind is refused by name") {
  const TempDir dir;
  for (const char* text : {"", "IQ== 0\nIg== 1\n", "\x0a\xff\xff\xff\xff\xff\x0f"}) {
    dir.write("tokenizer.model", text);
    REQUIRE_THROWS_AS(load_tokenizer(dir.path()), FileError);
  }
  for (const char* name : {"spm_bpe.model", "spm_unigram.model", "spm_unigram_own.model"}) {
    std::ifstream in(vectors_dir() / name, std::ios::binary);
    const std::string whole(std::istreambuf_iterator<char>(in), {});
    std::mt19937 random(5);
    for (int i = 0; i < 200; ++i) {
      std::string damaged = whole;
      if (i % 2 == 0) damaged.resize(random() % damaged.size());
      for (std::size_t n = random() % 4; n > 0 && !damaged.empty(); --n)
        damaged[random() % damaged.size()] = static_cast<char>(random());
      dir.write("tokenizer.model", damaged);
      try {  // what is left may be a model of fewer pieces, or of other ones
        const auto tokenizer = load_tokenizer(dir.path());
        tokenizer->decode(tokenizer->encode("The \xef\xac\x81rst  \xe4\xb8\x96 \xff foo bar--\n"));
      } catch (const FileError& e) {
        REQUIRE(std::string(e.what()).find("tokenizer.model: ") != std::string::npos);
      }
    }
  }
}

TEST_CASE("tokenizer.model: what is wrong with a file is said") {
  const TempDir dir;
  const auto field = [](int number, const std::string& bytes) {  // up to 127 bytes
    return std::string{static_cast<char>(number << 3 | 2), static_cast<char>(bytes.size())} + bytes;
  };
  const auto piece = [&](const std::string& text, int type) {
    return field(1, field(1, text) + std::string{0x18, static_cast<char>(type)});
  };
  const std::string unknown = piece("<unk>", 2);
  const auto problem = [&](const std::string& file) -> std::string {
    dir.write("tokenizer.model", file);
    try {
      load_tokenizer(dir.path())->encode("ab");
    } catch (const FileError& e) {
      return e.what();
    }
    return "none";
  };
  const auto says = [&](const std::string& file, const std::string& what) {
    INFO(what);
    CHECK(problem(file).find(what) != std::string::npos);
  };
  CHECK(problem(unknown + piece("a", 1)) == "none");
  says(piece("a", 1), "there are 0 unknown pieces, expected one");
  says(unknown + unknown, "piece '<unk>' is there twice");
  says(unknown + piece("u2", 2), "there are 2 unknown pieces, expected one");
  says(unknown + piece("", 1), "piece 1 is empty");
  says(unknown + piece("a", 7), "piece 1 is of the unknown type 7");
  says(unknown + piece("<0x41>", 6), "there are 1 pieces for bytes, expected 0");
  says(unknown + field(2, {0x18, 3}), "model type 3 is not supported");
  says(unknown + field(1, field(1, "a") + std::string("\x15\x00\x00\xc0\x7f", 5)),
       "the score of piece 1 is NaN");
  says(unknown + field(3, field(2, "\x04")), "its table of characters");
  says(unknown + field(3, field(2, std::string("\x04\0\0\0\xff\xff\xff\xff\0", 9))),
       "its table of characters");
  says(unknown.substr(0, 5), "it ends within a field");
}
