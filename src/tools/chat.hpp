// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prompts in the model's chat format.

#include <filesystem>
#include <string>

#include "episodic/session/chat_answer.hpp"
#include "episodic/session/conversation.hpp"
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

/// A conversation as the flags say it.
class Conversation : public episodic::Conversation {
 public:
  /// \param goes_on behind what a memory holds: without the token that begins a sequence
  /// \param tokenizer must outlive it
  /// \throws FileError if the model has no chat template; DataError if its tokenizer cannot follow
  /// one
  Conversation(const ChatFlags& flags, const std::filesystem::path& model,
               const Tokenizer& tokenizer, bool goes_on);
};

/// How answers in the model's chat format are parted.
ToolCallFormat chat_format(const std::filesystem::path& model, const Tokenizer& tokenizer);

/// What a model thinks, told on stderr while its answer goes to stdout.
class ThoughtLine {
 public:
  explicit ThoughtLine(bool quiet) : quiet_(quiet) {}
  /// \param texts of the answer; what is thought comes before what is said
  void show(const AnswerTexts& texts);

 private:
  bool quiet_, open_ = false;
};

/// The first turn of a conversation. \param calls of the answer to it
ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on, const TurnCalls& calls = {});

}  // namespace episodic::tools
