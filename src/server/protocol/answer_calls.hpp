// SPDX-License-Identifier: Apache-2.0
#pragma once
// The parts of an answer (thoughts, text, calls of tools), as each protocol's form is told of them.

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/server/service.hpp"
#include "protocol/json.hpp"

namespace episodic::server {

/// Finds the calls of one answer in its text, piece by piece. An answer that may have one call only
/// ends with it: what its last token has behind the call is left out.
class AnswerCalls {
 public:
  /// \param use null: all text is content
  explicit AnswerCalls(std::shared_ptr<const ToolUse> use);

  std::vector<ToolCallEvent> push(std::string_view text);
  /// The answer has ended.
  std::vector<ToolCallEvent> finish();
  /// Calls that ended so far.
  std::size_t calls() const { return parser_ ? parser_->calls() : 0; }
  /// Whether it may have other parts than its text.
  bool parts() const { return parser_.has_value(); }

 private:
  std::vector<ToolCallEvent> kept(std::vector<ToolCallEvent> events);

  std::shared_ptr<const ToolUse> use_;
  std::optional<ToolCallParser> parser_;
  bool over_ = false;  // its one call is whole
};

/// Tokens of an answer that are what the model thought, with the marks before it. \param use null:
/// nothing is parted
std::int64_t reasoning_tokens(const std::shared_ptr<const ToolUse>& use,
                              std::span<const std::int64_t> ids);

/// A call in a message of a chat.
Json call_json(const std::string& id, const std::string& name, const Json& arguments);

/// Arguments as the object that their text says, which templates expect; else the text itself.
Json arguments_json(const std::string& text);

}  // namespace episodic::server
