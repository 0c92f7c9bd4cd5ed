// SPDX-License-Identifier: Apache-2.0
// Which tokens may come next: by the tree of tokens, and by trying one after another.
#include "episodic/grammar/token_grammar.hpp"

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "episodic/base/error.hpp"
#include "grammar/random_grammars.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"
#include "text/tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace {

/// Every byte, pieces of characters, and texts of several letters; token 0 is a special one.
std::vector<std::string> vocabulary() {
  std::vector<std::string> all{""};
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  for (const char* more : {"aa", "ab", "ba", "aaa", "abab", "\xe2\x82", "\x82\xac",
                           "\xac"
                           "a",
                           "a\xe2", "\xc3\xa9\xc3",
                           "\xa9"
                           "b",
                           "\xf0\x9f\x98\x80", "\x9f\x98", "\xe2\x82\xac\xe2\x82\xad", "aa",
                           "b\xf0\x9f"})  // "aa" is there twice
    all.emplace_back(more);
  all.emplace_back("");
  return all;
}

std::shared_ptr<const TokenTrie> trie() {
  static const auto one = std::make_shared<const TokenTrie>(vocabulary());
  return one;
}

std::shared_ptr<const TokenGrammar> over_tokens(const Grammar& grammar,
                                                std::size_t cache = std::size_t{64} << 20) {
  return std::make_shared<const TokenGrammar>(grammar, trie(), cache);
}

std::vector<std::int64_t> ids_of(const TokenMask& mask) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < static_cast<std::int64_t>(64 * mask.size()); ++id)
    if (allows(mask, id)) ids.push_back(id);
  return ids;
}

/// The same by trying each token.
std::vector<std::int64_t> ids_by_trying(const GrammarState& state) {
  std::vector<std::int64_t> ids;
  for (std::int64_t id = 0; id < trie()->vocab_size(); ++id) {
    GrammarState next = state;
    if (next.advance(id)) ids.push_back(id);
  }
  return ids;
}

}  // namespace

TEST_CASE(
    "token grammar: answers under the mask are of the grammar, and each of its texts is let by") {
  std::mt19937 random(5);
  const std::vector<std::string> texts = texts_up_to(4);
  int written = 0, let_by = 0;
  for (int k = 0; k < 60; ++k) {
    const RandomGrammar made(random);
    INFO(made.gbnf());
    std::shared_ptr<const TokenGrammar> grammar;
    try {
      grammar = over_tokens(grammar_of_gbnf(made.gbnf()), k % 2 == 0 ? 4096 : 1 << 20);
    } catch (const ConfigError&) {
      continue;  // without an end
    }
    for (int n = 0; n < 6; ++n) {
      GrammarState state(grammar);
      std::string text;
      for (int step = 0; step < 12; ++step) {
        const std::vector<std::int64_t> ids = ids_of(*state.allowed());
        if (step < 4) CHECK(ids == ids_by_trying(state));
        CHECK((state.may_end() || !ids.empty()));  // it is never stuck
        if (ids.empty()) break;
        const std::int64_t id = ids[random() % ids.size()];
        REQUIRE(state.advance(id));
        text += trie()->bytes(id);
        const bool known = text.find_first_not_of("ab\xc3\xa9\xe2\x82\xac\xad\xf0\x9f\x98\x80") ==
                           std::string::npos;
        if (known && text.size() < 9) {
          // letters that only a set of all others takes are no letters to the reference
          if (state.may_end() != Matcher(made.rules(), text).whole())
            CHECK(made.gbnf().find('^') != std::string::npos);
          written += state.may_end() ? 1 : 0;
        }
      }
    }
    for (std::size_t i = 0; i < texts.size(); i += 1 + random() % 40) {
      if (!Matcher(made.rules(), texts[i]).whole()) continue;
      ++let_by;
      INFO("'" << texts[i] << "'");
      GrammarState state(grammar);
      for (std::string_view left = texts[i]; !left.empty();) {
        std::vector<std::int64_t> begins;
        for (std::int64_t id = 1; id + 1 < trie()->vocab_size(); ++id)
          if (left.starts_with(trie()->bytes(id))) begins.push_back(id);
        const std::int64_t id = begins[random() % begins.size()];
        CHECK(allows(*state.allowed(), id));
        REQUIRE(state.advance(id));
        left.remove_prefix(trie()->bytes(id).size());
      }
      CHECK(state.may_end());
    }
  }
  CHECK(written > 100);
  CHECK(let_by > 100);
}

TEST_CASE(
    "token grammar: characters over several tokens, and none that is half written at the end") {
  const auto grammar = over_tokens(grammar_of_gbnf("root ::= [\\u20ac\\u00e9]{2}"));
  GrammarState state(grammar);
  const auto can = [&](std::string_view bytes) {
    GrammarState next = state;
    return next.advance(bytes);
  };
  CHECK(can("\xe2"));
  CHECK_FALSE(can("\xe3"));
  REQUIRE(state.advance("\xe2\x82"));
  CHECK_FALSE(state.may_end());
  CHECK(can("\xac"));
  CHECK_FALSE(can("\xad"));  // U+20AD begins alike
  CHECK_FALSE(can("a"));
  CHECK_FALSE(
      state.advance("\xac"
                    "a"));
  CHECK(can("\xac"));  // as it was
  REQUIRE(state.advance("\xac\xc3"));
  CHECK_FALSE(state.may_end());
  REQUIRE(state.advance("\xa9"));
  CHECK(state.may_end());
  CHECK(ids_of(*state.allowed()).empty());
}

TEST_CASE("token grammar: tokens without bytes are never allowed, tokens of one text all are") {
  const auto grammar = over_tokens(grammar_of_gbnf("root ::= .*"));
  GrammarState state(grammar);
  const TokenMask mask = *state.allowed();
  CHECK_FALSE(allows(mask, 0));
  CHECK_FALSE(allows(mask, trie()->vocab_size() - 1));
  CHECK_FALSE(state.advance(std::int64_t{0}));
  std::vector<std::int64_t> same;
  for (std::int64_t id = 0; id < trie()->vocab_size(); ++id)
    if (trie()->bytes(id) == "aa") same.push_back(id);
  REQUIRE(same.size() == 2);
  for (const std::int64_t id : same) CHECK(allows(mask, id));
  CHECK(mentions(refusal<DataError>([&] { state.advance(trie()->vocab_size()); }), "vocabulary"));
  CHECK(mentions(refusal<ConfigError>([&] { TokenGrammar(grammar_of_json_object(), nullptr); }),
                 "TokenTrie"));
}

TEST_CASE("token grammar: in the middle of a long count the mask is that of trying each token") {
  for (const char* text :
       {"root ::= \"a\"{0,400} \"b\"", "root ::= \"a\"{390,400} \"b\"",
        "root ::= (\"a\"{3,9} \"b\"{2,}){0,70} \"c\"", "root ::= (\"a\" | \"aa\"){5,300}",
        "root ::= ([ab]{0,20} \"c\"?){0,15}"}) {
    INFO(text);
    const auto grammar = over_tokens(grammar_of_gbnf(text));
    GrammarState state(grammar);
    std::mt19937 random(3);
    for (int step = 0; step < 500; ++step) {
      const std::vector<std::int64_t> ids = ids_of(*state.allowed());
      REQUIRE(ids == ids_by_trying(state));
      if (ids.empty()) break;
      REQUIRE(state.advance(ids[random() % ids.size()]));
    }
  }
}

TEST_CASE("token grammar: copies go on apart, threads share masks, a full cache starts anew") {
  const Grammar json = grammar_of_json_object();
  const auto small = over_tokens(json, 1), large = over_tokens(json);
  GrammarState a(small), b(large);
  for (const char c : std::string_view("{\"a\":[1,{\"b\":\"\xe2\x82")) {
    const GrammarState before = a;
    REQUIRE(a.advance(std::string_view(&c, 1)));
    REQUIRE(b.advance(std::string_view(&c, 1)));
    GrammarState again = before;  // of a place that is no longer the present one
    CHECK(*again.allowed() == *before.allowed());
    REQUIRE(again.advance(std::string_view(&c, 1)));
    CHECK(*again.allowed() == *b.allowed());
    CHECK(*a.allowed() == *b.allowed());
    CHECK_FALSE(a.may_end());
  }
  CHECK(b.allowed() == b.allowed());  // found once
  std::vector<std::thread> threads;
  std::vector<int> right(4, 0);
  for (std::size_t t = 0; t < right.size(); ++t)
    threads.emplace_back([&, t] {
      GrammarState state(t % 2 == 0 ? small : large);
      for (const char c : std::string_view("{\"k\":{\"l\":[true,null]}}"))
        right[t] += allows(*state.allowed(), 1 + static_cast<unsigned char>(c)) &&
                    state.advance(std::string_view(&c, 1));
      right[t] += state.may_end() ? 100 : 0;
    });
  for (std::thread& thread : threads) thread.join();
  CHECK(right == std::vector<int>(4, 122));
}

TEST_CASE("token grammar: a mask that would take too long is refused, and the state stays") {
  // each letter doubles the ways, up to where they are too many: tokens of many letters get there
  std::vector<std::string> tokens{"a", "b", std::string(40, 'a')};
  const auto grammar = std::make_shared<const TokenGrammar>(
      grammar_of_gbnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\""),
      std::make_shared<const TokenTrie>(tokens));
  const GrammarState state(grammar);
  CHECK(mentions(refusal<DataError>([&] { (void)state.allowed(); }), "grammar: "));
  GrammarState next = state;
  CHECK(next.advance(std::int64_t{0}));
}

TEST_CASE("token trie: what a tokenizer's tokens add behind a text") {
  SECTION("bytes of a byte-level vocabulary, special tokens without any") {
    const auto tokenizer = load_tokenizer(EPISODIC_SOURCE_DIR "/models/recall-2m6");
    const TokenTrie tokens(*tokenizer);
    REQUIRE(tokens.vocab_size() == tokenizer->vocab_size());
    int special = 0;
    for (std::int64_t id = 0; id < tokens.vocab_size(); ++id) {
      const bool hidden = tokenizer->decode({id}, true) != tokenizer->decode({id}, false);
      special += hidden ? 1 : 0;
      CHECK(tokens.bytes(id).empty() == hidden);
    }
    CHECK(special > 0);
    const std::string text = "Some text, and caf\xc3\xa9 \xf0\x9f\x98\x80.";
    std::string joined;
    for (const std::int64_t id : tokenizer->encode(text, false)) joined += tokens.bytes(id);
    CHECK(joined == text);
  }
  SECTION("of every kind of tokenizer: a text is what its tokens' bytes say") {
    for (const Json& kind : vectors()["kinds"]) {
      const std::string name = kind["name"];
      INFO(name);
      const auto tokenizer = load(tokenizer_of(kind));
      const TokenTrie tokens(*tokenizer);
      for (const char* text : {"a b", "ab ba"}) {
        const std::vector<std::int64_t> ids = tokenizer->encode(text, false);
        std::string joined;
        for (const std::int64_t id : ids) joined += tokens.bytes(id);
        const std::string shown = tokenizer->decode(ids);
        // but for the space that decoders drop where a text begins
        CHECK((joined == shown || joined == " " + shown));
      }
    }
  }
}
