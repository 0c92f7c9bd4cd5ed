// SPDX-License-Identifier: Apache-2.0
#include <time.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/grammar/token_grammar.hpp"
#include "target.hpp"

using namespace episodic;

namespace {

constexpr double kMostSeconds = 20;  // with sanitizers, on a machine that does something else

double seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_nsec) * 1e-9;
}

std::shared_ptr<const TokenTrie> tokens() {
  std::vector<std::string> all{""};
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  for (const char* more : {"{\"", "\":", "\",\"", "}}", "ab", "aaaa", "12", "\xe2\x82", "\xac\""})
    all.emplace_back(more);
  static const auto trie = std::make_shared<const TokenTrie>(all);
  return trie;
}

/// Writes a text that the grammar allows, always the first or the last token.
void write(const Grammar& grammar) {
  GrammarState state(std::make_shared<const TokenGrammar>(grammar, tokens(), 1 << 16));
  std::string text;
  for (int step = 0; step < 24; ++step) {
    const auto mask = state.allowed();
    std::int64_t drawn = -1;
    for (std::int64_t id = 0; id < tokens()->vocab_size(); ++id)
      if (allows(*mask, id) && (drawn < 0 || step % 3 == 0)) drawn = id;
    fuzz::require(drawn >= 0 || state.may_end(), "a text of single bytes is never stuck");
    if (drawn < 0) break;
    fuzz::require(state.advance(drawn), "a token of the mask is taken");
    text += tokens()->bytes(drawn);
  }
  if (state.may_end()) fuzz::require(grammar.matches(text), "what may end is a text of it");
}

}  // namespace

// Input: a schema where it begins with { or a letter s, which is left out; else GBNF.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view text(reinterpret_cast<const char*>(data), size);
  const double begin = seconds();
  try {
    const bool schema = text.starts_with('{') || text.starts_with('s');
    if (text.starts_with('s')) text.remove_prefix(1);
    write(schema ? grammar_of_json_schema(text) : grammar_of_gbnf(text));
  } catch (const Error& e) {
    const std::string_view said = e.what();
    fuzz::require(said.size() < 2000, "a message is short");
    for (const char c : said)
      fuzz::require(static_cast<unsigned char>(c) >= 0x20, "a message is one line");
  }
  fuzz::require(seconds() - begin < kMostSeconds, "it is done in time");
  return 0;
}

namespace fuzz {

std::vector<std::string> seeds() {
  return {
      "root ::= \"a\" | [^b-d]{2,5} (x | .)* # c\nx ::= \"\\u20ac\"? root\n",
      "root ::= \"{\" ws (s \":\" ws v (\",\" s \":\" v)*)? \"}\"\nws ::= [ \\n]{0,3}\n"
      "s ::= \"\\\"\" [^\"\\\\]* \"\\\"\"\nv ::= root | s | [0-9]+\n",
      "root ::= (\"a\" | \"aa\"){3,1000} (\"b\"?){0,7}",
      R"({"type":"object","properties":{"a":{"type":"integer","minimum":-5,"maximum":120},"b":{"type":"string","minLength":1,"maxLength":9}},"required":["a"],"additionalProperties":{"type":"boolean"}})",
      R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"number","minimum":0,"exclusiveMaximum":1.5},"n":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","n"]}},"$ref":"#/$defs/n"})",
      R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"}},"required":["k"]},{"type":"array","prefixItems":[{"enum":[1,"x"]}],"items":{"type":"string","pattern":"^[a-c]+(\\d|\\.){2}$"},"maxItems":4}]})",
      R"({"allOf":[{"properties":{"a":{"type":"integer","minimum":1}}},{"properties":{"a":{"maximum":3}},"additionalProperties":false}]})",
      R"({"type":["string","null"],"format":"date-time"})"};
}

void repair(std::string&) {}

}  // namespace fuzz
