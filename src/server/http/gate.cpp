// SPDX-License-Identifier: Apache-2.0
#include "http/gate.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>

#include "protocol/answer_form.hpp"

namespace episodic::server {
namespace {

constexpr std::size_t kRequestsEach = 1000;  // of a connection
constexpr std::size_t kSpare = 64;  // threads that may be ending beside those that have a place
constexpr const char* kFull = "the server has as many connections as it can hold";

thread_local Exchange* answered = nullptr;  // by this thread

/// Leaves descriptors for the model and the memory.
ConnectionLimits fitting(ConnectionLimits limits) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0 && files.rlim_cur != RLIM_INFINITY)
    limits.connections =
        std::max<std::size_t>(4, std::min<std::size_t>(limits.connections, files.rlim_cur / 2));
  return limits;
}

}  // namespace

/// What the library reads of a request, and the way of its answer.
class Gate::FirstLine final : public httplib::Stream {
 public:
  FirstLine(Connection& connection, std::string text)
      : connection_(connection), text_(std::move(text)) {}

  bool is_readable() const override { return at_ < text_.size(); }
  bool is_writable() const override { return connection_.client() != Connection::Client::gone; }
  ssize_t read(char* bytes, size_t n) override {
    n = text_.copy(bytes, n, at_);
    at_ += n;
    return static_cast<ssize_t>(n);
  }
  ssize_t write(const char* bytes, size_t n) override {
    return connection_.send({bytes, n}) ? static_cast<ssize_t>(n) : -1;
  }
  void get_remote_ip_and_port(std::string&, int&) const override {}
  void get_local_ip_and_port(std::string&, int&) const override {}
  socket_t socket() const override { return INVALID_SOCKET; }  // asked only whether select() fits

 private:
  Connection& connection_;
  std::string text_;
  std::size_t at_ = 0;
};

Gate::Gate(Access access, const ConnectionLimits& limits, Check check, Answer answer)
    : access_(std::move(access)),
      limits_(fitting(limits)),
      check_(std::move(check)),
      answer_(std::move(answer)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  bodies_.longest = limits_.body;
  if (wake_ < 0) throw std::system_error(errno, std::generic_category(), "eventfd");
  // no other program takes the port at the same time
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  });
  set_keep_alive_max_count(kRequestsEach);
  set_keep_alive_timeout(
      std::chrono::duration_cast<std::chrono::seconds>(limits.idle_time).count());
  set_pre_routing_handler([this](const httplib::Request&, httplib::Response& response) {
    for (const auto& [name, value] : answered->connection.extra_headers)
      response.set_header(name, value);
    answer_(*answered, response);
    return HandlerResponse::Handled;
  });
}

Gate::~Gate() {
  if (svr_sock_ != INVALID_SOCKET) close(svr_sock_);
  close(wake_);
}

int Gate::bind(const std::string& host, int port) {
  const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
  // the library lets five wait, and the sixth of a burst would come a second later
  if (bound > 0) ::listen(svr_sock_, 512);
  return bound;
}

void Gate::stop() {
  stopping_ = true;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(wake_, &one, sizeof one);
}

void Gate::bind_socket(const std::filesystem::path& path) { local_.emplace(path); }

void Gate::accept_from(int listener, bool local) {
  const int socket = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (socket >= 0) {
    admit(socket, local);
  } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
    cut_the_slowest(false);
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    remove_ended();
  } else if (errno == EBADF || errno == EINVAL || errno == ENOTSOCK) {
    stopping_ = true;
  }  // else the client was gone before it was here
}

void Gate::run() {
  const int port = svr_sock_, local = local_ ? local_->fd() : -1;
  // the library sends nothing where it has no socket to listen at
  if (port == INVALID_SOCKET && local_) svr_sock_ = fcntl(local, F_DUPFD_CLOEXEC, 0);
  while (!stopping_) {
    std::array<pollfd, 3> waited{pollfd{port, POLLIN, 0}, pollfd{local, POLLIN, 0},
                                 pollfd{wake_, POLLIN, 0}};
    if (poll(waited.data(), waited.size(), -1) < 0 && errno != EINTR) break;
    if (stopping_) break;
    if (waited[0].revents != 0) accept_from(port, false);
    if (waited[1].revents != 0) accept_from(local, true);
  }
  end_all();
}

void Gate::remove_ended() {
  std::list<Place> ended;
  {
    const std::lock_guard lock(mutex_);
    for (auto at = places_.begin(); at != places_.end();) {
      const auto place = at++;
      if (!place->connection) ended.splice(ended.end(), places_, place);
    }
  }
  for (Place& place : ended) place.thread.join();
}

bool Gate::cut_the_slowest(bool reserve) {
  const std::lock_guard lock(mutex_);
  Place* slowest = nullptr;
  Clock::time_point oldest = Clock::time_point::max();
  for (Place& place : places_) {
    if (!place.connection || place.cut || place.reserve != reserve) continue;
    const auto since = place.connection->waits_since();
    if (!since || *since >= oldest) continue;
    oldest = *since;
    slowest = &place;
  }
  if (!slowest) return false;
  slowest->cut = true;
  slowest->connection->cut(false);
  return true;
}

void Gate::admit(int socket, bool local) {
  remove_ended();
  // usual, reserved: those that stay; waiting: those of the reserve whose answer is not made yet
  std::size_t all = 0, usual = 0, reserved = 0, waiting = 0;
  {
    const std::lock_guard lock(mutex_);
    all = places_.size();
    for (const Place& place : places_) {
      if (place.cut) continue;
      ++(place.reserve ? reserved : usual);
      if (place.reserve && !place.leaves) ++waiting;
    }
  }
  auto connection = std::make_unique<Connection>(socket, limits_, bodies_, local);
  const bool reserve = usual >= limits_.connections && !cut_the_slowest(false);
  // A client has its answer before its thread has ended: such a thread takes nobody's place.
  const bool full = reserve && reserved >= limits_.reserve && !cut_the_slowest(true) &&
                    waiting >= limits_.reserve;
  if (full || all >= limits_.connections + limits_.reserve + kSpare) {
    connection->reply(503, error_body(503, kFull), {{"Retry-After", "1"}}, true, false);
    return;
  }
  const std::lock_guard lock(mutex_);
  Place& place = places_.emplace_back();
  place.connection = std::move(connection);
  place.reserve = reserve;
  try {
    place.thread = std::thread([this, &place] {
      serve(place);
      const std::lock_guard ending(mutex_);
      place.connection.reset();
      ended_.notify_all();
    });
  } catch (const std::system_error&) {  // no more threads: as if it had never come
    places_.pop_back();
  }
}

void Gate::end_all() {
  // nobody gets in; the library takes a closed one as "do not send"
  shutdown(svr_sock_, SHUT_RDWR);
  if (local_) shutdown(local_->fd(), SHUT_RDWR);
  stopping_ = true;
  {
    std::unique_lock lock(mutex_);
    const auto until = Clock::now() + limits_.stop_time;
    const auto left = [&] {
      return std::any_of(places_.begin(), places_.end(),
                         [](const Place& place) { return place.connection != nullptr; });
    };
    while (left() && Clock::now() < until) {
      for (Place& place : places_)
        if (place.connection && place.connection->waits_since()) place.connection->cut(true);
      ended_.wait_for(lock, std::chrono::milliseconds(50));
    }
    for (Place& place : places_)
      if (place.connection) place.connection->cut(false);
  }
  for (Place& place : places_) place.thread.join();
  places_.clear();
}

void Gate::serve(Place& place) {
  try {
    for (std::size_t n = 0; n < kRequestsEach; ++n)
      if (!serve_one(place)) break;
    place.connection->finish();
  } catch (const std::exception&) {  // no memory: this connection ends, and no other
  }
}

bool Gate::serve_one(Place& place) {
  Connection& connection = *place.connection;
  HttpHead head;
  connection.extra_headers.clear();
  try {
    std::optional<HttpHead> read = stopping_ ? std::nullopt : connection.read_head();
    if (!read) return false;
    head = std::move(*read);
    place.leaves = place.reserve;
    connection.extra_headers = access_.cors_headers(head);
    access_.check(head, connection.local());
    check_(head);
    if (place.reserve && !asks_status(head)) throw HttpError(503, kFull);
    Exchange request{connection, head, connection.read_body(head)};
    const bool close = head.minor == 0 || !head.keeps_alive() || stopping_ || place.reserve;
    if (head.method == "OPTIONS")
      return connection.reply(204, "", access_.preflight_headers(head), close, false) && !close;
    answered = &request;
    FirstLine line(connection,
                   head.method == "HEAD" ? "HEAD / HTTP/1.1\r\n\r\n" : "GET / HTTP/1.1\r\n\r\n");
    bool closed = false;
    const bool sent = process_request(line, close, closed, {});
    answered = nullptr;
    connection.release_body();
    return sent && !closed && !close;
  } catch (const HttpError& e) {
    place.leaves = place.reserve;
    Headers headers = connection.extra_headers;
    if (e.status() == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
    if (e.status() == 503) headers.emplace_back("Retry-After", "1");
    connection.reply(e.status(),
                     error_body_at(head.path, e.status(), e.what(), "",
                                   e.status() == 401 ? "invalid_api_key" : ""),
                     headers, true, head.method == "HEAD");
    return false;
  }
}

}  // namespace episodic::server
