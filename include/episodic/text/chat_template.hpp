// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Chat templates: what a model's own template (Jinja, in tokenizer_config.json or a GGUF file)
/// makes of a conversation, to the byte what transformers' apply_chat_template gives.

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/text/tokenizer.hpp"

namespace EPISODIC_NAMESPACE {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", or what else the template knows
  std::string content;
  /// More that a template may read of it (name, reasoning_content, tool_calls, tool_call_id, ...):
  /// a JSON object; empty: nothing. It may be the whole message as a client sent it: `content` in
  /// it (null, or a list of parts) takes the place of the one above, and `role` must be the same.
  /// As in transformers, members that are null are left out, and what a model thought is found by
  /// each of its names (reasoning_content, thinking, reasoning).
  std::string fields = {};
};

struct ChatOptions {
  /// Ends with what makes the model answer.
  bool add_generation_prompt = true;
  /// More variables that the template reads, a JSON object, such as {"enable_thinking": false}.
  /// Names that are not theirs to give are refused: messages, add_generation_prompt, what ends in
  /// _token, functions, and those of the two members below where these are given.
  std::string variables;
  /// Tools that the model may call: a JSON list of their descriptions; empty: none.
  std::string tools = {};
  /// Documents for the model to look things up in: a JSON list; empty: none.
  std::string documents = {};
  /// What strftime_now prints; absent: the present.
  std::optional<std::tm> now;
};

/// A rendered conversation, and which of it is not the template's own.
struct RenderedPrompt {
  std::string text;
  /// Bytes that come from messages, tools, documents or variables, and what was made of them:
  /// ascending, none empty. A role that is a plain word is not among them, since templates put
  /// special tokens together around it.
  std::vector<TextSpan> input;

  /// The bytes from `begin` to `end`.
  RenderedPrompt part(std::size_t begin, std::size_t end = std::string::npos) const;
};

/// A template, read and checked. Immutable; safe to use from several threads.
class ChatTemplate {
 public:
  /// \param source the template, at most 1 MB \param name of its file, for messages
  /// \param tokens the special tokens that it may print by name: bos_token, eos_token, ...
  /// \throws FileError naming file, line and construct for what is not supported
  ChatTemplate(std::string_view source, std::string name,
               std::map<std::string, std::string> tokens = {});

  /// The template as it was given.
  const std::string& source() const;

  /// A conversation as the model reads it; `encode_prompt` makes its tokens. It takes time and
  /// memory in proportion to the messages, whatever the template is.
  /// \throws DataError naming file and line for what the template itself refuses (two messages of a
  ///         user in a row, say), for filters, methods and functions that are not supported, and
  ///         for templates that take too long or too much memory;
  ///         ConfigError for options, or fields of a message, that are not what they must be
  RenderedPrompt render_prompt(std::span<const ChatMessage> messages,
                               const ChatOptions& options = {}) const;

  /// The text of that alone: encoded as a whole, special tokens' texts within messages are read as
  /// special tokens.
  std::string render(std::span<const ChatMessage> messages, const ChatOptions& options = {}) const;

  /// Templates share what they read.
  ChatTemplate(const ChatTemplate&);
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(const ChatTemplate&);
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

 private:
  struct Impl;
  std::shared_ptr<const Impl> impl_;
};

/// The template of a Hugging Face directory: chat_template.jinja, or `chat_template` of
/// tokenizer_config.json (of several, the one named "default").
/// \throws FileError if there is none, naming the remedy, or it is not supported
ChatTemplate load_chat_template(const std::filesystem::path& model_dir);

/// The tokens of a rendered conversation, or of a part of it, without any around it. Special tokens
/// are recognized in what the template wrote; within input their text is plain text. Where input
/// holds none, these are the tokens of `encode(prompt.text, false)`.
/// \throws DataError for a tokenizer of one's own that cannot tell them apart
///         (`Tokenizer::encode_marked`)
std::vector<std::int64_t> encode_prompt(const Tokenizer& tokenizer, const RenderedPrompt& prompt);

}  // namespace EPISODIC_NAMESPACE
