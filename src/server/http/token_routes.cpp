// SPDX-License-Identifier: Apache-2.0
// Texts as tokens and back, and conversations as texts: fields as llama.cpp's server and vLLM name
// them, those of both where they do not clash.
#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "episodic/base/error.hpp"
#include "http/routes.hpp"
#include "protocol/fields.hpp"
#include "protocol/request.hpp"
#include "text/utf8.hpp"

namespace episodic::server {
namespace {

bool is_utf8(std::string_view bytes) {
  for (std::size_t at = 0; at < bytes.size();) {
    const std::size_t n = text::utf8_length(bytes, at);
    if (n == 0) return false;
    at += n;
  }
  return true;
}

/// The text of one token, or its bytes where they are no text of their own.
Json piece_of(const Tokenizer& tokenizer, std::int64_t id) {
  std::string bytes = tokenizer.decode({id}, false);
  if (is_utf8(bytes)) return bytes;
  Json list = Json::array();
  for (const char c : bytes) list.push_back(static_cast<unsigned char>(c));
  return list;
}

/// Of a text: special tokens around it where vLLM's field is used, which adds them, and none where
/// llama.cpp's is.
std::vector<std::int64_t> tokens_of_text(const Tokenizer& tokenizer, Fields& fields) {
  const bool of_vllm = fields.find("prompt") != nullptr;
  if (of_vllm == (fields.find("content") != nullptr))
    throw RequestError("give one of 'content', 'prompt' and 'messages'", "content");
  const std::string text = fields.text(of_vllm ? "prompt" : "content");
  const bool around = fields.flag("add_special", fields.flag("add_special_tokens", of_vllm));
  const bool reads_special = fields.flag("parse_special", true);
  if (reads_special) return tokenizer.encode(text, around);
  if (around) Fields::wrong("parse_special", "is false beside 'add_special', which is not built");
  const TextSpan all{0, text.size()};
  return tokenizer.encode_marked(text, std::span(&all, static_cast<std::size_t>(!text.empty())));
}

/// Of a conversation, as a chat request's.
std::vector<std::int64_t> tokens_of_chat(RouteContext& context, std::string_view body) {
  constexpr std::string_view kOwn[] = {"with_pieces", "return_token_strs"};
  const Request request = parse_request(RequestKind::chat, body, context.options.defaults, kOwn);
  ChatPrompt prompt = context.service.prompt_of(request, false);
  prompt.text.insert(prompt.text.end(), prompt.question.begin(), prompt.question.end());
  return std::move(prompt.text);
}

void tokenize(RouteContext& context, Exchange& exchange, httplib::Response& response) {
  const Body body(exchange.body);
  const Tokenizer& tokenizer = context.service.model().tokenizer();
  Fields fields(*body);
  const bool pieces = fields.flag("with_pieces"), strings = fields.flag("return_token_strs");
  std::vector<std::int64_t> ids;
  if (fields.find("messages")) {
    ids = tokens_of_chat(context, exchange.body);
  } else {
    try {
      ids = tokens_of_text(tokenizer, fields);
    } catch (const DataError& e) {
      throw RequestError(e.what(), "content");
    }
    fields.require_known();
  }
  Json answer{{"count", ids.size()}};
  if (const std::int64_t most = context.service.scheduler().options().max_tokens; most > 0)
    answer["max_model_len"] = most;
  Json list = Json::array();
  for (const std::int64_t id : ids)
    list.push_back(pieces ? Json{{"id", id}, {"piece", piece_of(tokenizer, id)}} : Json(id));
  answer["tokens"] = std::move(list);
  if (strings) {
    Json texts = Json::array();
    for (const std::int64_t id : ids) texts.push_back(tokenizer.token(id));
    answer["token_strs"] = std::move(texts);
  }
  answer_json(response, answer);
}

void detokenize(RouteContext& context, Exchange& exchange, httplib::Response& response) {
  const Body body(exchange.body);
  Fields fields(*body);
  const nlohmann::json* list = fields.find("tokens");
  const bool fits = list && list->is_array() &&
                    std::all_of(list->begin(), list->end(),
                                [](const auto& id) { return id.is_number_integer(); });
  if (!fits) Fields::wrong("tokens", "must be a list of token ids");
  fields.require_known();
  std::string text;
  try {
    text =
        context.service.model().tokenizer().decode(list->get<std::vector<std::int64_t>>(), false);
  } catch (const DataError& e) {
    throw RequestError(e.what(), "tokens");
  }
  answer_json(response, {{"content", text}, {"prompt", text}});
}

void apply_template(RouteContext& context, Exchange& exchange, httplib::Response& response) {
  const Request request = parse_request(RequestKind::chat, exchange.body, context.options.defaults);
  answer_json(response, {{"prompt", context.service.rendered(request)}});
}

}  // namespace

void add_token_routes(Router& router, RouteContext& context) {
  const auto add = [&](const char* path, auto handler) {
    router.add("POST", path,
               [&context, handler](Exchange& exchange, const Target&, auto& response) {
                 handler(context, exchange, response);
               });
  };
  add("/tokenize", tokenize);
  add("/detokenize", detokenize);
  add("/apply-template", apply_template);
}

}  // namespace episodic::server
