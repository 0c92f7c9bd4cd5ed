// SPDX-License-Identifier: Apache-2.0
#include "protocol/answer_calls.hpp"

#include <algorithm>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic::server {

AnswerCalls::AnswerCalls(std::shared_ptr<const ToolUse> use) : use_(std::move(use)) {
  if (use_) parser_.emplace(use_->parser());
}

std::vector<ToolCallEvent> AnswerCalls::kept(std::vector<ToolCallEvent> events) {
  if (use_->parallel) return events;
  std::vector<ToolCallEvent> some;
  for (ToolCallEvent& event : events) {
    if (over_) break;
    over_ = event.kind == ToolCallEvent::Kind::ended;
    some.push_back(std::move(event));
  }
  return some;
}

std::vector<ToolCallEvent> AnswerCalls::push(std::string_view text) {
  if (parser_) return kept(parser_->push(text));
  if (text.empty()) return {};
  return {{ToolCallEvent::Kind::content, 0, std::string(text), {}, {}}};
}

std::vector<ToolCallEvent> AnswerCalls::finish() {
  return parser_ ? kept(parser_->finish()) : std::vector<ToolCallEvent>();
}

std::int64_t reasoning_tokens(const std::shared_ptr<const ToolUse>& use,
                              std::span<const std::int64_t> ids) {
  if (!use || !use->tokenizer) return 0;
  AnswerCalls calls(use);
  StreamDecoder decoder(*use->tokenizer, use->format.shown_tokens(*use->tokenizer));
  std::int64_t thought = 0, untold = 0;  // tokens whose text no part has told of yet
  const auto count = [&](const std::vector<ToolCallEvent>& events) {
    if (events.empty()) return;
    if (std::any_of(events.begin(), events.end(), [](const ToolCallEvent& e) {
          return e.kind == ToolCallEvent::Kind::reasoning;
        }))
      thought += untold;
    untold = 0;
  };
  for (const std::int64_t id : ids) {
    ++untold;
    count(calls.push(decoder.push(id)));
  }
  count(calls.push(decoder.finish()));
  count(calls.finish());
  return thought;
}

Json call_json(const std::string& id, const std::string& name, const Json& arguments) {
  return {
      {"id", id}, {"type", "function"}, {"function", {{"name", name}, {"arguments", arguments}}}};
}

Json arguments_json(const std::string& text) {
  try {
    JsonLimits limits;
    limits.depth = 64;  // of a call that was found in an answer
    limits.repeated_keys = true;
    Json value = parse_ordered(text, "arguments", limits);
    if (value.is_object()) return value;
  } catch (const Error&) {  // a text, then
  }
  return text;
}

}  // namespace episodic::server
