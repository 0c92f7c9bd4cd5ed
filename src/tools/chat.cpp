// SPDX-License-Identifier: Apache-2.0
#include "chat.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/session.hpp"

namespace episodic::tools {
namespace {

void require_special_tokens(const Tokenizer& tokenizer) {
  if (const std::int64_t bos = tokenizer.bos();
      bos >= 0 && tokenizer.encode(tokenizer.token(bos), false) != std::vector<std::int64_t>{bos})
    throw DataError(
        "the model's tokenizer (a tokenizer.model alone) reads no special tokens out of a text, so "
        "that no chat format can be made; put tokenizer.json beside it");
}

/// Where a conversation that goes on begins: behind the token that begins a sequence.
std::size_t behind_bos(const Tokenizer& tokenizer, const std::string& rendered) {
  if (tokenizer.bos() < 0) return 0;
  const std::string bos = tokenizer.token(tokenizer.bos());
  return rendered.starts_with(bos) ? bos.size() : 0;
}

/// Templates may strip what they are given.
std::string stripped(const std::string& s) {
  constexpr const char* kSpaces = " \t\n\r\v\f";
  const std::size_t first = s.find_first_not_of(kSpaces);
  return first == std::string::npos ? std::string()
                                    : s.substr(first, s.find_last_not_of(kSpaces) + 1 - first);
}

/// A rendered conversation's tokens, those of its question apart. They are the tokens of the whole:
/// where a token reaches over both, it is the question's. \param opens whether it opens a sequence
ChatPrompt in_two_steps(const Tokenizer& tokenizer, const RenderedPrompt& rendered,
                        const std::string& question, bool opens) {
  const auto encode = [&](const RenderedPrompt& part) {
    return opens ? encode_prompt(tokenizer, part) : encode_continuation(tokenizer, part);
  };
  const std::vector<std::int64_t> whole = encode(rendered);
  const std::string wanted = stripped(question);
  const std::size_t at = wanted.empty() ? std::string::npos : rendered.text.rfind(wanted);
  if (at == std::string::npos || at == 0) return {whole, {}};
  const std::vector<std::int64_t> before = encode(rendered.part(0, at));
  const auto split = std::mismatch(whole.begin(), whole.end(), before.begin(), before.end()).first;
  return {{whole.begin(), split}, {split, whole.end()}};
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
  const std::string answer = stripped(messages_.back().content);
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

ChatPrompt conversation_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages, const std::string& variables,
                               bool goes_on) {
  require_special_tokens(tokenizer);
  ChatOptions options;
  options.variables = variables;
  RenderedPrompt rendered = chat_template.render_prompt(messages, options);
  if (goes_on) rendered = rendered.part(behind_bos(tokenizer, rendered.text));
  const bool asks = !messages.empty() && messages.back().role == "user";
  return in_two_steps(tokenizer, rendered, asks ? messages.back().content : std::string(),
                      !goes_on);
}

ChatPrompt chat_prompt(const ChatFlags& flags, const std::filesystem::path& model,
                       const Tokenizer& tokenizer, const std::string& text,
                       const std::string& question, bool goes_on) {
  return Conversation(flags, model, tokenizer, goes_on).ask(text, question);
}

}  // namespace episodic::tools
