// SPDX-License-Identifier: Apache-2.0
#pragma once
// The HTTP of `episodic serve`: OpenAI's routes over a Service.

#include <functional>
#include <memory>
#include <string>

#include "access.hpp"
#include "connection.hpp"
#include "service.hpp"

namespace episodic::tools {

struct ServerOptions {
  std::string model_name;    ///< what /v1/models calls the model
  AccessOptions access;      ///< who may ask
  GenerateOptions defaults;  ///< of what a request leaves open
  ConnectionLimits limits;
  /// After so long without a token a stream gets a line that says nothing, so that nobody on the
  /// way takes it for dead.
  std::chrono::milliseconds silence{15'000};
  /// Hears of each request in a line, for people; from several threads, one at a time.
  std::function<void(const std::string&)> log;
};

/// GET /health, /metrics, /v1/models and /v1/models/NAME, POST /v1/completions and
/// /v1/chat/completions, with streams of server-sent events; all of them without /v1, too. Requests
/// wait for each other (Service), connections do not (Gate).
class HttpServer {
 public:
  /// \param service must outlive it \throws ConfigError as Access
  HttpServer(Service& service, ServerOptions options);
  ~HttpServer();

  /// \param port 0: any that is free \return the port \throws ConfigError where it cannot be taken
  int bind(const std::string& host, int port);
  /// Serves until `stop`. After `bind`.
  void listen();
  /// From any thread: ends what is being answered, and `listen`.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic::tools
