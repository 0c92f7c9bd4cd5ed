// SPDX-License-Identifier: Apache-2.0
// JSON that means harm.
#include "base/strict_json.hpp"

#include <string>

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "support/refusal.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace {

std::string repeated(const std::string& text, int n) {
  std::string out;
  for (int i = 0; i < n; ++i) out += text;
  return out;
}

/// Refused by all that parses, in one line.
void refuses(const std::string& text, const std::string& because) {
  const JsonLimits limits{.depth = 16, .array_length = 1000, .keys = 1000};
  const std::string strict = refusal<FileError>([&] { parse_strict(text, "a.json", limits); });
  const std::string ordered = refusal<FileError>([&] { parse_ordered(text, "a.json", limits); });
  for (const std::string& message : {strict, ordered}) {
    CHECK(mentions(message, "a.json: "));
    CHECK(mentions(message, because));
    CHECK(message.size() < 400);
    for (const char c : message) CHECK(static_cast<unsigned char>(c) >= 0x20);
  }
}

}  // namespace

TEST_CASE("JSON nested some hundred thousand levels deep is refused by its depth") {
  constexpr int kDeep = 300000;
  for (const std::string& open :
       {std::string("["), std::string("{\"a\":"), std::string("[1,{\"b\":[0],\"a\":")}) {
    refuses(repeated(open, kDeep), "nested more than 16 deep");
    refuses("{\"n_local\":" + repeated(open, kDeep), "nested more than 16 deep");
  }
  refuses(repeated("[", kDeep) + repeated("]", kDeep), "nested more than 16 deep");
  // Brackets in strings nest nothing.
  const std::string quoted = "\"" + repeated("[\\\"{", 1000) + "\"";
  CHECK(parse_strict(quoted, "a.json", {}).is_string());
  const std::string most = repeated("[", 16) + repeated("]", 16);
  CHECK(parse_strict(most, "a.json", {.depth = 16}).is_array());
  refuses("[" + most + "]", "nested more than 16 deep");
}

TEST_CASE("memory settings nested deep are refused, and never repeated in full") {
  const std::string deep = repeated("[", 300000) + repeated("]", 300000);
  for (const char* key : {"n_local", "segmenter", "recall_layers", "scope", "disk_dir", "none"}) {
    const std::string text = std::string("{\"").append(key) + "\":" + deep + "}";
    const std::string said = refusal<ConfigError>([&] { parse_memory_config(text); });
    CHECK(mentions(said, "memory configuration: nested more than"));
    CHECK(said.size() < 400);
    const std::string wide =
        std::string("{\"") + key + "\":[" + repeated("\"\\u001b[31m\\n\",", 10000) + "1]}";
    const std::string echoed = refusal<ConfigError>([&] { parse_memory_config(wide); });
    CHECK(echoed.size() < 1200);
    CHECK(echoed.find_first_of("\x1b\n") == std::string::npos);
  }
  const std::string name =
      refusal<ConfigError>([&] { parse_memory_config("{\"" + repeated("x", 100000) + "\":1}"); });
  CHECK(name.size() < 1200);
}

TEST_CASE("JSON with endless lists, repeated keys or broken text is refused in one line") {
  refuses("[" + repeated("0,", 1000) + "0]", "more than 1000 entries");
  std::string object = "{";
  for (int i = 0; i <= 1000; ++i) object += "\"" + std::to_string(i) + "\":0,";
  refuses(object + "\"z\":0}", "more than 1000 entries");
  refuses("{\"a\":1,\"a\":2}", "stands twice");
  refuses("[\"" + repeated("long ", 10000), "not valid JSON");
  refuses("[\"\x1b[31m\xff", "not valid JSON");
  refuses("[nul\n\n\n", "not valid JSON");
  refuses("", "not valid JSON");
  CHECK(mentions(refusal<FileError>([] { parse_strict("[1,2,3]", "a", {.bytes = 6}); }),
                 "at most 6"));
}

TEST_CASE("an object whose keys stay in order has no more of them than can be found quickly") {
  std::string object = "{";
  for (int i = 0; i < 5000; ++i) object += "\"" + std::to_string(i) + "\":0,";
  CHECK_THROWS_AS(parse_ordered(object + "\"z\":0}", "a.json", {}), FileError);
  CHECK(parse_strict(object + "\"z\":0}", "a.json", {}).size() == 5001);
  CHECK(parse_ordered("{\"b\":1,\"a\":2}", "a.json", {}).dump() == "{\"b\":1,\"a\":2}");
}

TEST_CASE("what a message repeats is one short line of whole characters") {
  CHECK(printable("plain") == "plain");
  CHECK(printable("a\nb\tc\x1b[0m\x7f") == "a?b?c?[0m?");
  CHECK(printable("\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82") ==
        "\xc3\xa9\xe2\x82\xac\xf0\x9f\x99\x82");
  CHECK(printable("\xc2\x9b"
                  "31m") == "??31m");  // a terminal's control
  CHECK(printable("a\xe2\x80\xae"
                  "b") == "a???b");      // turns the text around
  CHECK(printable("\xff\xc3") == "??");  // no characters
  CHECK(printable(repeated("x", 160)) == repeated("x", 160));
  CHECK(printable(repeated("x", 161)) == repeated("x", 160) + "...");
  CHECK(printable("x" + repeated("\xc3\xa9", 200)) == "x" + repeated("\xc3\xa9", 79) + "...");
  CHECK(printable_value(nlohmann::json{{"a", "b\n"}}) == "{\"a\":\"b\\n\"}");
  CHECK(json_string("a\"\\\n\x01\xff") == "\"a\\\"\\\\\\n\\u0001\xef\xbf\xbd\"");
}
