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

namespace episodic {

struct ChatMessage {
  std::string role;  ///< "system", "user", "assistant", or what else the template knows
  std::string content;
  /// What else the template may read of it, a JSON object, such as {"name": "bob"} or its
  /// tool_calls; may be empty. It does not take the place of role and content.
  std::string fields = {};
};

struct ChatOptions {
  /// Ends with what makes the model answer.
  bool add_generation_prompt = true;
  /// More variables that the template reads, a JSON object, such as {"enable_thinking": false}.
  /// `messages` here takes the place of the messages given (tool calls and the like).
  std::string variables;
  /// What strftime_now prints; absent: the present.
  std::optional<std::tm> now;
};

/// A template, read and checked. Immutable; safe to use from several threads.
class ChatTemplate {
 public:
  /// \param source the template \param name of its file, for messages
  /// \param tokens the special tokens that it may print by name: bos_token, eos_token, ...
  /// \throws FileError naming file, line and construct for what is not supported
  ChatTemplate(std::string_view source, std::string name,
               std::map<std::string, std::string> tokens = {});

  /// The text of a conversation. It holds the special tokens' texts: encode it with them and
  /// without adding others (`encode(text, false)`). \throws DataError naming file and line for what
  /// the template itself refuses (two messages of a
  ///         user in a row, say), and for filters, methods and functions that are not supported;
  ///         ConfigError for `variables` that are no JSON object
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

}  // namespace episodic
