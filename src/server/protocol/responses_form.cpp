// SPDX-License-Identifier: Apache-2.0
#include "protocol/responses_form.hpp"

#include <utility>

#include "episodic/server/conversations.hpp"

namespace episodic::server {
namespace {

Json text_part(const std::string& text) {
  return {{"type", "output_text"},
          {"text", text},
          {"annotations", Json::array()},
          {"logprobs", Json::array()}};
}

Json thought_part(const std::string& text) { return {{"type", "reasoning_text"}, {"text", text}}; }

bool cut(const Served& served) { return served.result.finish == FinishReason::length; }

}  // namespace

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
  cut_ = cut(served);
  if (!streamed_) {
    for (const Logprobs& token : served.result.logprobs) logprobs_.add(token);
    last_events_ = events_of(calls_.push(served.result.text));
  }
  last_events_ += events_of(calls_.finish());
  if (output_.empty()) last_events_ += open_message();
  last_events_ += close();
  Json json = response(cut_ ? "incomplete" : "completed");
  json["output"] = output_;
  if (cut_) json["incomplete_details"] = {{"reason", "max_output_tokens"}};
  const auto written = static_cast<std::int64_t>(served.result.ids.size());
  json["usage"] = {{"input_tokens", served.prompt_tokens},
                   {"input_tokens_details", {{"cached_tokens", served.reused_tokens}}},
                   {"output_tokens", written},
                   {"output_tokens_details",
                    {{"reasoning_tokens", reasoning_tokens(head_.tools, served.result.ids)}}},
                   {"total_tokens", served.prompt_tokens + written}};
  if (head_.recall) add_recalled(json, served);
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

Json ResponsesForm::place() const { return {{"output_index", output_.size() - 1}}; }

std::string ResponsesForm::open(Json item) {
  std::string events = close();
  output_.push_back(std::move(item));
  open_ = true;
  Json more = place();
  more["item"] = this->item();
  return events += event("response.output_item.added", std::move(more));
}

/// What an event of a part of a message says of its place.
Json ResponsesForm::part_place() {
  Json where{{"item_id", item()["id"]}};
  where.update(place());
  where["content_index"] = 0;
  return where;
}

std::string ResponsesForm::open_message() {
  std::string events = open({{"type", "message"},
                             {"id", Conversations::new_id("msg")},
                             {"status", "in_progress"},
                             {"role", "assistant"},
                             {"content", Json::array()}});
  item()["content"].push_back(text_part(""));
  Json more = part_place();
  more["part"] = text_part("");
  return events += event("response.content_part.added", std::move(more));
}

std::string ResponsesForm::say(const std::string& text) {
  std::string events;
  if (!open_ || item()["type"] != "message") {
    if (!output_.empty()) logprobs_.keep(text.size());  // not those of marks before it
    events = open_message();
  }
  if (text.empty()) return events;
  Json& part = item()["content"][0];
  part["text"].get_ref<std::string&>() += text;
  Json known = logprobs_.behind(text.size());
  part["logprobs"].insert(part["logprobs"].end(), known.begin(), known.end());
  Json more = part_place();
  more["delta"] = text;
  more["logprobs"] = std::move(known);
  return events += event("response.output_text.delta", std::move(more));
}

std::string ResponsesForm::think(const std::string& text) {
  std::string events;
  if (!open_ || item()["type"] != "reasoning") {
    events = open({{"type", "reasoning"},
                   {"id", Conversations::new_id("rs")},
                   {"status", "in_progress"},
                   {"summary", Json::array()},
                   {"content", Json::array()}});
    item()["content"].push_back(thought_part(""));
    Json more = part_place();
    more["part"] = thought_part("");
    events += event("response.content_part.added", std::move(more));
  }
  logprobs_.keep(0);
  item()["content"][0]["text"].get_ref<std::string&>() += text;
  Json more = part_place();
  more["delta"] = text;
  return events += event("response.reasoning_text.delta", std::move(more));
}

std::string ResponsesForm::close_thought(Json& item) {
  const Json& part = item["content"][0];
  Json text = part_place(), whole = text;
  text["text"] = part["text"];
  whole["part"] = part;
  const std::string events = event("response.reasoning_text.done", std::move(text));
  return events + event("response.content_part.done", std::move(whole));
}

std::string ResponsesForm::close() {
  if (!std::exchange(open_, false)) return {};
  Json& item = this->item();
  const std::string type = item["type"];
  item["status"] = cut_ && type != "function_call" ? "incomplete" : "completed";
  std::string events = type == "message"     ? close_message(item)
                       : type == "reasoning" ? close_thought(item)
                                             : close_call(item);
  Json more = place();
  more["item"] = item;
  return events += event("response.output_item.done", std::move(more));
}

std::string ResponsesForm::close_message(Json& item) {
  Json& part = item["content"][0];
  const Json known = logprobs_.rest();  // a stop string's, or a mark's
  part["logprobs"].insert(part["logprobs"].end(), known.begin(), known.end());
  Json text = part_place(), whole = text;
  text["text"] = part["text"];
  text["logprobs"] = part["logprobs"];
  whole["part"] = part;
  const std::string events = event("response.output_text.done", std::move(text));
  return events + event("response.content_part.done", std::move(whole));
}

std::string ResponsesForm::close_call(Json& item) {
  Json more{{"item_id", item["id"]}};
  more.update(place());
  more["name"] = item["name"];
  more["arguments"] = item["arguments"];
  return event("response.function_call_arguments.done", std::move(more));
}

std::string ResponsesForm::events_of(const std::vector<ToolCallEvent>& found) {
  std::string events;
  for (const ToolCallEvent& one : found) {
    switch (one.kind) {
      case ToolCallEvent::Kind::content:
        events += say(one.text);
        break;
      case ToolCallEvent::Kind::reasoning:
        events += think(one.text);
        break;
      case ToolCallEvent::Kind::begun:
        logprobs_.drop();
        events += open({{"type", "function_call"},
                        {"id", Conversations::new_id("fc")},
                        {"status", "in_progress"},
                        {"call_id", "call_" + one.id},
                        {"name", one.name},
                        {"arguments", ""}});
        break;
      case ToolCallEvent::Kind::arguments: {
        item()["arguments"].get_ref<std::string&>() += one.text;
        Json more{{"item_id", item()["id"]}};
        more.update(place());
        more["delta"] = one.text;
        events += event("response.function_call_arguments.delta", std::move(more));
        break;
      }
      case ToolCallEvent::Kind::ended:
        events += close();
        break;
      case ToolCallEvent::Kind::broken:
        break;
    }
  }
  return events;
}

std::string ResponsesForm::part(std::size_t, const Part& part) {
  streamed_ = true;
  if (part.logprobs) logprobs_.add(*part.logprobs);
  std::string events = events_of(calls_.push(part.text));
  if (output_.empty() && !calls_.parts()) events += say("");  // it will be a message
  return events;
}

std::string ResponsesForm::end_of_choice(std::size_t, const Served& served) {
  settle(served);
  return std::exchange(last_events_, {});
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
