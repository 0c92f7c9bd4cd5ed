// SPDX-License-Identifier: Apache-2.0
#include "chat.hpp"

#include <fmt/format.h>

#include <unordered_set>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/session.hpp"
#include "episodic/text/chat_template.hpp"

namespace episodic::tools {
namespace {

/// A user's text must not end its own turn, nor begin another's.
void refuse_special(const Tokenizer& tokenizer, const std::string& text) {
  std::unordered_set<std::int64_t> seen;
  for (const std::int64_t id : tokenizer.encode(text, false)) {
    if (!seen.insert(id).second) continue;
    const std::vector<std::int64_t> one{id};
    if (tokenizer.decode(one, true) != tokenizer.decode(one, false))
      throw DataError(fmt::format(
          "--chat: the text holds '{}', which is a special token of the model and would "
          "be read as one; take it out, or give the prompt without --chat",
          tokenizer.token(id)));
  }
}

/// Templates may strip what they are given.
std::string stripped(const std::string& s) {
  constexpr const char* kSpaces = " \t\n\r\v\f";
  const std::size_t first = s.find_first_not_of(kSpaces);
  return first == std::string::npos ? std::string()
                                    : s.substr(first, s.find_last_not_of(kSpaces) + 1 - first);
}

}  // namespace

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

ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on) {
  const ChatTemplate chat = load_model_chat_template(model, tokenizer);
  if (const std::int64_t bos = tokenizer.bos();
      bos >= 0 && tokenizer.encode(tokenizer.token(bos), false) != std::vector<std::int64_t>{bos})
    throw DataError(
        fmt::format("{}: its tokenizer (a tokenizer.model alone) reads no special tokens out of a "
                    "text, so that no chat format can be made; put tokenizer.json beside it",
                    model.string()));
  for (const std::string* part : {&flags.system, &text, &question})
    refuse_special(tokenizer, *part);
  std::vector<ChatMessage> messages;
  if (!flags.system.empty()) messages.push_back({"system", flags.system});
  messages.push_back({"user", text + question});
  ChatOptions options;
  options.variables = flags.variables;
  std::string rendered = chat.render(messages, options);
  if (goes_on && tokenizer.bos() >= 0)
    if (const std::string bos = tokenizer.token(tokenizer.bos()); rendered.starts_with(bos))
      rendered.erase(0, bos.size());
  const auto encode = [&](const std::string& part, bool opens) {
    return opens ? tokenizer.encode(part, false) : encode_continuation(tokenizer, part);
  };
  const std::string asked = stripped(question);
  const std::size_t at = asked.empty() ? std::string::npos : rendered.rfind(asked);
  if (at == std::string::npos || at == 0) return {encode(rendered, !goes_on), {}};
  return {encode(rendered.substr(0, at), !goes_on), encode(rendered.substr(at), false)};
}

}  // namespace episodic::tools
