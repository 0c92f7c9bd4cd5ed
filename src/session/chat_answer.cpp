// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/chat_answer.hpp"

namespace episodic {

TurnCalls ChatAnswer::turn() {
  TurnCalls calls;
  calls.opening = [this](const std::string& prompt) {
    texts_ = {};
    parser_.reset();
    if (!format_.parts_answers()) return std::string();
    ToolCallOptions options;
    options.thinking = format_.begins_thinking(prompt);
    parser_.emplace(format_, std::span<const Tool>(), options);
    std::string opening = held_ ? format_.held_opening(prompt) : std::string();
    parser_->push(opening);  // tells of nothing
    return opening;
  };
  return calls;
}

AnswerTexts ChatAnswer::told(std::span<const ToolCallEvent> events) {
  AnswerTexts now;
  now.add(events);
  texts_.add(events);
  return now;
}

AnswerTexts ChatAnswer::push(std::string_view piece) {
  if (parser_) return told(parser_->push(piece));
  texts_.content += piece;
  return {std::string(piece), {}};
}

AnswerTexts ChatAnswer::finish() { return parser_ ? told(parser_->finish()) : AnswerTexts(); }

}  // namespace episodic
