// SPDX-License-Identifier: Apache-2.0
// Conversations as transformers' apply_chat_template writes them (make_chat_vectors.py).
#include "episodic/text/chat_template.hpp"

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"

using namespace episodic;

namespace chat_template_test {

using Json = nlohmann::ordered_json;

Json vectors() {
  const char* other = std::getenv("EPISODIC_CHAT_VECTORS");  // of every template there is
  std::ifstream file(other ? std::string(other)
                           : std::string(EPISODIC_SOURCE_DIR) + "/tests/text/vectors/chat.json");
  return Json::parse(file);
}

std::tm noon() {
  std::tm t{};
  t.tm_year = 124;
  t.tm_mon = 6;
  t.tm_mday = 26;
  t.tm_hour = 12;
  return t;
}

std::string rendered(const std::string& source, const std::string& variables = {},
                     const std::vector<ChatMessage>& messages = {}) {
  ChatOptions options;
  options.variables = variables;
  options.now = noon();
  return ChatTemplate(source, "T").render(messages, options);
}

/// What is said where a template cannot be read, or not be rendered.
std::string complaint(const std::string& source, const std::string& variables = {}) {
  try {
    return "no error: " + rendered(source, variables);
  } catch (const Error& e) {
    return e.what();
  }
}

/// A macro, so that a failure shows where it stands.
#define CHECK_SAYS(what, part)                   \
  do {                                           \
    const std::string said = what;               \
    INFO(said);                                  \
    CHECK(said.find(part) != std::string::npos); \
  } while (false)

void write(const std::filesystem::path& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
}

/// The messages of a conversation written as JSON, and the other variables.
std::vector<ChatMessage> messages_in(Json& variables) {
  std::vector<ChatMessage> out;
  for (const Json& m : variables["messages"])
    out.push_back({m["role"].get<std::string>(), "", m.dump()});
  variables.erase("messages");
  return out;
}

TEST_CASE("chat templates write what transformers writes") {
  const Json all = vectors();
  const auto tokens = all["tokens"].get<std::map<std::string, std::string>>();
  REQUIRE(all["templates"].size() >= 11);
  for (const Json& t : all["templates"]) {
    const ChatTemplate chat(t["template"].get<std::string>(), t["name"].get<std::string>(), tokens);
    for (std::size_t i = 0; i < t["cases"].size(); ++i) {
      const Json& c = t["cases"][i];
      ChatOptions options;
      options.add_generation_prompt = c["add_generation_prompt"].get<bool>();
      Json variables = c["variables"];
      const std::vector<ChatMessage> messages = messages_in(variables);
      options.variables = variables.dump();
      options.now = noon();
      INFO(t["name"].get<std::string>() << ", conversation " << i);
      if (c["expected"].is_null())
        CHECK_THROWS_AS(chat.render(messages, options), DataError);
      else
        CHECK(chat.render(messages, options) == c["expected"].get<std::string>());
    }
  }
}

TEST_CASE("chat templates take messages, and what is given beside them") {
  const std::vector<ChatMessage> messages{{"user", "a"}, {"assistant", "b"}};
  const std::string source =
      "{% for m in messages %}{{ m.role }}:{{ m['content'] }};{% endfor %}{{ x }}"
      "{% if add_generation_prompt %}!{% endif %}{{ tools is none }}";
  REQUIRE(rendered(source, {}, messages) == "user:a;assistant:b;!True");
  REQUIRE(rendered(source, R"({"x": [1, "z"]})", messages) == "user:a;assistant:b;[1, 'z']!True");
  REQUIRE(rendered("{{ strftime_now('%Y-%m-%d') }}") == "2024-07-26");
  REQUIRE_THROWS_AS(rendered("a", "[1]"), ConfigError);
  REQUIRE_THROWS_AS(rendered("a", "{"), ConfigError);
  REQUIRE(rendered("").empty());
  REQUIRE(rendered("a\n") == "a");
  REQUIRE(rendered("a\r\nb\n\n") == "a\nb\n");
}

TEST_CASE("chat templates: what is not part of the language is named, with its line") {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% include 'x' %}", "T: chat template, line 2: 'include' is not supported"},
      {"a\n{% import 'x' as y %}", "line 2: 'import' is not supported"},
      {"{% extends 'x' %}", "'extends' is not supported"},
      {"{% autoescape true %}{% endautoescape %}", "'autoescape' is not supported"},
      {"{% call f() %}{% endcall %}", "the function 'f' is not supported"},
      {"{{ 'a' | wordwrap }}", "T: chat template, line 1: the filter 'wordwrap' is not supported"},
      {"\n\n{{ 1 is prime }}", "line 3: the test 'prime' is not supported"},
      {"{{ 'a'.encode() }}", "the method 'encode' of a string is not supported"},
      {"{{ lipsum(3) }}", "the function 'lipsum' is not supported"},
      {"{{ nothing.more }}", "'nothing' is undefined, but 'more' of it is asked for"},
      {"{{ nothing['more'] }}", "something undefined"},
      {"{{ raise_exception('no') }}", "line 1: the template refuses these messages: no"},
      {"{{ raise_exception('a\nb\x1b[1m' ~ 'c' * 9999) }}",
       "the template refuses these messages: a"},
      {"{% if true %}a", "'elif' is missing"},
      {"{% for x in [1] %}a", "is missing"},
      {"{{ 'a", "a string has no end"},
      {"{{ 1", "a tag has no end }}"},
      {"{# a", "a comment {# has no end"},
      {"{{ 1 ? 2 }}", "'?' is not part of the template language"},
      {"{{ }}", "expected a value"},
      {"{{ 1 2 }}", "expected the end of the tag before '2'"},
      {"{% set a.b = 1 %}", "only a namespace's attributes can"},
      {"{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names"},
      {"{% for a in 3 %}{% endfor %}", "an integer cannot be walked over"},
      {"{% break %}", "'break' outside a loop"},
      {"{{ 1 + 'a' }}", "an integer + a string cannot be computed"},
      {"{{ 1 / 0 }}", "division by zero"},
      {"{{ 1 < 'a' }}", "have no order"},
      {"{{ {[1]: 2} }}", "a list cannot be the key of a mapping"},
      {"{{\n\n 'a'\n| wordwrap }}", "line 4: the filter 'wordwrap' is not supported"},
      {"{{ f(*x) }}", "'*' before an argument is not supported"},
      {"{{ 2 ** 200 }}", "an integer beyond 128 bits is not supported"},
      {"{{ [1] | map('upper') }}", "printing a generator is not supported"},
      {"{{ [1][::0] }}", "a slice's step is 0"},
      {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "f: 2 arguments, expected at most 1"},
      {"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "f: has no parameter 'b'"},
      {"{{ f(a=1, 2) }}", "an argument by its place stands behind one by its name"},
  };
  for (const auto& [source, expected] : cases) {
    INFO(source);
    CHECK_SAYS(complaint(source), expected);
    CHECK(complaint(source).size() < 500);
    CHECK(complaint(source).find_first_of("\n\x1b") == std::string::npos);
  }
}

TEST_CASE("chat templates that never end, or would fill the memory, are given up on") {
  CHECK_SAYS(complaint("{% for i in range(1000000000) %}{% endfor %}"), "takes too long");
  CHECK_SAYS(
      complaint("{% for i in range(9000) %}{% for j in range(9000) %}{% endfor %}{% endfor %}"),
      "takes too long");
  CHECK_SAYS(complaint("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
             "calls itself too often");
  CHECK_SAYS(complaint("{{ 'abcdefgh' * 100000000 }}"), "grows too long");
  CHECK_SAYS(complaint(std::string(100000, '(')), "no error");
  CHECK_SAYS(complaint("{{ " + std::string(100000, '(') + "1" + std::string(100000, ')') + " }}"),
             "nested too deep");
  CHECK_SAYS(complaint("{{ " + std::string(100000, '-') + "1 }}"), "nested too deep");
  std::string blocks;
  for (int i = 0; i < 10000; ++i) blocks += "{% if 1 %}";
  CHECK_SAYS(complaint(blocks), "nested too deep");
}

TEST_CASE("chat templates: every prefix of a template is read or refused, never worse") {
  const Json all = vectors();
  for (const Json& t : all["templates"]) {
    const auto source = t["template"].get<std::string>();
    const std::string variables = t["cases"][1]["variables"].dump();
    const std::size_t step = std::max<std::size_t>(1, source.size() / 150);
    for (std::size_t n = 0; n < source.size(); n += step) complaint(source.substr(0, n), variables);
    for (std::size_t n = 0; n < source.size(); n += step)
      complaint(source.substr(0, n) + source.substr(n + 1), variables);
  }
}

TEST_CASE("chat templates lie in a model's directory") {
  const TempDir dir;
  REQUIRE_THROWS_AS(load_chat_template(dir.path()), FileError);
  write(
      dir / "tokenizer_config.json",
      R"({"bos_token": {"content": "<B>"}, "eos_token": "<E>", "chat_template": "{{ bos_token }}1{{ eos_token }}"})");
  REQUIRE(load_chat_template(dir.path()).render({}) == "<B>1<E>");
  write(
      dir / "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "2"}]})");
  REQUIRE(load_chat_template(dir.path()).render({}) == "2");
  write(dir / "tokenizer_config.json", R"({"bos_token": "<B>", "chat_template": 7})");
  REQUIRE_THROWS_AS(load_chat_template(dir.path()), FileError);
  write(dir / "chat_template.jinja", "{{ bos_token }}3");  // goes before the other
  REQUIRE(load_chat_template(dir.path()).render({}) == "<B>3");
  write(dir / "chat_template.jinja", "{% include 'x' %}");
  REQUIRE_THROWS_AS(load_chat_template(dir.path()), FileError);
}

}  // namespace chat_template_test
