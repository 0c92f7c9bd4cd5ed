// SPDX-License-Identifier: Apache-2.0
#include "http_server.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/strict_json.hpp"
#include "common.hpp"
#include "episodic/base/error.hpp"
#include "gate.hpp"

namespace episodic::tools {
namespace {

using std::chrono::milliseconds;

// A token may take so many bytes of a request; beyond that --max-tokens would refuse it anyway.
constexpr std::size_t kBytesPerToken = 64;
constexpr std::size_t kLeastBody = 1 << 20;
constexpr milliseconds kLook{100};      // how often a waiting client is looked after
constexpr milliseconds kProbe{10'000};  // a client that may have gone

/// Bytes that are not UTF-8 (a token may end within a character) are replaced.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

void set_error(httplib::Response& response, int status, const std::string& message,
               const std::string& parameter = "", const std::string& code = "") {
  response.status = status;
  response.set_content(error_body(status, message, parameter, code), "application/json");
}

const char* finish_of(FinishReason reason) {
  return reason == FinishReason::length ? "length" : "stop";
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

/// Why an answer is not complete, to the client that it was for.
std::string given_up_message(GivenUp why) {
  switch (why) {
    case GivenUp::overdue:
      return "the answer was not complete in time (--timeout)";
    case GivenUp::client_slow:
      return "the answer was not taken in time";
    default:
      return "the server is going down";
  }
}

/// %XX in a path. Anything else stays as it is.
std::string decoded(std::string_view path) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
  };
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    const bool two = path[i] == '%' && i + 2 < path.size();
    const int high = two ? digit(path[i + 1]) : -1, low = two ? digit(path[i + 2]) : -1;
    out.push_back(high < 0 || low < 0 ? path[i] : static_cast<char>(high * 16 + low));
    if (high >= 0 && low >= 0) i += 2;
  }
  return out;
}

/// What is asked for: without a query, /v1 and a slash at the end.
std::string route_of(std::string_view path) {
  path = path.substr(0, path.find('?'));
  if (path.starts_with("/v1/")) path.remove_prefix(3);
  if (path.size() > 1 && path.ends_with('/')) path.remove_suffix(1);
  return decoded(path);
}

/// A request in flight as its client's thread holds it: gone with the client.
struct Asked {
  Service& service;
  std::shared_ptr<InFlight> request;

  Asked(Service& s, std::shared_ptr<InFlight> r) : service(s), request(std::move(r)) {}
  Asked(const Asked&) = delete;
  Asked& operator=(const Asked&) = delete;
  ~Asked() {
    if (!request->ended()) service.withdraw(*request, GivenUp::client_left);
  }
};

}  // namespace

struct HttpServer::Impl {
  Service& service;
  const ServerOptions options;
  std::mutex log_mutex;
  std::atomic<std::uint64_t> requests = 0;
  std::int64_t started = static_cast<std::int64_t>(std::time(nullptr));
  Gate gate;

  Impl(Service& s, ServerOptions o)
      : service(s),
        options(std::move(o)),
        gate(Access(options.access), limits(),
             [this](Exchange& request, httplib::Response& response) {
               answer_or_error(request, response);
             }) {}

  ConnectionLimits limits() const {
    ConnectionLimits limits = options.limits;
    if (const std::int64_t tokens = service.options().max_tokens; tokens > 0)
      limits.body = std::min(
          limits.body,
          kLeastBody + kBytesPerToken * std::min<std::size_t>(static_cast<std::size_t>(tokens),
                                                              limits.body / kBytesPerToken));
    return limits;
  }

  void log(const std::string& path, const InFlight& request, const Served& served,
           Clock::time_point began) {
    if (!options.log) return;
    const std::chrono::duration<double> seconds = Clock::now() - began;
    const GenerateResult& r = served.result;
    const std::lock_guard lock(log_mutex);
    options.log(fmt::format(
        "{}: {} tokens of prompt, {} of them read before; {} written, {:.2f} s, {:.2f} of them "
        "waiting{}",
        printable(path), served.prompt_tokens, served.reused_tokens, r.ids.size(), seconds.count(),
        request.waited(), r.finish == FinishReason::cancelled ? ", given up" : ""));
  }

  // -- routes -------------------------------------------------------------------------------------

  void answer_or_error(Exchange& request, httplib::Response& response) {
    try {
      answer(request, response);
    } catch (const RequestError& e) {
      set_error(response, e.status(), e.what(), e.parameter(), e.code());
      if (e.status() == 429 || e.status() == 503)
        response.set_header("Retry-After", std::to_string(service.seconds_to_wait()));
    } catch (const std::exception& e) {
      set_error(response, 500, on_one_line(e));
    }
    if (!response.content_provider_) request.connection.begin_drain();
  }

  void answer(Exchange& request, httplib::Response& response) {
    const std::string& method = request.head.method;
    const std::string route = route_of(request.head.path);
    const bool get = method == "GET" || method == "HEAD", post = method == "POST";
    const bool completion = route == "/completions", chat = route == "/chat/completions";
    constexpr std::string_view kModel = "/models/";
    if (completion || chat) {
      if (post)
        return complete(chat ? RequestKind::chat : RequestKind::completion, request, response);
    } else if (route == "/health") {
      if (get) return response.set_content(R"({"status":"ok"})", "application/json");
    } else if (route == "/metrics") {
      if (get) return response.set_content(metrics(), "text/plain; version=0.0.4");
    } else if (route == "/models") {
      if (get)
        return response.set_content(text_of({{"object", "list"}, {"data", Json::array({model()})}}),
                                    "application/json");
    } else if (route.starts_with(kModel)) {
      if (get && route.substr(kModel.size()) == options.model_name)
        return response.set_content(text_of(model()), "application/json");
      if (get)
        return set_error(response, 404,
                         fmt::format("there is no model '{}', but '{}'",
                                     printable(route.substr(kModel.size())), options.model_name),
                         "model", "model_not_found");
    } else {
      return set_error(response, 404,
                       fmt::format("no {} {}; there are GET /health, GET /metrics, GET /v1/models, "
                                   "POST /v1/completions, POST /v1/chat/completions",
                                   printable(method, 20), printable(request.head.path)));
    }
    const char* allowed = completion || chat ? "POST" : "GET";
    response.set_header("Allow", completion || chat ? "POST, OPTIONS" : "GET, HEAD, OPTIONS");
    set_error(response, 405,
              fmt::format("{} {} is not answered; use {}", printable(method, 20),
                          printable(request.head.path), allowed));
  }

  Json model() const {
    Json json{{"id", options.model_name},
              {"object", "model"},
              {"created", started},
              {"owned_by", "episodic"}};
    if (const std::int64_t most = service.options().max_tokens; most > 0)
      json["max_model_len"] = most;
    return json;
  }

  std::string metrics() const {
    const ServiceCounters c = service.counters();
    std::string out;
    const auto add = [&](const char* name, const char* type, const char* help, auto value) {
      out += fmt::format("# HELP episodic_{0} {1}\n# TYPE episodic_{0} {2}\nepisodic_{0} {3}\n",
                         name, help, type, value);
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

  // -- completions --------------------------------------------------------------------------------

  void complete(RequestKind kind, Exchange& exchange, httplib::Response& response) {
    const auto began = Clock::now();
    Service::Place place = service.take_place();
    ServedRequest parsed = parse_request(kind, exchange.body, options.defaults);
    exchange.body = {};
    exchange.connection.release_body();
    ChatPrompt prompt = service.prepare(parsed);
    const bool stream = parsed.stream, usage = parsed.stream_usage;
    const Answer form{kind,
                      fmt::format("{}-{}-{}", kind == RequestKind::chat ? "chatcmpl" : "cmpl",
                                  started, ++requests),
                      options.model_name, static_cast<std::int64_t>(std::time(nullptr))};
    const auto asked = std::make_shared<Asked>(
        service, service.submit(std::move(place), std::move(parsed), std::move(prompt)));
    if (!stream) return answer_whole(exchange, asked->request, form, began, response);
    const auto write = [this, asked, form, began, usage, &exchange](std::size_t,
                                                                    httplib::DataSink& sink) {
      return answer_stream(exchange, asked->request, form, usage, began, sink);
    };
    response.set_header("Cache-Control", "no-cache");
    response.set_header("X-Accel-Buffering", "no");  // a proxy hands on what it has
    if (exchange.head.minor == 1)
      response.set_chunked_content_provider("text/event-stream", write);
    else  // has no chunks: the answer ends with the connection
      response.set_content_provider("text/event-stream", write);
  }

  /// Looks after the client while its request is on the way. \param probe sends it what means
  /// nothing \return false: it has gone, or nobody waits for the answer any more
  template <class Probe>
  bool still_wanted(Connection& connection, InFlight& request, Clock::time_point& probed,
                    const Probe& probe) {
    if (!request.wanted()) {  // overdue, or the server stops
      service.withdraw(request, request.given_up());
      return false;
    }
    Connection::Client client = connection.client();
    if (client == Connection::Client::quiet && Clock::now() - probed > kProbe) {
      probed = Clock::now();
      probe();
      client = connection.client();
    }
    if (client != Connection::Client::gone) return true;
    service.withdraw(request, GivenUp::client_left);
    return false;
  }

  void answer_whole(Exchange& exchange, const std::shared_ptr<InFlight>& request,
                    const Answer& form, Clock::time_point began, httplib::Response& response) {
    Connection& connection = exchange.connection;
    Clock::time_point probed{};
    while (!request->wait(kLook).ended &&
           still_wanted(connection, *request, probed, [&] { connection.probe(); })) {
    }
    if (!request->ended() || request->given_up() != GivenUp::no)
      return set_given_up(exchange, *request, began, response);
    const Served& served = request->served();
    log(exchange.head.path, *request, served, began);
    response.set_content(text_of(form.whole(served)), "application/json");
  }

  void set_given_up(const Exchange& exchange, const InFlight& request, Clock::time_point began,
                    httplib::Response& response) {
    log_given_up(exchange, request, began);
    set_error(response, 503, given_up_message(request.given_up()));
    response.set_header("Retry-After", std::to_string(service.seconds_to_wait()));
  }

  void log_given_up(const Exchange& exchange, const InFlight& request, Clock::time_point began) {
    Served none;
    none.result.finish = FinishReason::cancelled;
    none.prompt_tokens =
        static_cast<std::int64_t>(request.prompt().text.size() + request.prompt().question.size());
    log(exchange.head.path, request, none, began);
  }

  /// \return false where the answer breaks off: the connection then ends without the last chunk
  bool answer_stream(Exchange& exchange, const std::shared_ptr<InFlight>& request,
                     const Answer& form, bool usage, Clock::time_point began,
                     httplib::DataSink& sink) {
    Connection& connection = exchange.connection;
    Clock::time_point probed{}, sent = Clock::now();
    const auto write = [&](const std::string& text) {
      sent = Clock::now();
      return sink.write(text.data(), text.size());
    };
    const auto send = [&](const std::string& data) { return write("data: " + data + "\n\n"); };
    const auto say_nothing = [&] { write(": waiting\n\n"); };
    bool first = true, whole = false;
    for (;;) {
      const InFlight::News news = request->wait(kLook);
      if (request->ended()) connection.begin_drain();  // from now on it waits for the client alone
      bool taken = true;
      for (const std::string& text : news.parts) {
        if (text.empty() && !first) continue;
        taken = send(text_of(form.part(text, std::exchange(first, false), nullptr)));
        if (!taken || request->given_up() != GivenUp::no) break;
      }
      if (!taken) service.withdraw(*request, GivenUp::client_left);
      whole = news.ended && request->given_up() == GivenUp::no;
      if (news.ended || !taken || !still_wanted(connection, *request, probed, say_nothing)) break;
      if (Clock::now() - sent > options.silence) say_nothing();
    }
    connection.begin_drain();
    try {
      if (!whole) {
        log_given_up(exchange, *request, began);
        const GivenUp why = request->given_up();
        if (why == GivenUp::client_left || why == GivenUp::client_slow) return false;
        send(error_body(503, given_up_message(why)));
      } else {
        const Served& served = request->served();
        log(exchange.head.path, *request, served, began);
        send(text_of(form.part("", first, finish_of(served.result.finish))));
        if (usage) {
          Json last = form.head(true);
          last["choices"] = Json::array();
          last["usage"] = Answer::usage(served);
          send(text_of(last));
        }
      }
    } catch (const std::exception& e) {  // the status has been sent
      send(error_body(500, on_one_line(e)));
    }
    send("[DONE]");
    sink.done();
    return true;
  }
};

HttpServer::HttpServer(Service& service, ServerOptions options)
    : impl_(std::make_unique<Impl>(service, std::move(options))) {}

HttpServer::~HttpServer() { stop(); }

int HttpServer::bind(const std::string& host, int port) {
  const int bound = impl_->gate.bind(host, port);
  if (bound <= 0)
    throw ConfigError(fmt::format(
        "--port, --host: {}:{} cannot be listened at; another program may do so already, or the "
        "address is none of this machine",
        printable(host), port));
  return bound;
}

void HttpServer::listen() { impl_->gate.run(); }

void HttpServer::stop() {
  impl_->service.stop();
  impl_->gate.stop();
}

}  // namespace episodic::tools
