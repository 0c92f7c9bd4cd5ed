// SPDX-License-Identifier: Apache-2.0
// tekken.json, against what mistral-common reads from it (make_tekken_vectors.py), and damaged.
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace tekken_test {

std::filesystem::path folder(const std::string& name) {
  return std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/tekken" / name;
}

Json read(const std::string& name, const char* file) {
  return Json::parse(read_file((folder(name) / file).string()));
}

TEST_CASE("tekken.json: texts have the ids that mistral-common gives them") {
  for (const std::string name : {"named", "old"}) {
    const auto tokenizer = load_tokenizer(folder(name));
    CHECK(tokenizer->bos() == 1);
    CHECK(tokenizer->eos() == 2);
    CHECK(tokenizer->vocab_size() == (name == "named" ? 610 : 625));
    for (const Json& row : read(name, "texts.json")) {
      const std::string text = row[0];
      INFO(name << ": '" << text << "'");
      const std::vector<std::int64_t> ids = row[1];
      const TextSpan all{0, text.size()};
      CHECK(tokenizer->encode_marked(text, {&all, 1}) ==
            ids);  // no special tokens in what people type
      CHECK(tokenizer->decode(ids, false) == text);
    }
  }
}

TEST_CASE("tekken.json: special tokens are read in a template's text, and stand before a text") {
  const auto named = load_tokenizer(folder("named")), old = load_tokenizer(folder("old"));
  CHECK(named->encode("[INST]", true) == std::vector<std::int64_t>{1, 3});
  CHECK(named->id_of("<SPECIAL_9>") == 9);
  CHECK(named->id_of("[THINK]") == 5);
  CHECK(named->decode({3, 5, 4}, true) == "[THINK]");  // the one that is no control token is shown
  CHECK(old->encode("[TOOL_CALLS]", false) == std::vector<std::int64_t>{9});
  CHECK(old->id_of("[TOOL_CONTENT]") == 19);
  CHECK(old->id_of("<SPECIAL_20>") == 20);
}

TEST_CASE("tekken.json: what does not hold is refused by the key") {
  const auto damaged = [](auto change) {
    Json json = read("named", "tekken.json");
    change(json);
    const TempDir dir;
    dir.write("tekken.json", json.dump());
    return refusal<FileError>([&] { load_tokenizer(dir.path()); });
  };
  const auto says = [&](auto change, const char* key, const char* what) {
    const std::string said = damaged(change);
    INFO(said);
    CHECK(mentions(said, "tekken.json"));
    CHECK(mentions(said, key));
    CHECK(mentions(said, what));
  };
  says([](Json& j) { j.erase("config"); }, "config", "");
  says([](Json& j) { j["config"]["default_vocab_size"] = 9000; }, "vocab", "8990");
  says([](Json& j) { j["config"]["default_vocab_size"] = 12; }, "default_vocab_size", "256 bytes");
  says([](Json& j) { j["config"]["default_vocab_size"] = -1; }, "default_vocab_size", "");
  says([](Json& j) { j["config"]["default_vocab_size"] = 1e300; }, "default_vocab_size", "");
  says([](Json& j) { j["config"]["default_num_special_tokens"] = 2; }, "default_vocab_size",
       "three");
  says([](Json& j) { j["config"]["pattern"] = "("; }, "tekken.json", "");
  says([](Json& j) { j["vocab"][300]["rank"] = 5; }, "vocab", "rank 300");
  says([](Json& j) { j["vocab"][300]["token_bytes"] = "?"; }, "token_bytes", "base64");
  says([](Json& j) { j["vocab"][300]["token_bytes"] = "===="; }, "token_bytes", "base64");
  says([](Json& j) { j["vocab"][300]["token_bytes"] = ""; }, "token_bytes", "base64");
  says([](Json& j) { j["vocab"][300]["token_bytes"] = std::string(4000, 'A'); }, "token_bytes",
       "base64");
  says([](Json& j) { j["vocab"][300]["token_bytes"] = j["vocab"][299]["token_bytes"]; }, "vocab",
       "earlier");
  says([](Json& j) { j["vocab"][7]["token_bytes"] = "QUJD"; }, "vocab", "the byte 7");
  says([](Json& j) { j["special_tokens"][2]["rank"] = 7; }, "special_tokens", "rank 2");
  says([](Json& j) { j["special_tokens"] = 5; }, "special_tokens", "array");
  says([](Json& j) { j["special_tokens"][4]["token_str"] = "[INST]"; }, "[INST]", "");
}

}  // namespace tekken_test
