// SPDX-License-Identifier: Apache-2.0
// Tokenizer files that are odd, damaged or hostile: as Hugging Face's tokenizers reads them
// (make_odd_vectors.py), or refused by name; never memory or time beyond what the files and the
// text are worth.
#include <deque>
#include <map>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/text/gguf_vocabulary.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace odd_files_test {

const Json& odd_vectors() {
  static const Json v = Json::parse(
      read_file(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/odd.json"));
  return v;
}

/// What the reference loads and we refuse, and what the message must name.
const std::map<std::string, std::string> kRefused = {
    {"vocabulary with a hole", "model.vocab: 'hole' has id 900"},
    {"two tokens of one id", "model.vocab: id 5 is given to"},
    {"dropout", "model.dropout"},
    {"unk_token that is not there", "model.unk_token: '<none>' is not in the vocabulary"},
    {"model Unigram", "model.type: model 'Unigram' is not supported"},
    {"model WordLevel", "model.type: model 'WordLevel' is not supported"},
    {"the lower-casing normalizer", "normalizer.type: normalizer 'Lowercase' is not supported"},
    {"the stripping normalizer", "normalizer.type: normalizer 'Strip' is not supported"},
    {"replace of nothing", "normalizer.pattern: may match nothing at all"},
    {"replace by a pattern of nothing", "normalizer.pattern: may match nothing at all"},
    {"template without the text", "the text is not in the template"},
};

TEST_CASE("odd tokenizer files: as the reference reads them, or refused by name") {
  const Json& v = odd_vectors();
  REQUIRE(v["rows"].size() >= 60);
  for (const Json& row : v["rows"]) {
    const auto name = row["name"].get<std::string>();
    INFO(name);
    Json tokenizer = v["bases"][row["base"].get<std::string>()];
    for (const Json& change : row["change"]) {
      Json* at = &tokenizer;
      const auto keys = change[0].get<std::vector<std::string>>();
      for (std::size_t i = 0; i + 1 < keys.size(); ++i) at = &(*at)[keys[i]];
      change[2].get<bool>() ? static_cast<void>(at->erase(keys.back()))
                            : static_cast<void>((*at)[keys.back()] = change[1]);
    }
    std::unique_ptr<Tokenizer> t;
    const std::string said = [&]() -> std::string {
      try {
        t = load(tokenizer);
        return "";
      } catch (const FileError& e) {
        return e.what();
      }
    }();
    INFO(said);
    const auto expected = kRefused.find(name);
    if (row.contains("refused")) continue;  // whatever we make of it, it is no crash
    CHECK((t == nullptr) == (expected != kRefused.end()));
    if (!t) {
      if (expected != kRefused.end()) CHECK(mentions(said, expected->second));
      continue;
    }
    for (std::size_t i = 0; i < v["texts"].size(); ++i) {
      const auto text = v["texts"][i].get<std::string>();
      INFO("text '" << text << "'");
      const auto ids = row["cases"][i][0].get<std::vector<std::int64_t>>();
      CHECK(t->encode(text) == ids);
      CHECK(t->decode(ids, false) == row["cases"][i][1].get<std::string>());
    }
  }
}

Json steps(const char* key, const Json& step, int n) {
  Json list = Json::array();
  for (int i = 0; i < n; ++i) list.push_back(step);
  return {{"type", "Sequence"}, {key, list}};
}

Json base(const char* name) { return odd_vectors()["bases"][name]; }

TEST_CASE("a normalizer or decoder that multiplies a text is an error, before it takes the room") {
  const Json many = {
      {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(1000, 'a')}};
  const Json prepend = {{"type", "Prepend"}, {"prepend", std::string(1 << 20, 'b')}};
  const Json regex = {
      {"type", "Replace"}, {"pattern", {{"Regex", "a"}}}, {"content", std::string(1000, 'a')}};
  for (const Json& normalizer : {steps("normalizers", many, 6), steps("normalizers", regex, 6),
                                 steps("normalizers", prepend, 100),
                                 steps("normalizers", steps("normalizers", many, 6), 2)}) {
    Json json = base("bytes");
    json["normalizer"] = normalizer;
    json["added_tokens"] = Json::array();
    const auto t = load(json);
    CHECK(mentions(refusal<DataError>([&] { t->encode("aaaa"); }), "the normalizer"));
    CHECK(t->encode("").empty());
  }
  Json json = base("bytes");
  json["decoder"] = steps("decoders", many, 6);
  CHECK(mentions(refusal<DataError>([&] { load(json)->decode({64, 64}); }), "the decoder"));
  // one at each of many gaps: together they count
  json = base("bytes");
  json["normalizer"] = {{"type", "Prepend"}, {"prepend", std::string(1 << 16, 'b')}};
  std::string text;
  for (int i = 0; i < 2000; ++i) text += "a<|end|>";
  CHECK(mentions(refusal<DataError>([&] { load(json)->encode(text); }), "the normalizer"));
  // added tokens are normalized when the file is loaded
  json["added_tokens"] = Json::array();
  for (int i = 0; i < 200; ++i)
    json["added_tokens"].push_back({{"id", 256 + i},
                                    {"content", "<" + std::to_string(i) + ">"},
                                    {"special", false},
                                    {"normalized", true}});
  CHECK(mentions(refusal<FileError>([&] { load(json); }), "the normalizer"));
}

TEST_CASE("steps, stages and long tokens have their limits") {
  const Json digits = {{"type", "Digits"}, {"individual_digits", true}};
  Json json = base("bytes");
  json["pre_tokenizer"] = steps("pretokenizers", digits, 100000);
  CHECK(mentions(refusal<FileError>([&] { load(json); }), "more than 64 stages"));
  json = base("bytes");
  json["normalizer"] = steps("normalizers", {{"type", "NFC"}}, 1000);
  CHECK(mentions(refusal<FileError>([&] { load(json); }), "more than 128 steps"));
  json = base("bytes");
  json["decoder"] = steps("decoders", {{"type", "Fuse"}}, 1000);
  CHECK(mentions(refusal<FileError>([&] { load(json); }), "more than 128 steps"));
  json = base("bytes");
  json["added_tokens"].push_back({{"id", 257}, {"content", std::string(1 << 20, 'a')}});
  CHECK(mentions(refusal<FileError>([&] { load(json); }), "1048576 bytes"));
}

TEST_CASE("a pattern that goes wrong at many places is given up on") {
  Json json = base("bytes");
  json["pre_tokenizer"] = {{"type", "Split"},
                           {"pattern", {{"Regex", "(?:a|a)+[bd]"}}},
                           {"behavior", "Isolated"},
                           {"invert", false}};
  std::string text;
  for (int i = 0; i < 4000; ++i) text += std::string(18, 'a') + "c b";
  CHECK(mentions(refusal<DataError>([&] { load(json)->encode(text); }), "gave up"));
}

TEST_CASE("a GGUF vocabulary whose pieces make each other up in every way") {
  // bytes, and a, aa, aaa, ...: the ways grow with the square, their texts with the cube
  for (const std::size_t longest : {std::size_t{1200}, std::size_t{4096}}) {
    std::deque<std::string> texts;
    GgufVocabulary v;
    v.file = "m.gguf";
    v.model = "llama";
    const auto add = [&](const std::string& token, std::int64_t type, double score) {
      v.tokens.push_back(texts.emplace_back(token));
      v.types.push_back(type);
      v.scores.push_back(score);
    };
    add("<unk>", 2, 0);
    for (std::size_t n = 1; n <= longest; ++n) add(std::string(n, 'a'), 1, -static_cast<double>(n));
    v.unknown = 0;
    v.add_space_prefix = false;
    if (longest > 1200) {
      CHECK(mentions(refusal<FileError>([&] { make_tokenizer(v); }), "tokenizer.ggml.tokens"));
      continue;
    }
    const auto t = make_tokenizer(v);
    // of the pairs, the one with the best score joins first: aa, then neighbours of two
    CHECK(t->encode("aaa") == std::vector<std::int64_t>{3});
    CHECK(t->encode(std::string(600, 'a')) == std::vector<std::int64_t>{600});
  }
}

TEST_CASE("files of other kinds are named, with what to take instead") {
  for (const auto& [file, remedy] :
       {std::pair("vocab.json", "tokenizer.json"), std::pair("qwen.tiktoken", "tokenizer.json")}) {
    const TempDir dir;
    dir.write(file, "{}");
    const std::string said = refusal<FileError>([&] { load_tokenizer(dir.path()); });
    INFO(said);
    CHECK(mentions(said, file));
    CHECK(mentions(said, remedy));
  }
}

}  // namespace odd_files_test
