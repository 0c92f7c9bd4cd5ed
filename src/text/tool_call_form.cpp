// SPDX-License-Identifier: Apache-2.0
#include "tool_call_form.hpp"

#include <algorithm>

namespace episodic::text {
namespace {

// DeepSeek's bars and spaces are not those of ASCII.
#define EPISODIC_DEEPSEEK(word) "<\uff5ctool\u2581" word "\uff5c>"
#define EPISODIC_DEEPSEEK_SEP "<\uff5ctool\u2581sep\uff5c>"
#define EPISODIC_DEEPSEEK_CALLS EPISODIC_DEEPSEEK("calls\u2581begin")
#define EPISODIC_DEEPSEEK_CALL EPISODIC_DEEPSEEK("call\u2581begin")
#define EPISODIC_DEEPSEEK_CALL_END EPISODIC_DEEPSEEK("call\u2581end")
#define EPISODIC_DEEPSEEK_CALLS_END EPISODIC_DEEPSEEK("calls\u2581end")

constexpr ToolCallForm kHermes{.name = "hermes",
                               .present = {"<tool_call>"},
                               .opens = {"<tool_call>"},
                               .closes = {"</tool_call>"},
                               .bare = true,
                               .call = "<tool_call>\n{\"name\": \"",
                               .arguments = "\", \"arguments\": ",
                               .call_end = "}\n</tool_call>",
                               .separator = "\n"};

constexpr ToolCallForm general_of(ToolCallForm form) {
  form.name = "general";
  return form;
}
constexpr ToolCallForm kGeneral = general_of(kHermes);

constexpr ToolCallForm lfm_of(std::string_view mark) {
  return {.name = "lfm",
          .present = {mark},
          .opens = {"<|tool_call_start|>"},
          .closes = {"<|tool_call_end|>"},
          .notation = CallNotation::python,
          .begin = "<|tool_call_start|>[",
          .call = "{\"name\": \"",
          .arguments = "\", \"arguments\": ",
          .call_end = "}",
          .separator = ", ",
          .end = "]<|tool_call_end|>"};
}

constexpr ToolCallForm kForms[] = {
    {.name = "harmony",  // gpt-oss
     .present = {"<|channel|>", "<|message|>"},
     .channels = true,
     .call = "<|channel|>commentary to=functions.",
     .arguments = " <|constrain|>json<|message|>",
     .constrained_arguments = "",
     .one_call = true},
    {.name = "gemma",  // 4
     .present = {"<|tool_call>"},
     .opens = {"<|tool_call>"},
     .closes = {"<tool_call|>"},
     .notation = CallNotation::gemma,
     .quote = kGemmaQuote,
     .call = "<|tool_call>{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}<tool_call|>"},
    lfm_of("<|tool_list_start|>"),   // LFM2
    lfm_of("<|tool_call_start|>"),   // LFM2.5, where it writes calls
    lfm_of("\"List of tools: [\""),  // LFM2.5, where it does not
    {.name = "olmo",                 // OLMo 3
     .present = {"<function_calls>"},
     .opens = {"<function_calls>"},
     .closes = {"</function_calls>"},
     .notation = CallNotation::python,
     .begin = "<function_calls>[",
     .call = "{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}",
     .separator = ", ",
     .end = "]</function_calls>"},
    {.name = "apertus",
     .present = {"<|tools_prefix|>"},
     .opens = {"<|tools_prefix|>"},
     .closes = {"<|tools_suffix|>"},
     .notation = CallNotation::keyed,
     .begin = "<|tools_prefix|>[",
     .call = "{\"",
     .arguments = "\": ",
     .call_end = "}",
     .separator = ", ",
     .end = "]<|tools_suffix|>"},
    {.name = "cohere",  // Command R7B, Command A
     .present = {"<|START_ACTION|>"},
     .opens = {"<|START_ACTION|>"},
     .closes = {"<|END_ACTION|>"},
     .begin = "<|START_ACTION|>[\n    ",
     .call = "{\"tool_name\": \"",
     .arguments = "\", \"parameters\": ",
     .call_end = "}",
     .separator = ",\n    ",
     .end = "\n]<|END_ACTION|>"},
    {.name = "nemotron",  // Nemotron Nano 2
     .present = {"<TOOLCALL>"},
     .opens = {"<TOOLCALL>"},
     .closes = {"</TOOLCALL>"},
     .begin = "<TOOLCALL>[",
     .call = "{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}",
     .separator = ", ",
     .end = "]</TOOLCALL>"},
    {.name = "mistral_named",  // of tekken v11 and v13
     .present = {"[TOOL_CALLS]", "[ARGS]"},
     .opens = {"[TOOL_CALLS]"},
     .named = true,
     .after_name = {"[ARGS]"},
     .id_mark = "[CALL_ID]",
     .call = "[TOOL_CALLS]",
     .arguments = "[ARGS]",
     .constrained_arguments = "",
     .one_call = true,
     .nine_ids = true},
    {.name = "mistral",  // v3 to v7
     .present = {"[TOOL_CALLS]"},
     .opens = {"[TOOL_CALLS]"},
     .begin = "[TOOL_CALLS][",
     .call = "{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}",
     .separator = ", ",
     .end = "]",
     .nine_ids = true},
    {.name = "deepseek",  // R1, and what was distilled from it
     .present = {EPISODIC_DEEPSEEK_CALL, "```json"},
     .opens = {EPISODIC_DEEPSEEK_CALLS EPISODIC_DEEPSEEK_CALL, EPISODIC_DEEPSEEK_CALL},
     .closes = {"```", EPISODIC_DEEPSEEK_CALL_END, EPISODIC_DEEPSEEK_CALLS_END},
     .named = true,
     .before_name = "function" EPISODIC_DEEPSEEK_SEP,
     .after_name = {EPISODIC_DEEPSEEK_SEP, "```json"},
     .begin = EPISODIC_DEEPSEEK_CALLS,
     .call = EPISODIC_DEEPSEEK_CALL "function" EPISODIC_DEEPSEEK_SEP,
     .arguments = "\n```json\n",
     .call_end = "\n```" EPISODIC_DEEPSEEK_CALL_END,
     .separator = "\n",
     .end = EPISODIC_DEEPSEEK_CALLS_END},
    {.name = "deepseek_v3",  // V3.1
     .present = {EPISODIC_DEEPSEEK_CALL},
     .opens = {EPISODIC_DEEPSEEK_CALLS EPISODIC_DEEPSEEK_CALL, EPISODIC_DEEPSEEK_CALL},
     .closes = {EPISODIC_DEEPSEEK_CALL_END, EPISODIC_DEEPSEEK_CALLS_END},
     .named = true,
     .after_name = {EPISODIC_DEEPSEEK_SEP},
     .begin = EPISODIC_DEEPSEEK_CALLS,
     .call = EPISODIC_DEEPSEEK_CALL,
     .arguments = EPISODIC_DEEPSEEK_SEP,
     .call_end = EPISODIC_DEEPSEEK_CALL_END,
     .end = EPISODIC_DEEPSEEK_CALLS_END},
    {.name = "phi4",
     .present = {"<|tool|>"},
     .opens = {"<|tool_call|>", "<|tool_calls|>", "functools"},
     .closes = {"<|/tool_call|>", "<|/tool_calls|>"},
     .begin = "<|tool_call|>[",
     .call = "{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}",
     .separator = ", ",
     .end = "]<|/tool_call|>"},
    {.name = "granite",  // 3
     .present = {"<|tool_call|>"},
     .opens = {"<|tool_call|>", "<tool_call>"},
     .closes = {"</tool_call>"},
     .begin = "<|tool_call|>[",
     .call = "{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}",
     .separator = ", ",
     .end = "]"},
    {.name = "seed",  // Seed-OSS
     .present = {"<seed:tool_call>"},
     .opens = {"<seed:tool_call>"},
     .closes = {"</seed:tool_call>"},
     .notation = CallNotation::parameters,
     .call = "<seed:tool_call>\n{\"name\": \"",
     .arguments = "\", \"arguments\": ",
     .call_end = "}\n</seed:tool_call>",
     .separator = "\n"},
    {.name = "qwen_coder",  // Qwen3-Coder, Qwen3.5, Nemotron 3
     .present = {"<tool_call>", "<parameter="},
     .opens = {"<tool_call>"},
     .closes = {"</tool_call>"},
     .notation = CallNotation::lines,
     .call = kHermes.call,
     .arguments = kHermes.arguments,
     .call_end = kHermes.call_end,
     .separator = "\n"},
    {.name = "glm",  // 4.5 to 4.7
     .present = {"<tool_call>", "<arg_key>"},
     .opens = {"<tool_call>"},
     .closes = {"</tool_call>"},
     .notation = CallNotation::arg_keys,
     .call = kHermes.call,
     .arguments = kHermes.arguments,
     .call_end = kHermes.call_end,
     .separator = "\n"},
    kHermes,
    {.name = "functionary",  // v3.1, and LLaMA 3.1's own second form
     .present = {"<function="},
     .absent = {"<parameter="},
     .opens = {"<function="},
     .closes = {"</function>"},
     .named = true,
     .after_name = {">"},
     .call = "<function=",
     .arguments = ">",
     .call_end = "</function>"},
    {.name = "llama",  // 3.1 to 3.3
     .present = {"\"parameters\": ", "ipython"},
     .opens = {"<|python_tag|>"},
     .closes = {"<|eom_id|>"},
     .bare = true,
     .call = "{\"name\": \"",
     .arguments = "\", \"parameters\": ",
     .call_end = "}",
     .separator = "; "},
};

}  // namespace

const ToolCallForm* find_form(std::string_view template_text) {
  const auto has = [&](std::string_view part) {
    return template_text.find(part) != std::string_view::npos;
  };
  for (const ToolCallForm& form : kForms)
    if (std::all_of(form.present.begin(), form.present.end(),
                    [&](std::string_view part) { return part.empty() || has(part); }) &&
        std::none_of(form.absent.begin(), form.absent.end(),
                     [&](std::string_view part) { return !part.empty() && has(part); }))
      return &form;
  return nullptr;
}

const ToolCallForm& general_form() { return kGeneral; }

}  // namespace episodic::text
