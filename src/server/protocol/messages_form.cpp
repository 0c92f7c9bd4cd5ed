// SPDX-License-Identifier: Apache-2.0
#include "protocol/messages_form.hpp"

namespace episodic::server {
namespace {

const char* stop_reason_of(FinishReason reason) {
  switch (reason) {
    case FinishReason::length:
      return "max_tokens";
    case FinishReason::stop_string:
      return "stop_sequence";
    default:
      return "end_turn";
  }
}

Json stop_sequence_of(const GenerateResult& result) {
  return result.finish == FinishReason::stop_string ? Json(result.stop) : Json();
}

/// All tokens of the prompt are input_tokens and cache_read_input_tokens together.
Json usage_of(std::int64_t prompt, std::int64_t reused, std::size_t written) {
  return {{"input_tokens", prompt - reused},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", reused},
          {"output_tokens", written}};
}

Json usage_of(const Served& served) {
  return usage_of(served.prompt_tokens, served.reused_tokens, served.result.ids.size());
}

/// Anthropic's word for a status of HTTP.
const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 503:
      return "overloaded_error";
    default:
      return status >= 500 ? "api_error" : "invalid_request_error";
  }
}

Json error_json(int status, const std::string& message) {
  return {{"type", "error"}, {"error", {{"type", error_type(status)}, {"message", message}}}};
}

/// Every event says its name twice.
std::string named_event(const Json& json) {
  return event_of(json, json["type"].get_ref<const std::string&>().c_str());
}

Json text_block() { return {{"type", "text"}, {"text", ""}}; }

/// Its signature proves to Anthropic's servers whose thought it is; here nobody asks for one.
Json thinking_block() { return {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}}; }

Json call_block(const ToolCallEvent& event) {
  return {{"type", "tool_use"}, {"id", event.id}, {"name", event.name}, {"input", Json::object()}};
}

}  // namespace

bool is_messages_path(std::string_view path) {
  path = path.substr(0, path.find('?'));
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  constexpr std::string_view kMessages = "/messages";
  return path.starts_with(kMessages) &&
         (path.size() == kMessages.size() || path[kMessages.size()] == '/');
}

std::string messages_error_body(int status, const std::string& message) {
  return text_of(error_json(status, message));
}

Json MessagesForm::message(Json content, Json usage) const {
  return {{"id", head_.id},           {"type", "message"},  {"role", "assistant"},
          {"model", head_.model},     {"content", content}, {"stop_reason", nullptr},
          {"stop_sequence", nullptr}, {"usage", usage}};
}

const char* MessagesForm::stop_reason(const Served& served) const {
  return calls_.calls() > 0 ? "tool_use" : stop_reason_of(served.result.finish);
}

Json MessagesForm::whole(std::span<const Served> choices) {
  const Served& served = choices.front();
  std::vector<ToolCallEvent> found = calls_.push(served.result.text);
  for (ToolCallEvent& event : calls_.finish()) found.push_back(std::move(event));
  Json content = Json::array();
  std::string arguments;
  for (const ToolCallEvent& event : found) {
    switch (event.kind) {
      case ToolCallEvent::Kind::content:
        if (content.empty() || content.back()["type"] != "text") content.push_back(text_block());
        content.back()["text"].get_ref<std::string&>() += event.text;
        break;
      case ToolCallEvent::Kind::reasoning:
        if (content.empty() || content.back()["type"] != "thinking")
          content.push_back(thinking_block());
        content.back()["thinking"].get_ref<std::string&>() += event.text;
        break;
      case ToolCallEvent::Kind::begun:
        content.push_back(call_block(event));
        arguments.clear();
        break;
      case ToolCallEvent::Kind::arguments:
        arguments += event.text;
        break;
      case ToolCallEvent::Kind::ended:
        content.back()["input"] = arguments_json(arguments);
        break;
      case ToolCallEvent::Kind::broken:
        break;
    }
  }
  if (content.empty()) content.push_back(text_block());
  Json json = message(std::move(content), usage_of(served));
  json["stop_reason"] = stop_reason(served);
  json["stop_sequence"] = stop_sequence_of(served.result);
  if (head_.recall) add_recalled(json, served);
  return json;
}

std::string MessagesForm::begin() {
  // what it need not read again is known once it is read; message_delta says it
  return named_event({{"type", "message_start"},
                      {"message", message(Json::array(), usage_of(head_.prompt_tokens, 0, 0))}});
}

std::string MessagesForm::silence() { return named_event({{"type", "ping"}}); }

std::string MessagesForm::progress(std::int64_t read, std::int64_t of) {
  return named_event({{"type", "ping"}, {"prompt_progress", {{"total", of}, {"processed", read}}}});
}

std::string MessagesForm::delta(Json delta) {
  return named_event(
      {{"type", "content_block_delta"}, {"index", blocks_ - 1}, {"delta", std::move(delta)}});
}

std::string MessagesForm::open_block(Json block) {
  std::string events = close_block();
  open_ = true;
  open_type_ = block["type"].get<std::string>();
  events += named_event(
      {{"type", "content_block_start"}, {"index", blocks_}, {"content_block", std::move(block)}});
  if (blocks_++ == 0) events += silence();
  return events;
}

std::string MessagesForm::close_block() {
  if (!std::exchange(open_, false)) return {};
  return named_event({{"type", "content_block_stop"}, {"index", blocks_ - 1}});
}

/// \param type of the block, and of the field that has its text
std::string MessagesForm::say(const char* type, const std::string& text) {
  std::string events;
  const bool thinks = std::string_view(type) == "thinking";
  if (!open_ || open_type_ != type) events = open_block(thinks ? thinking_block() : text_block());
  return events + delta({{"type", std::string(type) + "_delta"}, {type, text}});
}

std::string MessagesForm::events_of(const std::vector<ToolCallEvent>& found) {
  std::string events;
  for (const ToolCallEvent& event : found) {
    switch (event.kind) {
      case ToolCallEvent::Kind::content:
        events += say("text", event.text);
        break;
      case ToolCallEvent::Kind::reasoning:
        events += say("thinking", event.text);
        break;
      case ToolCallEvent::Kind::begun:
        events += open_block(call_block(event));
        break;
      case ToolCallEvent::Kind::arguments:
        events += delta({{"type", "input_json_delta"}, {"partial_json", event.text}});
        break;
      case ToolCallEvent::Kind::ended:
        events += close_block();
        break;
      case ToolCallEvent::Kind::broken:
        break;
    }
  }
  return events;
}

std::string MessagesForm::part(std::size_t, const Part& part) {
  return events_of(calls_.push(part.text));
}

std::string MessagesForm::end_of_choice(std::size_t, const Served& served) {
  std::string events = events_of(calls_.finish());
  if (blocks_ == 0) events += open_block(text_block());
  events += close_block();
  Json last{
      {"type", "message_delta"},
      {"delta",
       {{"stop_reason", stop_reason(served)}, {"stop_sequence", stop_sequence_of(served.result)}}},
      {"usage", usage_of(served)}};
  if (head_.recall) add_recalled(last, served);
  return events + named_event(last);
}

std::string MessagesForm::end(std::span<const Served>) {
  return named_event({{"type", "message_stop"}});
}

std::string MessagesForm::failure(int status, const std::string& message) {
  return named_event(error_json(status, message));
}

}  // namespace episodic::server
