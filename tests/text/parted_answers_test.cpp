// SPDX-License-Identifier: Apache-2.0
// Answers in parts: what a model thinks, channels, and calls in notations of their own.
#include <nlohmann/json.hpp>
#include <random>

#include "episodic/text/tool_calls.hpp"
#include "support/test.hpp"
#include "tool_call_answers.hpp"

using namespace episodic;
using namespace episodic::test;

namespace parted_answers_test {

using Json = nlohmann::ordered_json;
using Kind = ToolCallEvent::Kind;

/// Tools whose arguments have types.
const std::vector<Tool>& typed_tools() {
  static const std::vector<Tool> tools =
      read_tools(R"([{"type": "function", "function": {"name": "add", "parameters": {"properties": {
          "text": {"type": "string"}, "n": {"type": "integer"}, "x": {"type": "number"},
          "yes": {"type": "boolean"}, "list": {"type": "array"}, "of": {"type": "object"},
          "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "any": {}}}}},
      {"type": "function", "function": {"name": "now"}}])");
  return tools;
}

std::vector<ToolCallEvent> in_pieces(const ToolCallFormat& format, std::string_view text,
                                     const ToolCallOptions& options,
                                     const std::vector<std::size_t>& cuts) {
  ToolCallParser parser(format, typed_tools(), options);
  std::vector<ToolCallEvent> events;
  std::size_t at = 0;
  const auto push = [&](std::size_t end) {
    for (ToolCallEvent& e : parser.push(text.substr(at, end - at))) events.push_back(std::move(e));
    at = end;
  };
  for (const std::size_t cut : cuts) push(cut);
  push(text.size());
  for (ToolCallEvent& e : parser.finish()) events.push_back(std::move(e));
  return joined_events(events);
}

const std::string kCalled = "<|channel|>commentary to=functions.add <|constrain|>json<|message|>";

std::vector<Answer> parted_answers() {
  const std::string thought = "<|channel|>analysis<|message|>Hm, <b>.<|end|>";
  const std::string next = "<|start|>assistant";
  return {
      // channels
      {"harmony", "", ""},
      {"harmony", thought + next + "<|channel|>final<|message|>Jane Austen.",
       "{Hm, <b>.}Jane Austen."},
      {"harmony", thought + next + "<|channel|>final<|message|>Jane Austen.<|return|>",
       "{Hm, <b>.}Jane Austen."},
      {"harmony", "<|channel|>final<|message|>At once.", "At once."},
      {"harmony", "<|channel|>analysis<|message|>cut of", "{cut of}"},
      {"harmony", "<|channel|>analysis<|message|>cut<|en", "{cut<|en}"},
      {"harmony", "<|channel|>anal", ""},
      {"harmony", thought + "<|start|>assi", "{Hm, <b>.}"},
      {"harmony", "No channel at all.", "No channel at all."},
      {"harmony", " to be sure", " to be sure"},
      {"harmony", "<|message|>No name.", "No name."},
      {"harmony", thought + next + kCalled + R"({"n": 1})", R"({Hm, <b>.}[add({"n": 1})])"},
      {"harmony", thought + next + kCalled + R"({"n": 1}<|call|>)", R"({Hm, <b>.}[add({"n": 1})])"},
      {"harmony",
       thought + next + " to=functions.add<|channel|>commentary json<|message|>{\"n\": 1}",
       R"({Hm, <b>.}[add({"n": 1})])"},
      {"harmony", " to=functions.now<|channel|>analysis<|message|>{}<|call|>", "[now({})]"},
      {"harmony", "<|channel|>commentary to=functions.now{}", "[now({})]"},
      {"harmony",
       "<|channel|>commentary<|message|>I look.<|end|>" + next + kCalled +
           "\n{\"n\": [{}]} <|call|>",
       R"(I look.[add({"n": [{}]})])"},
      {"harmony",
       kCalled + "{\"n\": 1}<|call|>" + next + kCalled + "{\"n\": 2}<|call|>" + next +
           "<|channel|>final<|message|>Both.",
       R"([add({"n": 1})][add({"n": 2})]Both.)"},
      {"harmony", thought + next + thought, "{Hm, <b>.\n\nHm, <b>.}"},
      {"harmony",
       "<|channel|>commentary<|message|>First.<|end|>" + next + "<|channel|>final<|message|>Then.",
       "First.\n\nThen."},
      // an end that a model left out, and text behind one
      {"harmony", "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b",
       "{a}b"},
      {"harmony", "<|channel|>analysis<|message|>a<|channel|>final<|message|>b", "{a}b"},
      {"harmony", "<|channel|>final<|message|>a<|end|>\n", "a"},
      // what is no call is thought; so is what is for a tool that nobody offers
      {"harmony", "<|channel|>commentary to=functions.rm <|constrain|>json<|message|>{}<|call|>",
       "{{}}"},
      {"harmony", "<|channel|>analysis to=python code<|message|>1 + 1<|call|>", "{1 + 1}"},
      {"harmony", kCalled + "{\"n\": }<|call|>", "{{\"n\": }}"},
      {"harmony", kCalled + "{\"n\": 1", "{{\"n\": 1}"},
      {"harmony", kCalled + "[1]<|call|>", "{[1]}"},
      {"harmony", kCalled + "{\"n\": \"\xff\"}<|call|>", "{{\"n\": \"\xff\"}}"},
      // marks that are none
      {"harmony", "<|channel|>final<|message|>a <|chan <|b|> <", "a <|chan <|b|> <"},
      // thoughts before an answer
      {"hermes", "<think>\nHm.\n</think>\n\nYes.", "{Hm.}Yes."},
      {"hermes", "<think>\n\n</think>\n\nYes.", "Yes."},
      {"hermes", "<think>a\n\nb</thin", "{a\n\nb</thin}"},
      {"hermes", "Yes <think>no</think>", "Yes <think>no</think>"},
      {"hermes", "<thin", "<thin"},
      {"seed", "<seed:think>Hm.</seed:think>Yes.", "{Hm.}Yes."},
      {"apertus", "<|inner_prefix|>Hm.<|inner_suffix|>Yes.", "{Hm.}Yes."},
      {"cohere", "<|START_THINKING|>Hm.<|END_THINKING|>Yes.", "{Hm.}Yes."},
      {"gemma", "<|channel>thought\nHm.\n<channel|>Yes.", "{Hm.}Yes."},
      {"granite_thinking", "<think>Hm.</think>\n\n<response>Yes </response>", "{Hm.}Yes "},
      {"granite_thinking", "<response>Yes</response>", "<response>Yes</response>"},
      // each argument in XML
      {"qwen_coder",
       "Well.\n\n<tool_call>\n<function=add>\n<parameter=text>\n "
       "5\n\n</parameter>\n<parameter=n>\n5\n"
       "</parameter>\n<parameter=any>\n[1, \"x\"]\n</parameter>\n</function>\n</tool_call>",
       R"(Well.[add({"text": " 5\n", "n": 5, "any": [1, "x"]})])"},
      {"qwen_coder",
       "<tool_call>\n<function=add>\n<parameter=yes>\nTrue\n</parameter>\n<parameter=maybe>\nNone\n"
       "</parameter>\n<parameter=x>\n-1.5e3\n</parameter>\n<parameter=of>\n{\"a\": "
       "{}}\n</parameter>\n"
       "</function>\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
       R"([add({"yes": true, "maybe": null, "x": -1.5e3, "of": {"a": {}}})][now({})])"},
      {"qwen_coder",
       "<tool_call><function=add><parameter=text>a </parameter> b</tool_call> c</parameter>"
       "</function></tool_call> d",
       R"([add({"text": "a </parameter> b</tool_call> c"})] d)"},
      {"qwen_coder", R"(<tool_call>{"name": "now", "arguments": {}}</tool_call>)", "[now({})]"},
      {"qwen_coder", "<tool_call>\n<function=rm>\n</function>\n</tool_call>",
       "<tool_call>\n<function=rm>\n</function>\n</tool_call>"},
      {"qwen_coder", "<tool_call>\n<function=add>\n<parameter=text>\nx",
       "<tool_call>\n<function=add>\n<parameter=text>\nx"},
      {"qwen_coder", "<tool_call>\n<function=now>\n</function>", "[now({})]"},
      {"seed",
       "<seed:tool_call>\n<function=add>\n<parameter=text>\nx</parameter>\n<parameter=n>5</"
       "parameter>\n"
       "</function>\n</seed:tool_call>",
       R"([add({"text": "\nx", "n": 5})])"},
      {"glm",
       "\n<tool_call>add\n<arg_key>text</arg_key>\n<arg_value>5 "
       "</arg_value>\n<arg_key>list</arg_key>\n"
       "<arg_value>[1]</arg_value>\n</tool_call><tool_call>now\n</tool_call>",
       R"([add({"text": "5 ", "list": [1]})][now({})])"},
      {"glm", "<tool_call>none</tool_call>", "<tool_call>none</tool_call>"},
      // as Python calls
      {"lfm", "<|tool_call_start|>[add(text=\"a\\n\\\"b\\\"\", n=-2), now()]<|tool_call_end|>Look.",
       R"([add({"text": "a\n\"b\"", "n": -2})][now({})]Look.)"},
      {"lfm",
       "<|tool_call_start|>[add(text='it's, so', list=[1, 'b', (2.5, None)], of={'a': True},)]"
       "<|tool_call_end|>",
       R"([add({"text": "it's, so", "list": [1, "b", [2.5, null]], "of": {"a": true}})])"},
      {"lfm", "<|tool_call_start|>[add(text='\\u00e9\\x41\\U0001F600')]<|tool_call_end|>",
       "[add({\"text\": \"\u00e9"
       "A\U0001F600\"})]"},
      {"lfm", R"(<|tool_call_start|>[{"name": "now", "arguments": {}}]<|tool_call_end|>)",
       "[now({})]"},
      {"lfm", "<|tool_call_start|>[rm()]<|tool_call_end|>",
       "<|tool_call_start|>[rm()]<|tool_call_end|>"},
      {"lfm", "<|tool_call_start|>[add(1)]<|tool_call_end|>",
       "<|tool_call_start|>[add(1)]<|tool_call_end|>"},
      {"olmo", "<function_calls>\nadd(text=\"x\")\nnow()\n</function_calls>",
       R"([add({"text": "x"})][now({})])"},
      // as Gemma 4
      {"gemma",
       "<|tool_call>call:add{list:[1,true,<|\"|>x<|\"|>],of:{a:{b:<|\"|>{c}<|\"|>}},text:<|\"|>a, "
       "b: "
       "\"c\"\n<|\"|>}<tool_call|><|tool_call>call:now{}<tool_call|>",
       R"([add({"list": [1, true, "x"], "of": {"a": {"b": "{c}"}}, "text": "a, b: \"c\"\n"})][now({})])"},
      {"gemma", "<|tool_call>call:add{x}<tool_call|>", "<|tool_call>call:add{x}<tool_call|>"},
      // the others
      {"apertus", R"(<|tools_prefix|>[{"add": {"n": 1}}, {"now": {}}]<|tools_suffix|>)",
       R"([add({"n": 1})][now({})])"},
      {"apertus", R"(<|tools_prefix|>[{"display_answers": {}}]<|tools_suffix|>)",
       R"(<|tools_prefix|>[{"display_answers": {}}]<|tools_suffix|>)"},
      {"cohere",
       "<|START_THINKING|>I look.<|END_THINKING|><|START_ACTION|>[\n    {\"tool_call_id\": \"0\", "
       "\"tool_name\": \"add\", \"parameters\": {\"n\": 1}},\n    {\"tool_call_id\": \"1\", "
       "\"tool_name\": \"now\", \"parameters\": {}}\n]<|END_ACTION|>",
       R"({I look.}[add({"n": 1})][now({})])"},
      {"nemotron", R"(<TOOLCALL>[{"name": "now", "arguments": {}}]</TOOLCALL>)", "[now({})]"},
  };
}

TEST_CASE("parted answers: thoughts, channels and calls are told apart") {
  for (const Answer& answer : parted_answers()) {
    INFO(answer.form << ": " << answer.text);
    CHECK(told(in_pieces(format_named(answer.form), answer.text, fixed_ids(), {})) == answer.told);
  }
}

TEST_CASE("parted answers: where an answer is cut changes nothing") {
  for (const Answer& answer : parted_answers())
    for (const bool early : {false, true}) {
      ToolCallOptions options = fixed_ids();
      options.early_arguments = early;
      const ToolCallFormat& format = format_named(answer.form);
      const auto expected = in_pieces(format, answer.text, options, {});
      INFO(answer.form << (early ? ", early: " : ": ") << answer.text);
      std::vector<std::size_t> every;
      for (std::size_t cut = 0; cut <= answer.text.size(); ++cut) {
        if (in_pieces(format, answer.text, options, {cut}) != expected) FAIL("at byte " << cut);
        every.push_back(cut);
      }
      CHECK(in_pieces(format, answer.text, options, every) == expected);
    }
}

TEST_CASE("parted answers: no beginning of an answer shows a part of a mark") {
  constexpr std::string_view kMarks[] = {"<|start|>", "<|channel|>", "<|message|>",
                                         "<|end|>",   "<|call|>",    "<|return|>"};
  for (const Answer& answer : parted_answers()) {
    const std::string whole =
        told(in_pieces(format_named(answer.form), answer.text, fixed_ids(), {}));
    ToolCallParser parser(format_named(answer.form), typed_tools(), fixed_ids());
    AnswerTexts texts, all;
    all.add(in_pieces(format_named(answer.form), answer.text, fixed_ids(), {}));
    for (const char c : answer.text) {
      texts.add(parser.push(std::string(1, c)));
      INFO(answer.text << " | " << texts.content << " | " << texts.reasoning);
      CHECK(all.content.starts_with(texts.content));  // what is told is never taken back
      CHECK(all.reasoning.starts_with(texts.reasoning));
      for (const std::string_view mark : kMarks) {
        CHECK(texts.content.find(mark) == std::string::npos);
        CHECK(texts.reasoning.find(mark) == std::string::npos);
      }
    }
  }
}

TEST_CASE("parted answers: damaged ones are told alike, however they are cut") {
  std::mt19937 random(23);
  const std::vector<Answer> all = parted_answers();
  std::size_t with_calls = 0;
  for (int n = 0; n < 10'000; ++n) {
    const Answer& answer = all[random() % all.size()];
    const std::string text = damaged(answer.text, all, random);
    ToolCallOptions options = fixed_ids();
    options.early_arguments = random() % 2 == 0;
    options.part_reasoning = random() % 4 != 0;
    options.thinking = random() % 8 == 0;
    const ToolCallFormat& format = format_named(answer.form);
    const auto events = in_pieces(format, text, options, {});
    std::vector<std::size_t> cuts;
    for (std::size_t at = 1 + random() % 9; at < text.size(); at += 1 + random() % 9)
      cuts.push_back(at);
    if (in_pieces(format, text, options, cuts) != events) FAIL(answer.form << ": " << text);
    std::size_t ended = 0;
    for (const ToolCallEvent& e : events) {
      ended += e.kind == Kind::ended;
      CHECK(e.text.find('\0') == std::string::npos);
    }
    with_calls += ended > 0;
  }
  CHECK(with_calls > 1500);
}

TEST_CASE("parted answers: what is kept of an endless answer is bounded, and takes its time") {
  for (const char* form : {"harmony", "qwen_coder", "lfm", "gemma", "glm", "apertus", "hermes"})
    for (const std::string& part :
         {std::string("<|channel|>"), std::string("<|start|>"), std::string("<|message|>"), kCalled,
          std::string("<|"), std::string(" "), std::string("<tool_call>"),
          std::string("</tool_call>"), std::string("<tool_call><function=add><parameter=text>"),
          std::string("'"), std::string("<|tool_call_start|>[add(text='"),
          std::string("<|tool_call>call:add{text:"), std::string("<think>"),
          std::string("</think>")}) {
      std::string text;
      while (text.size() < (std::size_t{1} << 14)) text += part;
      ToolCallOptions options = fixed_ids();
      options.longest_call = 1000;
      ToolCallParser parser(format_named(form), typed_tools(), options);
      for (const char c : text) parser.push(std::string(1, c));
      parser.finish();
    }
}

TEST_CASE("parted answers: an answer may begin within a thought, and be held to a form") {
  const ToolCallFormat& hermes = format_named("hermes");
  CHECK(hermes.begins_thinking("<|im_start|>assistant\n<think>\n"));
  CHECK(!hermes.begins_thinking("<think>\n\n</think>\n\n"));
  CHECK(hermes.held_opening("x<think>\n") == "</think>\n\n");
  CHECK(hermes.held_opening("x<think>") == "\n</think>\n\n");
  CHECK(hermes.held_opening("x").empty());
  CHECK(format_named("gemma").begins_thinking("<|turn>model\n<|channel>thought\n"));
  const ToolCallFormat& harmony = format_named("harmony");
  CHECK(!harmony.begins_thinking("<|start|>assistant"));
  CHECK(harmony.held_opening("<|start|>assistant") == "<|channel|>final<|message|>");
  ToolCallOptions options = fixed_ids();
  options.thinking = true;
  ToolCallParser thinks(hermes, {}, options);
  CHECK(told(thinks.push("Hm.\n</th")) == "{Hm.}");
  CHECK(told(thinks.push("ink>\n\nYes")) == "Yes");
  ToolCallParser held(hermes, {}, options);
  CHECK(told(held.push(hermes.held_opening("x<think>\n") + "{\"a\": 1}")) == "{\"a\": 1}");
  ToolCallParser final_alone(harmony, {}, fixed_ids());
  CHECK(told(final_alone.push(harmony.held_opening("") + "{\"a\": 1}")) == "{\"a\": 1}");
}

TEST_CASE("parted answers: thoughts can be left where they are") {
  ToolCallOptions options = fixed_ids();
  options.part_reasoning = false;
  const auto of = [&](const char* form, std::string_view text) {
    return told(in_pieces(format_named(form), text, options, {}));
  };
  CHECK(of("hermes", "<think>\n<tool_call>{\"name\": \"now\"}</think>\n\nYes.") ==
        "<think>\n<tool_call>{\"name\": \"now\"}</think>\n\nYes.");
  CHECK(of("harmony",
           "<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final"
           "<|message|>b") == "a\n\nb");
}

TEST_CASE("parted answers: forced calls are read in every form") {
  for (const char* form : {"harmony", "gemma", "lfm", "olmo", "apertus", "cohere", "nemotron",
                           "seed", "qwen_coder", "glm"})
    for (const char* name : {"", "now"}) {
      const ToolCallFormat& format = format_named(form);
      const ForcedCalls forced =
          format.forced_calls(typed_tools(), {ToolChoice::Kind::required, name});
      INFO(form << " " << name);
      REQUIRE(forced.calls.size() == (*name ? 1 : typed_tools().size()));
      for (const ForcedCalls::Call& call : forced.calls) {
        const std::string one = call.prefix + R"({"a": 1})" + call.suffix;
        std::string text = forced.begin + one, expected = "[" + call.name + R"(({"a": 1})])";
        if (!forced.separator.empty()) {
          text += forced.separator + one;
          expected += expected;
        }
        CHECK(told(in_pieces(format, text + forced.end, fixed_ids(), {})) == expected);
      }
    }
}

}  // namespace parted_answers_test
