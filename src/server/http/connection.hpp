// SPDX-License-Identifier: Apache-2.0
#pragma once
// A client's connection whose every wait ends: for a head, a body, a reader that takes the answer.

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/server/http_options.hpp"
#include "http/http_head.hpp"

namespace episodic::server {

using Clock = std::chrono::steady_clock;
using Headers = std::vector<std::pair<std::string, std::string>>;

/// What all connections of a server share of the bodies that come in.
struct Bodies {
  std::atomic<std::size_t> held = 0;     ///< bytes of all of them
  std::atomic<std::size_t> longest = 0;  ///< bytes that one may have
};

/// One thread's, but for the functions that say otherwise.
class Connection {
 public:
  enum class Client : std::uint8_t {
    here,
    quiet,  ///< sends nothing any more: it may have gone, or waits for the answer (`nc -N`)
    gone,
  };

  /// \param socket is closed with it \param local over a socket of the file system
  Connection(int socket, const ConnectionLimits& limits, Bodies& bodies, bool local);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  ~Connection();

  bool local() const { return local_; }

  /// The next request's head. Nothing where the client closed, or sent no first byte in time.
  /// \throws HttpError
  std::optional<HttpHead> read_head();
  /// Its body, after "100 Continue" where the client waits for that. \throws HttpError
  std::string read_body(const HttpHead& head);
  /// A request without a body. The next one may stand behind it already.
  void release_body();

  /// False where the client takes nothing in time, or has gone; then nothing more is sent.
  bool send(std::string_view bytes);
  /// All that is still to be sent must be taken within drain_time from now.
  void begin_drain();
  /// An answer of the server's own. \param body JSON, may be empty
  bool reply(int status, std::string_view body, const Headers& headers, bool close, bool head_only);
  /// The last answer is sent: waits a little for what the client is still sending, for a socket
  /// closed over unread bytes takes back what was sent.
  void finish();

  /// Where the client is, without waiting. A client that is `quiet` shows that it has gone only
  /// when it is sent something.
  Client client() const;
  /// Sends a client that waits for an answer what means nothing: "100 Continue".
  void probe();

  // -- from any thread, while the connection lives

  /// When the server began to wait for the client; nothing where the client waits for the server.
  std::optional<Clock::time_point> waits_since() const;
  /// Ends every wait. \param answer whether what is being sent may still be
  void cut(bool answer);

  /// CORS headers of the request being answered.
  Headers extra_headers;

 private:
  /// \return bytes, 0: the client closed, or `until` has come (timed_out_)
  std::size_t receive(char* bytes, std::size_t n, Clock::time_point until);
  void wait_for_client(bool waits);
  void count_body(std::size_t bytes);

  const int socket_;
  const ConnectionLimits& limits_;
  Bodies& bodies_;
  const bool local_;
  std::size_t body_bytes_ = 0;  // counted in bodies_.held
  std::string received_;        // behind the last request
  bool timed_out_ = false, broken_ = false, old_version_ = false;
  std::optional<Clock::time_point> drain_;
  std::atomic<Clock::rep> waits_since_ = 0;  // 0: does not
};

const char* reason_of(int status);

}  // namespace episodic::server
