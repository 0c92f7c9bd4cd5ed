// SPDX-License-Identifier: Apache-2.0
#include "protocol/openai_form.hpp"

#include <utility>

namespace episodic::server {
namespace {

const char* finish_of(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

Json choice_of(std::size_t index, const char* name, Json content, Json finish) {
  Json choice{{"index", index}};
  choice[name] = std::move(content);
  choice["logprobs"] = nullptr;
  choice["finish_reason"] = std::move(finish);
  return choice;
}

}  // namespace

Json OpenAiForm::usage(std::span<const Served> choices) {
  std::int64_t written = 0;
  for (const Served& served : choices)
    written += static_cast<std::int64_t>(served.result.ids.size());
  const Served& first = choices.front();
  return {{"prompt_tokens", first.prompt_tokens},
          {"completion_tokens", written},
          {"total_tokens", first.prompt_tokens + written},
          {"prompt_tokens_details", {{"cached_tokens", first.reused_tokens}}}};
}

Json OpenAiForm::head(bool part) const {
  const char* object = !chat() ? "text_completion"
                       : part  ? "chat.completion.chunk"
                               : "chat.completion";
  return {{"id", head_.id}, {"object", object}, {"created", head_.created}, {"model", head_.model}};
}

Json OpenAiForm::whole(std::span<const Served> choices) {
  Json json = head(false);
  json["choices"] = Json::array();
  for (std::size_t i = 0; i < choices.size(); ++i) {
    const GenerateResult& r = choices[i].result;
    Json choice = chat() ? choice_of(i, "message", {{"role", "assistant"}, {"content", r.text}},
                                     finish_of(r.finish))
                         : choice_of(i, "text", r.text, finish_of(r.finish));
    if (head_.recall) choice["recalled"] = recalled_json(choices[i]);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage(choices);
  return json;
}

Json OpenAiForm::chunk(std::size_t choice, std::string_view text, Json finish) {
  if (begun_.size() <= choice) begun_.resize(choice + 1);
  const bool first = !begun_[choice];
  begun_[choice] = true;
  Json json = head(true);
  Json delta = Json::object();
  if (first) delta["role"] = "assistant";
  if (first || !text.empty()) delta["content"] = text;
  json["choices"] =
      Json::array({chat() ? choice_of(choice, "delta", std::move(delta), std::move(finish))
                          : choice_of(choice, "text", text, std::move(finish))});
  return json;
}

std::string OpenAiForm::progress(std::int64_t read, std::int64_t of) {
  Json json = head(true);
  json["choices"] = Json::array();
  json["prompt_progress"] = {{"total", of}, {"processed", read}};
  return event_of(json);
}

std::string OpenAiForm::part(std::size_t choice, const Part& part) {
  const bool first = begun_.size() <= choice || !begun_[choice];
  if (part.text.empty() && !first) return {};
  return event_of(chunk(choice, part.text, nullptr));
}

std::string OpenAiForm::end_of_choice(std::size_t choice, const Served& served) {
  Json json = chunk(choice, "", finish_of(served.result.finish));
  if (head_.recall) json["choices"][0]["recalled"] = recalled_json(served);
  return event_of(json);
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
