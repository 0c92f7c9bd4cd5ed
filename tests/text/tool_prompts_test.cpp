// SPDX-License-Identifier: Apache-2.0
// Conversations with tools as transformers writes them (make_tool_vectors.py), and what clients
// send.
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "episodic/base/error.hpp"
#include "episodic/text/tool_calls.hpp"
#include "support/test.hpp"
#include "tool_call_answers.hpp"

using namespace episodic;
using namespace episodic::test;

namespace tool_prompts_test {

using Json = nlohmann::ordered_json;

Json vectors() {
  const char* other = std::getenv("EPISODIC_TOOL_VECTORS");  // of other templates too
  std::ifstream file(other ? std::string(other)
                           : std::string(EPISODIC_SOURCE_DIR) + "/tests/text/vectors/tools.json");
  return Json::parse(file);
}

std::vector<ChatMessage> messages_of(const Json& list) {
  std::vector<ChatMessage> out;
  for (const Json& m : list) out.push_back({m["role"].get<std::string>(), "", m.dump()});
  return out;
}

ChatOptions at_noon() {
  ChatOptions options;
  options.now.emplace();
  options.now->tm_year = 124;
  options.now->tm_mon = 6;
  options.now->tm_mday = 26;
  options.now->tm_hour = 12;
  return options;
}

TEST_CASE("tool prompts are what transformers writes, or the general form") {
  const Json all = vectors();
  const auto tokens = all["tokens"].get<std::map<std::string, std::string>>();
  const std::vector<Tool> tools = read_tools(all["tools"].dump());
  REQUIRE(all["templates"].size() >= 16);
  for (const Json& t : all["templates"]) {
    const auto name = t["name"].get<std::string>();
    const ToolCallFormat format(ChatTemplate(t["template"].get<std::string>(), name, tokens));
    INFO(name);
    CHECK(format.name() == t["form"].get<std::string>());
    CHECK(format.native() == t["native"].get<bool>());
    CHECK(format.refusal().empty());
    for (std::size_t i = 0; i < all["cases"].size(); ++i) {
      const Json& c = all["cases"][i];
      const std::vector<ChatMessage> messages = messages_of(c["messages"]);
      const std::vector<Tool> given = c["tools"].get<bool>() ? tools : std::vector<Tool>();
      INFO("conversation " << i);
      if (t["expected"][i].is_null()) {
        CHECK_THROWS_AS(format.render(messages, at_noon(), given), DataError);
        continue;
      }
      const RenderedPrompt prompt = format.render(messages, at_noon(), given);
      CHECK(prompt.text == t["expected"][i].get<std::string>());
      std::size_t end = 0;
      for (const TextSpan& span : prompt.input) {
        CHECK(span.begin >= end);
        CHECK(span.begin < span.end);
        end = span.end;
      }
      CHECK(end <= prompt.text.size());
    }
  }
}

/// A call that a model would write after this prompt is read as the call of the next turn.
TEST_CASE("tool prompts: a call that the template writes is read again") {
  const Json all = vectors();
  const auto tokens = all["tokens"].get<std::map<std::string, std::string>>();
  const std::vector<Tool> tools = read_tools(all["tools"].dump());
  for (const Json& t : all["templates"]) {
    const auto name = t["name"].get<std::string>();
    const ToolCallFormat format(ChatTemplate(t["template"].get<std::string>(), name, tokens));
    const std::vector<ChatMessage> messages = messages_of(all["cases"][2]["messages"]);
    const std::vector<ChatMessage> asked(messages.begin(), messages.begin() + 1);
    const std::vector<ChatMessage> called(messages.begin(), messages.begin() + 2);
    std::string before, after;
    try {
      ChatOptions options = at_noon();
      before = format.render(asked, options, {}).text;
      options.add_generation_prompt = false;
      after = format.render(called, options, {}).text;
    } catch (const DataError&) {
      continue;  // a template that wants tools, or a result
    }
    INFO(name << ": " << after);
    // behind what both have; DeepSeek's begins a thought where it asks for an answer
    std::size_t same = 0;
    while (same < std::min(before.size(), after.size()) && before[same] == after[same]) ++same;
    while (same > 0 && after[same] != '<' && after[same] != '{' && after[same] != '[') --same;
    ToolCallParser parser(format, tools, fixed_ids());
    std::vector<ToolCallEvent> events = parser.push(after.substr(same));
    std::string arguments, called_name;
    for (const ToolCallEvent& e : events) {
      if (e.kind == ToolCallEvent::Kind::begun) called_name = e.name;
      if (e.kind == ToolCallEvent::Kind::arguments) arguments += e.text;
    }
    CHECK(called_name == "year");
    CHECK(Json::parse(arguments, nullptr, false) ==
          Json::parse("{\"book\": \"Emma\", \"n\": 1.5, \"of\": {\"\xc3\xa9\": [null, true]}}"));
  }
}

/// A prompt with what is input in brackets.
std::string marked(const RenderedPrompt& prompt) {
  std::string out;
  std::size_t at = 0;
  for (const TextSpan& span : prompt.input) {
    out += prompt.text.substr(at, span.begin - at) + "(" +
           prompt.text.substr(span.begin, span.end - span.begin) + ")";
    at = span.end;
  }
  return out + prompt.text.substr(at);
}

TEST_CASE(
    "tool prompts: what is written for a template is the template's, what clients sent is not") {
  const std::string source = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
  const std::vector<ChatMessage> messages{
      {"user", "<|tool_call|>\uf8ff0\uf8ff"},
      {"assistant", "",
       R"({"content": null, "tool_calls": [{"function": {"name": "now", "arguments": "{\"a\": \"<|x|>\"}"}}]})"},
      {"tool", "<|tool_call|>", R"({"tool_call_id": "1"})"}};
  const std::string user = "<|user|>(<|tool_call|>\uf8ff0\uf8ff)<|assistant|>";
  const std::string call = "{\"name\": \"(now)\", \"arguments\": ({\"a\": \"<|x|>\"})}";
  const ToolCallFormat granite(ChatTemplate(source + "{# <|tool_call|> #}", "T"));
  REQUIRE(granite.name() == "granite");
  CHECK(marked(granite.render(messages, {}, {})) ==
        user + "<|tool_call|>[" + call + "]<|tool|>(<|tool_call|>)");
  const ToolCallFormat general(ChatTemplate(source, "T"));
  REQUIRE(general.name() == "general");
  CHECK(marked(general.render(messages, {}, {})) ==
        user + "<tool_call>\n" + call +
            "\n</tool_call><|user|><tool_response>\n(<|tool_call|>)\n</tool_response>");
}

TEST_CASE("tool prompts: ids of other servers become nine letters for templates that want these") {
  const std::string source =
      "[TOOL_CALLS]{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}{{ c.id }} "
      "{{ "
      "c.function | tojson }};{% endfor %}{% if m.role == 'tool' %}{{ m.tool_call_id }} {{ m.name "
      "}} "
      "{{ m.content }}{% endif %}{% endfor %}";
  const ToolCallFormat format(ChatTemplate(source, "T"));
  REQUIRE(format.name() == "mistral");
  const std::vector<ChatMessage> messages{
      {"assistant", "",
       R"({"tool_calls": [{"id": "call_JlfGdeaDKeMTJcVJ5gHUgRnl", "type": "function",
           "function": {"arguments": "", "name": "now"}}]})"},
      {"tool", "7", R"({"tool_call_id": "call_JlfGdeaDKeMTJcVJ5gHUgRnl"})"}};
  const std::string text = format.render(messages, {}, {}).text;
  const std::string id = text.substr(std::string("[TOOL_CALLS]None").size(), 9);
  CHECK(text ==
        "[TOOL_CALLS]None" + id + " {\"name\": \"now\", \"arguments\": {}};" + id + " now 7");
}

TEST_CASE("tool prompts: arguments that are no JSON stay a text") {
  const ToolCallFormat format(ChatTemplate(
      "{% for m in messages %}{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }} {{ "
      "c.function.arguments | tojson }}{% endfor %}{% endfor %}",
      "T"));
  const std::pair<const char*, const char*> cases[] = {
      {R"("{\"a\": [1]}")", R"({"a": [1]})"},
      {R"({"a": [1]})", R"({"a": [1]})"},
      {R"("")", "{}"},
      {"null", "{}"},
      {R"("{\"a\": ")", R"("{\"a\": ")"},
      {R"("[1]")", R"("[1]")"},
      {R"("{\"a\": 123456789012345678901}")", R"("{\"a\": 123456789012345678901}")"}};
  for (const auto& [arguments, expected] : cases) {
    const std::string fields =
        std::string(R"({"tool_calls": [{"function": {"name": "f", "arguments": )") + arguments +
        "}}]}";
    const std::vector<ChatMessage> messages{{"assistant", "", fields}};
    CHECK(format.render(messages, {}, {}).text == std::string("<tool_call>f ") + expected);
  }
}

std::string complaint(const char* fields) {
  const ToolCallFormat& format = format_named("general");
  try {
    const std::string role = Json::parse(fields).value("role", "assistant");
    format.render(std::vector<ChatMessage>{{"user", "x"}, {role, "", fields}}, {}, {});
    return "nothing";
  } catch (const ConfigError& e) {
    return e.what();
  }
}

TEST_CASE("tool prompts: what is wrong in a message is named with its path") {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"content": 7})", "messages[1].content must be a text or a list of parts"},
      {R"({"content": [{"type": "image_url"}]})",
       "messages[1].content[0].type must be \"text\"; no other part is supported"},
      {R"({"content": [{"type": "text"}]})", "messages[1].content[0].text must be a text"},
      {R"({"content": [7]})", "messages[1].content[0] must be an object"},
      {R"({"tool_calls": {}})", "messages[1].tool_calls must be a list"},
      {R"({"tool_calls": [1]})", "messages[1].tool_calls[0] must be an object"},
      {R"({"tool_calls": [{}]})",
       "messages[1].tool_calls[0].function must be an object with name and arguments"},
      {R"({"tool_calls": [{"function": {"name": ""}}]})",
       "messages[1].tool_calls[0].function.name must be the name of a function"},
      {R"({"tool_calls": [{"function": {"name": "f", "arguments": 1}}]})",
       "messages[1].tool_calls[0].function.arguments must be a text of JSON, or an object"},
      {R"({"tool_calls": [{"id": 1, "function": {"name": "f"}}]})",
       "messages[1].tool_calls[0].id must be a text"},
      {R"({"role": "tool", "tool_call_id": 1})", "messages[1].tool_call_id must be a text"}};
  for (const auto& [fields, expected] : cases) CHECK(complaint(fields) == expected);
  CHECK(complaint(R"({"content": null, "tool_calls": null})") == "nothing");
}

TEST_CASE("tools of a request are checked, and what is wrong is named with its path") {
  const auto said = [](const std::string& json) -> std::string {
    try {
      read_tools(json);
      return "nothing";
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  const auto function = [](const std::string& inner) {
    return R"([{"type": "function", "function": {)" + inner + "}}]";
  };
  CHECK(said("[]") == "nothing");
  CHECK(said(function(R"("name": "a_B-9", "description": null, "parameters": null)")) == "nothing");
  CHECK(said("{}").find("tools: is no JSON list") == 0);
  CHECK(said("[1]") == "tools[0] must be an object");
  CHECK(said(R"([{"function": {"name": "f"}}])") ==
        "tools[0].type must be \"function\"; no other type is supported");
  CHECK(said(R"([{"type": "custom"}])") ==
        "tools[0].type must be \"function\"; no other type is supported");
  CHECK(said(R"([{"type": "function"}])") ==
        "tools[0].function must be an object with the function's name");
  for (const char* name : {"", "a b", "a.b", "\\u00e9",
                           "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"})
    CHECK(said(function(std::string("\"name\": \"") + name + "\"")) ==
          "tools[0].function.name must be 1 to 64 letters, digits, underscores and hyphens");
  CHECK(said(function(R"("name": 1)")) == "tools[0].function.name must be a text");
  CHECK(said(function(R"("name": "f", "description": 1)")) ==
        "tools[0].function.description must be a text");
  CHECK(said(function(R"("name": "f", "parameters": [])")) ==
        "tools[0].function.parameters must be a JSON schema, an object");
  CHECK(said(function(R"("name": "f", "parameters": {"type": "string"})")) ==
        "tools[0].function.parameters.type must be \"object\": arguments are passed by name");
  CHECK(said(function(R"("name": "f", "strict": 1)")) ==
        "tools[0].function.strict must be true or false");
  CHECK(said(R"([{"type": "function", "function": {"name": "f"}},
                 {"type": "function", "function": {"name": "f"}}])") ==
        "tools[1].function.name is 'f', as that of a tool before it; rename one");
  std::string many = "[";
  for (int i = 0; i < 129; ++i)
    many += std::string(i ? "," : "") + R"({"type": "function", "function": {"name": "f)" +
            std::to_string(i) + "\"}}";
  CHECK(said(many + "]") == "tools has 129 tools; give at most 128");
  CHECK(said(R"([{"type": "function", "function": {"name": "f", "name": "g"}}])")
            .find("tools: the key 'name' stands twice") == 0);
  CHECK(said(std::string(9999, '[')).find("tools: nested more than") == 0);

  const std::vector<Tool> tools = read_tools(function(
      R"("description": "d", "strict": true, "name": "f", "parameters": {"properties": {"z": {}, "a": {}}}, "x": null)"));
  REQUIRE(tools.size() == 1);
  CHECK(tools[0].name == "f");
  CHECK(tools[0].description == "d");
  CHECK(tools[0].strict);
  CHECK(tools[0].parameters == R"({"properties":{"z":{},"a":{}},"type":"object"})");
  CHECK(
      tools[0].definition ==
      R"({"description": "d", "name": "f", "parameters": {"properties": {"z": {}, "a": {}}, "type": "object"}})");
}

TEST_CASE("tools in the forms of other protocols are the same tools") {
  const auto nested =
      read_tools(R"([{"type": "function", "function": {"name": "f", "description": "d",
      "parameters": {"properties": {"z": {}}}, "strict": true}}])");
  const auto flat = read_tools(R"([{"type": "function", "name": "f", "description": "d",
      "parameters": {"properties": {"z": {}}}, "strict": true}])",
                               "tools", ToolForm::responses);
  const auto anthropic = read_tools(R"([{"name": "f", "description": "d", "strict": true,
      "input_schema": {"properties": {"z": {}}}, "cache_control": {"type": "ephemeral"}}])",
                                    "tools", ToolForm::messages);
  for (const auto& tools : {flat, anthropic}) {
    REQUIRE(tools.size() == 1);
    CHECK(tools[0].name == "f");
    CHECK(tools[0].strict);
    CHECK(tools[0].parameters == nested[0].parameters);
    CHECK(tools[0].definition == nested[0].definition);
  }
  const auto said = [](const char* json, ToolForm form) -> std::string {
    try {
      read_tools(json, "tools", form);
      return "nothing";
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  using F = ToolForm;
  CHECK(said(R"([{"type": "function"}])", F::responses).find("tools[0].name must be 1 to 64") == 0);
  CHECK(said(R"([{"type": "web_search"}])", F::responses).find("tools[0].type must be") == 0);
  CHECK(said(R"([{"name": "f"}])", F::responses).find("tools[0].type must be") == 0);
  CHECK(said(R"([{"type": "function", "name": "f", "parameters": 5}])", F::responses) ==
        "tools[0].parameters must be a JSON schema, an object");
  CHECK(said(R"([{"type": "function", "name": "f"}, {"type": "function", "name": "f"}])",
             F::responses)
            .find("tools[1].name is 'f'") == 0);
  CHECK(said(R"([{"name": "f", "type": "custom"}])", F::messages) == "nothing");
  CHECK(said(R"([{"name": "bash", "type": "bash_20250124"}])", F::messages)
            .find("tools[0].type must be \"custom\"") == 0);
  CHECK(said(R"([{"name": "f", "input_schema": {"type": "string"}}])", F::messages)
            .find("tools[0].input_schema.type must be") == 0);
  CHECK(said("[5]", F::messages) == "tools[0] must be an object");
  const ToolChoice named =
      read_tool_choice(R"({"type": "function", "name": "f"})", flat, "tool_choice", F::responses);
  CHECK(named.kind == ToolChoice::Kind::required);
  CHECK(named.name == "f");
  CHECK_THROWS_AS(
      read_tool_choice(R"({"type": "function", "name": "g"})", flat, "tool_choice", F::responses),
      ConfigError);
  CHECK_THROWS_AS(read_tool_choice(R"({"type": "function", "function": {"name": "f"}})", flat,
                                   "tool_choice", F::responses),
                  ConfigError);
}

TEST_CASE("the choice among tools is checked") {
  using K = ToolChoice::Kind;
  const std::vector<Tool>& tools = answer_tools();
  const auto kind = [&](const char* json) { return read_tool_choice(json, tools).kind; };
  CHECK(kind("") == K::automatic);
  CHECK(kind("null") == K::automatic);
  CHECK(kind("\"auto\"") == K::automatic);
  CHECK(kind("\"none\"") == K::none);
  CHECK(kind("\"required\"") == K::required);
  const ToolChoice named =
      read_tool_choice(R"({"type": "function", "function": {"name": "now"}})", tools);
  CHECK(named.kind == K::required);
  CHECK(named.name == "now");
  CHECK(read_tool_choice("", {}).kind == K::none);
  CHECK(read_tool_choice("\"auto\"", {}).kind == K::none);
  const auto said = [&](const char* json, std::span<const Tool> list) -> std::string {
    try {
      read_tool_choice(json, list);
      return "nothing";
    } catch (const ConfigError& e) {
      return e.what();
    }
  };
  CHECK(said("\"required\"", {}) ==
        "tool_choice is \"required\", but there are no tools; give some");
  CHECK(said("\"maybe\"", tools).find("tool_choice is \"maybe\"; give \"none\"") == 0);
  CHECK(said("7", tools).find("tool_choice is 7; give") == 0);
  CHECK(said("{", tools).find("tool_choice: not valid JSON") == 0);
  CHECK(said(R"({"type": "function"})", tools).find("tool_choice.function must be") == 0);
  CHECK(said(R"({"type": "function", "function": {"name": "x"}})", tools) ==
        "tool_choice.function.name is 'x', which is none of the tools");
}

TEST_CASE("forced calls are read by the parser, with each tool and several of them") {
  for (const char* form : {"hermes", "general", "llama", "mistral", "mistral_named", "phi4",
                           "granite", "deepseek", "deepseek_v3", "functionary"}) {
    const ToolCallFormat& format = format_named(form);
    for (const char* name : {"", "now"}) {
      const ForcedCalls forced =
          format.forced_calls(answer_tools(), {ToolChoice::Kind::required, name});
      INFO(form << " " << name);
      REQUIRE(forced.calls.size() == (*name ? 1 : answer_tools().size()));
      for (const ForcedCalls::Call& call : forced.calls) {
        CHECK(Json::parse(call.schema)["type"] == "object");
        const std::string one = call.prefix + R"({"a": 1})" + call.suffix;
        std::string text = forced.begin + one, expected = "[" + call.name + R"(({"a": 1})])";
        if (!forced.separator.empty()) {
          text += forced.separator + one;
          expected += expected;
        }
        text += forced.end;
        std::string got;
        ToolCallParser parser(format, answer_tools(), fixed_ids());
        std::vector<ToolCallEvent> events = parser.push(text);
        for (ToolCallEvent& e : parser.finish()) events.push_back(std::move(e));
        for (const ToolCallEvent& e : events)
          got += e.kind == ToolCallEvent::Kind::begun   ? "[" + e.name + "("
                 : e.kind == ToolCallEvent::Kind::ended ? ")]"
                                                        : e.text;
        CHECK(got == expected);
      }
    }
  }
  CHECK_THROWS_AS(format_named("hermes").forced_calls({}, {}), ConfigError);
  CHECK_THROWS_AS(
      format_named("hermes").forced_calls(answer_tools(), {ToolChoice::Kind::required, "x"}),
      ConfigError);
}

TEST_CASE("tools are refused where the template's form of calls is not supported") {
  for (const char* source :
       {"{{ tools | tojson }}{% for m in messages %}{{ m.content }}{% endfor %}",
        "{% for t in tools or [] %}<call {{ t.function.name }}>{% endfor %}{{ messages[0].content "
        "}}"}) {
    const ToolCallFormat format(ChatTemplate(source, "T"));
    CHECK(!format.refusal().empty());
    const std::vector<ChatMessage> messages{{"user", "hi"}};
    CHECK_THROWS_AS(format.render(messages, {}, answer_tools()), DataError);
    CHECK_THROWS_AS(format.forced_calls(answer_tools(), {}), DataError);
    CHECK(format.render(messages, {}, {}).text.find("hi") != std::string::npos);
  }
  ChatOptions twice;
  twice.tools = "[]";
  CHECK_THROWS_AS(format_named("general").render({}, twice, {}), ConfigError);
}

}  // namespace tool_prompts_test
