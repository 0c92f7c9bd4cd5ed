// SPDX-License-Identifier: Apache-2.0
// `episodic serve` and clients that are slow, gone, many, or say odd things: nobody stops the
// others.
#include "support/refusal.hpp"
#include "support/test.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>

#include <atomic>
#include <csignal>
#include <deque>
#include <thread>

#include "episodic/base/error.hpp"
#include "serving.hpp"

using namespace serving;

namespace {

const json kEndless{{"prompt", "The"}, {"max_tokens", 2'000'000'000}, {"ignore_eos", true}};
const json kShort{{"prompt", "The king said"}, {"max_tokens", 2}};

json with(json body, const json& more) {
  body.update(more);
  return body;
}

json endless(bool stream) { return with(kEndless, {{"stream", stream}}); }

/// Reads until there is something to read for.
struct ServedModel {
  std::unique_ptr<Engine> engine = engine_of(shipped());
};

/// A request that is being answered, and its client.
struct Busy {
  Raw client;

  /// Waits until its answer has begun.
  explicit Busy(const Running& running) : client(running) {
    REQUIRE(client.send(post_text(endless(true))));
    REQUIRE(client.receive("data: ").find("200 OK") != std::string::npos);
  }
};

std::size_t places(const Service& service) { return service.scheduler().counters().places; }

}  // namespace

TEST_CASE("serve: odd clients get an error that fits, and the next one is answered") {
  ServedModel model;
  SchedulerOptions limit;
  limit.max_tokens = 2000;
  Service service(*model.engine, limit);
  ServerOptions options;
  options.limits.head_time = options.limits.body_time = options.limits.idle_time =
      milliseconds(400);
  const Running running(service, options);
  const std::string ask = kShort.dump();
  const std::string length = fmt::format("Content-Length: {}\r\n", ask.size());
  const std::string host = "Host: localhost\r\n", last = "Connection: close\r\n";
  const auto head = [&](const std::string& lines,
                        const std::string& first = "POST /v1/completions") {
    return first + " HTTP/1.1\r\n" + host + last + lines + "\r\n";
  };
  struct Client {
    std::string sent;
    int status;
    std::string holds = {};
  };
  const std::vector<Client> clients = {
      // proper ones, if unusual
      {head(length) + ask, 200, "\"text\""},
      {head("content-length:" + std::to_string(ask.size()) + "\r\n") + ask, 200, "\"text\""},
      {head(length + "Content-Type: application/x-www-form-urlencoded\r\n") + ask, 200, "\"text\""},
      {head(length + "Content-Type: multipart/form-data; boundary=x\r\n") + ask, 200, "\"text\""},
      {head(length + "Range: bytes=0-3\r\n") + ask, 200, "\"text\""},
      {head(length + "Range: bytes=900000-\r\n") + ask, 200, "\"text\""},
      {head(length + "Expect: 100-continue\r\n") + ask, 200, "\"text\""},
      {head(length + "Accept-Encoding: gzip\r\nUpgrade: h2c\r\nTE: trailers\r\n") + ask, 200,
       "\"text\""},
      {head("Transfer-Encoding: chunked\r\n") +
           fmt::format("{:x}\r\n{}\r\n0\r\n\r\n", ask.size(), ask),
       200, "\"text\""},
      {head(length, "POST /completions") + ask, 200, "\"text\""},
      {head(length, "POST /v1/completions/") + ask, 200, "\"text\""},
      {head(length, "POST /v1/completions?api-version=1") + ask, 200, "\"text\""},
      {"\r\n" + head(length) + ask, 200, "\"text\""},
      {"POST /v1/completions HTTP/1.0\r\n" + length + "\r\n" + ask, 200, "Connection: close"},
      {head("", "GET /health"), 200, "ok"},
      {"GET /health HTTP/1.0\r\n\r\n", 200, "ok"},
      {head("Content-Length: 3\r\n", "GET /health") + "abc", 200, "ok"},
      {head("", "HEAD /health"), 200, "Content-Length: 15\r\n"},
      {head("", "HEAD /v1/models"), 200},
      {head("", "GET /v1/models/tiny"), 200, "\"id\":\"tiny\""},
      {head("", "GET /models/tin%79"), 200, "\"id\":\"tiny\""},
      {head("", "GET /v1/models"), 200, "\"max_model_len\":2000"},
      {head("", "GET /metrics"), 200, "episodic_requests_total"},
      {head("", "OPTIONS /v1/completions"), 204, "Allow: GET, HEAD, POST, DELETE, OPTIONS"},
      {head("", "OPTIONS *"), 204},
      // what is not there, or is asked for in another way
      {head("", "GET /v1/models/other"), 404, "model_not_found"},
      {head("", "GET /v1/models/" + std::string(8000, 'a')), 404, "..."},
      {head("", "GET /nothing"), 404, "no GET /nothing"},
      {head(length, "POST /v1/embeddings") + ask, 404},
      {head("", "GET /v1/completions"), 405, "Allow: POST"},
      {head("", "DELETE /v1/models/tiny"), 405, "Allow: GET"},
      {head("", "TRACE /health"), 405},
      {head("", "BREW /health"), 405},
      {head(""), 400, "the request"},  // no body
      {head("Content-Length: 0\r\n"), 400, "the request"},
      {head("Content-Length: 1\r\n") + "{", 400, "the request"},
      // no HTTP, or none that has one meaning
      {"\x16\x03\x01\x02\x00\x01", 400, "HTTPS"},
      {"hello\r\n\r\n", 400},
      {"GET /health\r\n\r\n", 400},
      {"GET /health HTTP/1.1\r\n\r\n", 400, "Host"},
      {"GET /health HTTP/1.1\nHost: localhost\n\n", 400},
      {"GET /health HTTP/3.0\r\n" + host + "\r\n", 505},
      {head("Host: localhost\r\n", "GET /health"), 400},
      {head("Content-Length: 0x10\r\n") + ask, 400, "Content-Length"},
      {head("Content-Length: -1\r\n") + ask, 400, "Content-Length"},
      {head(length + length) + ask, 400, "Content-Length"},
      {head(length + "Transfer-Encoding: chunked\r\n") + "0\r\n\r\n", 400},
      {head("Transfer-Encoding: gzip\r\n") + ask, 501},
      {head("Transfer-Encoding: chunked\r\n") + "zz\r\n", 400, "chunk"},
      {head("Content-Length: 99999999999\r\n") + ask, 413, "longer than 1176576 bytes"},
      {head("Transfer-Encoding: chunked\r\n") + "fffffff\r\n", 413},
      {head(length + "Content-Encoding: gzip\r\n") + ask, 415},
      {head(length + "Expect: tea\r\n") + ask, 417},
      {"GET /" + std::string(20'000, 'a'), 414},
      {"GET /health HTTP/1.1\r\nA: " + std::string(100'000, 'a'), 431},
      {head(std::string(2000, 'A') + "\x01: b\r\n"), 400},
      // who may not ask
      {"GET /v1/models HTTP/1.1\r\nHost: evil.example\r\n\r\n", 403, "Host"},
      {head(length + "Origin: http://evil.example\r\nContent-Type: text/plain\r\n") + ask, 403,
       "allowed origin"},
      {head("Origin: http://evil.example\r\nAccess-Control-Request-Method: POST\r\n",
            "OPTIONS /v1/completions"),
       403},
      // who does not end
      {"", 0},
      {"GET /health HT", 408},
      {head("Content-Length: 100\r\n") + "{\"prompt\"", 408},
      {head("Transfer-Encoding: chunked\r\n") + "5\r\nhel", 408},
  };
  REQUIRE(clients.size() >= 30);
  for (const Client& client : clients) {
    INFO(client.sent.substr(0, 200));
    Raw raw(running);
    raw.send(client.sent);
    const std::string answer = raw.receive();
    INFO(answer.substr(0, 2000));
    const std::size_t at = answer.starts_with("HTTP/1.1 100") ? answer.find("\r\n\r\n") + 4 : 0;
    const std::string_view final = std::string_view(answer).substr(at);
    REQUIRE((final.starts_with("HTTP/1.1 ") ? std::stoi(std::string(final.substr(9, 3))) : 0) ==
            client.status);
    REQUIRE(final.find(client.holds) != final.npos);
    REQUIRE(final.size() < 20'000);
    if (client.status >= 400 && !client.sent.starts_with("HEAD")) {
      const json error = json::parse(final.substr(final.find("\r\n\r\n") + 4));
      REQUIRE(error["error"]["message"].get<std::string>().find_first_of("\r\n") ==
              std::string::npos);
    }
  }
  REQUIRE(running.healthy());
  REQUIRE(places(service) == 0);
}

TEST_CASE("serve: requests one after another on a connection stay apart") {
  ServedModel model;
  Service service(*model.engine);
  const Running running(service);
  // two at once, and a body on a GET that is not the next request
  Raw raw(running);
  const std::string hidden = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
  raw.send("GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: " +
           std::to_string(hidden.size()) + "\r\n\r\n" + hidden + get("/v1/models"));
  const std::string answer = raw.receive();
  REQUIRE(answer.find("\"status\":\"ok\"") != std::string::npos);
  REQUIRE(answer.find("\"object\":\"list\"") != std::string::npos);
  REQUIRE(answer.find("episodic_requests_total") == std::string::npos);
  // behind an error nothing is read
  Raw wrong(running);
  wrong.send("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n" +
             get("/v1/models"));
  REQUIRE(wrong.receive().find("\"object\":\"list\"") == std::string::npos);
  // a proper client keeps its connection
  httplib::Client client = running.client();
  client.set_keep_alive(true);
  for (int i = 0; i < 20; ++i) {
    REQUIRE(client.Get("/health"));
    REQUIRE(client.Post("/v1/completions", kShort.dump(), "application/json")->status == 200);
  }
}

TEST_CASE("serve: connections that say nothing, or little, stop nobody") {
  ServedModel model;
  Service service(*model.engine);
  ServerOptions options;
  options.limits.connections = 20;
  options.limits.idle_time = options.limits.head_time = std::chrono::hours(1);  // not these help
  const Running running(service, options);
  Busy busy(running);
  std::deque<Raw> silent;
  for (int i = 0; i < 100; ++i) {  // five times as many as there are places
    silent.emplace_back(running);
    if (i % 2 == 0) silent.back().send("GET /health HTTP/1.1\r\nX: ");
    if (i % 10 == 0) {
      REQUIRE(running.healthy());
      REQUIRE(running.client().Get("/v1/models"));
    }
  }
  for (int round = 0; round < 5; ++round) {  // a byte now and then changes nothing
    for (Raw& raw : silent) raw.send("a");
    REQUIRE(running.healthy());
  }
  // who is being answered keeps its place
  REQUIRE(busy.client.receive("data: ").find("data: ") != std::string::npos);
}

TEST_CASE("serve: health and metrics are answered while every connection is in use") {
  ServedModel model;
  Service service(*model.engine);
  ServerOptions options;
  options.limits.connections = 6;
  options.limits.reserve = 2;
  options.limits.idle_time = options.limits.head_time = std::chrono::hours(1);  // not these help
  options.access.api_key = "secret";
  const Running running(service, options);
  const std::string key = "Authorization: Bearer secret\r\n";
  const auto status = [&](const std::string& path, const std::string& headers) {
    Raw raw(running);
    raw.send(get(path, headers));
    return raw.status();
  };
  std::deque<Raw> held;  // one whose answer is written, and that takes nothing; others that wait
  for (int i = 0; i < 6; ++i) {
    held.emplace_back(running, 4096);
    held.back().send(post_text(endless(true), key));
    REQUIRE(held.back().receive("\r\n\r\n").find("200 OK") != std::string::npos);
  }
  std::deque<Raw> silent;  // as many as want the reserve
  for (int i = 0; i < 20; ++i) {
    REQUIRE(status("/health", "") == 200);
    REQUIRE(status("/metrics", key) == 200);
    REQUIRE(status("/v1/metrics", key) == 200);
    REQUIRE(status("/metrics", "") == 401);
    REQUIRE(status("/v1/models", key) == 503);
    Raw asks(running);
    asks.send(post_text(kShort, key));
    const std::string refused = asks.receive();
    REQUIRE(refused.find("Retry-After: 1\r\n") != std::string::npos);
    REQUIRE(refused.find("as many connections as it can hold") != std::string::npos);
    silent.emplace_back(running);
    if (i % 2 == 0) silent.back().send("GET /health HTTP/1.1\r\nX: ");
  }
  REQUIRE(service.scheduler().counters().requests == 6);
  // the reserve takes no place of the others: there is one again as soon as one of them has gone
  silent.clear();
  held.pop_back();
  REQUIRE(comes([&] { return status("/v1/models", key) == 200; }));
}

TEST_CASE("serve: a head or a body that comes byte by byte is not waited for") {
  ServedModel model;
  Service service(*model.engine);
  ServerOptions options;
  options.limits.head_time = options.limits.body_time = milliseconds(300);
  options.limits.idle_time = options.limits.finish_time = milliseconds(300);
  const Running running(service, options);
  const auto drip = [&](const std::string& begin) {
    Raw raw(running);
    raw.send(begin);
    const auto since = std::chrono::steady_clock::now();
    while (raw.send("a") && std::chrono::steady_clock::now() - since < std::chrono::seconds(30))
      std::this_thread::sleep_for(milliseconds(20));
    return std::chrono::steady_clock::now() - since < std::chrono::seconds(30);
  };
  REQUIRE(drip("GET /health HTTP/1.1\r\nX: "));
  REQUIRE(
      drip("POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n"));
  Raw idle(running);
  REQUIRE(idle.status() == 0);  // closed without a word
  REQUIRE(running.healthy());
}

TEST_CASE("serve: millions of headers are not read") {
  ServedModel model;
  Service service(*model.engine);
  ServerOptions options;
  options.access.api_key = "secret";
  const Running running(service, options);
  Raw flood(running);
  flood.send("GET /v1/models HTTP/1.1\r\n");
  std::string block;
  for (int i = 0; i < 100; ++i) block += fmt::format("A{}: b\r\n", i);
  std::size_t sent = 0;
  while (sent < (std::size_t{64} << 20) && flood.send(block)) sent += block.size();
  REQUIRE(running.healthy());
  // no key: the body is not read either
  Raw large(running);
  large.send(
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000000\r\n\r\n");
  REQUIRE(large.status() == 401);
}

TEST_CASE("serve: a reader that takes nothing is given up, and others are answered meanwhile") {
  ServedModel model;
  SchedulerOptions limits;
  limits.in_flight.parts = 50;
  limits.in_flight.slow = milliseconds(200);
  Service service(*model.engine, limits);
  const Running running(service);
  Raw slow(running, 4096);
  slow.send(post_text(endless(true)));
  REQUIRE(slow.receive("data: ").find("200 OK") != std::string::npos);
  REQUIRE(running.healthy());
  REQUIRE(post(running, "/v1/completions", kShort.dump()).first == 200);
  REQUIRE(service.scheduler().counters().given_up == 1);
  // the same with one that takes a little now and then, so that no write fails
  Raw drop(running, 4096);
  drop.send(post_text(endless(true)));
  REQUIRE(drop.receive("data: ").find("200 OK") != std::string::npos);
  std::atomic<bool> answered = false;
  std::thread reader([&] {
    // slower than a server under a sanitizer on a busy machine writes
    while (!answered && !drop.receive_some(60).empty())
      std::this_thread::sleep_for(milliseconds(50));
  });
  const int status = post(running, "/v1/completions", kShort.dump()).first;
  answered = true;
  reader.join();
  REQUIRE(status == 200);
  REQUIRE(service.scheduler().counters().given_up == 2);
  // what it did not take does not look like a whole answer
  const std::string rest = slow.receive();
  REQUIRE(rest.find("[DONE]") == std::string::npos);
  REQUIRE(rest.find("\r\n0\r\n\r\n") == std::string::npos);
}

TEST_CASE("serve: nothing is computed for a client that has gone") {
  ServedModel model;
  Service service(*model.engine);
  const Running running(service);
  const auto given_up = [&](int n) {
    return comes(
        [&] { return service.scheduler().counters().given_up == static_cast<std::uint64_t>(n); });
  };
  const auto taken = [&](std::uint64_t n) {
    return comes([&] { return service.scheduler().counters().requests == n; });
  };
  // without a stream, while its answer is written
  Raw whole(running);
  whole.send(post_text(endless(false)));
  REQUIRE(taken(1));
  whole.leave();
  REQUIRE(given_up(1));
  // the same, by a reset
  Raw broken(running);
  broken.send(post_text(endless(false)));
  REQUIRE(taken(2));
  broken.reset();
  REQUIRE(given_up(2));
  // while its prompt is read, with a stream and without
  const json prompt(std::vector<int>(400'000, 5));
  for (const bool stream : {false, true}) {
    Raw reading(running);
    reading.send(post_text({{"prompt", prompt}, {"stream", stream}, {"max_tokens", 1}}));
    REQUIRE(taken(stream ? 4 : 3));
    reading.leave();
    REQUIRE(given_up(stream ? 4 : 3));
  }
  REQUIRE(service.scheduler().counters().written_tokens < 400'000);
  // a stream
  {
    Busy busy(running);
    busy.client.leave();
    REQUIRE(given_up(5));
  }
  // while it waits for another
  Busy busy(running);
  Raw waiting(running);
  waiting.send(post_text(endless(false)));
  REQUIRE(comes([&] { return places(service) == 2; }));
  waiting.leave();
  REQUIRE(comes([&] { return places(service) == 1; }));
  REQUIRE(given_up(6));
  busy.client.leave();
  REQUIRE(given_up(7));
  REQUIRE(post(running, "/v1/completions", kShort.dump()).first == 200);
  REQUIRE(comes([&] { return running.logged("given up") == 7; }));
}

TEST_CASE("serve: a client that only says that it sends no more gets its answer") {
  ServedModel model;
  Service service(*model.engine);
  const Running running(service);
  Raw stream(running);
  stream.send(
      post_text(with(kShort, {{"max_tokens", 100}, {"ignore_eos", true}, {"stream", true}})));
  stream.half_close();
  REQUIRE(stream.receive().find("data: [DONE]\n\n\r\n0\r\n\r\n") != std::string::npos);

  // while another is answered, so that it is surely found to be quiet
  auto busy = std::make_unique<Busy>(running);
  Raw whole(running);
  whole.send(post_text(kShort));
  whole.half_close();
  REQUIRE(whole.receive("\r\n\r\n").starts_with("HTTP/1.1 100 Continue\r\n\r\n"));
  busy.reset();
  const std::string answer = whole.receive();
  REQUIRE(answer.find("HTTP/1.1 200 OK") != std::string::npos);
  REQUIRE(answer.find("\"text\"") != std::string::npos);
}

TEST_CASE("serve: a burst is answered, each with its own; what is too much is told to come again") {
  ServedModel model;
  SchedulerOptions limits;
  limits.queue = 30;
  Service service(*model.engine, limits);
  const Running running(service);
  const std::string text =
      post(running, "/v1/completions", kShort.dump()).second["choices"][0]["text"];
  std::vector<std::thread> clients;
  std::atomic<int> right = 0;
  for (int i = 0; i < 24; ++i)
    clients.emplace_back([&] {
      const auto [status, answer] = post(running, "/v1/completions", kShort.dump());
      if (status == 200 && answer["choices"][0]["text"] == text) ++right;
    });
  REQUIRE(running.healthy());
  for (std::thread& client : clients) client.join();
  REQUIRE(right == 24);
  REQUIRE(places(service) == 0);

  Busy busy(running);
  std::deque<Raw> waiting;
  for (int i = 0; i < 30; ++i) {
    waiting.emplace_back(running);
    waiting.back().send(post_text(kShort));
  }
  REQUIRE(comes([&] { return places(service) == 31; }));
  REQUIRE(running.healthy());
  REQUIRE(running.client().Get("/v1/models")->status == 200);
  for (int i = 0; i < 3; ++i) {
    const auto refused =
        running.client().Post("/v1/completions", kShort.dump(), "application/json");
    REQUIRE(refused);
    REQUIRE(refused->status == 429);
    const int seconds = std::stoi(refused->get_header_value("Retry-After"));
    REQUIRE((seconds >= 1 && seconds <= 60));
    REQUIRE(json::parse(refused->body)["error"]["code"] == "rate_limit_exceeded");
  }
  busy.client.leave();
  for (Raw& raw : waiting) REQUIRE(raw.status() == 200);
  REQUIRE(service.scheduler().counters().refused == 3);
}

TEST_CASE("serve: a web page may ask where its origin is named") {
  ServedModel model;
  Service service(*model.engine);
  ServerOptions options;
  options.access.origins = {"http://localhost:3000"};
  const Running running(service, options);
  const std::string origin = "Origin: http://localhost:3000\r\n";
  const auto answer = [&](const std::string& text) {
    Raw raw(running);
    raw.send(text);
    return raw.receive();
  };
  const std::string asked = answer(
      "OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + origin +
      "Access-Control-Request-Method: POST\r\n"
      "Access-Control-Request-Headers: authorization, x-stainless-os\r\n\r\n");
  REQUIRE(asked.starts_with("HTTP/1.1 204"));
  for (const char* header :
       {"Access-Control-Allow-Origin: http://localhost:3000\r\n", "Vary: Origin\r\n",
        "Access-Control-Allow-Headers: authorization, x-stainless-os\r\n",
        "Access-Control-Allow-Methods: GET, HEAD, POST, DELETE, OPTIONS\r\n"})
    REQUIRE(asked.find(header) != std::string::npos);
  const std::string type = "Content-Type: application/json\r\n";
  for (const std::string& text :
       {answer(post_text(kShort, origin + type)), answer(get("/v1/models", origin)),
        answer(post_text({{"n", 2}}, origin + type)),                           // errors, too
        answer(post_text(with(kShort, {{"stream", true}}), origin + type))}) {  // and streams
    INFO(text);
    REQUIRE(text.find("Access-Control-Allow-Origin: http://localhost:3000\r\n") !=
            std::string::npos);
  }
  REQUIRE(answer(post_text(kShort, origin + "Content-Type: text/plain\r\n"))
              .starts_with("HTTP/1.1 415"));
  const std::string other = answer(get("/v1/models", "Origin: http://evil.example\r\n"));
  REQUIRE(other.starts_with("HTTP/1.1 403"));
  REQUIRE(other.find("Access-Control-Allow-Origin") == std::string::npos);
}

TEST_CASE("serve: a request comes to no more tokens than it may") {
  ServedModel model;
  SchedulerOptions limits;
  limits.max_tokens = 50;
  Service service(*model.engine, limits);
  const Running running(service);
  const auto [status, answer] = post(running, "/v1/completions", endless(false).dump());
  REQUIRE(status == 200);
  REQUIRE(answer["usage"]["total_tokens"] == 50);
  REQUIRE(answer["choices"][0]["finish_reason"] == "length");
  const auto [chat, said] =
      post(running, "/v1/completions",
           json{{"prompt", std::vector<int>(49, 5)}, {"max_tokens", 9}}.dump());
  REQUIRE(chat == 200);
  REQUIRE(said["usage"]["completion_tokens"] == 1);
  for (const int n : {50, 51, 5000}) {
    const auto [code, error] =
        post(running, "/v1/completions", json{{"prompt", std::vector<int>(n, 5)}}.dump());
    REQUIRE(code == 400);
    REQUIRE(error["error"]["code"] == "context_length_exceeded");
    REQUIRE(error["error"]["param"] == "prompt");
  }
}

TEST_CASE("serve: a request that takes longer than it may is ended") {
  ServedModel model;
  SchedulerOptions limits;
  limits.in_flight.whole = milliseconds(300);
  Service service(*model.engine, limits);
  const Running running(service);
  REQUIRE(post(running, "/v1/completions", endless(false).dump()).first == 503);
  Raw stream(running);
  stream.send(post_text(endless(true)));
  const std::string answer = stream.receive();
  REQUIRE(answer.starts_with("HTTP/1.1 200"));
  REQUIRE(answer.find("\"error\"") != std::string::npos);
  REQUIRE(answer.find("data: [DONE]\n\n\r\n0\r\n\r\n") != std::string::npos);
}

TEST_CASE("serve: a stream that waits is not silent") {
  ServedModel model;
  Service service(*model.engine);
  ServerOptions options;
  options.silence = milliseconds(50);
  const Running running(service, options);
  Busy busy(running);
  Raw waiting(running);
  waiting.send(post_text(with(kShort, {{"stream", true}})));
  const std::string first = waiting.receive(": waiting\n\n");
  REQUIRE(first.starts_with("HTTP/1.1 200"));
  REQUIRE(first.find(": waiting\n\n") != std::string::npos);
  busy.client.leave();
  REQUIRE(waiting.receive().find("[DONE]") != std::string::npos);
}

TEST_CASE("serve: when it stops, those who wait are told") {
  ServedModel model;
  Service service(*model.engine);
  Running running(service);
  Busy busy(running);
  std::deque<Raw> waiting, idle;
  for (int i = 0; i < 8; ++i) {
    waiting.emplace_back(running);
    waiting.back().send(post_text(kShort));
  }
  Raw answered(running);
  answered.send(post_text(with(kShort, {{"stream", true}})));
  for (int i = 0; i < 4; ++i) idle.emplace_back(running);
  REQUIRE(comes([&] { return places(service) == 10; }));
  running.server().stop();
  for (Raw& raw : waiting) {
    const std::string answer = raw.receive();
    INFO(answer);
    REQUIRE(answer.starts_with("HTTP/1.1 503"));
    REQUIRE(answer.find("Retry-After: ") != std::string::npos);
    REQUIRE(answer.find("going down") != std::string::npos);
  }
  REQUIRE(busy.client.receive().find("going down") != std::string::npos);
  REQUIRE(answered.receive().find("going down") != std::string::npos);
  for (Raw& raw : idle) REQUIRE(raw.status() == 0);
}

TEST_CASE("serve: full attention answers too, and again") {
  auto engine = load_engine(shipped());
  engine->attach_full_attention();
  Service service(*engine);
  const auto answer = [&](const std::string& prompt) {
    const Request request =
        parse_request(RequestKind::completion, json{{"prompt", prompt}}.dump(), few_tokens());
    return service.answer(request);
  };
  const auto alone = [&](const std::string& prompt) {
    auto fresh = load_engine(shipped());
    fresh->attach_full_attention();
    return fresh->generate(std::string_view(prompt), few_tokens()).ids;
  };
  const Served first = answer("The king said");
  REQUIRE(first.result.ids == alone("The king said"));
  REQUIRE(answer("Another day, the").result.ids == alone("Another day, the"));
  REQUIRE(answer("The king said").result.ids == first.result.ids);
  // what goes on behind an answer is not read again
  const Served next = answer("The king said" + first.result.text + " and");
  REQUIRE(next.result.ids == alone("The king said" + first.result.text + " and"));
}

TEST_CASE("serve: the program answers, and ends with success at SIGTERM") {
  const TempDir dir;
  const std::string model = shipped().string(), err = (dir / "err").string();
  for (const auto& [flag, draws] : {std::pair("--full-attention", "greedy"),
                                    std::pair("--temperature=0.625", "temperature 0.625")}) {
    // not fork: what libraries do at one waits for threads that the child does not have
    const std::vector<std::string> words{"episodic", "serve",     "--model", model, "--port",
                                         "0",        "--threads", "1",       flag};
    std::vector<char*> arguments;
    for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
    arguments.push_back(nullptr);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, 2, err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
    pid_t child = -1;
    REQUIRE(posix_spawn(&child, EPISODIC_BINARY_DIR "/bin/episodic", &actions, nullptr,
                        arguments.data(), environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    const auto port = [&] {
      const std::string said = program::contents(err);
      const std::size_t at = said.find("http://127.0.0.1:");
      return at == said.npos || said.find("/v1", at) == said.npos ? 0
                                                                  : std::stoi(said.substr(at + 17));
    };
    const bool started = comes([&] { return port() != 0; });
    int status = -1;
    if (started) {
      httplib::Client client("127.0.0.1", port());
      client.set_read_timeout(kPatience);
      const auto response = client.Post("/v1/completions", kShort.dump(), "application/json");
      status = response ? response->status : 0;
    }
    kill(child, SIGTERM);
    int ended = 0;
    const bool gone = comes([&] { return waitpid(child, &ended, WNOHANG) == child; });
    if (!gone) kill(child, SIGKILL);
    INFO(flag << "\n" << program::contents(err));
    REQUIRE(started);
    REQUIRE(status == 200);
    REQUIRE(mentions(program::contents(err),
                     std::string("where a request says nothing else: ") + draws));
    REQUIRE(gone);
    REQUIRE(WIFEXITED(ended));
    REQUIRE(WEXITSTATUS(ended) == 0);
  }
}
