// SPDX-License-Identifier: Apache-2.0
// Special and added tokens in every file that may hold them, as AutoTokenizer reads them
// (make_added_vectors.py).
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace added_vectors_test {

TEST_CASE("added tokens of tokenizer.json, its config, special_tokens_map and added_tokens.json") {
  // with the order of keys, which decides about new ids
  const auto v = nlohmann::ordered_json::parse(
      read_file(std::filesystem::path(EPISODIC_SOURCE_DIR) / "tests/text/vectors/added.json"));
  REQUIRE(v["rows"].size() >= 60);
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
  }
}

}  // namespace added_vectors_test
