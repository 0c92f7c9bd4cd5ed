// SPDX-License-Identifier: Apache-2.0
#include "http_server.hpp"

#include <fmt/format.h>
#include <httplib.h>

#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"

namespace episodic::tools {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kLongestRequest = std::size_t{256}
                                        << 20;  // bytes: tens of millions of tokens
constexpr std::size_t kThreads = 16;            // connections at a time; the engine is one's

/// Bytes that are not UTF-8 (a token may end within a character) are replaced.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json error_json(const std::string& message, const char* type, const std::string& parameter) {
  return {{"error",
           {{"message", message},
            {"type", type},
            {"param", parameter.empty() ? Json() : Json(parameter)},
            {"code", nullptr}}}};
}

void set_error(httplib::Response& response, int status, const std::string& message,
               const std::string& parameter = "") {
  response.status = status;
  const char* type = status >= 500   ? "server_error"
                     : status == 401 ? "authentication_error"
                                     : "invalid_request_error";
  response.set_content(text_of(error_json(message, type, parameter)), "application/json");
}

const char* finish_of(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
}

/// Equal, in a time that does not tell where the first difference is.
bool same_key(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    difference |= static_cast<unsigned char>(a[i] ^ b[i]);
  return difference == 0;
}

/// What every part of one answer says of it.
struct Answer {
  RequestKind kind;
  std::string id, model;
  std::int64_t created;

  bool chat() const { return kind == RequestKind::chat; }
  Json head(bool part) const {
    const char* object = !chat() ? "text_completion"
                         : part  ? "chat.completion.chunk"
                                 : "chat.completion";
    return {{"id", id}, {"object", object}, {"created", created}, {"model", model}};
  }
  Json choice(const char* name, Json content, Json finish) const {
    Json choice{{"index", 0}};
    choice[name] = std::move(content);
    choice["logprobs"] = nullptr;
    choice["finish_reason"] = std::move(finish);
    return choice;
  }
  Json whole(const Served& served) const {
    Json json = head(false);
    const GenerateResult& r = served.result;
    json["choices"] =
        Json::array({chat() ? choice("message", {{"role", "assistant"}, {"content", r.text}},
                                     finish_of(r.finish))
                            : choice("text", r.text, finish_of(r.finish))});
    json["usage"] = usage(served);
    return json;
  }
  /// A part of a stream. \param finish null but in the last one
  Json part(std::string_view text, bool first, Json finish) const {
    Json json = head(true);
    Json delta = Json::object();
    if (first) delta["role"] = "assistant";
    if (first || !text.empty()) delta["content"] = text;
    json["choices"] = Json::array({chat() ? choice("delta", std::move(delta), std::move(finish))
                                          : choice("text", text, std::move(finish))});
    return json;
  }
  static Json usage(const Served& served) {
    const auto written = static_cast<std::int64_t>(served.result.ids.size());
    return {{"prompt_tokens", served.prompt_tokens},
            {"completion_tokens", written},
            {"total_tokens", served.prompt_tokens + written},
            {"prompt_tokens_details", {{"cached_tokens", served.reused_tokens}}}};
  }
};

}  // namespace

struct HttpServer::Impl {
  Service& service;
  ServerOptions options;
  httplib::Server http;
  std::mutex log_mutex;
  std::atomic<std::uint64_t> requests = 0;
  std::int64_t started = static_cast<std::int64_t>(std::time(nullptr));

  Impl(Service& s, ServerOptions o) : service(s), options(std::move(o)) {
    http.new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
    http.set_payload_max_length(kLongestRequest);
    http.set_tcp_nodelay(true);  // a token is a packet
    // no other program takes the port at the same time
    http.set_socket_options([](socket_t socket) {
      const int yes = 1;
      setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    });
    http.Get("/health", [](const httplib::Request&, httplib::Response& response) {
      response.set_content(R"({"status":"ok"})", "application/json");
    });
    http.Get("/v1/models", [this](const httplib::Request&, httplib::Response& response) {
      const Json model{{"id", options.model_name},
                       {"object", "model"},
                       {"created", started},
                       {"owned_by", "episodic"}};
      response.set_content(text_of({{"object", "list"}, {"data", Json::array({model})}}),
                           "application/json");
    });
    for (const RequestKind kind : {RequestKind::completion, RequestKind::chat})
      http.Post(kind == RequestKind::chat ? "/v1/chat/completions" : "/v1/completions",
                [this, kind](const httplib::Request& request, httplib::Response& response) {
                  answer(kind, request, response);
                });
    http.set_pre_routing_handler(
        [this](const httplib::Request& request, httplib::Response& response) {
          if (options.api_key.empty() || request.path == "/health" ||
              same_key(request.get_header_value("Authorization"), "Bearer " + options.api_key))
            return httplib::Server::HandlerResponse::Unhandled;
          set_error(response, 401, "the API key is missing or wrong: Authorization: Bearer KEY");
          return httplib::Server::HandlerResponse::Handled;
        });
    http.set_error_handler([](const httplib::Request& request, httplib::Response& response) {
      if (!response.body.empty()) return;
      if (response.status == 404)
        set_error(response, 404,
                  fmt::format("no {} {}; there are GET /health, GET /v1/models, POST "
                              "/v1/completions, POST /v1/chat/completions",
                              request.method, printable(request.path)));
      else
        set_error(response, response.status,
                  response.status == 413
                      ? fmt::format("the request is longer than {} bytes", kLongestRequest)
                      : "the request is no HTTP request that can be answered");
    });
    http.set_exception_handler(
        [](const httplib::Request&, httplib::Response& response, std::exception_ptr failure) {
          try {
            std::rethrow_exception(failure);
          } catch (const RequestError& e) {
            set_error(response, e.status(), e.what(), e.parameter());
          } catch (const std::exception& e) {
            set_error(response, 500, on_one_line(e));
          }
        });
  }

  void log(const std::string& path, const Served& served, Clock::time_point began) {
    if (!options.log) return;
    const std::chrono::duration<double> seconds = Clock::now() - began;
    const GenerateResult& r = served.result;
    const std::lock_guard lock(log_mutex);
    options.log(
        fmt::format("{}: {} tokens of prompt, {} of them read before; {} written, {:.2f} s{}", path,
                    served.prompt_tokens, served.reused_tokens, r.ids.size(), seconds.count(),
                    r.finish == FinishReason::cancelled ? ", given up" : ""));
  }

  void answer(RequestKind kind, const httplib::Request& request, httplib::Response& response) {
    const auto began = Clock::now();
    const auto parsed =
        std::make_shared<ServedRequest>(parse_request(kind, request.body, options.defaults));
    const auto prompt = std::make_shared<ChatPrompt>(service.prepare(*parsed));
    const Answer form{kind,
                      fmt::format("{}-{}-{}", kind == RequestKind::chat ? "chatcmpl" : "cmpl",
                                  started, ++requests),
                      options.model_name, static_cast<std::int64_t>(std::time(nullptr))};
    if (!parsed->stream) {
      const Served served = service.answer(*parsed, *prompt);
      log(request.path, served, began);
      if (served.result.finish == FinishReason::cancelled)
        return set_error(response, 503, "the server is going down");
      response.set_content(text_of(form.whole(served)), "application/json");
      return;
    }
    response.set_chunked_content_provider("text/event-stream",
                                          [this, parsed, prompt, form, began, path = request.path](
                                              std::size_t, httplib::DataSink& sink) {
                                            stream(*parsed, *prompt, form, began, path, sink);
                                            return true;
                                          });
  }

  void stream(const ServedRequest& parsed, const ChatPrompt& prompt, const Answer& form,
              Clock::time_point began, const std::string& path, httplib::DataSink& sink) {
    const auto send = [&](const std::string& data) {
      const std::string event = "data: " + data + "\n\n";
      return sink.write(event.data(), event.size());
    };
    try {
      bool first = true;
      const Served served =
          service.answer(parsed, prompt, [&](std::int64_t, std::string_view text) {
            // where nothing is to be said yet, at least a client that has gone is noticed
            if (text.empty() && !first) return sink.is_writable();
            return send(text_of(form.part(text, std::exchange(first, false), nullptr)));
          });
      log(path, served, began);
      if (served.result.finish == FinishReason::cancelled) return sink.done();
      send(text_of(form.part("", first, finish_of(served.result.finish))));
      if (parsed.stream_usage) {
        Json last = form.head(true);
        last["choices"] = Json::array();
        last["usage"] = Answer::usage(served);
        send(text_of(last));
      }
    } catch (const std::exception& e) {  // the status has been sent
      send(text_of(error_json(on_one_line(e), "server_error", "")));
    }
    send("[DONE]");
    sink.done();
  }
};

HttpServer::HttpServer(Service& service, ServerOptions options)
    : impl_(std::make_unique<Impl>(service, std::move(options))) {}

HttpServer::~HttpServer() { stop(); }

int HttpServer::bind(const std::string& host, int port) {
  const int bound = port == 0                              ? impl_->http.bind_to_any_port(host)
                    : impl_->http.bind_to_port(host, port) ? port
                                                           : -1;
  if (bound <= 0)
    throw ConfigError(fmt::format(
        "--port, --host: {}:{} cannot be listened at; another program may do so already, or the "
        "address is none of this machine",
        printable(host), port));
  return bound;
}

void HttpServer::listen() { impl_->http.listen_after_bind(); }

void HttpServer::stop() {
  impl_->service.stop();
  impl_->http.stop();
}

}  // namespace episodic::tools
