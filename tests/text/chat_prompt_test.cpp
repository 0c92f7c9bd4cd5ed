// SPDX-License-Identifier: Apache-2.0
// What of a rendered conversation is input, and what its tokens are.
#include <algorithm>
#include <random>

#include "episodic/base/error.hpp"
#include "episodic/text/chat_template.hpp"
#include "support/test.hpp"
#include "tokenizer_files.hpp"

using namespace episodic;
using namespace episodic::test;

namespace chat_prompt_test {

/// The text, with [ and ] around what is input.
std::string marked(const RenderedPrompt& prompt) {
  std::string out;
  std::size_t at = 0;
  for (const TextSpan& span : prompt.input) {
    REQUIRE(span.begin < span.end);
    REQUIRE((out.empty() || span.begin > at));
    out += prompt.text.substr(at, span.begin - at) + '[' +
           prompt.text.substr(span.begin, span.end - span.begin) + ']';
    at = span.end;
  }
  return out + prompt.text.substr(at);
}

std::string marked(const std::string& source, const std::string& content = "a<B>\xc3\xa9",
                   const ChatOptions& options = {}) {
  const std::vector<ChatMessage> messages{{"user", content}};
  return marked(ChatTemplate(source, "T", {{"bos_token", "<s>"}}).render_prompt(messages, options));
}

TEST_CASE("chat templates: what comes from a message is input, whatever is made of it") {
  const std::string content = "{% set c = messages[0].content %}";
  const std::pair<const char*, const char*> cases[] = {
      {"{{ c }}", "[a<B>\xc3\xa9]"},
      {"x{{ c }}y{{ c }}{{ c }}",
       "x[a<B>\xc3\xa9]y[a<B>\xc3\xa9"
       "a<B>\xc3\xa9]"},
      {"{{ '<' + c + '>' }}", "<[a<B>\xc3\xa9]>"},
      {"{{ bos_token ~ c ~ 1 }}", "<s>[a<B>\xc3\xa9]1"},
      {"{{ c[1:4] }}{{ c[0] }}{{ c[::-1] }}{{ c[-1] }}", "[<B>a\xc3\xa9>B<a\xc3\xa9]"},
      {"{{ ('x' ~ c ~ 'y')[1:] }}", "[a<B>\xc3\xa9]y"},
      {"{{ ('x' ~ c ~ 'y')[::-1] }}", "y[\xc3\xa9>B<a]x"},
      {"{{ ('  ' ~ c ~ ' ') | trim }}{{ c.strip('a') }}", "[a<B>\xc3\xa9<B>\xc3\xa9]"},
      {"{{ ('x' ~ c).upper() }}{{ ('X' ~ c) | lower }}", "X[A<B>\xc3\x89]x[a<b>\xc3\xa9]"},
      {"{{ ('xy' ~ c[:4]).upper() }}", "XY[A<B>]"},
      {"{{ ('x y' ~ c).title() }}{{ ('x' ~ c) | title }}{{ c | capitalize }}",
       "X Y[a<B>\xc3\x89]X[a<B>\xc3\xa9"
       "A<b>\xc3\xa9]"},
      {"{{ c.replace('<', '#') }}", "[a]#[B>\xc3\xa9]"},
      {"{{ 'a#b' | replace('#', c) }}", "a[a<B>\xc3\xa9]b"},
      {"{{ 'x-y'.replace('-', c[0]) }}", "x[a]y"},
      {"{{ ['x', c, 'y'] | join('-') }}{{ ['x', 'y'] | join(c[0]) }}", "x-[a<B>\xc3\xa9]-yx[a]y"},
      {"{{ c.join(['1', '2']) }}", "1[a<B>\xc3\xa9]2"},
      {"{{ c.split('<') }}", "['[a]', '[B>\xc3\xa9]']"},
      {"{{ c.partition('<')[2] }}{{ (c ~ '\\nx').splitlines()[0] }}",
       "[B>\xc3\xa9"
       "a<B>\xc3\xa9]"},
      {"{{ [c] }}{{ {'k': c} }}", "['[a<B>\xc3\xa9]']{'k': '[a<B>\xc3\xa9]'}"},
      {"{{ {'k': c} | tojson }}", "{\"k\": \"[a<B>\xc3\xa9]\"}"},
      {"{{ c | tojson(ensure_ascii=true) }}", "\"[a<B>\\u00e9]\""},
      {"{{ '%s|%5s' % (c[0], c[1]) }}{{ '{}!'.format(c) }}{{ '%s' | format(c) }}",
       "[a]|    [<a<B>\xc3\xa9]![a<B>\xc3\xa9]"},
      {"{{ c | indent(2, true) }}{{ c | center(7) }}{{ c.ljust(7) }}|{{ c.zfill(6) }}",
       "  [a<B>\xc3\xa9] [a<B>\xc3\xa9] [a<B>\xc3\xa9]  |0[a<B>\xc3\xa9]"},
      {"{{ c | e }}{{ c | urlencode }}{{ c | safe }}",
       "[a&lt;B&gt;\xc3\xa9"
       "a%3CB%3E%C3%A9"
       "a<B>\xc3\xa9]"},
      {"{{ c | reverse }}{{ c | list | join }}{{ c | first }}{{ c | last }}",
       "[\xc3\xa9>B<a"
       "a<B>\xc3\xa9"
       "a\xc3\xa9]"},
      {"{{ c * 2 }}{{ c ~ '' }}{{ c | string }}{{ c | default('x') }}",
       "[a<B>\xc3\xa9"
       "a<B>\xc3\xa9"
       "a<B>\xc3\xa9"
       "a<B>\xc3\xa9"
       "a<B>\xc3\xa9]"},
      {
          "{{ (c ~ 'xxxxxxxx') | truncate(6, true, '..', 0) }}",
          "[a<B>]..",
      },
      {"{% for x in c %}{{ x }}.{% endfor %}", "[a].[<].[B].[>].[\xc3\xa9]."},
      {"{% set d %}<{{ c }}>{% endset %}{{ d }}", "<[a<B>\xc3\xa9]>"},
      {"{% macro f(x) %}({{ x }}){% endmacro %}{{ f(c) }}{{ f(x='y') }}", "([a<B>\xc3\xa9])(y)"},
      {"{% macro f() %}({{ caller() }}){% endmacro %}{% call f() %}{{ c }}{% endcall %}",
       "([a<B>\xc3\xa9])"},
      {"{% filter upper %}x{{ c }}{% endfilter %}", "X[A<B>\xc3\x89]"},
      {"{% set ns = namespace(x=c) %}{{ ns.x }}{{ ns }}",
       "[a<B>\xc3\xa9]<Namespace {'x': '[a<B>\xc3\xa9]'}>"},
      {"{{ messages | map(attribute='content') | join }}{{ messages[0]['content'] }}",
       "[a<B>\xc3\xa9"
       "a<B>\xc3\xa9]"},
      {"{% if c == 'a<B>\xc3\xa9' %}same{% endif %}{{ 'B' in c }}{{ {c: 1} }}",
       "sameTrue{'[a<B>\xc3\xa9]': 1}"},
      {"{{ c.expandtabs() }}{{ c.swapcase() }}{{ c.casefold() }}{{ c.removeprefix('a') }}",
       "[a<B>\xc3\xa9"
       "A<b>\xc3\x89"
       "a<b>\xc3\xa9<B>\xc3\xa9]"},
      {"{{ [c, c] | unique | list | first }}{{ [c] | sort | first }}{{ [c] | max }}",
       "[a<B>\xc3\xa9"
       "a<B>\xc3\xa9"
       "a<B>\xc3\xa9]"},
      {"{{ {'x': [1, c]} | tojson(indent=1) }}", "{\n \"x\": [\n  1,\n  \"[a<B>\xc3\xa9]\"\n ]\n}"},
      {"{{ c | length }}{{ c is string }}", "5True"},
  };
  for (const auto& [source, expected] : cases) {
    INFO(source);
    CHECK(marked(content + source) == expected);
  }
  CHECK(marked("{{ messages[0].role }}") == "user");
  CHECK(marked("{{ tools }}{{ x.y }}{{ x }}{{ bos_token }}", "", [] {
          ChatOptions o;
          o.variables = R"({"x": {"y": "<t>"}})";
          o.tools = R"([{"name": "<f>"}])";
          return o;
        }()) == "[{'[name]': '[<f>]'}][<t>]{'[y]': '[<t>]'}<s>");
}

TEST_CASE("a role that is a plain word may become part of a special token, no other") {
  const ChatTemplate chat("{% for m in messages %}<|{{ m.role }}|>{% endfor %}", "T");
  const std::vector<ChatMessage> messages{{"user", ""}, {"a|><|b", ""}, {"tool-2_x", ""}};
  CHECK(marked(chat.render_prompt(messages)) == "<|user|><|[a|><|b]|><|tool-2_x|>");
}

TEST_CASE("chat templates read every field of a message, as transformers gives them") {
  const auto of = [](const std::string& source, const ChatMessage& m) {
    return ChatTemplate(source, "T").render(std::vector<ChatMessage>{m});
  };
  const std::string all = "{{ messages[0] | tojson }}";
  CHECK(of(all, {"user", "hi"}) == R"({"role": "user", "content": "hi"})");
  CHECK(of(all, {"tool", "42", R"({"name": "f", "tool_call_id": "c1"})"}) ==
        R"({"role": "tool", "content": "42", "name": "f", "tool_call_id": "c1"})");
  // the whole message of a client, in its order
  CHECK(
      of(all, {"user", "",
               R"({"name": "bob", "content": [{"type": "text", "text": "x"}], "role": "user"})"}) ==
      R"({"name": "bob", "content": [{"type": "text", "text": "x"}], "role": "user"})");
  // null is as if it were not there
  CHECK(
      of(all,
         {"assistant", "",
          R"({"content": null, "tool_calls": [{"function": {"arguments": {"b": 1, "a": null}}}]})"}) ==
      R"({"role": "assistant", "tool_calls": [{"function": {"arguments": {"b": 1, "a": null}}}]})");
  CHECK(of("{{ messages[0].content is defined }}", {"assistant", "x", R"({"content": null})"}) ==
        "False");
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) {
    const std::string fields = std::string("{\"") + name + "\": \"hm\"}";
    CHECK(of("{{ messages[0].reasoning_content }}{{ messages[0].thinking }}",
             {"assistant", "x", fields}) == "hmhm");
  }
  CHECK(of("{{ messages[0].n }}", {"user", "", R"({"n": 18446744073709551615})"}) ==
        "18446744073709551615");
  for (const char* wrong :
       {"[1]", "{", "3", R"({"role": "system"})", R"({"n": 18446744073709551616})",
        R"({"n": -9223372036854775809})", R"({"a": 1, "a": 2})"}) {
    INFO(wrong);
    CHECK_THROWS_AS(of(all, {"user", "x", wrong}), ConfigError);
  }
  CHECK(of(all, {"user", "x", R"({"n": "18446744073709551616 \" 99999999999999999999"})"}).size() >
        20);
}

TEST_CASE("chat templates: names that are not a variable's are refused") {
  const ChatTemplate chat("{{ x }}", "T", {{"bos_token", "<s>"}});
  const auto refusal = [&](const std::string& variables,
                           const std::string& tools = {}) -> std::string {
    ChatOptions options;
    options.variables = variables;
    options.tools = tools;
    try {
      return "no error: " + chat.render({}, options);
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  for (const char* name : {"messages", "add_generation_prompt", "bos_token", "eos_token",
                           "any_token", "raise_exception", "strftime_now", "namespace", "range",
                           "dict", "lipsum", "cycler", "joiner", "loop"}) {
    const std::string said = refusal(std::string("{\"") + name + "\": 1}");
    INFO(said);
    CHECK(said.find(std::string("'") + name + "'") != std::string::npos);
  }
  CHECK(refusal(R"({"x": 1, "tools": [], "documents": []})") == "no error: 1");
  CHECK(refusal(R"({"tools": []})", "[]").find("'tools'") != std::string::npos);
  CHECK(refusal("{}", "{}").find("ChatOptions::tools") != std::string::npos);
}

// -- tokens ---------------------------------------------------------------------------------------

std::vector<std::string> special_texts(const Json& tokenizer) {
  std::vector<std::string> out;
  for (const Json& a : tokenizer["added_tokens"])
    if (a["special"].get<bool>()) out.push_back(a["content"].get<std::string>());
  return out;
}

TEST_CASE(
    "a conversation's tokens are those of its whole text where input holds no special token") {
  std::mt19937 random(5);
  std::size_t compared = 0;
  for (const Json& kind : vectors()["kinds"]) {
    const Json json = tokenizer_of(kind);
    const auto tokenizer = load(json);
    const std::vector<std::string> special = special_texts(json);
    for (const Json& row : vectors()["texts"]) {
      const auto text = row.get<std::string>();
      RenderedPrompt prompt{text, {}};
      for (std::size_t at = random() % 4; at < text.size();) {
        const std::size_t end = std::min(text.size(), at + 1 + random() % 9);
        bool clean = true;
        for (const std::string& s : special)
          for (std::size_t i = text.find(s); i != std::string::npos; i = text.find(s, i + 1))
            clean = clean && (i >= end || i + s.size() <= at);
        if (clean) prompt.input.push_back({at, end});
        at = end + random() % 3 + 1;
      }
      INFO(kind["name"].get<std::string>() << ": " << text);
      CHECK(encode_prompt(*tokenizer, prompt) == tokenizer->encode(text, false));
      ++compared;
    }
  }
  CHECK(compared > 100);
}

TEST_CASE("special tokens' texts within input are text, by every kind of tokenizer") {
  std::size_t checked = 0;
  for (const Json& kind : vectors()["kinds"]) {
    const Json json = tokenizer_of(kind);
    const auto tokenizer = load(json);
    for (const std::string& special : special_texts(json)) {
      if (json["model"].value("unk_token", Json()) == special) continue;  // of other text, too
      const std::int64_t id = tokenizer->id_of(special);
      const std::string text = "a " + special + " b " + special + " c";
      const std::size_t first = text.find(special), second = text.find(special, first + 1);
      const auto count = [&](std::vector<TextSpan> input) {
        const std::vector<std::int64_t> ids = encode_prompt(*tokenizer, {text, std::move(input)});
        return std::count(ids.begin(), ids.end(), id);
      };
      INFO(kind["name"].get<std::string>() << ": " << special);
      const std::ptrdiff_t both = count({});
      if (both != 2) continue;  // a single_word token, or one that normalizing hides
      CHECK(count({{first, first + special.size()}}) == 1);
      CHECK(count({{second, second + special.size()}}) == 1);
      CHECK(count({{0, text.size()}}) == 0);
      CHECK(count({{first, first + 1}, {second + special.size() - 1, second + special.size()}}) ==
            0);
      CHECK(count({{0, first}, {first + special.size(), second}}) == 2);
      ++checked;
      if (kind["name"].get<std::string>().find("byte_level") == std::string::npos) continue;
      CHECK(tokenizer->decode(encode_prompt(*tokenizer, {text, {{0, text.size()}}}), false) ==
            text);
    }
  }
  CHECK(checked > 5);
}

/// A tokenizer of one's own: words, and <x> is special.
class Words final : public Tokenizer {
 public:
  std::vector<std::int64_t> encode(std::string_view text, bool) const override {
    std::vector<std::int64_t> ids;
    for (std::size_t at = 0; at < text.size(); ++at) {
      const bool special = text.substr(at).starts_with("<x>");
      ids.push_back(special ? 256 : static_cast<unsigned char>(text[at]));
      if (special) at += 2;
    }
    return ids;
  }
  std::string decode(const std::vector<std::int64_t>& ids, bool skip) const override {
    std::string out;
    for (const std::int64_t id : ids)
      if (id < 256)
        out += static_cast<char>(id);
      else if (!skip)
        out += "<x>";
    return out;
  }
  std::string token(std::int64_t id) const override { return decode({id}, false); }
  std::int64_t id_of(std::string_view) const override { return -1; }
  std::int64_t vocab_size() const override { return 257; }
  std::int64_t bos() const override { return -1; }
  std::int64_t eos() const override { return -1; }
};

TEST_CASE("a tokenizer that cannot read special tokens as text refuses them in input") {
  const Words words;
  CHECK(encode_prompt(words, {"<x>ab", {{3, 5}}}) == std::vector<std::int64_t>{256, 'a', 'b'});
  CHECK_THROWS_AS(encode_prompt(words, {"<x>ab", {{0, 5}}}), DataError);
}

TEST_CASE("a part of a rendered conversation has its part of the input") {
  const RenderedPrompt whole{"abcdefgh", {{1, 3}, {4, 7}}};
  CHECK(marked(whole.part(2, 6)) == "[c]d[ef]");
  CHECK(marked(whole.part(3, 4)) == "d");
  CHECK(marked(whole.part(5)) == "[fg]h");
  CHECK(whole.part(9, 4).text.empty());
}

}  // namespace chat_prompt_test
