// SPDX-License-Identifier: Apache-2.0
// Which files of a model's directory make a kept memory another one.
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/model/identity.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"
#include "tiny_llama.hpp"

using namespace episodic;

namespace identity_test {

using Json = nlohmann::json;

TEST_CASE("identity: other tokens beside a tokenizer make it another one, their repetition not") {
  const TempDir dir;
  TinyLlama({}, 5).write(dir.path());
  const Json named{{"content", "<s>"}, {"special", true}};
  dir.write(
      "tokenizer.json",
      Json{{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", Json::array()}}},
           {"added_tokens", {{{"id", 2}, {"content", "<s>"}, {"special", true}}}}}
          .dump());
  dir.write("tokenizer_config.json", Json{{"bos_token", "<s>"}}.dump());
  const auto with = [&](const Json& map, const Json& added) {
    dir.write("special_tokens_map.json", map.dump());
    dir.write("added_tokens.json", added.dump());
    return identity_of(dir.path()).tokenizer;
  };
  // As memories made before these files counted have it: of two files' bytes.
  const std::string plain = identity_of(dir.path()).tokenizer;
  REQUIRE(plain.size() == 16);
  const Json empty = Json::object();
  CHECK(with(empty, empty) == plain);
  CHECK(with({{"bos_token", "<s>"}}, empty) == plain);
  CHECK(with({{"bos_token", named}}, {{"<s>", 2}}) == plain);
  const std::string one = with(empty, {{"<x>", 3}}), two = with(empty, {{"<y>", 3}});
  CHECK(one != plain);
  CHECK(two != plain);
  CHECK(one != two);
  CHECK(with({{"eos_token", "b"}}, empty) != plain);
  CHECK(with({{"additional_special_tokens", {"<x>"}}}, empty) != plain);
  CHECK(with({{"bos_token", "<s>"}}, {{"<x>", 3}}) == one);  // by what is said, not by whom
  // Where the config has a list of tokens, the two files are not read.
  dir.write("tokenizer_config.json",
            Json{{"bos_token", "<s>"}, {"added_tokens_decoder", {{"2", named}}}}.dump());
  CHECK(with(empty, {{"<x>", 3}}) == with(empty, {{"<y>", 3}}));
  // Nor where there is no tokenizer that could be read: who has ids needs none.
  dir.write("tokenizer.json", "{");
  CHECK(with(empty, {{"<x>", 3}}).size() == 16);
}

}  // namespace identity_test
