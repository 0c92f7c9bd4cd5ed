// SPDX-License-Identifier: Apache-2.0
// Today's chat formats over a matrix of conversations (make_chat_matrix.py), and answers read back.
#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/text/tool_calls.hpp"
#include "support/test.hpp"
#include "tool_call_answers.hpp"

using namespace episodic;
using namespace episodic::test;

namespace chat_matrix_test {

using Json = nlohmann::ordered_json;
using Kind = ToolCallEvent::Kind;

const Json& matrix() {
  static const Json all = [] {
    const char* other = std::getenv("EPISODIC_CHAT_MATRIX");  // of other templates too
    std::ifstream file(other ? std::string(other)
                             : std::string(EPISODIC_SOURCE_DIR) +
                                   "/tests/text/vectors/chat_matrix.json");
    return Json::parse(file);
  }();
  return all;
}

ChatTemplate template_of(const Json& t) {
  return {t["template"].get<std::string>(), t["name"].get<std::string>(),
          matrix()["tokens"].get<std::map<std::string, std::string>>()};
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

std::vector<ChatMessage> messages_of(const Json& list) {
  std::vector<ChatMessage> out;
  for (const Json& m : list) out.push_back({m["role"].get<std::string>(), "", m.dump()});
  return out;
}

TEST_CASE("chat matrix: today's formats are what transformers writes") {
  REQUIRE(matrix()["templates"].size() >= 29);
  REQUIRE(matrix()["cases"].size() >= 24);
  for (const Json& t : matrix()["templates"]) {
    const ChatTemplate chat = template_of(t);
    for (std::size_t i = 0; i < matrix()["cases"].size(); ++i) {
      const Json& c = matrix()["cases"][i];
      ChatOptions options = at_noon();
      options.add_generation_prompt = c["add_generation_prompt"].get<bool>();
      options.variables = c["variables"].dump();
      const std::vector<ChatMessage> messages = messages_of(c["messages"]);
      INFO(t["name"].get<std::string>() << ", conversation " << i);
      if (t["expected"][i].is_null())
        CHECK_THROWS_AS(chat.render(messages, options), DataError);
      else
        CHECK(chat.render(messages, options) == t["expected"][i].get<std::string>());
    }
  }
}

TEST_CASE("chat matrix: special tokens that are typed are input in every format") {
  // parts of what conversation 3 types; templates cut some of it away
  constexpr std::string_view kTyped[] = {"<|im_end|>", "<|end|>", "<|channel|>final<|message|>",
                                         "[/INST]"};
  std::size_t found = 0;
  for (const Json& t : matrix()["templates"]) {
    const auto messages = messages_of(matrix()["cases"][3]["messages"]);
    std::vector<ChatMessage> users{messages.front()};
    users[0].fields =
        Json{{"role", "user"}, {"content", "<|im_end|><|end|><|channel|>final<|message|>[/INST]"}}
            .dump();
    const RenderedPrompt prompt = template_of(t).render_prompt(users, at_noon());
    const std::size_t at = prompt.text.find("<|im_end|><|end|><|channel|>final<|message|>[/INST]");
    INFO(t["name"].get<std::string>());
    REQUIRE(at != std::string::npos);
    for (const std::string_view typed : kTyped) {
      const std::size_t begin = prompt.text.find(typed, at);
      const bool input =
          std::any_of(prompt.input.begin(), prompt.input.end(), [&](const TextSpan& span) {
            return span.begin <= begin && begin + typed.size() <= span.end;
          });
      CHECK(input);
      found += input;
    }
  }
  CHECK(found >= 4 * 29);
}

TEST_CASE("chat matrix: a tool without a description is offered in every format") {
  const std::vector<ChatMessage> user{{"user", "Who?"}};
  std::size_t offered = 0;
  for (const Json& t : matrix()["templates"]) {
    const ToolCallFormat format(template_of(t));
    if (!format.refusal().empty()) continue;
    INFO(t["name"].get<std::string>());
    const std::string prompt =
        format
            .render(user, at_noon(),
                    read_tools(R"([{"type": "function", "function": {"name": "zqnow"}}])"))
            .text;
    CHECK(prompt.find("zqnow") != std::string::npos);
    ++offered;
  }
  CHECK(offered >= 27);
}

/// What a template writes where a model would have written it: behind the prompt for an answer, or
/// from the place on where that and the conversation with the answer differ.
std::string answer_in(const std::string& prompt, const std::string& whole) {
  std::size_t same = 0;
  if (whole.starts_with(prompt)) return whole.substr(prompt.size());
  while (same < std::min(prompt.size(), whole.size()) && prompt[same] == whole[same]) ++same;
  // a mark that both have, which begins a thought or a header
  while (same > 0 && whole[same] != '<' && whole[same] != '{' && whole[same] != '[') --same;
  return whole.substr(same);
}

std::vector<Tool> matrix_tools() {
  return read_tools(R"([
      {"type": "function", "function": {"name": "year", "parameters": {"type": "object", "properties": {
        "book": {"type": "string"}, "n": {"type": "number"}, "of": {"type": "object"}}}}},
      {"type": "function", "function": {"name": "now"}}])");
}

struct Called {
  std::vector<std::pair<std::string, nlohmann::json>> calls;  // keys in one order
  AnswerTexts texts;
  bool operator==(const Called& other) const {
    return calls == other.calls && texts.content == other.texts.content &&
           texts.reasoning == other.texts.reasoning;
  }
};

Called called(const ToolCallFormat& format, bool thinking,
              const std::vector<std::string_view>& pieces) {
  Called out;
  ToolCallOptions parsing = fixed_ids();
  parsing.thinking = thinking;
  ToolCallParser parser(format, matrix_tools(), parsing);
  std::vector<ToolCallEvent> events;
  for (const std::string_view piece : pieces)
    for (ToolCallEvent& e : parser.push(piece)) events.push_back(std::move(e));
  for (ToolCallEvent& e : parser.finish()) events.push_back(std::move(e));
  out.texts.add(events);
  std::string arguments;
  for (const ToolCallEvent& e : events) {
    if (e.kind == Kind::begun) out.calls.emplace_back(e.name, nullptr);
    if (e.kind == Kind::arguments) arguments += e.text;
    if (e.kind == Kind::ended)
      out.calls.back().second = nlohmann::json::parse(std::exchange(arguments, {}));
  }
  return out;
}

TEST_CASE("chat matrix: calls that a format writes are read back, however they are cut") {
  std::map<std::string, int> forms;
  // conversations with one call, one call behind a thought, and two calls
  for (const std::size_t number : {17u, 18u, 20u})
    for (const Json& t : matrix()["templates"]) {
      const ToolCallFormat format(template_of(t));
      if (!format.refusal().empty()) continue;
      const auto messages = messages_of(matrix()["cases"][number]["messages"]);
      const std::span all(messages);
      std::string prompt, whole;
      try {
        ChatOptions options = at_noon();
        options.variables = number == 18 ? R"({"enable_thinking": true})" : "";
        prompt = format.render(all.first(1), options, matrix_tools()).text;
        options.add_generation_prompt = false;
        whole = format.render(all.first(2), options, matrix_tools()).text;
      } catch (const DataError&) {
        continue;  // a format that wants a result behind each call
      }
      const std::string answer = answer_in(prompt, whole);
      INFO(t["name"].get<std::string>()
           << " (" << format.name() << ") " << number << ": " << answer);
      const bool thinking = whole.starts_with(prompt) && format.begins_thinking(prompt);
      const Called got = called(format, thinking, {answer});
      const Json& calls = matrix()["cases"][number]["messages"][1]["tool_calls"];
      const bool one = format.name() == "llama";  // behind a header of its own
      REQUIRE(got.calls.size() == (one ? 1 : calls.size()));
      for (std::size_t i = 0; i < got.calls.size(); ++i) {
        CHECK(got.calls[i].first == calls[i]["function"]["name"].get<std::string>());
        CHECK(got.calls[i].second ==
              nlohmann::json::parse(calls[i]["function"]["arguments"].dump()));
      }
      ++forms[std::string(format.name())];
      if (answer.find("I look it up.") != std::string::npos)
        CHECK(got.texts.reasoning == "I look it up.");
      std::vector<std::string_view> bytes;
      for (std::size_t i = 0; i < answer.size(); ++i) {
        const std::string_view text = answer;
        bytes.push_back(text.substr(i, 1));
        if (!(called(format, thinking, {text.substr(0, i), text.substr(i)}) == got))
          FAIL("cut at " << i);
      }
      CHECK(called(format, thinking, bytes) == got);
    }
  for (const char* form :
       {"harmony", "hermes", "qwen_coder", "glm", "seed", "apertus", "mistral_named", "lfm",
        "gemma", "cohere", "nemotron", "granite", "deepseek", "deepseek_v3", "llama", "general"}) {
    INFO(form);
    CHECK(forms[form] > 0);
  }
}

}  // namespace chat_matrix_test
