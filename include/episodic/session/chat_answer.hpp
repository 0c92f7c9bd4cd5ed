// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `ChatAnswer`: what a model says in its chat format, apart from what it thinks. Torch-free.
///
/// \code
/// const ToolCallFormat format(model->chat_template());
/// ChatAnswer answer(format);
/// const ChatPrompt prompt = talk.ask("", "Who closed the door?", answer.turn());
/// options.shown_tokens = format.shown_tokens(model->tokenizer());
/// options.on_token = [&](std::int64_t, std::string_view piece) {
///   show(answer.push(piece).content);
///   return true;
/// };
/// ... generate ...
/// show(answer.finish().content);
/// talk.answered(answer.texts().content);
/// \endcode

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "episodic/session/conversation.hpp"
#include "episodic/text/tool_calls.hpp"

namespace episodic {

/// One answer, piece by piece, where no functions are called. Of a format that does not part
/// answers all text is content, as it came.
class ChatAnswer {
 public:
  /// \param held the answer is held to a form (GenerateOptions::grammar), so all of it is content
  explicit ChatAnswer(ToolCallFormat format, bool held = false)
      : format_(std::move(format)), held_(held) {}

  /// What to ask a conversation with: it looks at the prompt. Must not outlive this object, which
  /// must not be moved meanwhile. Asked again, the answer begins anew.
  TurnCalls turn();

  /// What became certain with more of the answer's text, the special tokens that the format names
  /// included (ToolCallFormat::shown_tokens).
  AnswerTexts push(std::string_view piece);
  /// The answer has ended: what was held back.
  AnswerTexts finish();
  /// All so far.
  const AnswerTexts& texts() const { return texts_; }

 private:
  AnswerTexts told(std::span<const ToolCallEvent> events);

  ToolCallFormat format_;
  bool held_;
  std::optional<ToolCallParser> parser_;
  AnswerTexts texts_;
};

}  // namespace episodic
