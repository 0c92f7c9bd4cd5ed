// SPDX-License-Identifier: Apache-2.0
#include "episodic/server/http_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <mutex>
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

constexpr const char* kLoading = "the model is still being loaded; ask again (GET /health)";

std::size_t longest_body(Service& service, std::size_t most) {
  const std::int64_t tokens = service.scheduler().options().max_tokens;
  if (tokens <= 0 || service.memories()) return most;  // a text for a memory may be of any length
  return std::min(
      most, kLeastBody + kBytesPerToken * std::min<std::size_t>(static_cast<std::size_t>(tokens),
                                                                most / kBytesPerToken));
}

}  // namespace

void answer_json(httplib::Response& response, const Json& json, int status) {
  response.status = status;
  response.set_content(text_of(json), "application/json");
}

std::string RouteContext::new_id(const char* kind) {
  return fmt::format("{}-{}-{}", kind, started, ++requests);
}

void take_memory_header(const Exchange& exchange, Request& request) {
  const std::string* memory = exchange.head.find("x-episodic-memory");
  if (memory && request.memory.empty()) request.memory = *memory;
  if (request.memory.empty()) request.store = false;
}

namespace {

/// What there is once the model is loaded.
struct Serving {
  Service& service;
  RouteContext context;
  Router router;

  Serving(Service& s, const ServerOptions& options) : service(s), context(s, options) {
    add_server_routes(router, context);
    add_openai_routes(router, context);
    add_messages_routes(router, context);
    add_token_routes(router, context);
    add_embedding_routes(router, context);
    add_responses_routes(router, context);
    add_memory_routes(router, context);
  }
};

}  // namespace

struct HttpServer::Impl {
  const ServerOptions options;
  std::mutex mutex;                         // of `made`
  std::unique_ptr<Serving> made;            // what `serving` shows
  std::atomic<Serving*> serving = nullptr;  // null while the model is being loaded
  Gate gate;

  explicit Impl(ServerOptions o)
      : options(std::move(o)),
        gate(
            Access(options.access), options.limits,
            [this](const HttpHead& head) {
              if (!serving && !asks_health(head)) throw HttpError(503, kLoading);
            },
            [this](Exchange& exchange, httplib::Response& response) {
              if (Serving* now = serving)
                answer_or_error(*now, exchange, response);
              else
                answer_json(response, {{"status", "loading model"}}, 503);
              if (!response.content_provider_) exchange.connection.begin_drain();
            }) {}

  void serve(Service& service) {
    const std::lock_guard lock(mutex);
    if (made) throw ConfigError("HttpServer::serve: it has a service already");
    made = std::make_unique<Serving>(service, options);
    gate.set_longest_body(longest_body(service, options.limits.body));
    serving = made.get();
  }

  static void answer_or_error(Serving& serving, Exchange& exchange, httplib::Response& response) {
    const auto refuse = [&](int status, const std::string& message,
                            const std::string& parameter = "", const std::string& code = "") {
      response.status = status;
      response.set_content(error_body_at(exchange.head.path, status, message, parameter, code),
                           "application/json");
    };
    try {
      serving.router.answer(exchange, response);
    } catch (const RequestError& e) {
      refuse(e.status(), e.what(), e.parameter(), e.code());
      if (e.status() == 429 || e.status() == 503 || e.status() == 409)
        response.set_header("Retry-After",
                            std::to_string(serving.service.scheduler().seconds_to_wait()));
    } catch (const std::exception& e) {
      refuse(500, printable(e.what(), 2000));
    }
  }
};

HttpServer::HttpServer(ServerOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

HttpServer::HttpServer(Service& service, ServerOptions options) : HttpServer(std::move(options)) {
  serve(service);
}

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

void HttpServer::bind_socket(const std::filesystem::path& path) { impl_->gate.bind_socket(path); }

void HttpServer::serve(Service& service) { impl_->serve(service); }

void HttpServer::listen() { impl_->gate.run(); }

void HttpServer::stop() {
  if (Serving* serving = impl_->serving) serving->service.scheduler().stop();
  impl_->gate.stop();
}

}  // namespace episodic::server
