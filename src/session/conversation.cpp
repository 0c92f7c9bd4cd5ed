// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/conversation.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

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

RenderedPrompt Conversation::render(std::span<const ChatMessage> messages, bool to_answer) const {
  ChatOptions options;
  options.variables = options_.variables;
  options.add_generation_prompt = to_answer;
  return template_.render_prompt(messages, options);
}

std::size_t Conversation::end_of_last_answer(const std::string& before) const {
  const std::string answer = without_outer_spaces(messages_.back().content);
  if (answer.empty()) {  // nothing is to be found; it ends where it began
    const std::string asked = render(std::span(messages_).first(messages_.size() - 1), true).text;
    return before.starts_with(asked) ? asked.size() : std::string::npos;
  }
  const std::size_t at = before.rfind(answer);
  return at == std::string::npos ? at : at + answer.size();
}

/// What a template writes behind an answer whose words it does not look at.
RenderedPrompt Conversation::behind_any_answer(std::vector<ChatMessage> messages) const {
  std::string mark = "HereTheLastAnswerEnds";
  const auto holds_mark = [&](const ChatMessage& m) {
    return m.content.find(mark) != m.content.npos || m.fields.find(mark) != m.fields.npos;
  };
  while (std::any_of(messages.begin(), messages.end(), holds_mark)) mark += "x";
  messages[messages_.size() - 1] = {"assistant", mark};
  const RenderedPrompt rendered = render(messages, true);
  const std::size_t at = rendered.text.rfind(mark);
  if (at == std::string::npos)
    throw DataError(
        "the model's chat format shows nothing of the last answer when a new turn comes, so that "
        "nothing can follow it; begin a new conversation");
  return rendered.part(at + mark.size());
}

ChatPrompt Conversation::ask(std::vector<ChatMessage> turn) {
  if (turn.empty()) throw DataError("a turn of a conversation needs a message");
  const std::string question = turn.back().role == "user" ? turn.back().content : std::string();
  return ask(std::move(turn), question);
}

ChatPrompt Conversation::ask(const std::string& text, const std::string& question) {
  return ask({{"user", text + question}}, question);
}

ChatPrompt Conversation::ask(std::vector<ChatMessage> turn, const std::string& question) {
  std::vector<ChatMessage> all = messages_;
  all.insert(all.end(), turn.begin(), turn.end());
  RenderedPrompt rendered = render(all, true);
  if (first()) {
    if (options_.goes_on) rendered = rendered.part(behind_bos(tokenizer_, rendered.text));
  } else {
    const std::string before = render(messages_, false).text;
    const std::size_t from = end_of_last_answer(before);
    if (from != std::string::npos && rendered.text.starts_with(before))
      rendered = rendered.part(from);
    else if (options_.changed == ChangedTurns::keep)
      rendered = behind_any_answer(std::move(all));
    else
      throw DataError(
          "the model's chat format changes earlier turns when a new one comes, which cannot be "
          "done to what was read; begin a new conversation");
  }
  const bool opens = first() && !options_.goes_on;
  asked_ = std::move(turn);
  return in_two_steps(tokenizer_, rendered, question, opens);
}

void Conversation::answered(ChatMessage message) {
  messages_.insert(messages_.end(), std::make_move_iterator(asked_.begin()),
                   std::make_move_iterator(asked_.end()));
  asked_.clear();
  messages_.push_back(std::move(message));
}

std::optional<std::size_t> Conversation::hidden(std::span<const ChatMessage> turn) const {
  std::vector<ChatMessage> all = messages_;
  all.insert(all.end(), turn.begin(), turn.end());
  std::string shown;
  for (std::size_t i = 0; i < turn.size(); ++i) {
    if (turn[i].role == "user" || turn[i].role == "assistant") continue;
    if (shown.empty()) shown = render(all, true).text;
    ChatMessage& message = all[messages_.size() + i];
    message.content += "x";
    const bool same = render(all, true).text == shown;
    message.content = turn[i].content;
    if (same) return i;
  }
  return std::nullopt;
}

}  // namespace episodic
