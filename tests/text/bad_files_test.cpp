// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/error.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace bad_files_test {

/// Message of the FileError that loading ends in.
std::string complaint(const Json& tokenizer, const Json& config = nullptr) {
  try {
    load(tokenizer, config);
  } catch (const FileError& e) {
    return e.what();
  }
  return "loaded";
}

void check_complaint(const std::string& pointer, const Json& value,
                     const std::vector<std::string>& words, const char* kind = "llama3") {
  Json json = tokenizer_named(kind);
  json[Json::json_pointer(pointer)] = value;
  const std::string message = complaint(json);
  INFO(pointer << " = " << value.dump() << ": " << message);
  CHECK(message.find("tokenizer.json: ") != std::string::npos);
  for (const std::string& word : words) CHECK(message.find(word) != std::string::npos);
}

TEST_CASE("files that are absent or no JSON") {
  const TempDir dir;
  CHECK_THROWS_AS(load_tokenizer(dir.path()), FileError);
  for (const char* text : {"", "{", "[]", "3", "{\"model\": {\"vocab\": {\"a\": 0}, \"merges\": [",
                           "{\"a\": \"\xff\"}"}) {
    dir.write("tokenizer.json", text);
    CHECK_THROWS_AS(load_tokenizer(dir.path()), FileError);
  }
  dir.write("tokenizer.json", std::string(100000, '['));
  CHECK_THROWS_AS(load_tokenizer(dir.path()), FileError);
}

TEST_CASE("kinds that are not supported are named") {
  check_complaint("/model/type", "Unigram", {"model.type", "Unigram"});
  check_complaint("/model/type", "WordPiece", {"model.unk_token", "[UNK]"});
  check_complaint("/model/continuing_subword_prefix", "##", {"continuing_subword_prefix"});
  check_complaint("/model/dropout", 0.1, {"model.dropout"});
  check_complaint("/normalizer", {{"type", "Lowercase"}}, {"normalizer.type", "Lowercase"});
  check_complaint("/pre_tokenizer", {{"type", "CharDelimiterSplit"}},
                  {"pre_tokenizer.type", "CharDelimiterSplit"});
  check_complaint("/pre_tokenizer/pretokenizers/0/behavior", "Sideways",
                  {"pre_tokenizer.pretokenizers[0].behavior", "Sideways"});
  check_complaint("/decoder", {{"type", "BPEDecoder"}}, {"decoder.type", "BPEDecoder"});
  check_complaint("/post_processor", {{"type", "BertProcessing"}},
                  {"post_processor.type", "BertProcessing"});
}

TEST_CASE("what WordPiece does not take is named") {
  check_complaint("/model/vocab", Json::array(), {"model.vocab"}, "bert");
  check_complaint("/model/vocab/[UNK]", -1, {"model.vocab", "[UNK]"}, "bert");
  check_complaint("/model/unk_token", "nothing", {"model.unk_token", "nothing"}, "bert");
  check_complaint("/model/unk_token", 3, {"model.unk_token"}, "bert");
  check_complaint("/model/continuing_subword_prefix", 3, {"continuing_subword_prefix"}, "bert");
  check_complaint("/model/max_input_chars_per_word", -1, {"max_input_chars_per_word"}, "bert");
  check_complaint("/model/max_input_chars_per_word", 1025, {"max_input_chars_per_word"}, "bert");
  check_complaint("/normalizer/strip_accents", "yes", {"normalizer.strip_accents"}, "bert");
  check_complaint("/decoder/cleanup", 1, {"decoder.cleanup"}, "bert");
  const TempDir dir;
  dir.write("vocab.txt", "[UNK]\n[CLS]\n[SEP]\na\n[CLS]\n");
  CHECK_THROWS_WITH(load_tokenizer(dir.path()), Catch::Contains("vocab.txt: line 5"));
  dir.write("vocab.txt", "[UNK]\n[CLS]\na\n");
  CHECK_THROWS_WITH(load_tokenizer(dir.path()), Catch::Contains("vocab.txt: has no entry [SEP]"));
}

TEST_CASE("ids must run from 0 without holes") {
  check_complaint("/model/vocab/the", -1, {"model.vocab", "'the'"});
  check_complaint("/model/vocab/the", 1.5, {"model.vocab", "'the'"});
  check_complaint("/model/vocab/the", "7", {"model.vocab", "'the'"});
  check_complaint("/model/vocab/the", 1000000, {"model.vocab", "without holes"});
  check_complaint("/model/vocab/the", 18446744073709551615ull, {"model.vocab", "'the'"});
  check_complaint("/model/vocab/the", 5, {"model.vocab", "id 5"});
  check_complaint("/model/vocab", Json::array(), {"model.vocab"});
  check_complaint("/model/vocab", nullptr, {"model.vocab"});
  check_complaint("/added_tokens/2/id", 4000000000u, {"added_tokens[2].id"});
  check_complaint("/added_tokens/0/content", 5, {"added_tokens[0].content"});
  check_complaint("/added_tokens", "none", {"added_tokens"});
}

TEST_CASE("merges must name tokens") {
  check_complaint("/model/merges/3", {"h", "nowhere"}, {"model.merges[3]", "nowhere"});
  check_complaint("/model/merges/3", "z z", {"model.merges[3]", "'zz'"});
  check_complaint("/model/merges/3", "the", {"model.merges[3]"});
  check_complaint("/model/merges/3", {"a", "b", "c"}, {"model.merges[3]"});
  check_complaint("/model/merges/3", 3, {"model.merges[3]"});
  check_complaint("/model/merges", nullptr, {"model.merges"});
  check_complaint("/model/unk_token", "<nowhere>", {"model.unk_token"}, "llama2");
}

TEST_CASE("patterns and templates must make sense") {
  const std::string regex = "/pre_tokenizer/pretokenizers/0/pattern/Regex";
  check_complaint(regex, "(a", {"pattern.Regex", "byte 2"});
  check_complaint(regex, std::string(100000, 'a'), {"pattern.Regex"});
  check_complaint(regex, std::string(1000, '('), {"pattern.Regex"});
  check_complaint("/pre_tokenizer/pretokenizers/0/pattern", Json::object(), {"pattern"});
  check_complaint("/post_processor/processors/1/single/0/SpecialToken/id", "<no>",
                  {"post_processor.processors[1].special_tokens.<no>"});
  check_complaint("/post_processor/processors/1/special_tokens/<|bos|>/ids/0", 99999,
                  {"post_processor.processors[1].special_tokens.<|bos|>.ids[0]"});
  check_complaint("/post_processor/processors/1/single", Json::array(), {"single"});
  for (const auto& [levels, because] :
       {std::pair{20, "nested too deep"}, std::pair{1000, "nested more than 64 deep"}}) {
    Json nested = nullptr;
    for (int i = 0; i < levels; ++i)
      nested = {{"type", "Sequence"}, {"normalizers", Json::array({nested})}};
    check_complaint("/normalizer", nested, {because});
  }
}

TEST_CASE("a regular expression that runs away is a DataError") {
  Json json = tokenizer_named("gpt2");
  json["pre_tokenizer"] = {
      {"type", "Split"}, {"pattern", {{"Regex", "(a|aa)+$"}}}, {"behavior", "Isolated"}};
  const auto tokenizer = load(json);
  CHECK_THROWS_AS(tokenizer->encode(std::string(60, 'a') + "c"), DataError);
}

TEST_CASE("tokenizer_config.json must fit the tokenizer") {
  const Json json = tokenizer_named("gpt2");
  for (const auto& [config, key] : std::vector<std::pair<Json, std::string>>{
           {{{"eos_token", 3}}, "eos_token"},
           {{{"bos_token", {{"text", "x"}}}}, "bos_token.content"},
           {{{"added_tokens_decoder", {{"x", {{"content", "y"}}}}}}, "added_tokens_decoder"},
           {{{"added_tokens_decoder", {{"7", {{"content", 5}}}}}},
            "added_tokens_decoder.7.content"},
           {{{"added_tokens_decoder", Json::array()}}, "added_tokens_decoder"},
           {{{"extra_special_tokens", "<x>"}}, "extra_special_tokens"}}) {
    const std::string message = complaint(json, config);
    INFO(message);
    CHECK(message.find("tokenizer_config.json: " + key) != std::string::npos);
  }
  CHECK(complaint(json, Json::array()) != "loaded");
}

}  // namespace bad_files_test
