// SPDX-License-Identifier: Apache-2.0
#include "chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/session.hpp"

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
    : template_(load_model_chat_template(model, tokenizer)),
      tokenizer_(tokenizer),
      variables_(flags.variables),
      goes_on_(goes_on) {
  require_special_tokens(tokenizer);
  if (!flags.system.empty()) messages_.push_back({"system", flags.system});
}

RenderedPrompt Conversation::render(bool to_answer) const {
  ChatOptions options;
  options.variables = variables_;
  options.add_generation_prompt = to_answer;
  return template_.render_prompt(messages_, options);
}

std::size_t Conversation::end_of_last_answer(const std::string& before) const {
  const std::string answer = without_outer_spaces(messages_.back().content);
  if (answer.empty()) return before.starts_with(rendered_) ? rendered_.size() : std::string::npos;
  const std::size_t at = before.rfind(answer);
  return at == std::string::npos ? at : at + answer.size();
}

ChatPrompt Conversation::ask(const std::string& text, const std::string& question) {
  const bool first = messages_.empty() || messages_.back().role != "assistant";
  const std::string before = first ? std::string() : render(false).text;
  messages_.push_back({"user", text + question});
  RenderedPrompt rendered;
  try {
    rendered = render(true);
  } catch (...) {
    messages_.pop_back();
    throw;
  }
  messages_.pop_back();
  std::size_t from = 0;
  if (!first) {
    from = end_of_last_answer(before);
    if (from == std::string::npos || !rendered.text.starts_with(before))
      throw DataError(
          "the model's chat format changes earlier turns when a new one comes, which cannot be "
          "done "
          "to what was read; begin a new conversation");
  } else if (goes_on_) {
    from = behind_bos(tokenizer_, rendered.text);
  }
  asked_ = text + question;
  rendered_ = rendered.text;
  return in_two_steps(tokenizer_, rendered.part(from), question, first && !goes_on_);
}

void Conversation::answered(const std::string& text) {
  messages_.push_back({"user", std::exchange(asked_, {})});
  messages_.push_back({"assistant", text});
}

ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on) {
  return Conversation(flags, model, tokenizer, goes_on).ask(text, question);
}

}  // namespace episodic::tools
