// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/http_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/strict_json.hpp"
#include "episodic/base/error.hpp"
#include "http/gate.hpp"
#include "http/routes.hpp"

namespace episodic::server {
namespace {

// A token may take so many bytes of a request; beyond that --max-tokens would refuse it anyway.
constexpr std::size_t kBytesPerToken = 64;
constexpr std::size_t kLeastBody = 1 << 20;

ConnectionLimits limits_of(const Service& service, const ServerOptions& options) {
  ConnectionLimits limits = options.limits;
  const std::int64_t tokens = service.scheduler().options().max_tokens;
  // a text for a memory may be of any length
  if (tokens > 0 && !const_cast<Service&>(service).memories())
    limits.body = std::min(
        limits.body,
        kLeastBody + kBytesPerToken * std::min<std::size_t>(static_cast<std::size_t>(tokens),
                                                            limits.body / kBytesPerToken));
  return limits;
}

}  // namespace

void answer_json(httplib::Response& response, const Json& json, int status) {
  response.status = status;
  response.set_content(text_of(json), "application/json");
}

nlohmann::json parse_body(std::string_view body) {
  nlohmann::json parsed;
  try {
    JsonLimits limits;
    limits.remedy = "send a JSON object";
    parsed = parse_strict(body, "the request", limits);
  } catch (const Error& e) {
    throw RequestError(e.what(), "");
  }
  if (!parsed.is_object()) throw RequestError("the request is no JSON object", "");
  return parsed;
}

std::string RouteContext::new_id(const char* kind) {
  return fmt::format("{}-{}-{}", kind, started, ++requests);
}

struct HttpServer::Impl {
  Service& service;
  const ServerOptions options;
  RouteContext context;
  Router router;
  Gate gate;

  Impl(Service& s, ServerOptions o)
      : service(s),
        options(std::move(o)),
        context(service, options),
        gate(Access(options.access), limits_of(service, options),
             [this](Exchange& exchange, httplib::Response& response) {
               answer_or_error(exchange, response);
             }) {
    add_server_routes(router, context);
    add_openai_routes(router, context);
    add_responses_routes(router, context);
    add_memory_routes(router, context);
  }

  void answer_or_error(Exchange& exchange, httplib::Response& response) {
    const auto refuse = [&](int status, const std::string& message,
                            const std::string& parameter = "", const std::string& code = "") {
      response.status = status;
      response.set_content(error_body(status, message, parameter, code), "application/json");
    };
    try {
      router.answer(exchange, response);
    } catch (const RequestError& e) {
      refuse(e.status(), e.what(), e.parameter(), e.code());
      if (e.status() == 429 || e.status() == 503 || e.status() == 409)
        response.set_header("Retry-After", std::to_string(service.scheduler().seconds_to_wait()));
    } catch (const std::exception& e) {
      refuse(500, printable(e.what(), 2000));
    }
    if (!response.content_provider_) exchange.connection.begin_drain();
  }
};

HttpServer::HttpServer(Service& service, ServerOptions options)
    : impl_(std::make_unique<Impl>(service, std::move(options))) {}

HttpServer::~HttpServer() { stop(); }

int HttpServer::bind(const std::string& host, int port) {
  const int bound = impl_->gate.bind(host, port);
  if (bound <= 0)
    throw ConfigError(
        fmt::format("{}:{} cannot be listened at; another program may do so already, or the "
                    "address is none of this machine",
                    printable(host), port));
  return bound;
}

void HttpServer::listen() { impl_->gate.run(); }

void HttpServer::stop() {
  impl_->service.scheduler().stop();
  impl_->gate.stop();
}

}  // namespace episodic::server
