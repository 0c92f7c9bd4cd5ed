// SPDX-License-Identifier: Apache-2.0
#include "episodic/text/gguf_vocabulary.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <deque>
#include <iterator>
#include <map>
#include <sstream>

#include "support/refusal.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace gguf_vocabulary_test {

TEST_CASE(
    "a GGUF file's answers end at the keys' tokens and at those that llama.cpp knows by name") {
  using List = std::vector<std::string_view>;
  using Ids = std::vector<std::int64_t>;
  const auto ends = [](const List& tokens, const GgufEndKeys& keys = {}) {
    return gguf_end_tokens(tokens, keys);
  };
  // each name that the llama.cpp of the package xllamacpp 2026.10 lists when it loads a file
  for (const char* name : {"<|eot_id|>",
                           "<|im_end|>",
                           "<|end|>",
                           "<|return|>",
                           "<|call|>",
                           "<|flush|>",
                           "<|calls|>",
                           "<end_of_turn>",
                           "<|endoftext|>",
                           "</s>",
                           "<|eom_id|>",
                           "<EOT>",
                           "_<EOT>",
                           "[EOT]",
                           "[EOS]",
                           "<eos>",
                           "<|end_of_text|>",
                           "<end_of_utterance>",
                           "<turn|>",
                           "<|tool_response>",
                           "[e~[",
                           "<|ifm|im_end|>",
                           "<\uff5cend\u2581of\u2581sentence\uff5c>",
                           "[PAD]",
                           "<reponame>",
                           "<|file_sep|>",
                           "<|plamo:file_separator|>"}) {
    INFO(name);
    CHECK(ends({"a", name, "b"}) == Ids{1});
  }
  for (const char* name :
       {"a", "<unk>", "<pad>", "<|fim_prefix|>", "<|END_OF_TURN_TOKEN|>", "<|eos|>"})
    CHECK(ends({name}).empty());
  const List plain{"a", "b", "c", "d", "e", "f", "<|im_end|>"};
  CHECK(ends(plain, {.eos = 0}) == Ids{0, 6});
  CHECK(ends(plain, {.eos = 0, .eot = 1, .eom = 2, .fim_pad = 3, .fim_rep = 4, .fim_sep = 5}) ==
        Ids{0, 1, 2, 6, 3, 4, 5});
  CHECK(ends(plain, {.eos = 6, .eot = 99, .eom = -5}) == Ids{6});  // no tokens: passed over
  // a key says which token fills in between, then names do not count
  CHECK(ends({"x", "[PAD]"}, {.fim_pad = 0}) == Ids{0});
  CHECK(ends({"<PAD>", "[PAD]"}).size() == 1);
  // gpt-oss and Solar have <|end|> within an answer, Gemma 4 has </s> in its text
  CHECK(ends({"<|return|>", "<|call|>", "<|end|>"}) == Ids{0, 1});
  CHECK(ends({"<|calls|>", "<|flush|>", "<|end|>"}, {.eos = 2}) == Ids{0, 1});
  CHECK(ends({"<|return|>", "<|end|>"}) == Ids{0, 1});
  CHECK(ends({"</s>", "<|tool_response>"}) == Ids{1});
}

using Ids = std::vector<std::int64_t>;

/// A vocabulary that owns its texts.
struct Vocabulary {
  std::deque<std::string> texts;
  GgufVocabulary v;

  std::int64_t add(const std::string& token, std::int64_t type = 1, double score = 0) {
    v.tokens.push_back(texts.emplace_back(token));
    v.types.push_back(type);
    v.scores.push_back(score);
    return static_cast<std::int64_t>(v.tokens.size()) - 1;
  }
  void merge(const std::string& text) { v.merges.push_back(texts.emplace_back(text)); }
};

/// Pieces by scores: bytes, a few letters, and what they join to.
Vocabulary small_pieces() {
  Vocabulary w;
  w.v.file = "m.gguf";
  w.v.model = "llama";
  w.v.unknown = w.add("<unk>", 2);
  w.v.bos = w.add("<s>", 3);
  w.v.eos = w.add("</s>", 3);
  for (int b = 0; b < 256; ++b) {
    char name[8];
    std::snprintf(name, sizeof name, "<0x%02X>", b);
    w.add(name, 6);
  }
  for (const char* piece : {"\xe2\x96\x81", "a", "b", "c"}) w.add(piece, 1, -100);
  w.add("ab", 1, -2);
  w.add("bc", 1, -1);  // better than ab
  w.add(
      "\xe2\x96\x81"
      "a",
      1, -3);
  w.add("<mark>", 4);
  return w;
}

TEST_CASE("a token that ends an answer is a control token, whatever its type in the file") {
  for (const std::int64_t type : {1, 3, 4}) {
    Vocabulary w = small_pieces();
    const std::int64_t end = w.add("<end_of_turn>", type);
    const auto t = make_tokenizer(w.v);
    const Ids ids = t->encode("a<end_of_turn>", false);
    REQUIRE_FALSE(ids.empty());
    CHECK(ids.back() == end);
    CHECK(t->decode({end}) == "");
    CHECK(t->decode({end}, false) == "<end_of_turn>");
  }
}

std::filesystem::path folder() { return *shared_dir() / "data/tokenizers"; }

void check_vectors(const Tokenizer& tokenizer, const std::string& name) {
  const auto file = folder() / "llama_cpp_vectors" / ("ggml-vocab-" + name + ".gguf");
  const std::string inputs = read_file(file.string() + ".inp");
  std::istringstream outputs(read_file(file.string() + ".out"));
  const std::string separator = "\n__ggml_vocab_test__\n";
  int count = 0;
  std::string line;
  for (std::size_t at = 0; at < inputs.size() && std::getline(outputs, line); ++count) {
    const std::size_t end = std::min(inputs.find(separator, at), inputs.size());
    const std::string text = inputs.substr(at, end - at);
    at = end + separator.size();
    std::istringstream numbers(line);
    const Ids expected{std::istream_iterator<std::int64_t>(numbers), {}};
    INFO(name << ": '" << text << "'");
    CHECK(tokenizer.encode(text, false) == expected);
    CHECK(tokenizer.decode(expected) == text);
  }
  CHECK(count == 46);
}

std::string error_of(const Vocabulary& w) {
  return refusal<FileError>([&] { make_tokenizer(w.v); });
}

TEST_CASE("vocabulary of a GGUF file: pieces join by their scores") {
  Vocabulary w = small_pieces();
  const auto t = make_tokenizer(w.v);
  const auto id = [&](const char* token) { return t->id_of(token); };
  CHECK(t->vocab_size() == static_cast<std::int64_t>(w.v.tokens.size()));
  CHECK(t->bos() == 1);
  CHECK(t->eos() == 2);
  // bc has the higher score, so that ab does not come to be
  CHECK(t->encode("abc") == Ids{1,
                                id("\xe2\x96\x81"
                                   "a"),
                                id("bc")});
  CHECK(t->encode("b<mark>c", false) ==
        Ids{id("\xe2\x96\x81"), id("b"), id("<mark>"), id("\xe2\x96\x81"), id("c")});
  CHECK(t->encode("z", false) == Ids{id("\xe2\x96\x81"), id("<0x7A>")});
  CHECK(t->decode({1,
                   id("\xe2\x96\x81"
                      "a"),
                   id("bc")}) == "abc");
  w.v.add_bos = false;
  w.v.add_eos = true;
  w.v.add_space_prefix = false;
  CHECK(make_tokenizer(w.v)->encode("abc") == Ids{id("a"), id("bc"), 2});
}

TEST_CASE("vocabulary of a GGUF file: Gemma 4's is that of its tokenizer.json") {
  // pieces with bytes, in the form that Gemma's tokenizer.json has
  Json json = tokenizer_named("llama2");
  const Json space = {{"String", " "}}, mark = {{"String", "\xe2\x96\x81"}};
  json["normalizer"] = {{"type", "Replace"}, {"pattern", space}, {"content", "\xe2\x96\x81"}};
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", space}, {"behavior", "MergedWithPrevious"}, {"invert", false}};
  json["post_processor"] = nullptr;
  json["decoder"] = {{"type", "Sequence"},
                     {"decoders",
                      {{{"type", "Replace"}, {"pattern", mark}, {"content", " "}},
                       {{"type", "ByteFallback"}},
                       {{"type", "Fuse"}}}}};
  for (Json& token : json["added_tokens"]) {
    token["lstrip"] = token["rstrip"] = token["single_word"] = false;  // what no GGUF file says
    token["special"] = true;  // as what ends an answer is in one, whatever its type
  }
  const std::unique_ptr<Tokenizer> wanted = load(json);

  Vocabulary w;
  w.v.file = "m.gguf";
  w.v.model = "gemma4";
  w.v.unknown = 0;
  w.v.add_space_prefix = false;
  w.v.add_bos = false;
  std::map<std::int64_t, std::string> tokens;
  for (const auto& [token, id] : json["model"]["vocab"].items()) tokens[id] = token;
  std::map<std::int64_t, std::int64_t> added;
  for (const Json& token : json["added_tokens"]) {
    tokens[token["id"]] = token["content"];
    added[token["id"]] = token["special"] ? 3 : 4;
  }
  for (const auto& [id, token] : tokens) {
    REQUIRE(id == static_cast<std::int64_t>(w.v.tokens.size()));  // none is left out
    w.add(token, added.contains(id) ? added[id] : token.starts_with("<0x") ? 6 : 1);
  }
  for (const Json& merge : json["model"]["merges"])
    w.merge(merge.is_string() ? merge.get<std::string>()
                              : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  const std::unique_ptr<Tokenizer> made = make_tokenizer(w.v);
  int texts = 0;
  for (const Json& one : vectors()["texts"]) {
    const std::string text = one.get<std::string>();
    INFO(text);
    const auto ids = wanted->encode(text);
    REQUIRE(made->encode(text) == ids);
    REQUIRE(made->decode(ids) == wanted->decode(ids));
    ++texts;
  }
  REQUIRE(texts > 20);
  w.v.merges.clear();
  REQUIRE(mentions(refusal<FileError>([&] { make_tokenizer(w.v); }), "tokenizer.ggml.merges"));
}

TEST_CASE("vocabulary of a GGUF file: entries that fill up a vocabulary") {
  Vocabulary w = small_pieces();
  const std::int64_t empty = w.add("", 5), again = w.add("ab", 5);
  const auto t = make_tokenizer(w.v);
  CHECK(t->vocab_size() == again + 1);
  CHECK(t->token(empty) == "[unused token " + std::to_string(empty) + "]");
  CHECK(t->id_of("ab") < empty);
}

TEST_CASE("vocabulary of a GGUF file: every rule of byte-level vocabularies can be made") {
  for (const char* pre : {"default", "gpt-2", "olmo", "llama-bpe", "dbrx", "qwen2", "smollm",
                          "refact", "tekken", "gpt-4o", ""}) {
    Vocabulary w;
    w.v.file = "m.gguf";
    w.v.model = "gpt2";
    w.v.pre = pre;
    for (const char* token : {"a", "b", "1", "\xc4\xa0", "ab", "11"}) w.add(token);
    w.v.bos = w.add("<|begin|>", 3);
    w.merge("a b");
    w.merge("1 1");
    const auto t = make_tokenizer(w.v);
    INFO(pre);
    const bool begins = std::string(pre) == "llama-bpe" || std::string(pre) == "tekken";
    CHECK(t->encode("ab") == (begins ? Ids{6, 4} : Ids{4}));
    const bool one_digit = std::string(pre) == "qwen2" || std::string(pre) == "smollm" ||
                           std::string(pre) == "refact" || std::string(pre) == "tekken";
    CHECK(t->encode("ab 11", false) == (one_digit ? Ids{4, 3, 2, 2} : Ids{4, 3, 5}));
    CHECK(t->decode({4, 3, 5}) == "ab 11");
  }
}

TEST_CASE("vocabulary of a GGUF file: what does not hold is refused") {
  const auto changed = [](auto&& change) {
    Vocabulary w = small_pieces();
    change(w.v);
    const std::string error = error_of(w);
    INFO(error);
    REQUIRE(error.find("m.gguf: tokenizer.ggml.") == 0);
    return error;
  };
  CHECK(mentions(changed([](auto& v) { v.tokens.clear(); }), "tokens has 0 entries"));
  CHECK(mentions(changed([](auto& v) { v.scores.pop_back(); }), "scores has"));
  CHECK(mentions(changed([](auto& v) { v.scores[0] = std::nan(""); }), "no number"));
  CHECK(mentions(changed([](auto& v) { v.types.pop_back(); }), "token_type has"));
  CHECK(mentions(changed([](auto& v) { v.model = "t5"; }), "model = 't5' is not supported"));
  CHECK(mentions(changed([](auto& v) { v.bos = 9999; }), "bos_token_id = 9999"));
  CHECK(mentions(changed([](auto& v) { v.unknown = -7; }), "unknown_token_id = -7"));
  CHECK(mentions(changed([](auto& v) { v.model = "gpt2"; }), "merges is missing"));
  CHECK(mentions(changed([](auto& v) {
                   v.model = "gpt2";
                   v.pre = "unheard-of";
                 }),
                 "pre = 'unheard-of' is not supported; supported are: default"));
}

TEST_CASE("vocabulary of a GGUF file: LLaMA-2 agrees with llama.cpp") {
  if (!shared_dir()) EPISODIC_SKIP("no ../shared");
  // the pieces stand in the order of their scores, but those of spaces alone, which come last
  const Json json = Json::parse(read_file(folder() / "llama2_hf/tokenizer.json"));
  std::vector<std::string> tokens(json["model"]["vocab"].size());
  for (const auto& [token, id] : json["model"]["vocab"].items())
    tokens[id.get<std::size_t>()] = token;
  Vocabulary w;
  w.v.file = "llama2.gguf";
  w.v.model = "llama";
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    std::string rest = tokens[i];
    while (rest.starts_with("\xe2\x96\x81")) rest.erase(0, 3);
    const double score = rest.empty() ? -1e9 : 259.0 - static_cast<double>(i);
    w.add(tokens[i], i == 0 ? 2 : i < 3 ? 3 : i < 259 ? 6 : 1, score);
  }
  w.v.unknown = 0;
  w.v.bos = 1;
  w.v.eos = 2;
  const auto t = make_tokenizer(w.v);
  check_vectors(*t, "llama-spm");
  CHECK(t->encode("Hello") == Ids{1, 15043});
}

TEST_CASE("vocabulary of a GGUF file: GPT-2 agrees with llama.cpp") {
  if (!shared_dir()) EPISODIC_SKIP("no ../shared");
  const Json json = Json::parse(read_file(folder() / "gpt2/gpt2.vocab"));
  std::vector<std::string> tokens(json.size());
  for (const auto& [token, id] : json.items()) tokens[id.get<std::size_t>()] = token;
  Vocabulary w;
  w.v.file = "gpt2.gguf";
  w.v.model = "gpt2";
  w.v.pre = "gpt-2";
  for (const std::string& token : tokens) w.add(token, token == "<|endoftext|>" ? 3 : 1);
  std::istringstream lines(read_file(folder() / "gpt2/gpt2.merges.txt"));
  std::string line;
  std::getline(lines, line);  // the version
  while (std::getline(lines, line))
    if (!line.empty()) w.merge(line);
  check_vectors(*make_tokenizer(w.v), "gpt-2");
}

}  // namespace gguf_vocabulary_test
