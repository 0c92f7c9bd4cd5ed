// SPDX-License-Identifier: Apache-2.0
// GBNF: its notation, what it refuses, and random grammars beside a matcher that tries everything.
#include <random>
#include <string>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/grammar/grammar.hpp"
#include "grammar/random_grammars.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::test;

TEST_CASE("gbnf: the notation") {
  struct Case {
    const char* grammar;
    std::vector<std::string> in, out;
  };
  const std::vector<Case> cases{
      {"root ::= \"a\"", {"a"}, {"", "b", "aa"}},
      {"root ::= \"\"", {""}, {"a"}},
      {"root ::=\n", {""}, {"a"}},
      {"# first\nroot ::= x | y # one\n\nx ::= \"1\"\ny ::=\n  \"2\"\n", {"1", "2"}, {"", "12"}},
      {"root ::= (\n  \"a\" |\n  \"b\"\n)+", {"a", "ba"}, {""}},
      {"root ::= \"a\"\n  | \"b\"\n", {"a", "b"}, {"ab"}},
      {"root ::= [a-c]*", {"", "abc"}, {"d"}},
      {"root ::= [^a-c\\n]", {"d", "\xc3\xa9", "\xf0\x9f\x98\x80"}, {"a", "\n", "", "\xc3"}},
      {"root ::= [a-]", {"a", "-"}, {"b"}},
      {"root ::= [\\]\\[\\\\\\^\\-]+", {"][\\^-"}, {"a"}},
      {"root ::= .", {"a", "\n", "\xe2\x82\xac"}, {"", "ab", "\xff", "\xed\xa0\x80"}},
      {"root ::= \"\\x41\\u00e9\\U0001F600\\t\\\"\"", {"A\xc3\xa9\xf0\x9f\x98\x80\t\""}, {"A"}},
      {"root ::= \"ab\"?", {"", "ab"}, {"a", "abab"}},
      {"root ::= \"ab\" +", {"ab", "abab"}, {"", "aba"}},
      {"root ::= [0-9]{3}", {"123"}, {"12", "1234"}},
      {"root ::= [0-9]{2,}", {"12", "12345"}, {"1"}},
      {"root ::= [0-9]{,2}", {"", "12"}, {"123"}},
      {"root ::= [0-9]{ 1 , 3 }", {"1", "123"}, {"", "1234"}},
      {"root ::= \"a\"{0}", {""}, {"a"}},
      {"root ::= (\"a\"?){2,4}", {"", "a", "aaaa"}, {"aaaaa"}},
      {"root ::= (\"a\"?)*", {"", "aaaaaaa"}, {"b"}},
      {"root ::= (\"a\" | \"aa\"){2,3}", {"aa", "aaaaaa"}, {"a", "aaaaaaa"}},
      {"root ::= \"(\" root \")\" | \"\"", {"", "(())"}, {"(", "())"}},
      {"root ::= \"a\" root | \"\"", {"", "aaaa"}, {"b"}},
      {"root ::= \"a\" root \"b\" root | \"\"", {"", "ab", "aabbab"}, {"a", "ba"}},
      {"root ::= a-b a_2 aB3\na-b ::= \"1\"\na_2 ::= \"2\"\naB3 ::= \"3\"", {"123"}, {"12"}},
      {"root ::= [\xc3\xa9-\xc3\xbf]", {"\xc3\xa9", "\xc3\xbf"}, {"\xc3\xa8", "\xc3"}},
      {"root ::= [\\u0700-\\u1000]",
       {"\xdc\x80", "\xe0\xa0\x80", "\xe1\x80\x80"},
       {"\xdb\xbf", "\xe1\x80\x81", "\xe0\x9f\xbf"}},
      // what has no end is left out of choices
      {"root ::= \"a\" | \"b\" loop\nloop ::= \"c\" loop", {"a"}, {"b", "bc"}},
      {"root ::= \"a\" [] | \"b\" []* \"c\"", {"bc"}, {"a"}},
  };
  for (const Case& c : cases) {
    INFO(c.grammar);
    const Grammar grammar = grammar_of_gbnf(c.grammar);
    for (const std::string& text : c.in) {
      INFO("'" << text << "'");
      CHECK(grammar.matches(text));
    }
    for (const std::string& text : c.out) {
      INFO("'" << text << "'");
      CHECK_FALSE(grammar.matches(text));
    }
  }
}

TEST_CASE("gbnf: what is wrong is said with line and column") {
  const auto says = [](const std::string& grammar, const std::string& part) {
    const std::string said = refusal<ConfigError>([&] { (void)grammar_of_gbnf(grammar); });
    INFO(grammar << "\n" << said);
    CHECK(mentions(said, part));
    CHECK(said.find('\n') == std::string::npos);
  };
  says("", "no rule 'root'");
  says("a ::= \"x\"", "no rule 'root'");
  says("root ::= \"a", "line 1, column 10");
  says("root ::= \"a\"\nx ::= [a\n", "line 2, column 7");
  says("root ::= (\"a\"", "line 1, column 10: this (");
  says("root ::= \"a\" )", "line 1, column 14");
  says("root = \"a\"", "expected ::=");
  says("root ::= other", "line 1, column 10: there is no rule 'other'");
  says("root ::= \"a\"\nroot ::= \"b\"", "line 2, column 1: the rule 'root' is there twice");
  says("root ::= *", "nothing stands before *");
  says("root ::= \"a\"{3,2}", "2 is less than 3");
  says("root ::= \"a\"{}", "expected a number");
  says("root ::= \"a\"{1", "expected }");
  says("root ::= \"a\"{9999999999}", "is more than");
  says("root ::= [z-a]", "ends before it begins");
  says("root ::= \"\\q\"", "after \\ comes");
  says("root ::= \"\\x4\"", "2 hexadecimal digits");
  says("root ::= \"\\ud800\"", "U+D800 is no character");
  says("root ::= <[7]>", "are not supported");
  says("root ::= \"\xff\"", "is not UTF-8");
  says("root ::= root \"a\" | \"b\"", "rule 'root' begins with itself");
  says("root ::= \"a\"? b\nb ::= (\"c\"* root)", "begins with itself");
  says("root ::= \"a\" root", "no text that comes to an end");
  says("root ::= []", "no text that comes to an end");
  says("root ::= " + std::string(100, '(') + "\"a\"" + std::string(100, ')'), "nested more than");
  says("root ::= \"a\"" + std::string(20, '*'), "signs of repetition");
  says("root ::= " + std::string(300'000, '.'), "more than 262144 parts");
  says(std::string((1 << 20) + 1, ' '), "at most");
}

TEST_CASE("gbnf: what would grow without bound is refused when it is read") {
  // two ways at each letter, which never meet again
  const Grammar grammar = grammar_of_gbnf("root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"d\"");
  CHECK(grammar.matches("aadbc"));
  CHECK(mentions(refusal<DataError>([&] { (void)grammar.matches(std::string(60, 'a')); }),
                 "ways to read the text"));
  // what can be read in many ways that meet again costs nothing
  const Grammar meets = grammar_of_gbnf("root ::= (\"a\" | \"aa\" | \"a\"*)* \"b\"");
  CHECK(meets.matches(std::string(5000, 'a') + "b"));
  const Grammar counted = grammar_of_gbnf("root ::= (\"a\"?){0,1000000000} \"b\"");
  CHECK(counted.matches(std::string(300, 'a') + "b"));
}

TEST_CASE("gbnf: random grammars match what the plain reference matches") {
  std::mt19937 random(11);
  const std::vector<std::string> texts = texts_up_to(4);
  std::size_t matched = 0, tried = 0;
  for (int k = 0; k < 120; ++k) {
    const RandomGrammar made(random);
    INFO(made.gbnf());
    const std::string said = refusal<ConfigError>([&] {
      const Grammar grammar = grammar_of_gbnf(made.gbnf());
      for (std::size_t i = 0; i < texts.size(); i += i < 260 ? 1 : 1 + random() % 9) {
        const bool expected = Matcher(made.rules(), texts[i]).whole();
        if (grammar.matches(texts[i]) != expected) FAIL("'" << texts[i] << "' " << expected);
        matched += expected ? 1 : 0;
        ++tried;
      }
    });
    CHECK((said == "no error" || mentions(said, "no text that comes to an end")));
  }
  CHECK(tried > 30'000);
  CHECK(matched > 1'000);
}
