// SPDX-License-Identifier: Apache-2.0
// JSON schemas: which texts are let by, which schemas are refused, and that whatever is drawn under
// the mask satisfies the schema.
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/grammar/token_grammar.hpp"
#include "grammar/validate.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;
using namespace episodic::test;

namespace {

constexpr JsonLimits kDeep{.depth = 2000};

struct SchemaCase {
  const char* schema;
  std::vector<const char*> in{}, out{};
};

const std::vector<SchemaCase>& schema_cases() {
  static const std::vector<SchemaCase> cases{
      {R"({"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"string"}},"required":["a"]})",
       {R"({"a":1})", R"({"a": -7, "b": "x"})", "{\n  \"a\": 0\n}"},
       {"{}", R"({"b":"x"})", R"({"b":"x","a":1})", R"({"a":1,})", R"({"a":1.5})", R"({"a":01})",
        R"({"a":1,"c":2})", R"( {"a":1})", R"({"a":1} )"}},
      {R"({"type":"object","properties":{"a":true,"b":true,"c":true}})",
       {"{}", R"({"a":1})", R"({"b":[]})", R"({"c":null})", R"({"a":1,"c":{}})",
        R"({"b":"","c":1})"},
       {R"({,"a":1})", R"({"c":1,"a":1})", R"({"a":1,,"c":1})"}},
      {R"({"type":"object","properties":{"ab":{"type":"null"}},"required":["ab","z"],
          "additionalProperties":{"type":"boolean"}})",
       {R"({"ab":null,"z":true})", R"({"ab":null,"z":true,"a":false,"abc":true,"b":true})"},
       {R"({"ab":null})", R"({"ab":null,"z":true,"ab":true})", R"({"ab":null,"z":true,"z":false})",
        R"({"ab":null,"z":true,"\u0061b":true})", R"({"ab":null,"z":true,"a":1})"}},
      {R"({"properties":{"a":false,"":{"const":1}},"additionalProperties":true})",
       {"{}", R"({"":1})", R"({"":1,"b":2})", R"({"b":2})"},
       {R"({"a":1})", R"({"":2})", R"({"b":2,"":1})"}},
      {R"({"type":"object"})",
       {"{}", R"({"\u0041\ud83d\ude00":{"b":[1]}})"},
       {"[]", R"({"\ud83d":1})", R"({"a":})", "{'a':1}"}},
      {R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":2})",
       {R"({"a":1})", R"({"a":1,"b":2})"},
       {"{}", R"({"a":1,"b":2,"c":3})"}},
      {R"({"type":"object","additionalProperties":false})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"array","items":{"type":"boolean"},"minItems":1,"maxItems":3})",
       {"[true]", "[true,false, true]"},
       {"[]", "[true,true,true,true]", "[1]", "[true,]"}},
      {R"({"type":"array"})", {"[]", "[1,\"a\",null,[],{}]"}, {"{}", "[1"}},
      {R"({"type":"array","maxItems":0})", {"[]", "[ ]"}, {"[1]"}},
      {R"({"type":"array","items":false})", {"[]"}, {"[1]"}},
      {R"({"type":"array","prefixItems":[{"type":"integer"},{"type":"string"}]})",
       {"[1,\"a\"]"},
       {"[\"a\",1]", "[1,\"a\",1]"}},
      {R"({"type":"array","prefixItems":[{"const":1}],"items":{"const":2},"minItems":2,"maxItems":3})",
       {"[1,2]", "[1,2,2]"},
       {"[1]", "[1,2,2,2]", "[2,2]"}},
      {R"({"type":"string","minLength":2,"maxLength":3})",
       {"\"ab\"", "\"\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80\"", R"("\n\u00e9")",
        R"("\ud83d\ude00a")"},
       {"\"a\"", "\"abcd\"", "\"a\n\"", R"("\ud83da")", R"("\x41b")", "\"a\xff\""}},
      {R"({"enum":["a","b\"c",1,null,{"x":[1.5]}]})",
       {"\"a\"", R"("b\"c")", "1", "null", R"({"x":[1.5]})"},
       {"\"b\"", "2", "{}"}},
      {R"({"enum":["a",1],"type":"string"})", {"\"a\""}, {"1"}},
      {R"({"const":"x"})", {"\"x\""}, {"\"y\""}},
      {R"({"type":"number"})",
       {"0", "-0", "-1.5", "1e9", "2E-07", "12.25"},
       {"01", "1.", ".5", "1e999", "+1", "NaN"}},
      {R"({"type":"integer"})",
       {"0", "-1", "123456789012345"},
       {"1.0", "-0", "1234567890123456", "00"}},
      {R"({"type":"integer","minimum":-12,"maximum":105})",
       {"-12", "-9", "0", "7", "99", "105"},
       {"-13", "106", "200", "1000", "-0", "-100"}},
      {R"({"type":"integer","exclusiveMinimum":9,"exclusiveMaximum":1000.5})",
       {"10", "999", "1000"},
       {"9", "1001"}},
      {R"({"type":"integer","minimum":9007199254740993})",
       {"9007199254740993", "99999999999999999"},
       {"9007199254740992", "1"}},
      {R"({"type":"integer","maximum":-5})", {"-5", "-123456"}, {"-4", "0", "5"}},
      {R"({"type":"number","minimum":0,"maximum":1})",
       {"0", "1", "0.5", "1.0", "0.000001"},
       {"-0.1", "1.1", "1.000001", "2", "1e-1"}},
      {R"({"type":"number","exclusiveMinimum":0})", {"0.1", "1", "123456.5"}, {"0", "0.0", "-1"}},
      {R"({"type":"number","minimum":-1.25,"exclusiveMaximum":2.5})",
       {"-1.25", "-1", "-0.3", "0", "2.49", "2", "2.4999"},
       {"-1.26", "-2", "2.5", "2.50", "3"}},
      {R"({"type":"number","maximum":-0.5})", {"-0.5", "-0.51", "-7"}, {"-0.4", "0", "1", "-0.49"}},
      {R"({"type":"boolean"})", {"true", "false"}, {"1", "null"}},
      {R"({"type":"null"})", {"null"}, {"0"}},
      {R"({"type":["string","null"]})", {"null", "\"\""}, {"1"}},
      {R"({"anyOf":[{"type":"integer"},{"type":"string"}]})", {"1", "\"a\""}, {"null"}},
      {R"({"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"integer"}},"required":["k"]},
                    {"type":"object","properties":{"k":{"const":"b"},"y":{"type":"integer"}},"required":["k"]}]})",
       {R"({"k":"a","x":1})", R"({"k":"b"})"},
       {R"({"k":"a","y":1})", R"({"k":"c"})"}},
      {R"({"type":"object","properties":{"a":{"const":1},"b":{"const":2}},
           "anyOf":[{"required":["a"]},{"required":["b"]}]})",
       {R"({"a":1})", R"({"b":2})", R"({"a":1,"b":2})"},
       {"{}"}},
      {R"({"$defs":{"n":{"type":"object","properties":{"v":{"type":"integer","minimum":0,"maximum":9},
           "next":{"anyOf":[{"$ref":"#/$defs/n"},{"type":"null"}]}},"required":["v","next"]}},"$ref":"#/$defs/n"})",
       {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
       {R"({"v":1})", R"({"v":1,"next":{"v":12,"next":null}})"}},
      {R"({"$defs":{"a/b%c":{"type":"null"}},"type":"array","items":{"$ref":"#/$defs/a~1b%25c"}})",
       {"[null]"},
       {"[1]"}},
      {R"({"allOf":[{"type":"object","properties":{"a":{"type":"integer","minimum":1}},"required":["a"]},
                    {"properties":{"a":{"maximum":3},"b":{"type":"string"}},"required":["b"]}]})",
       {R"({"a":1,"b":""})"},
       {R"({"a":0,"b":""})", R"({"a":4,"b":""})", R"({"a":1})"}},
      {R"({"allOf":[{"properties":{"a":{"const":1},"b":{"const":2}}},
                    {"properties":{"a":true},"additionalProperties":false,"type":"object"}]})",
       {"{}", R"({"a":1})"},
       {R"({"a":1,"b":2})"}},
      {R"({"$defs":{"base":{"type":"object","properties":{"id":{"type":"integer"}},"required":["id"]}},
           "allOf":[{"$ref":"#/$defs/base"}],"title":"x"})",
       {R"({"id":1})"},
       {"{}"}},
      {R"({"type":"string","pattern":"^[a-c]{2,3}(-\\d+)?$"})",
       {"\"ab\"", "\"abc-12\""},
       {"\"a\"", "\"abcd\"", "\"ab-\""}},
      {R"({"type":"string","pattern":"x|^y$"})", {"\"axb\"", "\"y\"", "\"x\""}, {"\"ay\"", "\"\""}},
      {R"({"type":"string","pattern":"^[\"\\\\\\n\\u0001]$"})",
       {R"("\"")", R"("\\")", R"("\n")", R"("\u0001")"},
       {"\"a\"", R"("\u0002")"}},
      {R"({"type":"string","pattern":"^[^a]\\.(?:b|c)*?$"})",
       {"\"x.bcb\"", R"("\t.")"},
       {"\"a.\"", "\"xbb\""}},
      {R"({"type":"string","format":"date"})",
       {"\"2026-11-27\""},
       {"\"2026-13-01\"", "\"2026-02-30\"", "\"26-1-1\""}},
      {R"({"type":"string","format":"date-time"})",
       {"\"2026-11-27T16:00:00Z\"", "\"2026-11-27T16:00:00.5+01:00\""},
       {"\"2026-11-27\""}},
      {R"({"type":"string","format":"uuid"})",
       {"\"01234567-89ab-cdef-0123-456789abcdef\""},
       {"\"0123\""}},
      {R"({"type":"string","format":"ipv4"})", {"\"10.0.255.1\""}, {"\"10.0.256.1\"", "\"1.2.3\""}},
      {R"({"type":"string","format":"ipv6"})",
       {"\"0:1:2:3:4:5:6:ffff\""},
       {"\"::1\"", "\"g:1:2:3:4:5:6:7\""}},
      {R"({"type":"string","format":"duration"})",
       {"\"P3D\"", "\"P1DT2H30M\"", "\"PT5S\""},
       {"\"P\"", "\"PT\"", "\"3D\""}},
      {R"({"type":"string","format":"uri"})",
       {"\"https://a.org:80/b/c?d=e\"", "\"http://a\""},
       {"\"a.org\"", "\"https://\""}},
      {R"({"type":"object","properties":{}})", {"{}"}, {R"({"a":1})"}},
      {R"({"type":"string","format":"email"})", {"\"a.b@c.org\""}, {"\"a\"", "\"@c.org\""}},
      {"true", {"1", "{}", "[[]]", "null"}, {"", "nul"}},
      {R"({"title":"any","description":"d","default":1,"x-mine":2})", {"1", "[]"}, {"?"}},
  };
  return cases;
}

/// Bytes, what JSON is written with, and pieces that end within a character or close several
/// things.
std::shared_ptr<const TokenTrie> tokens() {
  std::vector<std::string> all;
  for (int b = 0; b < 256; ++b) all.emplace_back(1, static_cast<char>(b));
  for (const char* more :
       {"{\"", "\":",      "\": ",   "\",\"",        "\", \"",  "\"}", "}}",   "]}",
        "[\"", "[[",       "null",   "true",         "false",   "tr",  "12",   "999",
        "0.5", "-1",       "e1",     "\\u",          "\\ud83d", "\\n", "ab",   "abc",
        "key", "\xe2\x82", "\xac\"", "\xf0\x9f\x98", "\x80}",   "  ",  "\n  ", "2026",
        "-0",  "{}",       "[]",     "\"a\"",        "\"\"",    "1}",  "1,"})
    all.emplace_back(more);
  static const auto trie = std::make_shared<const TokenTrie>(all);
  return trie;
}

/// An answer by the largest of random logits, which close what is open once it is long.
std::string draw(const std::shared_ptr<const TokenGrammar>& grammar, std::mt19937& random) {
  GrammarState state(grammar);
  std::string text;
  for (int step = 0; step < 3000; ++step) {
    const auto mask = state.allowed();
    std::int64_t best = -1;
    double largest = state.may_end() ? static_cast<double>(random() % 1000) + step * 20 : -1e9;
    for (std::int64_t id = 0; id < tokens()->vocab_size(); ++id) {
      if (!allows(*mask, id)) continue;
      const std::string_view bytes = tokens()->bytes(id);
      double logit = static_cast<double>(random() % 1000);
      const bool closes = bytes == "\"" || bytes == "}" || bytes == "]" || bytes == "n";
      if (step > 40 && closes) logit += 20.0 * step;
      if (logit <= largest) continue;
      largest = logit;
      best = id;
    }
    if (best < 0) {
      REQUIRE(state.may_end());
      return text;
    }
    REQUIRE(state.advance(best));
    text += tokens()->bytes(best);
  }
  FAIL("an answer that does not end: " << text.substr(0, 200));
  return text;
}

}  // namespace

TEST_CASE("json schema: texts that are let by, and that are not") {
  for (const SchemaCase& c : schema_cases()) {
    INFO(c.schema);
    const Grammar grammar = grammar_of_json_schema(c.schema);
    const Json schema = parse_strict(c.schema, "schema", kDeep);
    for (const char* text : c.in) {
      INFO(text);
      CHECK(grammar.matches(text));
      CHECK(Validator(schema).valid(parse_strict(text, "text", kDeep)));
    }
    for (const char* text : c.out) {
      INFO(text);
      CHECK_FALSE(grammar.matches(text));
    }
  }
}

TEST_CASE("json schema: whatever is drawn under the mask is JSON that satisfies it") {
  std::mt19937 random(17);
  for (const SchemaCase& c : schema_cases()) {
    INFO(c.schema);
    const Json schema = parse_strict(c.schema, "schema", kDeep);
    const auto grammar =
        std::make_shared<const TokenGrammar>(grammar_of_json_schema(c.schema), tokens());
    JsonLimits limits = kDeep;
    limits.repeated_keys = true;  // which a grammar cannot see
    for (int n = 0; n < 12; ++n) {
      const std::string text = draw(grammar, random);
      INFO(text);
      CHECK(Validator(schema).valid(parse_strict(text, "answer", limits)));
      CHECK(grammar_of_json_schema(c.schema).matches(text));
    }
  }
  const auto any = std::make_shared<const TokenGrammar>(grammar_of_json_object(), tokens());
  for (int n = 0; n < 40; ++n) {
    JsonLimits limits = kDeep;
    limits.repeated_keys = true;
    CHECK(parse_strict(draw(any, random), "answer", limits).is_object());
  }
}

TEST_CASE("json schema: bounds of integers, each number beside the comparison") {
  std::mt19937 random(3);
  for (int k = 0; k < 60; ++k) {
    const int spread = k % 3 == 0 ? 20 : k % 3 == 1 ? 1200 : 99999;
    int low = static_cast<int>(random() % static_cast<unsigned>(2 * spread)) - spread;
    int high = low + static_cast<int>(random() % static_cast<unsigned>(spread));
    const std::string schema = R"({"type":"integer","minimum":)" + std::to_string(low) +
                               R"(,"maximum":)" + std::to_string(high) + "}";
    INFO(schema);
    const Grammar grammar = grammar_of_json_schema(schema);
    for (int n = 0; n < 300; ++n) {
      const int x =
          n < 40   ? low - 20 + n
          : n < 80 ? high - 60 + n
                   : static_cast<int>(random() % static_cast<unsigned>(4 * spread)) - 2 * spread;
      if (grammar.matches(std::to_string(x)) != (low <= x && x <= high)) FAIL(x);
    }
  }
}

TEST_CASE("json schema: bounds of numbers, each beside the comparison") {
  std::mt19937 random(4);
  const auto decimal = [&](int digits) {
    std::string text = random() % 2 == 0 ? "-" : "";
    text += std::to_string(random() % 30);
    if (digits > 0) text += '.';
    for (int i = 0; i < digits; ++i) text += static_cast<char>('0' + random() % 10);
    return text;
  };
  int in = 0;
  for (int k = 0; k < 120; ++k) {
    std::string low = decimal(static_cast<int>(random() % 3)),
                high = decimal(static_cast<int>(random() % 3));
    if (std::stod(low) >= std::stod(high)) std::swap(low, high);
    if (std::stod(low) == std::stod(high)) continue;
    const bool above = random() % 2 == 0, below = random() % 2 == 0;
    const std::string schema = std::string(R"({"type":"number",")") +
                               (above ? "exclusiveMinimum" : "minimum") + "\":" + low + ",\"" +
                               (below ? "exclusiveMaximum" : "maximum") + "\":" + high + "}";
    INFO(schema);
    const Grammar grammar = grammar_of_json_schema(schema);
    for (int n = 0; n < 200; ++n) {
      std::string text = n % 4 == 0   ? low
                         : n % 4 == 1 ? high
                                      : decimal(static_cast<int>(random() % 5));
      if (n % 4 < 2 && n > 3) {  // beside an end
        if (text.find('.') == std::string::npos) text += '.';
        text += static_cast<char>('0' + random() % 10);
      }
      const double x = std::stod(text), a = std::stod(low), b = std::stod(high);
      const bool negative_zero = x == 0 && text[0] == '-';
      const bool expected = (above ? x > a : x >= a) && (below ? x < b : x <= b) && !negative_zero;
      if (grammar.matches(text) != expected) FAIL(text);
      in += expected ? 1 : 0;
    }
  }
  CHECK(in > 1000);
}

TEST_CASE("json schema: what cannot be held is refused by its place") {
  const auto says = [](const std::string& schema, const std::string& part) {
    const std::string said = refusal<ConfigError>([&] { (void)grammar_of_json_schema(schema); });
    INFO(schema << "\n" << said);
    CHECK(mentions(said, part));
    CHECK(said.find('\n') == std::string::npos);
  };
  says("", "json schema");
  says("{", "json schema");
  says("3", "must be an object");
  says("false", "allows no value");
  says(R"({"a":1,"a":2})", "json schema");
  says(R"({"properties":{"x/y":{"type":"string","contentEncoding":"base64"}}})",
       "/properties/x~1y/contentEncoding: is not supported");
  says(R"({"not":{}})", "/not: is not supported");
  says(R"({"patternProperties":{}})", "/patternProperties");
  says(R"({"type":"array","uniqueItems":true})", "/uniqueItems: is not supported");
  says(R"({"type":"number","multipleOf":2})", "/multipleOf");
  says(R"({"type":"strin"})", "/type: must be a type");
  says(R"({"$ref":"http://x"})", "/$ref: 'http://x' is not in this schema");
  says(R"({"$ref":"#/$defs/none"})", "there is no '/$defs/none'");
  says(R"({"$ref":"#"})", "begins with itself");
  says(R"({"$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}},"$ref":"#/$defs/a"})",
       "begins with itself");
  says(R"({"$defs":{"a":{"allOf":[{"$ref":"#/$defs/a"},{"type":"object"}]}},"$ref":"#/$defs/a"})",
       "too deep");
  says(
      R"({"$defs":{"n":{"type":"object","properties":{"n":{"$ref":"#/$defs/n"}},"required":["n"]}},"$ref":"#/$defs/n"})",
      "comes to an end");
  says(R"({"oneOf":[{"type":"integer"},{"type":"number"}]})",
       "/oneOf: a value could be of part 0 and of part 1");
  says(
      R"({"oneOf":[{"type":"object","properties":{"a":{}}},{"type":"object","properties":{"b":{}}}]})",
      "oneOf");
  says(R"({"allOf":[{"type":"string"},{"type":"null"}]})", "/type: no type is among all");
  says(R"({"allOf":[{"pattern":"a"},{"pattern":"b"}]})", "/pattern: differs");
  says(R"({"type":"string","minLength":3,"maxLength":2})", "/maxLength: is less than minLength");
  says(R"({"type":"string","minLength":-1})", "/minLength: must be an integer");
  says(R"({"type":"string","pattern":"(?=a)b"})", "/pattern: the pattern '(?=a)b' looks ahead");
  says(R"({"type":"string","pattern":"a\\b"})", "\\b, which is not supported");
  says(R"({"type":"string","pattern":"(a)\\1"})", "\\1, which is not supported");
  says(R"({"type":"string","pattern":"(a"})", "( without its )");
  says(R"({"type":"string","pattern":"a$b"})", "$ that is not at its end");
  says(R"({"type":"string","pattern":"a","maxLength":3})", "/maxLength: beside pattern");
  says(R"({"type":"string","format":"regex"})", "/format: 'regex' is not supported");
  says(R"({"type":"integer","minimum":3,"maximum":2})", "no integer is within");
  says(R"({"type":"integer","exclusiveMinimum":true})", "/exclusiveMinimum: must be a number");
  says(R"({"type":"number","minimum":0.12345678901234567})", "more digits");
  says(R"({"type":"object","properties":{"a":{}},"required":["b"],"additionalProperties":false})",
       "/required: asks for 'b'");
  says(R"({"minLength":1,"minimum":1})", "add \"type\"");
  says(R"({"enum":[]})", "/enum");
  says(R"({"enum":[1],"type":"string"})", "no value of it is of the type");
  says(R"({"items":[{}]})", "prefixItems");
  std::string deep = "true";
  for (int i = 0; i < 80; ++i) deep = R"({"items":)" + deep + "}";
  says(deep, "deep");
  for (int i = 0; i < 200; ++i) deep = R"({"items":)" + deep + "}";
  says(deep, "deep");
  std::string doubling = R"({"$ref":"#/$defs/d0","$defs":{"end":{"type":"object"})";
  for (int i = 0; i < 25; ++i) {
    const std::string next = i == 24 ? "end" : "d" + std::to_string(i + 1);
    doubling += ",\"d" + std::to_string(i) + R"(":{"allOf":[{"$ref":"#/$defs/)" + next +
                R"("},{"$ref":"#/$defs/)" + next + R"("}]})";
  }
  says(doubling + "}}", "takes too long to join");
  says(std::string((1 << 20) + 1, ' '), "at most");
}

TEST_CASE("json schema: a schema that refers to itself a thousand times over is read") {
  std::string chain = R"({"$ref":"#/$defs/d0","$defs":{)";
  for (int i = 0; i < 1000; ++i)
    chain += "\"d" + std::to_string(i) + R"(":{"$ref":"#/$defs/d)" + std::to_string(i + 1) + "\"},";
  const Grammar grammar = grammar_of_json_schema(chain + R"("d1000":{"type":"null"}}})");
  CHECK(grammar.matches("null"));
  CHECK_FALSE(grammar.matches("1"));
}
