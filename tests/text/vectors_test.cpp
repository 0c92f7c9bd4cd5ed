// SPDX-License-Identifier: Apache-2.0
// Ids and texts that Hugging Face's tokenizers gave (make_vectors.py).
#include "random_texts.hpp"
#include "support/shared.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

TEST_CASE("every kind encodes and decodes as Hugging Face does") {
  const Json& all = vectors();
  REQUIRE(all["kinds"].size() >= 10);
  for (const Json& kind : all["kinds"]) {
    const auto tokenizer = load(tokenizer_of(kind));
    for (const Json& c : kind["cases"]) {
      const auto text = all["texts"][c[0].get<std::size_t>()].get<std::string>();
      const auto ids = c[1].get<std::vector<std::int64_t>>();
      INFO(kind["name"].get<std::string>() << ": '" << text << "'");
      CHECK(tokenizer->encode(text) == ids);
      for (const bool skip : {true, false}) {
        const Json& expected = c[skip ? 2 : 3];
        if (expected.is_null()) continue;  // a character of several tokens, one left out
        CHECK(tokenizer->decode(ids, skip) ==
              (expected.is_boolean() ? text : expected.get<std::string>()));
      }
    }
  }
}

TEST_CASE("whole books encode as Hugging Face does, and come back") {
  const auto shared = shared_dir();
  if (!shared) EPISODIC_SKIP("no ../shared");
  for (const Json& row : vectors()["books"]) {
    const auto dir = *shared / "data" / row["tokenizer"].get<std::string>();
    const auto file = *shared / "data/texts" / row["book"].get<std::string>();
    if (!std::filesystem::exists(dir) || !std::filesystem::exists(file))
      EPISODIC_SKIP("no books in ../shared");
    const auto tokenizer = load_tokenizer(dir);
    const std::string text = read_file(file);
    const auto ids = tokenizer->encode(text);
    INFO(row.dump());
    std::uint64_t sum = 0xcbf29ce484222325ull;
    for (const std::int64_t id : ids)
      sum = (sum ^ static_cast<std::uint64_t>(id)) * 0x100000001b3ull;
    CHECK(ids.size() == row["count"].get<std::size_t>());
    CHECK(std::to_string(sum) == row["checksum"].get<std::string>());
    CHECK(tokenizer->decode(ids) == text);
  }
}

namespace {

void check_random(const Tokenizer& tokenizer, const Json& row) {
  RandomTexts texts;
  TextSums sums;
  for (int n = row["count"].get<int>(); n > 0; --n) sums.add(tokenizer, texts.next());
  INFO(row.dump());
  CHECK(std::to_string(sums.ids) == row["ids"].get<std::string>());
  if (row["texts"].is_null()) return;  // the reference's own mistake
  CHECK(std::to_string(sums.texts) == row["texts"].get<std::string>());
}

}  // namespace

TEST_CASE("a hundred thousand random texts encode and decode as Hugging Face does") {
  int count = 0;
  for (const Json& row : random_vectors()["kinds"]) {
    check_random(*load(tokenizer_named(row["name"].get<std::string>())), row);
    count += row["count"].get<int>();
  }
  REQUIRE(count >= 100000);
}

TEST_CASE("a hundred thousand random texts each, by real tokenizers") {
  const auto shared = shared_dir();
  if (!shared) EPISODIC_SKIP("no ../shared");
  for (const Json& row : random_vectors()["real"]) {
    const auto dir = *shared / "data" / row["name"].get<std::string>();
    if (row["name"] == "gemma3_270m") continue;  // with the real model's tests
    if (!std::filesystem::exists(dir)) EPISODIC_SKIP("no tokenizers in ../shared");
    check_random(*load_tokenizer(dir), row);
  }
}
