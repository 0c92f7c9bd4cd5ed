// SPDX-License-Identifier: Apache-2.0
#include "episodic/session/chat_prompt.hpp"

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/session/session.hpp"

namespace episodic {

void require_special_tokens(const Tokenizer& tokenizer) {
  if (const std::int64_t bos = tokenizer.bos();
      bos >= 0 && tokenizer.encode(tokenizer.token(bos), false) != std::vector<std::int64_t>{bos})
    throw DataError(
        "the model's tokenizer (a tokenizer.model alone) reads no special tokens out of a text, so "
        "that no chat format can be made; put tokenizer.json beside it");
}

std::size_t behind_bos(const Tokenizer& tokenizer, const std::string& rendered) {
  if (tokenizer.bos() < 0) return 0;
  const std::string bos = tokenizer.token(tokenizer.bos());
  return rendered.starts_with(bos) ? bos.size() : 0;
}

std::string without_outer_spaces(const std::string& s) {
  constexpr const char* kSpaces = " \t\n\r\v\f";
  const std::size_t first = s.find_first_not_of(kSpaces);
  return first == std::string::npos ? std::string()
                                    : s.substr(first, s.find_last_not_of(kSpaces) + 1 - first);
}

ChatPrompt in_two_steps(const Tokenizer& tokenizer, const RenderedPrompt& rendered,
                        const std::string& question, bool opens) {
  const auto encode = [&](const RenderedPrompt& part) {
    return opens ? encode_prompt(tokenizer, part) : encode_continuation(tokenizer, part);
  };
  const std::vector<std::int64_t> whole = encode(rendered);
  const std::string wanted = without_outer_spaces(question);
  const std::size_t at = wanted.empty() ? std::string::npos : rendered.text.rfind(wanted);
  if (at == std::string::npos || at == 0) return {whole, {}};
  const std::vector<std::int64_t> before = encode(rendered.part(0, at));
  const auto split = std::mismatch(whole.begin(), whole.end(), before.begin(), before.end()).first;
  return {{whole.begin(), split}, {split, whole.end()}};
}

ChatPrompt rendered_prompt(const Tokenizer& tokenizer, RenderedPrompt rendered,
                           const std::string& question, bool goes_on) {
  require_special_tokens(tokenizer);
  if (goes_on) rendered = rendered.part(behind_bos(tokenizer, rendered.text));
  return in_two_steps(tokenizer, rendered, question, !goes_on);
}

ChatPrompt conversation_prompt(const ChatTemplate& chat_template, const Tokenizer& tokenizer,
                               std::span<const ChatMessage> messages, const std::string& variables,
                               bool goes_on) {
  ChatOptions options;
  options.variables = variables;
  const bool asks = !messages.empty() && messages.back().role == "user";
  return rendered_prompt(tokenizer, chat_template.render_prompt(messages, options),
                         asks ? messages.back().content : std::string(), goes_on);
}

}  // namespace episodic
