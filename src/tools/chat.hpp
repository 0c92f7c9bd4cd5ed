// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prompts in the model's chat format.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "episodic/session/chat_prompt.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"
#include "flags.hpp"

namespace episodic::tools {

/// --chat, --system and --chat-variables.
struct ChatFlags {
  bool chat = false;
  std::string system, variables;

  void add_to(Command& app);
  /// \throws ConfigError for flags that say nothing without --chat
  void check() const;
};

/// A conversation in the model's chat format, turn by turn: what is still to be read before the
/// model answers. Earlier turns are in the model already and are not read again.
class Conversation {
 public:
  /// \param goes_on behind what a memory holds: without the token that begins a sequence
  /// \param tokenizer must outlive it
  /// \throws FileError if the model has no chat template, or its tokenizer cannot follow one
  Conversation(const ChatFlags& flags, const std::filesystem::path& model,
               const Tokenizer& tokenizer, bool goes_on);

  /// A user's turn: a text and a question about it, of which either may be empty. The question's
  /// part begins where the question does and ends where the answer begins; without a question all
  /// is `text`. Special tokens' texts in them are plain text. \throws DataError if the template
  ///         refuses the messages or changes earlier ones; the conversation is then as it was
  ChatPrompt ask(const std::string& text, const std::string& question);
  /// What the model said to it, all of which it has read. Without this the turn never was.
  void answered(const std::string& text);

 private:
  RenderedPrompt render(bool to_answer) const;
  /// Where the last answer ends in the rendered conversation; npos if it cannot be found.
  std::size_t end_of_last_answer(const std::string& before) const;

  ChatTemplate template_;
  const Tokenizer& tokenizer_;
  std::string variables_;
  bool goes_on_;
  std::vector<ChatMessage> messages_;  // up to the last answer
  std::string asked_;                  // the turn that waits for its answer
  std::string rendered_;               // the conversation up to where that answer begins
};

/// The first turn of a conversation.
ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on);

}  // namespace episodic::tools
