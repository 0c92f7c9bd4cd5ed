// SPDX-License-Identifier: Apache-2.0
#pragma once
// Answers of Anthropic's Messages API.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "protocol/answer_calls.hpp"
#include "protocol/answer_form.hpp"

namespace episodic::server {

/// A message of one choice, whose content is a block of text, or blocks of thoughts, text and calls
/// in their order. A stream is message_start, then for each block content_block_start,
/// content_block_delta for each part and content_block_stop (a ping behind the first start),
/// message_delta with why it ended and what it took, message_stop.
class MessagesForm final : public AnswerForm {
 public:
  struct Head {
    std::string id, model;
    std::int64_t prompt_tokens = 0;
    bool recall = false;                   ///< tells what was recalled
    std::shared_ptr<const ToolUse> tools;  ///< how its text is parted; null: it is content
  };
  explicit MessagesForm(Head head) : head_(std::move(head)), calls_(head_.tools) {}

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
  const char* stop_reason(const Served& served) const;
  std::string delta(Json delta);
  std::string open_block(Json block);
  std::string say(const char* type, const std::string& text);
  std::string close_block();
  std::string events_of(const std::vector<ToolCallEvent>& found);

  Head head_;
  AnswerCalls calls_;
  std::int64_t blocks_ = 0;  // that were opened
  bool open_ = false;
  std::string open_type_;  // of the block of now
};

/// Whether a path, as it was sent, is /v1/messages or below.
bool is_messages_path(std::string_view path);
/// {"type": "error", "error": {"type", "message"}}.
std::string messages_error_body(int status, const std::string& message);

}  // namespace episodic::server
