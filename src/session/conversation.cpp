// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/conversation.hpp"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"

namespace episodic {

Conversation::Conversation(ChatTemplate chat_template, const Tokenizer& tokenizer,
                           ConversationOptions options, std::vector<ChatMessage> messages)
    : template_(std::move(chat_template)),
      tokenizer_(tokenizer),
      options_(std::move(options)),
      messages_(std::move(messages)) {
  require_special_tokens(tokenizer);
}

RenderedPrompt Conversation::render(std::span<const ChatMessage> messages, bool to_answer,
                                    std::span<const Tool> tools) const {
  ChatOptions options;
  options.variables = options_.variables;
  options.add_generation_prompt = to_answer;
  return options_.calls ? options_.calls->render(messages, options, tools)
                        : template_.render_prompt(messages, options);
}

std::size_t Conversation::end_of_last_answer(const std::string& before) const {
  const std::string answer = without_outer_spaces(messages_.back().content);
  if (answer.empty()) {  // nothing is to be found; it ends where it began
    const std::string asked =
        render(std::span(messages_).first(messages_.size() - 1), true, {}).text;
    return before.starts_with(asked) ? asked.size() : std::string::npos;
  }
  const std::size_t at = before.rfind(answer);
  return at == std::string::npos ? at : at + answer.size();
}

/// The last answer's last call with a mark as its arguments; nothing where it calls none.
std::optional<ChatMessage> Conversation::marked_call(const std::string& mark) const {
  const std::string& fields = messages_.back().fields;
  if (fields.empty()) return std::nullopt;
  JsonLimits limits;
  limits.depth = 80;  // arguments, and what is around them
  limits.repeated_keys = true;
  const nlohmann::ordered_json given = parse_ordered(fields, "the message", limits);
  const auto calls = given.find("tool_calls");
  if (calls == given.end() || !calls->is_array() || calls->empty()) return std::nullopt;
  nlohmann::ordered_json call = calls->back();
  call["function"]["arguments"] = {{mark, mark}};
  nlohmann::ordered_json marked;
  marked["tool_calls"].push_back(std::move(call));
  return ChatMessage{"assistant", "", marked.dump()};
}

/// What a template writes behind an answer whose words it does not look at.
RenderedPrompt Conversation::behind_any_answer(std::vector<ChatMessage> messages,
                                               bool to_answer) const {
  std::string mark = "HereTheLastAnswerEnds";
  const auto holds_mark = [&](const ChatMessage& m) {
    return m.content.find(mark) != m.content.npos || m.fields.find(mark) != m.fields.npos;
  };
  while (std::any_of(messages.begin(), messages.end(), holds_mark)) mark += "x";
  ChatMessage& last = messages[messages_.size() - 1];
  last = {"assistant", mark};
  RenderedPrompt rendered;
  try {
    rendered = render(messages, to_answer, options_.tools);
  } catch (const DataError&) {  // results need their call before them
    const auto call = marked_call(mark);
    if (!call) throw;
    last = *call;
    rendered = render(messages, to_answer, options_.tools);
    mark += "\"}";  // the end of its arguments
  }
  const std::size_t at = rendered.text.rfind(mark);
  if (at == std::string::npos)
    throw DataError(
        "the model's chat format shows nothing of the last answer when a new turn comes, so that "
        "nothing can follow it; begin a new conversation");
  return rendered.part(at + mark.size());
}

/// Behind the last answer, what a conversation that begins with these tools opens with. Results
/// come first: they belong to the calls of that answer.
RenderedPrompt Conversation::with_new_tools(std::span<const ChatMessage> turn,
                                            std::span<const Tool> tools) const {
  const auto is_result = [](const ChatMessage& m) {
    return m.role == "tool" || m.role == "function";
  };
  const auto rest = std::find_if_not(turn.begin(), turn.end(), is_result);
  std::vector<ChatMessage> answered = messages_;
  answered.insert(answered.end(), turn.begin(), rest);
  RenderedPrompt all = behind_any_answer(std::move(answered), false);
  std::vector<ChatMessage> opening(rest, turn.end());
  if (opening.empty()) opening.push_back({"system", ""});
  RenderedPrompt anew = render(opening, true, tools);
  anew = anew.part(behind_bos(tokenizer_, anew.text));
  for (const TextSpan& span : anew.input)
    all.input.push_back({all.text.size() + span.begin, all.text.size() + span.end});
  all.text += anew.text;
  return all;
}

/// What is to be read of a turn.
RenderedPrompt Conversation::render_turn(std::span<const ChatMessage> turn,
                                         std::span<const Tool> tools) const {
  std::vector<ChatMessage> all = messages_;
  all.insert(all.end(), turn.begin(), turn.end());
  if (first()) {
    RenderedPrompt rendered = render(all, true, tools.empty() ? options_.tools : tools);
    return options_.goes_on ? rendered.part(behind_bos(tokenizer_, rendered.text)) : rendered;
  }
  const auto same = [](const Tool& a, const Tool& b) { return a.definition == b.definition; };
  if (!tools.empty() && !std::ranges::equal(tools, options_.tools, same))
    return with_new_tools(turn, tools);
  if (options_.calls) return behind_any_answer(std::move(all), true);
  const RenderedPrompt rendered = render(all, true, {});
  const std::string before = render(messages_, false, {}).text;
  const std::size_t from = end_of_last_answer(before);
  if (from != std::string::npos && rendered.text.starts_with(before)) return rendered.part(from);
  if (options_.changed == ChangedTurns::keep) return behind_any_answer(std::move(all), true);
  throw DataError(
      "the model's chat format changes earlier turns when a new one comes, which cannot be done to "
      "what was read; begin a new conversation");
}

ChatPrompt Conversation::ask(std::vector<ChatMessage> turn) {
  return ask(std::move(turn), TurnCalls());
}

ChatPrompt Conversation::ask(const std::string& text, const std::string& question,
                             const TurnCalls& calls) {
  return ask({{"user", text + question}}, question, calls);
}

ChatPrompt Conversation::ask(std::vector<ChatMessage> turn, const TurnCalls& calls) {
  if (turn.empty()) throw DataError("a turn of a conversation needs a message");
  const std::string question = turn.back().role == "user" ? turn.back().content : std::string();
  return ask(std::move(turn), question, calls);
}

ChatPrompt Conversation::ask(std::vector<ChatMessage> turn, const std::string& question,
                             const TurnCalls& calls) {
  if (!calls.tools.empty() && !options_.calls)
    throw ConfigError("TurnCalls::tools need ConversationOptions::calls, which writes them");
  RenderedPrompt rendered = render_turn(turn, calls.tools);
  if (calls.opening) rendered.text += calls.opening(rendered.text);
  const bool opens = first() && !options_.goes_on;
  ChatPrompt prompt = in_two_steps(tokenizer_, rendered, question, opens);
  asked_ = std::move(turn);
  asked_tools_ = calls.tools;
  return prompt;
}

void Conversation::answered(ChatMessage message) {
  messages_.insert(messages_.end(), std::make_move_iterator(asked_.begin()),
                   std::make_move_iterator(asked_.end()));
  asked_.clear();
  if (!asked_tools_.empty()) options_.tools = std::exchange(asked_tools_, {});
  messages_.push_back(std::move(message));
}

std::optional<std::size_t> Conversation::hidden(std::span<const ChatMessage> turn,
                                                std::span<const Tool> tools) const {
  std::vector<ChatMessage> changed(turn.begin(), turn.end());
  std::string shown;
  for (std::size_t i = 0; i < turn.size(); ++i) {
    if (turn[i].role == "user" || turn[i].role == "assistant") continue;
    if (shown.empty()) shown = render_turn(turn, tools).text;
    changed[i].content += "x";
    const bool same = render_turn(changed, tools).text == shown;
    changed[i].content = turn[i].content;
    if (same) return i;
  }
  return std::nullopt;
}

}  // namespace episodic
