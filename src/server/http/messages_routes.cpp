// SPDX-License-Identifier: Apache-2.0
// Anthropic's Messages API.
#include "http/routes.hpp"
#include "protocol/messages_form.hpp"
#include "protocol/messages_request.hpp"

namespace episodic::server {
namespace {

void create_message(RouteContext& context, Exchange& exchange, httplib::Response& response) {
  Scheduler::Place place = context.service.scheduler().take_place();
  Request request = parse_messages_request(exchange.body, context.options.defaults);
  take_memory_header(exchange, request);
  exchange.body = {};
  exchange.connection.release_body();
  Job job = context.service.prepare(request, looking_after(exchange.connection));
  MessagesForm::Head head;
  head.id = context.new_id("msg");
  head.model = context.options.model_name;
  head.prompt_tokens = job.work.prompt_tokens();
  head.recall = request.recall;
  head.tools = job.tools;
  const auto asked = context.answering.ask(std::move(place), std::move(job),
                                           std::make_unique<MessagesForm>(std::move(head)));
  asked->progress = request.progress;
  if (request.stream)
    context.answering.answer_stream(exchange, asked, response);
  else
    context.answering.answer_whole(exchange, asked, response);
}

/// As many as the prompt of such a message would have. Nothing is computed, and no place is taken.
void count_tokens(RouteContext& context, Exchange& exchange, httplib::Response& response) {
  Request request = parse_messages_request(exchange.body, context.options.defaults, true);
  take_memory_header(exchange, request);
  Service& service = context.service;
  const bool named = !request.memory.empty() && service.memories();
  const bool goes_on = named ? service.memories()->info(request.memory).tokens > 0
                             : service.start(request.memory)->tokens() > 0;
  const ChatPrompt prompt = service.prompt_of(request, goes_on);
  answer_json(response, {{"input_tokens", prompt.text.size() + prompt.question.size()}});
}

}  // namespace

void add_messages_routes(Router& router, RouteContext& context) {
  router.add("POST", "/messages", [&context](Exchange& exchange, const Target&, auto& response) {
    create_message(context, exchange, response);
  });
  router.add("POST", "/messages/count_tokens",
             [&context](Exchange& exchange, const Target&, auto& response) {
               count_tokens(context, exchange, response);
             });
}

}  // namespace episodic::server
