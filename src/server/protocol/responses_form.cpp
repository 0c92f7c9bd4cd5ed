// SPDX-License-Identifier: Apache-2.0
#include "protocol/responses_form.hpp"

#include <array>
#include <utility>

namespace episodic::server {
namespace {

Json text_part(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

bool cut(const Served& served) { return served.result.finish == FinishReason::length; }

}  // namespace

Json ResponsesForm::message(const char* status) const {
  return {{"type", "message"},
          {"id", head_.message_id},
          {"status", status},
          {"role", "assistant"},
          {"content", Json::array()}};
}

Json ResponsesForm::response(const char* status) const {
  Json json{
      {"id", head_.id},
      {"object", "response"},
      {"created_at", head_.created},
      {"status", status},
      {"background", false},
      {"error", nullptr},
      {"incomplete_details", nullptr},
      {"model", head_.model},
      {"output", Json::array()},
      {"previous_response_id", head_.previous.empty() ? Json() : Json(head_.previous)},
      {"conversation", head_.conversation.empty() ? Json() : Json{{"id", head_.conversation}}},
      {"store", head_.store},
      {"parallel_tool_calls", true},
      {"tool_choice", "auto"},
      {"tools", Json::array()},
      {"reasoning", {{"effort", nullptr}, {"summary", nullptr}}},
      {"usage", nullptr}};
  for (const auto& [name, value] : head_.said.items()) json[name] = value;
  return json;
}

const Json& ResponsesForm::settle(const Served& served) {
  if (!settled_.is_null()) return settled_;
  const char* status = cut(served) ? "incomplete" : "completed";
  Json output = message(status);
  output["content"].push_back(text_part(served.result.text));
  Json json = response(status);
  json["output"].push_back(std::move(output));
  if (cut(served)) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  const auto written = static_cast<std::int64_t>(served.result.ids.size());
  json["usage"] = {{"input_tokens", served.prompt_tokens},
                   {"input_tokens_details", {{"cached_tokens", served.reused_tokens}}},
                   {"output_tokens", written},
                   {"output_tokens_details", {{"reasoning_tokens", 0}}},
                   {"total_tokens", served.prompt_tokens + written}};
  if (head_.recall) json["recalled"] = recalled_json(served);
  settled_ = std::move(json);
  return settled_;
}

Json ResponsesForm::whole(std::span<const Served> choices) { return settle(choices.front()); }

std::string ResponsesForm::event(const char* type, Json more) {
  Json json{{"type", type}, {"sequence_number", events_++}};
  for (auto& [name, value] : more.items()) json[name] = std::move(value);
  return event_of(json, type);
}

std::string ResponsesForm::begin() {
  const Json so_far = response("in_progress");
  std::string events = event("response.created", {{"response", so_far}});  // numbered in this order
  return events += event("response.in_progress", {{"response", so_far}});
}

/// Of our own: clients that did not ask for it never see it.
std::string ResponsesForm::progress(std::int64_t read, std::int64_t of) {
  return event("response.prompt_progress", {{"total", of}, {"processed", read}});
}

std::string ResponsesForm::begin_message() {
  if (std::exchange(begun_, true)) return {};
  std::string events =
      event("response.output_item.added", {{"output_index", 0}, {"item", message("in_progress")}});
  return events += event("response.content_part.added", {{"item_id", head_.message_id},
                                                         {"output_index", 0},
                                                         {"content_index", 0},
                                                         {"part", text_part("")}});
}

std::string ResponsesForm::part(std::size_t, const Part& part) {
  std::string events = begin_message();
  if (part.text.empty()) return events;
  return events + event("response.output_text.delta", {{"item_id", head_.message_id},
                                                       {"output_index", 0},
                                                       {"content_index", 0},
                                                       {"delta", part.text},
                                                       {"logprobs", Json::array()}});
}

std::string ResponsesForm::end_of_choice(std::size_t, const Served& served) {
  const Json& item = settle(served)["output"][0];
  const Json where{{"item_id", head_.message_id}, {"output_index", 0}, {"content_index", 0}};
  Json text = where, part = where;
  text["text"] = served.result.text;
  text["logprobs"] = Json::array();
  part["part"] = item["content"][0];
  std::string events = begin_message();
  events += event("response.output_text.done", std::move(text));
  events += event("response.content_part.done", std::move(part));
  events += event("response.output_item.done", {{"output_index", 0}, {"item", item}});
  return events;
}

std::string ResponsesForm::end(std::span<const Served> choices) {
  const Json& json = settle(choices.front());
  return event(cut(choices.front()) ? "response.incomplete" : "response.completed",
               {{"response", json}});
}

std::string ResponsesForm::failure(int status, const std::string& message) {
  Json json = response("failed");
  json["error"] = {{"code", status == 429 ? "rate_limit_exceeded" : "server_error"},
                   {"message", message}};
  return event("response.failed", {{"response", std::move(json)}});
}

}  // namespace episodic::server
