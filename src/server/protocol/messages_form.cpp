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

Json MessagesForm::whole(std::span<const Served> choices) {
  const Served& served = choices.front();
  Json json =
      message(Json::array({{{"type", "text"}, {"text", served.result.text}}}), usage_of(served));
  json["stop_reason"] = stop_reason_of(served.result.finish);
  json["stop_sequence"] = stop_sequence_of(served.result);
  if (head_.recall) json["recalled"] = recalled_json(served);
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

std::string MessagesForm::open_block() {
  if (opened_) return {};
  opened_ = true;
  return named_event({{"type", "content_block_start"},
                      {"index", 0},
                      {"content_block", {{"type", "text"}, {"text", ""}}}}) +
         silence();
}

std::string MessagesForm::part(std::size_t, const Part& part) {
  if (part.text.empty()) return {};
  return open_block() + named_event({{"type", "content_block_delta"},
                                     {"index", 0},
                                     {"delta", {{"type", "text_delta"}, {"text", part.text}}}});
}

std::string MessagesForm::end_of_choice(std::size_t, const Served& served) {
  std::string events = open_block();
  events += named_event({{"type", "content_block_stop"}, {"index", 0}});
  Json last{{"type", "message_delta"},
            {"delta",
             {{"stop_reason", stop_reason_of(served.result.finish)},
              {"stop_sequence", stop_sequence_of(served.result)}}},
            {"usage", usage_of(served)}};
  if (head_.recall) last["recalled"] = recalled_json(served);
  return events + named_event(last);
}

std::string MessagesForm::end(std::span<const Served>) {
  return named_event({{"type", "message_stop"}});
}

std::string MessagesForm::failure(int status, const std::string& message) {
  return named_event(error_json(status, message));
}

}  // namespace episodic::server
