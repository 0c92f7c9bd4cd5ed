// SPDX-License-Identifier: Apache-2.0
#pragma once
// The server's sockets: who gets in, and how long it may keep the server waiting.

#include <httplib.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "http/access.hpp"
#include "http/connection.hpp"
#include "http/http_head.hpp"
#include "http/local_socket.hpp"

namespace episodic::server {

/// A request that may be answered.
struct Exchange {
  Connection& connection;
  const HttpHead& head;
  std::string body;
};

/// cpp-httplib (0.11 to 0.15: CMakeLists.txt) binds the port and writes the answers. What comes in
/// is read here, because the library (0.11) bounds each read but not a head or a body as a whole,
/// has no limit on headers, reads them before anything can be refused, and takes lengths that are
/// none. For this the Gate accepts connections itself, reads a request under ConnectionLimits and
/// Access, and hands `process_request` a stream that holds a first line only. Each connection has a
/// thread. Where all places are taken, the connection goes that has kept the server waiting
/// longest: whoever is slow harms the slow. Where all of them are being answered, further ones may
/// ask for the server's status alone, on places of a small reserve.
class Gate final : private httplib::Server {
 public:
  using Answer = std::function<void(Exchange&, httplib::Response&)>;
  /// Throws an HttpError for a request that is not to be answered.
  using Check = std::function<void(const HttpHead&)>;

  /// \param check is asked once the head is there, before a body is read \param answer makes an
  /// answer, on the connection's thread; its content providers are called there too, while the
  /// Exchange lives
  Gate(Access access, const ConnectionLimits& limits, Check check, Answer answer);
  ~Gate() override;

  /// \param port 0: any that is free \return the port; -1 where it cannot be taken
  int bind(const std::string& host, int port);
  /// The same at a path of the file system, beside a port or alone. \throws as LocalSocket
  void bind_socket(const std::filesystem::path& path);
  /// Of bodies from now on; ConnectionLimits::body before.
  void set_longest_body(std::size_t bytes) { bodies_.longest = bytes; }
  /// Until `stop`; returns when every connection has ended. After `bind` or `bind_socket`.
  void run();
  /// From any thread. What is being answered may be sent for stop_time more.
  void stop();

 private:
  struct Place {
    std::unique_ptr<Connection> connection;  // null once it has ended
    std::thread thread;
    bool reserve = false;
    bool cut = false;
    std::atomic<bool> leaves = false;  ///< what it asked is known, and its answer is the last
  };
  class FirstLine;

  void accept_from(int listener, bool local);
  void admit(int socket, bool local);
  bool cut_the_slowest(bool reserve);
  void remove_ended();
  void end_all();
  void serve(Place& place);
  bool serve_one(Place& place);

  const Access access_;
  const ConnectionLimits limits_;
  const Check check_;
  const Answer answer_;
  std::optional<LocalSocket> local_;
  Bodies bodies_;
  std::atomic<bool> stopping_ = false;
  int wake_;  // an eventfd
  std::mutex mutex_;
  std::condition_variable ended_;
  std::list<Place> places_;
};

}  // namespace episodic::server
