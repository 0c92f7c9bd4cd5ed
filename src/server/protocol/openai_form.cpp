// SPDX-License-Identifier: Apache-2.0
#include "protocol/openai_form.hpp"

#include <utility>

namespace episodic::server {
namespace {

const char* finish_of(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

Json choice_of(std::size_t index, const char* name, Json content, Json finish, Json logprobs) {
  Json choice{{"index", index}};
  choice[name] = std::move(content);
  choice["logprobs"] = std::move(logprobs);
  choice["finish_reason"] = std::move(finish);
  return choice;
}

/// Puts thoughts and calls of a whole answer into its message. \return whether it calls
bool take_calls(std::shared_ptr<const ToolUse> use, const std::string& text, Json& message) {
  AnswerCalls found(std::move(use));
  std::vector<ToolCallEvent> events = found.push(text);
  for (ToolCallEvent& event : found.finish()) events.push_back(std::move(event));
  AnswerTexts texts;
  texts.add(events);
  Json calls = Json::array();
  for (const ToolCallEvent& event : events) {
    if (event.kind == ToolCallEvent::Kind::begun)
      calls.push_back(call_json(event.id, event.name, ""));
    if (event.kind == ToolCallEvent::Kind::arguments) {
      Json& arguments = calls[event.index]["function"]["arguments"];
      arguments = arguments.get<std::string>() + event.text;
    }
  }
  message["content"] = texts.content.empty() && !calls.empty() ? Json() : Json(texts.content);
  if (!texts.reasoning.empty()) message["reasoning_content"] = texts.reasoning;
  if (!calls.empty()) message["tool_calls"] = calls;
  return !calls.empty();
}

}  // namespace

Json OpenAiForm::usage(std::span<const Served> choices) const {
  std::int64_t written = 0, thought = 0;
  for (const Served& served : choices) {
    written += static_cast<std::int64_t>(served.result.ids.size());
    thought += reasoning_tokens(head_.tools, served.result.ids);
  }
  const Served& first = choices.front();
  Json json{{"prompt_tokens", first.prompt_tokens},
            {"completion_tokens", written},
            {"total_tokens", first.prompt_tokens + written},
            {"prompt_tokens_details", {{"cached_tokens", first.reused_tokens}}}};
  if (chat()) json["completion_tokens_details"] = {{"reasoning_tokens", thought}};
  return json;
}

Json OpenAiForm::head(bool part) const {
  const char* object = !chat() ? "text_completion"
                       : part  ? "chat.completion.chunk"
                               : "chat.completion";
  return {{"id", head_.id}, {"object", object}, {"created", head_.created}, {"model", head_.model}};
}

/// \param offset bytes of the choice before the first of them
Json OpenAiForm::logprobs_json(std::span<const Logprobs> of, std::size_t offset) const {
  if (!head_.logprobs) return nullptr;
  if (chat()) {
    Json content = Json::array();
    for (const Logprobs& one : of) content.push_back(head_.tokens.token(one));
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const Logprobs& one : of) {
    const std::string bytes = head_.tokens.bytes(one.token.id);
    Json top = Json::object();
    for (const TokenLogprob& other : one.top) top[head_.tokens.bytes(other.id)] = other.logprob;
    top[bytes] = one.token.logprob;
    tokens.push_back(bytes);
    values.push_back(one.token.logprob);
    tops.push_back(std::move(top));
    offsets.push_back(offset);
    offset += bytes.size();
  }
  return {{"tokens", tokens},
          {"token_logprobs", values},
          {"top_logprobs", tops},
          {"text_offset", offsets}};
}

Json OpenAiForm::whole(std::span<const Served> choices) {
  Json json = head(false);
  json["choices"] = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const GenerateResult& r = choices[i].result;
    Json known = logprobs_json(r.logprobs, 0);
    Json message{{"role", "assistant"}, {"content", r.text}};
    const bool calls = head_.tools && take_calls(head_.tools, r.text, message);
    Json choice = chat() ? choice_of(i, "message", std::move(message),
                                     calls ? "tool_calls" : finish_of(r.finish), std::move(known))
                         : choice_of(i, "text", r.text, finish_of(r.finish), std::move(known));
    if (head_.recall) add_recalled(choice, choices[i]);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage(choices);
  return json;
}

Json OpenAiForm::chunk(std::size_t choice, std::string_view text, Json finish, Json logprobs) {
  Json delta = Json::object();
  const bool first = begun_.size() <= choice || !begun_[choice];
  if (first || !text.empty()) delta["content"] = text;
  if (chat()) return chunk_of(choice, std::move(delta), std::move(finish), std::move(logprobs));
  if (begun_.size() <= choice) begun_.resize(choice + 1);
  begun_[choice] = true;
  Json json = head(true);
  json["choices"] =
      Json::array({choice_of(choice, "text", text, std::move(finish), std::move(logprobs))});
  return json;
}

Json OpenAiForm::chunk_of(std::size_t choice, Json delta, Json finish, Json logprobs) {
  if (begun_.size() <= choice) begun_.resize(choice + 1);
  Json whole = Json::object();
  if (!begun_[choice]) whole["role"] = "assistant";
  begun_[choice] = true;
  whole.update(delta);
  Json json = head(true);
  json["choices"] = Json::array(
      {choice_of(choice, "delta", std::move(whole), std::move(finish), std::move(logprobs))});
  return json;
}

OpenAiForm::Calls& OpenAiForm::calls_of(std::size_t choice) {
  const auto at = calls_.find(choice);
  if (at != calls_.end()) return at->second;
  return calls_.emplace(choice, Calls{AnswerCalls(head_.tools), {}}).first->second;
}

Json OpenAiForm::untold(std::size_t choice) {
  const std::vector<Logprobs> tokens = std::exchange(calls_of(choice).untold, {});
  return tokens.empty() ? Json() : logprobs_json(tokens, 0);
}

std::string OpenAiForm::events_of(std::size_t choice, const std::vector<ToolCallEvent>& found) {
  std::string events;
  for (const ToolCallEvent& event : found) {
    if (event.kind == ToolCallEvent::Kind::content) {
      if (!event.text.empty())
        events += event_of(chunk(choice, event.text, nullptr, untold(choice)));
      continue;
    }
    if (event.kind == ToolCallEvent::Kind::reasoning) {
      events +=
          event_of(chunk_of(choice, {{"reasoning_content", event.text}}, nullptr, untold(choice)));
      continue;
    }
    const bool begun = event.kind == ToolCallEvent::Kind::begun;
    if (!begun && event.kind != ToolCallEvent::Kind::arguments) continue;
    Json call{{"index", event.index}};
    if (begun)
      call.update(call_json(event.id, event.name, ""));
    else
      call["function"] = {{"arguments", event.text}};
    events +=
        event_of(chunk_of(choice, {{"tool_calls", Json::array({call})}}, nullptr, untold(choice)));
  }
  return events;
}

std::string OpenAiForm::progress(std::int64_t read, std::int64_t of) {
  Json json = head(true);
  json["choices"] = Json::array();
  json["prompt_progress"] = {{"total", of}, {"processed", read}};
  return event_of(json);
}

std::string OpenAiForm::part(std::size_t choice, const Part& part) {
  if (head_.tools) {
    Calls& calls = calls_of(choice);
    if (part.logprobs) calls.untold.push_back(*part.logprobs);
    return events_of(choice, calls.calls.push(part.text));
  }
  const bool first = begun_.size() <= choice || !begun_[choice];
  if (part.text.empty() && !first && !part.logprobs) return {};
  if (!part.logprobs) return event_of(chunk(choice, part.text, nullptr));
  if (sent_.size() <= choice) sent_.resize(choice + 1);
  Json known = logprobs_json({&*part.logprobs, 1}, sent_[choice]);
  sent_[choice] += head_.tokens.bytes(part.logprobs->token.id).size();
  return event_of(chunk(choice, part.text, nullptr, std::move(known)));
}

std::string OpenAiForm::end_of_choice(std::size_t choice, const Served& served) {
  std::string before;
  const char* finish = finish_of(served.result.finish);
  Json known;
  if (head_.tools) {
    before = events_of(choice, calls_of(choice).calls.finish());
    if (calls_of(choice).calls.calls() > 0) finish = "tool_calls";
    known = untold(choice);
  }
  Json json = chunk(choice, "", finish, std::move(known));
  if (head_.recall) add_recalled(json["choices"][0], served);
  return before + event_of(json);
}

std::string OpenAiForm::end(std::span<const Served> choices) {
  std::string events;
  if (head_.usage) {
    Json last = head(true);
    last["choices"] = Json::array();
    last["usage"] = usage(choices);
    events = event_of(last);
  }
  return events + "data: [DONE]\n\n";
}

std::string OpenAiForm::failure(int status, const std::string& message) {
  return "data: " + error_body(status, message) + "\n\ndata: [DONE]\n\n";
}

}  // namespace episodic::server
