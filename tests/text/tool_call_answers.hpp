// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers with calls of tools, in each form, and what they are.
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/text/tool_calls.hpp"

namespace episodic::test {

/// A template of which the form is found. No template is rendered for an answer.
inline const ToolCallFormat& format_named(const std::string& form) {
  static std::map<std::string, ToolCallFormat> formats;
  const std::map<std::string, std::string> sources{
      {"hermes", "<tool_call>"},
      {"general", "{{ messages[0].content }}"},
      {"llama", "ipython \"parameters\": "},
      {"mistral", "[TOOL_CALLS]"},
      {"mistral_named", "[TOOL_CALLS] [ARGS]"},
      {"phi4", "<|tool|>"},
      {"granite", "<|tool_call|>"},
      {"deepseek", "<\uff5ctool\u2581call\u2581begin\uff5c> ```json"},
      {"deepseek_v3", "<\uff5ctool\u2581call\u2581begin\uff5c>"},
      {"functionary", "<function="},
      {"harmony", "<|channel|> <|message|>"},
      {"gemma", "<|tool_call> <|channel>thought"},
      {"lfm", "<|tool_call_start|>"},
      {"olmo", "<function_calls>"},
      {"apertus", "<|tools_prefix|> <|inner_prefix|>"},
      {"cohere", "<|START_ACTION|> <|START_THINKING|>"},
      {"nemotron", "<TOOLCALL>"},
      {"seed", "<seed:tool_call> <seed:think>"},
      {"qwen_coder", "<tool_call> <parameter="},
      {"glm", "<tool_call> <arg_key>"},
      {"granite_thinking", "<|tool_call|> <think> <response>"}};
  const auto at = formats.find(form);
  if (at != formats.end()) return at->second;
  return formats.emplace(form, ToolCallFormat(ChatTemplate(sources.at(form), form))).first->second;
}

inline const std::vector<Tool>& answer_tools() {
  static const std::vector<Tool> tools = read_tools(
      R"([{"type": "function", "function": {"name": "add"}},
          {"type": "function", "function": {"name": "get_weather-2"}},
          {"type": "function", "function": {"name": "now"}}])");
  return tools;
}

inline ToolCallOptions fixed_ids() {
  ToolCallOptions options;
  options.id_seed = 7;
  return options;
}

/// Pieces of one content, or of one call's arguments, put together.
inline std::vector<ToolCallEvent> joined_events(const std::vector<ToolCallEvent>& events) {
  std::vector<ToolCallEvent> out;
  for (const ToolCallEvent& e : events)
    if (!out.empty() && out.back().kind == e.kind && out.back().index == e.index &&
        e.kind != ToolCallEvent::Kind::begun && e.kind != ToolCallEvent::Kind::ended &&
        e.kind != ToolCallEvent::Kind::broken)
      out.back().text += e.text;
    else
      out.push_back(e);
  return out;
}

/// What an answer is, told in a line, as in `Answer::told`.
inline std::string told(const std::vector<ToolCallEvent>& events) {
  using Kind = ToolCallEvent::Kind;
  std::string out;
  for (const ToolCallEvent& e : joined_events(events)) {
    if (e.kind == Kind::content) out += e.text;
    if (e.kind == Kind::reasoning) out += "{" + e.text + "}";
    if (e.kind == Kind::begun) out += "[" + e.name + "(";
    if (e.kind == Kind::arguments) out += e.text;
    if (e.kind == Kind::ended) out += ")]";
    if (e.kind == Kind::broken) out += "!]";
  }
  return out;
}

struct Answer {
  const char* form;
  std::string text;
  std::string told;  ///< content, {what is thought}, and [name(arguments)] for each call
};

#define DS(word) "<\uff5ctool\u2581" word "\uff5c>"

inline std::vector<Answer> answers() {
  const std::string one = R"({"name": "add", "arguments": {"a": 1, "b": [2, {"c": null}]}})";
  const std::string at = R"({"at": "\u00fc }] \"x\" )"
                         "\u00e9\"}";  // escaped, and as it is
  const std::string two = R"({"name": "get_weather-2", "arguments": )" + at + "}";
  const std::string call_one = R"([add({"a": 1, "b": [2, {"c": null}]})])";
  const std::string call_two = "[get_weather-2(" + at + ")]";
  const std::string both = call_one + call_two;
  const std::string unknown = R"({"name": "rm", "arguments": {}})";
  std::vector<Answer> list{
      // no call at all
      {"hermes", "", ""},
      {"hermes", "Plain text, \u00e9 <b> {\"name\"} \n\n",
       "Plain text, \u00e9 <b> {\"name\"} \n\n"},
      {"hermes", "  \n ", "  \n "},
      {"hermes", std::string(700, ' ') + "x" + std::string(700, '\n'),
       std::string(700, ' ') + "x" + std::string(700, '\n')},
      // one and several calls, with text around them
      {"hermes", "<tool_call>\n" + one + "\n</tool_call>", call_one},
      {"hermes", "<tool_call>\n" + one + "\n</tool_call>\n<tool_call>\n" + two + "\n</tool_call>",
       both},
      {"hermes", "I look.\n\n<tool_call>" + one + "</tool_call>\n", "I look." + call_one},
      {"hermes", "\n<tool_call>" + one + "</tool_call>\nSo, then", call_one + "\nSo, then"},
      {"hermes", "a<tool_call>" + one + "</tool_call> b <tool_call>" + two + "</tool_call> c",
       "a" + call_one + " b" + call_two + " c"},
      {"hermes",
       std::string(300, ' ') + "<tool_call>" + one + "</tool_call>" + std::string(300, ' ') + "x",
       std::string(44, ' ') + call_one + std::string(300, ' ') + "x"},
      // a list; a closing mark that is missing; no marks at all
      {"hermes", "<tool_call>[" + one + ", " + two + "]</tool_call>", both},
      {"hermes", "<tool_call>" + one + "<tool_call>" + two, both},
      {"hermes", one, call_one},
      {"hermes", "\n" + one + "\n" + two + "\n", both},
      {"hermes", "Text " + one, "Text " + one},
      // members in any order, of any known name; arguments that are a text, or none
      {"hermes", R"(<tool_call>{"arguments": {"a": -1.5e+3}, "name": "add"}</tool_call>)",
       R"([add({"a": -1.5e+3})])"},
      {"hermes", R"(<tool_call>{"id": 7, "type": "function", "name": "now"}</tool_call>)",
       "[now({})]"},
      {"hermes", R"(<tool_call>{"function": "now", "parameters": null}</tool_call>)", "[now({})]"},
      {"hermes", R"(<tool_call>{"name": "add", "arguments": "{\"a\": [\"\\u0041\"]}"}</tool_call>)",
       R"([add({"a": ["\u0041"]})])"},
      {"hermes", R"(<tool_call>{"name": "add", "arguments": {"a": 1, "a": 2}}</tool_call>)",
       R"([add({"a": 1, "a": 2})])"},
      // what is no call
      {"hermes", "<tool_call>" + unknown + "</tool_call>",
       "<tool_call>" + unknown + "</tool_call>"},
      {"hermes", "<tool_call>" + unknown + "</tool_call> <tool_call>" + one + "</tool_call>",
       "<tool_call>" + unknown + "</tool_call>" + call_one},
      {"hermes", "x <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": }}</tool_call>",
       "x <tool_call>{\"name\": \"add\", \"arguments\": {\"a\": }}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>",
       "<tool_call>{\"name\": \"add\", \"arguments\": [1]}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"add\", \"arguments\": \"[1]\"}</tool_call>",
       "<tool_call>{\"name\": \"add\", \"arguments\": \"[1]\"}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"add\", \"name\": \"add\"}</tool_call>",
       "<tool_call>{\"name\": \"add\", \"name\": \"add\"}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"add\", \"description\": \"x\"}</tool_call>",
       "<tool_call>{\"name\": \"add\", \"description\": \"x\"}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": 1}", "<tool_call>{\"name\": 1}"},
      {"hermes", "<tool_call>{}</tool_call>", "<tool_call>{}</tool_call>"},
      {"hermes", "<tool_call>[]</tool_call>", "<tool_call>[]</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"\xff\"}}</tool_call>",
       "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"\xff\"}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"b\n\"}}</tool_call>",
       "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": \"b\n\"}}</tool_call>"},
      {"hermes", "cut <tool_call>\n{\"name\": \"add\", \"argum",
       "cut <tool_call>\n{\"name\": \"add\", \"argum"},
      {"hermes", "cut <tool_ca", "cut <tool_ca"},
      {"hermes", "<<tool_call>" + one, "<" + call_one},
      {"hermes", "<tool_call><tool_call>" + one, "<tool_call>" + call_one},
      {"hermes", "<tool_call>[" + one + ", " + unknown + "]</tool_call>",
       call_one + ", " + unknown + "]</tool_call>"},
      // thoughts
      {"hermes", "<think>\n<tool_call>" + one + "</tool_call>\n</think>\n<tool_call>" + two,
       "{<tool_call>" + one + "</tool_call>}" + call_two},
      {"hermes", "\n<think></think>\n\n" + two, call_two},
      {"hermes", "<think>a <tool_call>" + one, "{a <tool_call>" + one + "}"},
      {"hermes", "a <think><tool_call>" + one, "a <think>" + call_one},
      {"general", "<tool_call>\n" + one + "\n</tool_call>", call_one},
      // the other forms
      {"llama", R"({"name": "add", "parameters": {"a": "1"}})", R"([add({"a": "1"})])"},
      {"llama", R"(<|python_tag|>{"type": "function", "name": "add", "parameters": {"a": 1}})",
       R"([add({"a": 1})])"},
      {"llama", R"({"name": "add", "parameters": {}}; {"name": "now", "parameters": {}};)",
       "[add({})][now({})];"},
      {"llama", R"([{"name": "add", "parameters": {}}, {"name": "now", "parameters": {}}])",
       "[add({})][now({})]"},
      {"llama", R"(<|python_tag|>web.call(query="x"))", R"(<|python_tag|>web.call(query="x"))"},
      {"llama", R"({"answer": 42})", R"({"answer": 42})"},
      {"llama", R"([1](http://x) {"name": "add"})", R"([1](http://x) {"name": "add"})"},
      {"llama", R"({"name": "now", "parameters": {}} and more)", "[now({})] and more"},
      {"mistral", "[TOOL_CALLS][" + one + ", " + two + "]", both},
      {"mistral", "[TOOL_CALLS] [" + one + "]", call_one},
      {"mistral", R"([TOOL_CALLS][{"name": "now", "arguments": {}, "id": "abc123abc"}])",
       "[now({})]"},
      {"mistral", "Yes. [TOOL_CALLS]" + one, "Yes." + call_one},
      {"mistral", "[TOOL_CALLS] none", "[TOOL_CALLS] none"},
      {"mistral", one, one},
      {"mistral_named", R"([TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]now[ARGS]{})",
       R"([add({"a": 1})][now({})])"},
      {"mistral_named", R"(Hm.[TOOL_CALLS]add[CALL_ID]abc123abc[ARGS]{"a": 1})",
       R"(Hm.[add({"a": 1})])"},
      {"mistral_named", R"([TOOL_CALLS]get_weather-2{"a": 1} x)", R"([get_weather-2({"a": 1})] x)"},
      {"mistral_named", "[TOOL_CALLS][" + one + "]", call_one},
      {"mistral_named", R"([TOOL_CALLS]rm[ARGS]{"a": 1})", R"([TOOL_CALLS]rm[ARGS]{"a": 1})"},
      {"mistral_named", R"([TOOL_CALLS]adder[ARGS]{})", R"([TOOL_CALLS]adder[ARGS]{})"},
      {"mistral_named", R"([TOOL_CALLS]add[ARGS]{"a")", R"([TOOL_CALLS]add[ARGS]{"a")"},
      {"phi4", "<|tool_call|>[" + one + "]<|/tool_call|>", call_one},
      {"phi4", "<|tool_call|>" + one + "<|/tool_call|><|tool_call|>" + two + "<|/tool_call|>",
       both},
      {"phi4", "functools[" + one + ", " + two + "]", both},
      {"phi4", "functools is a module", "functools is a module"},
      {"granite", "<|tool_call|>[" + one + ", " + two + "]", both},
      {"granite", "<tool_call>[" + one + "]", call_one},
      {"deepseek",
       DS("calls\u2581begin")
           DS("call\u2581begin") "function" DS("sep") "add\n```json\n{\"a\": 1}\n```" DS(
               "call\u2581end") "\n" DS("call\u2581begin") "function" DS("sep") "now\n```json\n{}"
                                                                                "\n```" DS("call"
                                                                                           "\u2581e"
                                                                                           "nd")
                                                                                    DS("calls\u2581"
                                                                                       "end"),
       R"([add({"a": 1})][now({})])"},
      {"deepseek", "<think>\nhm\n</think>\n\n" DS("call\u2581begin") "function" DS("sep") "now\n{}",
       "{hm}[now({})]"},
      {"deepseek", DS("calls\u2581begin") "x", DS("calls\u2581begin") "x"},
      {"deepseek_v3",
       "Well." DS("calls\u2581begin")
           DS("call\u2581begin") "add" DS("sep") "{\"a\": 1}" DS("call\u2581end")
               DS("call\u2581begin") "now" DS("sep") "{}" DS("call\u2581end") DS("calls"
                                                                                 "\u2581"
                                                                                 "end"),
       R"(Well.[add({"a": 1})][now({})])"},
      {"functionary", R"(<function=add>{"a": 1}</function> <function=now>{}</function>)",
       R"([add({"a": 1})][now({})])"},
      {"functionary", "f: <function=add>x</function>", "f: <function=add>x</function>"},
  };
  return list;
}

/// Marks of all forms.
inline std::vector<std::string_view> all_marks() {
  return {"<tool_call>",
          "</tool_call>",
          "<|tool_call|>",
          "<|/tool_call|>",
          "<|tool_calls|>",
          "<|/tool_calls|>",
          "functools",
          "[TOOL_CALLS]",
          "[CALL_ID]",
          "[ARGS]",
          "<|python_tag|>",
          "<|eom_id|>",
          "<function=",
          "</function>",
          "```json",
          "```",
          DS("calls\u2581begin"),
          DS("calls\u2581end"),
          DS("call\u2581begin"),
          DS("call\u2581end"),
          DS("sep"),
          "function",
          ">"};
}
#undef DS

/// Texts whose last byte may be repeated for ever within what may be a call.
inline std::vector<std::string> endless_beginnings(const std::string& form) {
  if (form == "mistral_named")
    return {"[TOOL_CALLS]add ", "[TOOL_CALLS]aaa", "[TOOL_CALLS]add[ARGS]{\"a\": \"x",
            "[TOOL_CALLS]add[CALL_ID]ab"};
  if (form == "functionary") return {"<function=add> ", "<function=add>{ "};
  if (form == "deepseek") return {"<\uff5ctool\u2581call\u2581begin\uff5c>function "};
  const std::string mark = form == "llama" ? "<|python_tag|>" : "<tool_call>";
  return {mark + " ", mark + "{\"name\": \"add\", \"arguments\": {\"a\": \"x",
          mark + "{\"name\": \"add\", \"id\": 11", mark + "{\"name\": \"add\", \"id\": \"11",
          mark + "{\"arguments\": {\"a\": 1 "};
}

/// An answer with a few random mistakes.
inline std::string damaged(std::string text, const std::vector<Answer>& others,
                           std::mt19937& random) {
  const auto below = [&](std::size_t n) { return n == 0 ? 0 : random() % n; };
  constexpr std::string_view kBytes = "{}[]\"\\:,;<>|/ \n\t0e-tn\x80\xff";
  for (std::size_t changes = below(4); changes > 0; --changes) {
    const std::size_t at = below(text.size() + 1);
    switch (below(6)) {
      case 0:
        text.erase(at, 1 + below(3));
        break;
      case 1:
        text.insert(at, 1, kBytes[below(kBytes.size())]);
        break;
      case 2:
        if (at < text.size()) text[at] = kBytes[below(kBytes.size())];
        break;
      case 3:
        text.resize(at);
        break;
      case 4: {  // a part of it once more
        const std::string part = text.substr(at, below(60));
        text.insert(below(text.size() + 1), part);
        break;
      }
      case 5: {
        const std::string& other = others[below(others.size())].text;
        const std::size_t from = below(other.size() + 1);
        text.insert(at, other, from, below(80));
        break;
      }
    }
  }
  return text;
}

}  // namespace episodic::test
