// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Conversation`: what is still to be read before a model answers the next turn. Torch-free.
///
/// \code
/// Conversation talk(model->chat_template(), model->tokenizer());
/// const ChatPrompt prompt = talk.ask("", "Who closed the door?");
/// talk.answered(answer_to(prompt));
/// const ChatPrompt next = talk.ask("", "And who opened it?");  // this turn alone
/// \endcode

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "episodic/session/chat_prompt.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/text/tool_calls.hpp"

namespace episodic {

/// What to do where a chat format renders earlier turns differently once a new one comes (it drops
/// what the model thought, say): they were read as they were.
enum class ChangedTurns : std::uint8_t {
  refuse,  ///< no further turn can be asked
  keep,    ///< earlier turns stay as they were read; the new one is read as it follows any answer
};

struct ConversationOptions {
  std::string variables = {};  ///< more variables of the template, as JSON; may be empty
  /// Begins behind what a memory holds: without the token that begins a sequence.
  bool goes_on = false;
  ChangedTurns changed = ChangedTurns::refuse;
  /// Writes calls of functions and their results; absent: the template is given them as they are.
  /// A turn behind an answer is then read as it follows any answer (ChangedTurns::keep).
  std::optional<ToolCallFormat> calls = {};
  /// With `calls`: functions that earlier turns told the model of.
  std::vector<Tool> tools = {};
};

/// What a turn says of functions, and of how its answer begins.
struct TurnCalls {
  /// That the model may call from here on; they need ConversationOptions::calls. Those that it was
  /// told of last are not read again; others are told as a new conversation tells of them, behind
  /// the results that open the turn.
  std::vector<Tool> tools = {};
  /// Given the whole prompt as text, gives what the answer begins with. Null: nothing.
  std::function<std::string(const std::string& prompt)> opening = {};
};

/// A conversation in the model's chat format, turn by turn. Earlier turns are in the model already
/// and are not read again.
class Conversation {
 public:
  /// \param tokenizer must outlive it
  /// \param messages that come before the first turn; where they end with an answer, the model has
  ///        read all of them, else the first turn reads them
  /// \throws DataError if the tokenizer cannot follow a chat template
  Conversation(ChatTemplate chat_template, const Tokenizer& tokenizer,
               ConversationOptions options = {}, std::vector<ChatMessage> messages = {});

  /// A turn of one or more messages. If the last one is a user's, it is the question, which is read
  /// in steps of its own. Special tokens' texts in them are plain text. \throws DataError if the
  /// template refuses the messages, or changes earlier ones; the conversation is then as it was
  ChatPrompt ask(std::vector<ChatMessage> turn);
  /// A user's turn: a text and a question about it, of which either may be empty. The question's
  /// part begins where the question does and ends where the answer begins; without a question all
  /// is `text`. \throws as above
  ChatPrompt ask(const std::string& text, const std::string& question, const TurnCalls& calls = {});
  /// A turn of a model that may call functions. \throws as above, and what `opening` throws
  ChatPrompt ask(std::vector<ChatMessage> turn, const TurnCalls& calls);
  /// What the model said to it, all of which it has read. Without this the turn never was.
  void answered(const std::string& text) { answered(ChatMessage{"assistant", text}); }
  void answered(ChatMessage message);

  /// The first message of a turn that the template would show nothing of: of those that are neither
  /// a user's nor an answer. \param tools TurnCalls::tools \throws as `ask`
  std::optional<std::size_t> hidden(std::span<const ChatMessage> turn,
                                    std::span<const Tool> tools = {}) const;

  /// All up to the last answer.
  const std::vector<ChatMessage>& messages() const { return messages_; }

 private:
  ChatPrompt ask(std::vector<ChatMessage> turn, const std::string& question,
                 const TurnCalls& calls);
  bool first() const { return messages_.empty() || messages_.back().role != "assistant"; }
  RenderedPrompt render(std::span<const ChatMessage> messages, bool to_answer,
                        std::span<const Tool> tools) const;
  RenderedPrompt render_turn(std::span<const ChatMessage> turn, std::span<const Tool> tools) const;
  /// Where the last answer ends in the rendered conversation; npos if it cannot be found.
  std::size_t end_of_last_answer(const std::string& before) const;
  RenderedPrompt behind_any_answer(std::vector<ChatMessage> messages, bool to_answer) const;
  std::optional<ChatMessage> marked_call(const std::string& mark) const;
  RenderedPrompt with_new_tools(std::span<const ChatMessage> turn,
                                std::span<const Tool> tools) const;

  ChatTemplate template_;
  const Tokenizer& tokenizer_;
  ConversationOptions options_;        // `tools`: those that the last answer knew
  std::vector<ChatMessage> messages_;  // up to the last answer
  std::vector<ChatMessage> asked_;     // the turn that waits for its answer
  std::vector<Tool> asked_tools_;      // that it told of; empty: none
};

}  // namespace episodic
