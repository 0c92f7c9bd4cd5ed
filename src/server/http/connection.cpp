// SPDX-License-Identifier: Apache-2.0
#include "http/connection.hpp"

#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

namespace episodic::server {
namespace {

using std::chrono::milliseconds;

// The system would let it grow to megabytes for a client that reads slowly, which would be noticed
// that much later.
constexpr int kSendBuffer = 128 << 10;

void set(int socket, int level, int option, int value) {
  setsockopt(socket, level, option, &value, sizeof value);
}

/// Waits for a socket. \return its events; 0: none until then
short wait_for(int socket, short events, Clock::time_point until) {
  for (;;) {
    const auto left = std::chrono::ceil<milliseconds>(until - Clock::now()).count();
    pollfd entry{socket, events, 0};
    const int n = poll(&entry, 1, static_cast<int>(std::clamp<std::int64_t>(left, 0, 60'000)));
    if (n > 0) return entry.revents;
    if (n == 0 && left <= 60'000) return 0;
  }
}

}  // namespace

const char* reason_of(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 415:
      return "Unsupported Media Type";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

Connection::Connection(int socket, const ConnectionLimits& limits, Bodies& bodies, bool local)
    : socket_(socket), limits_(limits), bodies_(bodies), local_(local) {
  set(socket, SOL_SOCKET, SO_SNDBUF, kSendBuffer);
  wait_for_client(true);
  if (local) return;
  set(socket, IPPROTO_TCP, TCP_NODELAY, 1);  // a token is a packet
  // notices a machine that has gone without a word
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, 60);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set(socket, IPPROTO_TCP, TCP_KEEPCNT, 6);
}

Connection::~Connection() {
  release_body();
  close(socket_);
}

void Connection::wait_for_client(bool waits) {
  waits_since_ = waits ? Clock::now().time_since_epoch().count() : 0;
}

std::optional<Clock::time_point> Connection::waits_since() const {
  const Clock::rep since = waits_since_;
  if (since == 0) return {};
  return Clock::time_point(Clock::duration(since));
}

void Connection::cut(bool answer) { shutdown(socket_, answer ? SHUT_RD : SHUT_RDWR); }

std::size_t Connection::receive(char* bytes, std::size_t n, Clock::time_point until) {
  for (;;) {
    const ssize_t got = recv(socket_, bytes, n, MSG_DONTWAIT);
    if (got > 0) return static_cast<std::size_t>(got);
    if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) return 0;
    if (wait_for(socket_, POLLIN, until) == 0) {
      timed_out_ = true;
      return 0;
    }
  }
}

std::optional<HttpHead> Connection::read_head() {
  wait_for_client(true);
  drain_.reset();
  timed_out_ = false;
  old_version_ = false;
  HeadScanner scanner(limits_.head);
  std::array<char, 16 << 10> buffer;
  Clock::time_point until =
      Clock::now() + (received_.empty() ? limits_.idle_time : limits_.head_time);
  std::size_t end = 0;
  bool begun = false, blank = false;
  for (;;) {
    if (!begun && !blank && received_.starts_with("\r\n")) {  // some send it behind a body
      received_.erase(0, 2);
      blank = true;
    }
    if (!begun && !received_.empty() && (blank || received_ != "\r")) {
      begun = true;
      until = Clock::now() + limits_.head_time;
    }
    if (begun && (end = scanner.scan(received_)) > 0) break;
    const std::size_t n = receive(buffer.data(), buffer.size(), until);
    if (n == 0 && timed_out_ && begun)
      throw HttpError(408, "the request's head did not come in time");
    if (n == 0) return {};
    received_.append(buffer.data(), n);
  }
  HttpHead head = parse_head(std::string_view(received_).substr(0, end));
  received_.erase(0, end);
  old_version_ = head.minor == 0;
  return head;
}

void Connection::count_body(std::size_t bytes) {
  bodies_.held += bytes;
  body_bytes_ += bytes;
  if (bodies_.held > limits_.bodies)
    throw HttpError(503, "the requests that come in now are too long for the server's memory");
}

void Connection::release_body() {
  bodies_.held -= body_bytes_;
  body_bytes_ = 0;
}

std::string Connection::read_body(const HttpHead& head) {
  std::string body;
  const std::size_t longest = bodies_.longest;
  if (head.length && *head.length > longest)
    throw HttpError(413, fmt::format("the request is longer than {} bytes", longest));
  if (const std::string* coding = head.find("content-encoding");
      coding && lower(*coding) != "identity" && head.has_body())
    throw HttpError(415, "a compressed request is not read; send it as it is");
  if (const std::string* expect = head.find("expect")) {
    if (lower(*expect) != "100-continue") throw HttpError(417, "only 100-continue can be expected");
    if (head.has_body() && received_.empty() && head.minor == 1)
      send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  ChunkReader chunks(longest, body);
  const auto take = [&] {  // what has arrived
    const std::size_t before = body.size();
    std::size_t used = received_.size();
    if (head.chunked) {
      used = chunks.read(received_);
    } else {
      used = std::min<std::size_t>(used, head.length.value_or(0) - body.size());
      body.append(received_, 0, used);
    }
    received_.erase(0, used);
    count_body(body.size() - before);
    return head.chunked ? chunks.done() : body.size() == head.length.value_or(0);
  };
  const Clock::time_point began = Clock::now();
  std::array<char, 64 << 10> buffer;
  while (!take()) {
    const auto by_rate = milliseconds(1000 * body.size() / limits_.rate);
    const std::size_t n =
        receive(buffer.data(), buffer.size(), began + limits_.body_time + by_rate);
    if (n == 0 && timed_out_) throw HttpError(408, "the request's body did not come in time");
    if (n == 0) throw HttpError(400, "the connection ended before the request's body did");
    received_.append(buffer.data(), n);
  }
  wait_for_client(false);
  return body;
}

void Connection::begin_drain() {
  if (drain_) return;
  drain_ = Clock::now() + limits_.drain_time;
  wait_for_client(true);
}

bool Connection::send(std::string_view bytes) {
  Clock::time_point progress = Clock::now();
  while (!bytes.empty() && !broken_) {
    const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<std::size_t>(sent));
      progress = Clock::now();
      continue;
    }
    if (sent < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) {
      broken_ = true;
      break;
    }
    Clock::time_point until = progress + limits_.stall_time;
    if (drain_) until = std::min(until, *drain_);
    const short events = wait_for(socket_, POLLOUT, until);
    if (events == 0 || (events & (POLLERR | POLLHUP)) != 0) broken_ = true;
  }
  return !broken_;
}

bool Connection::reply(int status, std::string_view body, const Headers& headers, bool close,
                       bool head_only) {
  begin_drain();
  std::string out = fmt::format("HTTP/1.1 {} {}\r\n", status, reason_of(status));
  for (const auto& [name, value] : headers) out += fmt::format("{}: {}\r\n", name, value);
  if (!body.empty()) out += "Content-Type: application/json\r\n";
  if (status != 204) out += fmt::format("Content-Length: {}\r\n", body.size());
  out += close ? "Connection: close\r\n\r\n" : "\r\n";
  if (!head_only) out += body;
  return send(out);
}

void Connection::finish() {
  wait_for_client(true);
  shutdown(socket_, SHUT_WR);
  const Clock::time_point until = Clock::now() + limits_.finish_time;
  std::array<char, 64 << 10> buffer;
  std::size_t most = 64 << 20;
  while (most > 0) {
    const std::size_t n = receive(buffer.data(), std::min(most, buffer.size()), until);
    if (n == 0 || Clock::now() > until) return;
    most -= n;
  }
}

Connection::Client Connection::client() const {
  pollfd entry{socket_, POLLRDHUP, 0};
  if (broken_) return Client::gone;
  if (poll(&entry, 1, 0) <= 0) return Client::here;
  if ((entry.revents & (POLLERR | POLLHUP | POLLNVAL)) != 0) return Client::gone;
  // HTTP/1.0 has no answer that means nothing, and so no way to find out
  return (entry.revents & POLLRDHUP) != 0 ? (old_version_ ? Client::gone : Client::quiet)
                                          : Client::here;
}

void Connection::probe() { send("HTTP/1.1 100 Continue\r\n\r\n"); }

}  // namespace episodic::server
