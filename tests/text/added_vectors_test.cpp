// SPDX-License-Identifier: Apache-2.0
// Special and added tokens in every file that may hold them, as AutoTokenizer reads them
// (make_added_vectors.py).
#include "support/test.hpp"
#include "text/added_vocabulary.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace added_vectors_test {

TEST_CASE("added tokens of tokenizer.json, its config, special_tokens_map and added_tokens.json") {
  // with the order of keys, which decides about new ids
  const auto v = nlohmann::ordered_json::parse(
      read_file(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/added.json"));
  REQUIRE(v["rows"].size() >= 60);
  int other_tokens = 0, nothing = 0;  // by what the last two files say
  for (const auto& row : v["rows"]) {
    INFO(row["name"].get<std::string>());
    auto tokenizer = v["bases"][row["base"].get<std::string>()];
    tokenizer.update(row["change"]);
    const TempDir dir;
    dir.write("tokenizer.json", tokenizer.dump());
    for (const auto& [file, key] : {std::pair("tokenizer_config.json", "config"),
                                    std::pair("special_tokens_map.json", "special_map"),
                                    std::pair("added_tokens.json", "added")})
      if (!row[key].is_null()) dir.write(file, row[key].dump());
    const auto t = load_tokenizer(dir.path());
    CHECK(t->bos() == row["bos"].get<std::int64_t>());
    CHECK(t->eos() == row["eos"].get<std::int64_t>());
    CHECK(t->vocab_size() == row["size"].get<std::int64_t>());
    for (std::size_t i = 0; i < v["texts"].size(); ++i) {
      const auto text = v["texts"][i].get<std::string>();
      INFO("text '" << text << "'");
      const auto ids = row["cases"][i][0].get<std::vector<std::int64_t>>();
      CHECK(t->encode(text) == ids);
      CHECK(t->decode(ids) == row["cases"][i][1].get<std::string>());
    }
    // A kept memory is another one where these two files change a token, and only there.
    const std::string changes = text::changes_by_token_files(dir.path());
    std::filesystem::remove(dir / "special_tokens_map.json");
    std::filesystem::remove(dir / "added_tokens.json");
    CHECK(text::changes_by_token_files(dir.path()) == "");
    const auto without = load_tokenizer(dir.path());
    bool differ = t->bos() != without->bos() || t->eos() != without->eos() ||
                  t->vocab_size() != without->vocab_size();
    for (const auto& text : v["texts"])
      differ |= t->encode(text.get<std::string>()) != without->encode(text.get<std::string>());
    INFO("changes: " << changes);
    if (differ) CHECK(changes != "");
    ++(changes.empty() ? nothing : other_tokens);
  }
  CHECK(other_tokens > 5);
  CHECK(nothing > 20);
}

}  // namespace added_vectors_test
