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

std::string OpenAiForm::bytes_of(std::int64_t id) const {
  const std::string_view bytes = head_.tokens->bytes(id);
  return bytes.empty() ? head_.tokenizer->token(id) : std::string(bytes);  // special: its name
}

Json OpenAiForm::token_json(const TokenLogprob& token) const {
  const std::string bytes = bytes_of(token.id);
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return {{"token", bytes}, {"logprob", token.logprob}, {"bytes", std::move(list)}};
}

/// \param offset bytes of the choice before the first of them
Json OpenAiForm::logprobs_json(std::span<const Logprobs> of, std::size_t offset) const {
  if (!head_.logprobs) return nullptr;
  if (chat()) {
    Json content = Json::array();
    for (const Logprobs& one : of) {
      Json token = token_json(one.token);
      token["top_logprobs"] = Json::array();
      for (const TokenLogprob& top : one.top) token["top_logprobs"].push_back(token_json(top));
      content.push_back(std::move(token));
    }
    return {{"content", std::move(content)}, {"refusal", nullptr}};
  }
  Json tokens = Json::array(), values = Json::array(), tops = Json::array(),
       offsets = Json::array();
  for (const Logprobs& one : of) {
    const std::string bytes = bytes_of(one.token.id);
    Json top = Json::object();
    for (const TokenLogprob& other : one.top) top[bytes_of(other.id)] = other.logprob;
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
    Json choice = chat() ? choice_of(i, "message", {{"role", "assistant"}, {"content", r.text}},
                                     finish_of(r.finish), std::move(known))
                         : choice_of(i, "text", r.text, finish_of(r.finish), std::move(known));
    if (head_.recall) choice["recalled"] = recalled_json(choices[i]);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = usage(choices);
  return json;
}

Json OpenAiForm::chunk(std::size_t choice, std::string_view text, Json finish, Json logprobs) {
  if (begun_.size() <= choice) begun_.resize(choice + 1);
  const bool first = !begun_[choice];
  begun_[choice] = true;
  Json json = head(true);
  Json delta = Json::object();
  if (first) delta["role"] = "assistant";
  if (first || !text.empty()) delta["content"] = text;
  json["choices"] = Json::array(
      {chat() ? choice_of(choice, "delta", std::move(delta), std::move(finish), std::move(logprobs))
              : choice_of(choice, "text", text, std::move(finish), std::move(logprobs))});
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
  if (part.text.empty() && !first && !part.logprobs) return {};
  if (!part.logprobs) return event_of(chunk(choice, part.text, nullptr));
  if (sent_.size() <= choice) sent_.resize(choice + 1);
  Json known = logprobs_json({&*part.logprobs, 1}, sent_[choice]);
  sent_[choice] += bytes_of(part.logprobs->token.id).size();
  return event_of(chunk(choice, part.text, nullptr, std::move(known)));
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
