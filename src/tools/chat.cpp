// SPDX-License-Identifier: Apache-2.0
#include "chat.hpp"

#include <fmt/format.h>

#include <cstdio>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic::tools {

void ChatFlags::add_to(Command& app) {
  app.flag("--chat", chat, "Put the prompt into the model's chat format");
  app.option("--system", system, "With --chat: the system's message");
  app.option("--chat-variables", variables,
             "With --chat: more variables of the template as JSON, such as "
             "{\"enable_thinking\": false}");
}

void ChatFlags::check() const {
  if (chat) return;
  if (!system.empty()) throw ConfigError("--system: says nothing without --chat");
  if (!variables.empty()) throw ConfigError("--chat-variables: says nothing without --chat");
}

Conversation::Conversation(const ChatFlags& flags, const std::filesystem::path& model,
                           const Tokenizer& tokenizer, bool goes_on)
    : episodic::Conversation(
          load_model_chat_template(model, tokenizer), tokenizer,
          {.variables = flags.variables, .goes_on = goes_on, .changed = ChangedTurns::keep},
          flags.system.empty() ? std::vector<ChatMessage>()
                               : std::vector<ChatMessage>{{"system", flags.system}}) {}

ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on, const TurnCalls& calls) {
  return Conversation(flags, model, tokenizer, goes_on).ask(text, question, calls);
}

ToolCallFormat chat_format(const std::filesystem::path& model, const Tokenizer& tokenizer) {
  return ToolCallFormat(load_model_chat_template(model, tokenizer));
}

void ThoughtLine::show(const AnswerTexts& texts) {
  if (quiet_) return;
  if (!texts.reasoning.empty()) {
    open_ = true;
    fmt::print(stderr, "{}", texts.reasoning);
  }
  if (open_ && !texts.content.empty()) {
    open_ = false;
    fmt::print(stderr, "\n");
  }
}

}  // namespace episodic::tools
