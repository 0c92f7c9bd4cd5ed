// SPDX-License-Identifier: Apache-2.0
#include "server_client.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>
#include <utility>

#include "base/strict_json.hpp"
#if EPISODIC_HTTP
#include <httplib.h>
#include <sys/socket.h>
#endif

namespace episodic::tools {
namespace {

constexpr std::size_t kLongestReply = std::size_t{256} << 20;
constexpr std::size_t kLongestEvent = std::size_t{64} << 20;

#if EPISODIC_HTTP
constexpr auto kConnecting = std::chrono::seconds(10);
constexpr auto kSilence = std::chrono::seconds(120);  // a stream that waits says so every 15
constexpr auto kPause = std::chrono::milliseconds(50);

std::string_view reason_of(httplib::Error error) {
  switch (error) {
    case httplib::Error::Connection:
    case httplib::Error::ConnectionTimeout:
      return "nobody answers there; start it with `episodic serve`, or look whether the address is "
             "right";
    default:
      return "the connection ended before the answer was complete: the server may have been "
             "stopped; ask again once it is back";
  }
}
#endif

nlohmann::ordered_json parsed(const std::string& text, const std::string& label) {
  JsonLimits limits;
  limits.depth = 64;
  limits.bytes = kLongestReply;
  limits.remedy = "look whether `episodic serve` answers there";
  return parse_ordered(text, label, limits);
}

}  // namespace

/// One request and what comes back. Used by two threads: one that waits for the server, and the
/// one that asked.
struct ServerClient::Exchange {
  std::function<bool()> stop;                     // may be empty
  std::function<bool(std::string& bytes)> taken;  // on the asking thread; false: no more is wanted

  int status = 0;
  std::string bytes;  // that `taken` has left
  bool stopped = false;
};

std::string path_part(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '.' || c == '_' || c == '-';
    out += plain ? std::string(1, c) : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  return out;
}

ServerClient::ServerClient(std::string address, std::string key)
    : address_(std::move(address)), key_(std::move(key)) {
  std::string_view rest = address_;
  const auto wrong = [&](const std::string& why) {
    return ConfigError(fmt::format("'{}' is no address of a server: {}", printable(address_), why));
  };
  if (rest.starts_with("https://"))
    throw wrong("there is no TLS here; use http://HOST:PORT of a proxy on this machine");
  if (rest.starts_with("unix:")) {
    rest.remove_prefix(5);
    if (rest.empty()) throw wrong("name the socket's path behind unix:");
    host_ = std::filesystem::absolute(std::string(rest)).string();
  } else if (rest.starts_with("http://")) {
    rest.remove_prefix(7);
    for (const std::string_view end : {"/", "/v1"})
      if (rest.ends_with(end)) rest.remove_suffix(end.size());
    const std::size_t colon =
        rest.ends_with(']') ? std::string_view::npos : rest.rfind(':');  // [::1]
    port_ = 80;
    if (colon != std::string_view::npos) {
      const std::string_view digits = rest.substr(colon + 1);
      const auto [end, error] =
          std::from_chars(digits.data(), digits.data() + digits.size(), port_);
      if (error != std::errc() || end != digits.data() + digits.size() || port_ < 1 ||
          port_ > 65535)
        throw wrong("the port is a number of 1 to 65535");
      rest = rest.substr(0, colon);
    }
    if (rest.starts_with('[') && rest.ends_with(']')) rest = rest.substr(1, rest.size() - 2);
    if (rest.empty() || rest.find_first_of("/?#@ ") != std::string_view::npos)
      throw wrong("use http://HOST:PORT or unix:PATH");
    host_ = rest;
  } else {
    throw wrong("use http://HOST:PORT or unix:PATH");
  }
#if !EPISODIC_HTTP
  throw NotBuiltError(
      "this program was built without an HTTP library; install cpp-httplib of version 0.11 to 0.15 "
      "(libcpp-httplib-dev of Debian 12) and build it again");
#endif
}

#if EPISODIC_HTTP
void ServerClient::exchange(const char* method, const std::string& path, const std::string& body,
                            Exchange& exchange) const {
  httplib::Client client(host_, port_ == 0 ? 80 : port_);
  client.set_connection_timeout(kConnecting);
  client.set_read_timeout(kSilence);
  client.set_write_timeout(kSilence);
  client.set_tcp_nodelay(true);
  if (port_ == 0) {
    client.set_address_family(AF_UNIX);
    client.set_tcp_nodelay(false);
  }
  httplib::Request request;
  request.method = method;
  request.path = "/v1" + path;
  request.body = body;
  if (port_ == 0) request.set_header("Host", "localhost");
  if (!body.empty()) request.set_header("Content-Type", "application/json");
  if (!key_.empty()) request.set_header("Authorization", "Bearer " + key_);

  std::mutex mutex;
  std::condition_variable news;
  std::string arrived;
  bool unwanted = false, ended = false;
  httplib::Error error = httplib::Error::Success;
  request.response_handler = [&](const httplib::Response& response) {
    const std::lock_guard lock(mutex);
    exchange.status = response.status;
    return true;
  };
  request.content_receiver = [&](const char* data, std::size_t n, std::uint64_t, std::uint64_t) {
    const std::lock_guard lock(mutex);
    arrived.append(data, n);
    news.notify_one();
    return !unwanted;
  };
  std::thread waiter([&] {
    const httplib::Result result = client.send(request);
    const std::lock_guard lock(mutex);
    error = result.error();
    ended = true;
    news.notify_one();
  });
  const auto end = [&] {  // however long the server would say nothing
    std::unique_lock lock(mutex);
    unwanted = true;
    while (!ended) {
      lock.unlock();
      client.stop();
      lock.lock();
      news.wait_for(lock, kPause, [&] { return ended; });
    }
    lock.unlock();
    waiter.join();
  };
  try {
    for (bool last = false; !last && !exchange.stopped;) {
      {
        std::unique_lock lock(mutex);
        news.wait_for(lock, kPause, [&] { return ended || !arrived.empty(); });
        exchange.bytes += arrived;
        arrived.clear();
        last = ended;
      }
      if (exchange.bytes.size() > kLongestReply)
        throw ServerError(fmt::format("{}: the answer is too long", address_), 0);
      if (exchange.status == 200 && exchange.taken && !exchange.taken(exchange.bytes))
        exchange.stopped = true;
      if (exchange.stop && exchange.stop()) exchange.stopped = true;
    }
  } catch (...) {
    end();
    throw;
  }
  end();
  if (!exchange.stopped && error != httplib::Error::Success)
    throw ServerError(fmt::format("{}: {}", address_, reason_of(error)), 0);
}
#else
void ServerClient::exchange(const char*, const std::string&, const std::string&, Exchange&) const {}
#endif

void ServerClient::refuse(int status, const std::string& body) const {
  std::string said;
  try {
    said = parsed(body, address_).at("error").at("message").get<std::string>();
  } catch (const std::exception&) {  // what answers is no `episodic serve`, or a proxy before it
    said = fmt::format("status {} without a reason; is it `episodic serve`?", status);
  }
  if (status == 401)
    said += "; the key is the first one in --api-key-file, else that of EPISODIC_API_KEY";
  throw ServerError(fmt::format("{}: {}", address_, said), status);
}

ServerClient::Json ServerClient::whole(const char* method, const std::string& path,
                                       const std::string& body) const {
  Exchange asked;
  exchange(method, path, body, asked);
  if (asked.status < 200 || asked.status >= 300) refuse(asked.status, asked.bytes);
  try {
    return parsed(asked.bytes, address_ + path);
  } catch (const Error& e) {
    throw ServerError(e.what(), 0);
  }
}

ServerClient::Json ServerClient::get(const std::string& path) const {
  return whole("GET", path, "");
}

ServerClient::Json ServerClient::post(const std::string& path, const Json& body) const {
  return whole("POST", path, body.dump(-1, ' ', false, Json::error_handler_t::replace));
}

bool ServerClient::stream(const std::string& path, const Json& body,
                          const std::function<bool(const std::string&)>& event,
                          const std::function<bool()>& stop) const {
  Exchange asked;
  bool done = false;
  asked.stop = stop;
  asked.taken = [&](std::string& bytes) {
    std::size_t from = 0;
    for (std::size_t end = 0; (end = bytes.find('\n', from)) != std::string::npos; from = end + 1) {
      std::string_view line = std::string_view(bytes).substr(from, end - from);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (done || !line.starts_with("data:")) continue;
      line.remove_prefix(5);
      if (line.starts_with(' ')) line.remove_prefix(1);
      if (line == "[DONE]")
        done = true;
      else if (!event(std::string(line)))
        return false;
    }
    bytes.erase(0, from);
    if (bytes.size() > kLongestEvent)
      throw ServerError(fmt::format("{}: a line of the stream is too long", address_), 0);
    return true;
  };
  try {
    exchange("POST", path, body.dump(-1, ' ', false, Json::error_handler_t::replace), asked);
  } catch (const ServerError&) {
    if (!done) throw;
  }
  if (done) return true;
  if (asked.stopped) return false;
  if (asked.status != 200) refuse(asked.status, asked.bytes);
#if EPISODIC_HTTP
  throw ServerError(fmt::format("{}: {}", address_, reason_of(httplib::Error::Read)), 0);
#else
  return false;
#endif
}

}  // namespace episodic::tools
