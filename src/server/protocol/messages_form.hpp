// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of Anthropic's Messages API.

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "protocol/answer_form.hpp"

namespace episodic::server {

/// A message of one choice, whose content is one block of text. A stream is message_start,
/// content_block_start, ping, content_block_delta for each part, content_block_stop, message_delta
/// with why it ended and what it took, message_stop.
class MessagesForm final : public AnswerForm {
 public:
  struct Head {
    std::string id, model;
    std::int64_t prompt_tokens = 0;
    bool recall = false;  ///< tells what was recalled
  };
  explicit MessagesForm(Head head) : head_(std::move(head)) {}

  Json whole(std::span<const Served> choices) override;
  std::string begin() override;
  std::string progress(std::int64_t read, std::int64_t of) override;
  std::string silence() override;
  std::string part(std::size_t choice, const Part& part) override;
  std::string end_of_choice(std::size_t choice, const Served& served) override;
  std::string end(std::span<const Served> choices) override;
  std::string failure(int status, const std::string& message) override;

 private:
  Json message(Json content, Json usage) const;
  /// The start of the block of text, at the first call.
  std::string open_block();

  Head head_;
  bool opened_ = false;
};

/// Whether a path, as it was sent, is /v1/messages or below.
bool is_messages_path(std::string_view path);
/// {"type": "error", "error": {"type", "message"}}.
std::string messages_error_body(int status, const std::string& message);

}  // namespace episodic::server
