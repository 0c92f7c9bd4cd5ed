// SPDX-License-Identifier: Apache-2.0
#include "http/routes.hpp"
#include "protocol/openai_form.hpp"
#include "protocol/request.hpp"

namespace episodic::server {
namespace {

void complete(RouteContext& context, RequestKind kind, Exchange& exchange,
              httplib::Response& response) {
  Scheduler::Place place = context.service.scheduler().take_place();
  Request request = parse_request(kind, exchange.body, context.options.defaults);
  take_memory_header(exchange, request);
  exchange.body = {};
  exchange.connection.release_body();
  OpenAiForm::Head head;
  head.kind = kind;
  head.id = context.new_id(kind == RequestKind::chat ? "chatcmpl" : "cmpl");
  head.model = context.options.model_name;
  head.created = static_cast<std::int64_t>(std::time(nullptr));
  head.usage = request.stream_usage;
  head.recall = request.recall;
  head.logprobs = request.options.logprobs >= 0;
  if (head.logprobs)
    head.tokens = TokenTexts(context.service.tokens(), context.service.model().tokenizer());
  Job job = context.service.prepare(request, looking_after(exchange.connection));
  head.tools = job.tools;
  const auto asked =
      context.answering.ask(std::move(place), std::move(job),
                            std::make_unique<OpenAiForm>(std::move(head)), request.choices);
  asked->progress = request.progress;
  if (request.stream)
    context.answering.answer_stream(exchange, asked, response);
  else
    context.answering.answer_whole(exchange, asked, response);
}

}  // namespace

void add_openai_routes(Router& router, RouteContext& context) {
  const auto add = [&](const char* path, RequestKind kind) {
    router.add("POST", path, [&context, kind](Exchange& exchange, const Target&, auto& response) {
      complete(context, kind, exchange, response);
    });
  };
  add("/completions", RequestKind::completion);
  add("/chat/completions", RequestKind::chat);
}

}  // namespace episodic::server
