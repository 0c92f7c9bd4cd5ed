// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "base/strict_json.hpp"
#include "http/routes.hpp"
#include "page/page.hpp"

namespace episodic::server {
namespace {

Json model_json(const RouteContext& context) {
  Json model{{"id", context.options.model_name},
             {"object", "model"},
             {"created", context.started},
             {"owned_by", "episodic"}};
  if (const std::int64_t most = context.service.scheduler().options().max_tokens; most > 0)
    model["max_model_len"] = most;
  return model;
}

std::string metrics(const RouteContext& context) {
  const SchedulerCounters c = context.service.scheduler().counters();
  std::string out;
  const auto add = [&](const char* name, const char* type, const char* help, auto value) {
    out += fmt::format("# HELP episodic_{0} {1}\n# TYPE episodic_{0} {2}\nepisodic_{0} {3}\n", name,
                       help, type, value);
  };
  add("requests_total", "counter", "Requests taken.", c.requests);
  add("requests_refused_total", "counter", "Requests refused because the queue was full.",
      c.refused);
  add("requests_given_up_total", "counter", "Requests not answered to the end.", c.given_up);
  add("prompt_tokens_total", "counter", "Tokens of prompts.", c.prompt_tokens);
  add("prompt_tokens_reused_total", "counter", "Of these, read for an earlier request.",
      c.reused_tokens);
  add("generated_tokens_total", "counter", "Tokens written.", c.written_tokens);
  add("requests_in_flight", "gauge", "Requests that wait or are answered.", c.places);
  return out;
}

}  // namespace

void add_server_routes(Router& router, RouteContext& context) {
  router.add("GET", "/", [](Exchange&, const Target&, auto& response) {
    // the page asks its own server and nobody else, and stands in no other page
    response.set_header(
        "Content-Security-Policy",
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'");
    response.set_header("X-Content-Type-Options", "nosniff");
    response.set_header("Referrer-Policy", "no-referrer");
    response.set_header("Cache-Control", "no-cache");
    response.set_content(std::string(page()), "text/html; charset=utf-8");
  });
  router.add("GET", "/health", [](Exchange&, const Target&, auto& response) {
    response.set_content(R"({"status":"ok"})", "application/json");
  });
  router.add("GET", "/metrics", [&context](Exchange&, const Target&, auto& response) {
    response.set_content(metrics(context), "text/plain; version=0.0.4");
  });
  router.add("GET", "/models", [&context](Exchange&, const Target&, auto& response) {
    answer_json(response, {{"object", "list"}, {"data", Json::array({model_json(context)})}});
  });
  router.add("GET", "/models/{}", [&context](Exchange&, const Target& target, auto& response) {
    if (target.parts[0] != context.options.model_name)
      throw RequestError(fmt::format("there is no model '{}', but '{}'", printable(target.parts[0]),
                                     context.options.model_name),
                         "model", 404, "model_not_found");
    answer_json(response, model_json(context));
  });
}

}  // namespace episodic::server
