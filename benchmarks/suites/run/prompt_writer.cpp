// SPDX-License-Identifier: Apache-2.0
#include "run/prompt_writer.hpp"

#include "episodic/base/error.hpp"

namespace episodic::suites {
namespace {

constexpr const char* kSpaces = " \t\n\r\v\f";

std::string_view stripped(std::string_view s) {
  const std::size_t first = s.find_first_not_of(kSpaces);
  return first == std::string_view::npos ? std::string_view()
                                         : s.substr(first, s.find_last_not_of(kSpaces) + 1 - first);
}

/// The end of a rendered conversation, from the question on: templates may strip what they are
/// given, and say more behind it. Empty if there is no question.
std::string_view from_question(std::string_view rendered, std::string_view question) {
  const std::string_view asked = stripped(question);
  const std::size_t at = asked.empty() ? std::string_view::npos : rendered.rfind(asked);
  return at == std::string_view::npos ? std::string_view() : rendered.substr(at);
}

/// Tokens at the end of `ids` that are the question's; its first ones may have grown together with
/// the context's last.
std::size_t common_end(const std::vector<std::int64_t>& ids,
                       const std::vector<std::int64_t>& question) {
  std::size_t n = 0;
  while (n < question.size() && n < ids.size() &&
         question[question.size() - 1 - n] == ids[ids.size() - 1 - n])
    ++n;
  return n;
}

}  // namespace

PromptWriter::PromptWriter(const Template& prompt, const Tokenizer& tokenizer, PromptFormat format)
    : template_(prompt), tokenizer_(tokenizer), format_(std::move(format)) {
  const std::int64_t bos = tokenizer.bos();
  if (format_.chat && bos >= 0 &&
      tokenizer.encode(tokenizer.token(bos), false) != std::vector<std::int64_t>{bos})
    throw DataError(
        "the model's tokenizer (a tokenizer.model alone) reads no special tokens out of a text, so "
        "that no chat format can be made; put its tokenizer.json beside it, or take --raw");
}

Prompt PromptWriter::fill(const Example& example) const {
  return template_.fill(slots_of(format_.suite, example, format_.task));
}

std::string PromptWriter::query(const Example& example) const {
  return stripped(example.input).empty() ? fill(example).question : example.input;
}

std::string PromptWriter::truncated(const std::string& text) const {
  const std::vector<std::int64_t> ids = tokenizer_.encode(text, true);
  if (static_cast<std::int64_t>(ids.size()) <= format_.keep_tokens) return text;
  const std::ptrdiff_t half = format_.keep_tokens / 2;
  return tokenizer_.decode({ids.begin(), ids.begin() + half}, true) +
         tokenizer_.decode({ids.end() - half, ids.end()}, true);
}

PromptIds PromptWriter::write(const Example& example) const {
  const Prompt prompt = fill(example);
  std::string text = prompt.text();
  if (format_.keep_tokens > 0) text = truncated(text);
  std::string_view question = prompt.question;
  if (format_.chat) {
    const ChatMessage message{"user", text};
    text = format_.chat->render({&message, 1});
    question = from_question(text, question);
  }
  text += example.reply_start;
  const std::string asked = std::string(question) + example.reply_start;
  PromptIds out;
  // a chat format holds the special tokens' texts itself
  out.ids = tokenizer_.encode(text, format_.chat == nullptr);
  if (out.ids.empty()) return out;
  out.question = out.ids.size() - 1;
  if (format_.question_step && format_.keep_tokens == 0)
    if (const std::size_t n = common_end(out.ids, tokenizer_.encode(asked, false)); n > 0)
      out.question = out.ids.size() - n;
  return out;
}

}  // namespace episodic::suites
