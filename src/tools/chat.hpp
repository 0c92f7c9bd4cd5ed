// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prompts in the model's chat format.

#include <filesystem>
#include <string>

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

/// The first turn of a conversation.
ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on);

}  // namespace episodic::tools
