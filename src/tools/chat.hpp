// SPDX-License-Identifier: Apache-2.0
#pragma once
// Prompts in the model's chat format.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

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

/// A conversation up to where the model answers, in two steps.
struct ChatPrompt {
  std::vector<std::int64_t> text, question;
};

/// What a user says, in the model's chat format: a text and a question about it, of which either
/// may be empty. The question's part begins where the question does and ends where the answer
/// begins; without a question all is `text`. \param goes_on behind what a memory holds: without the
/// token that begins a sequence \throws FileError if the model has no chat template; DataError if
/// the user's text holds a special
///         token, or the template refuses the messages
ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on);

}  // namespace episodic::tools
