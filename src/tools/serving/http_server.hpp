// SPDX-License-Identifier: Apache-2.0
#pragma once
// The HTTP of `episodic serve`: OpenAI's routes over a Service.

#include <functional>
#include <memory>
#include <string>

#include "service.hpp"

namespace episodic::tools {

struct ServerOptions {
  std::string model_name;    ///< what /v1/models calls the model
  std::string api_key;       ///< what "Authorization: Bearer" must say; empty: anyone may ask
  GenerateOptions defaults;  ///< of what a request leaves open
  /// Hears of each request in a line, for people; from several threads, one at a time.
  std::function<void(const std::string&)> log;
};

/// GET /health, GET /v1/models, POST /v1/completions and /v1/chat/completions, with streams of
/// server-sent events. Requests wait for each other (Service).
class HttpServer {
 public:
  /// \param service must outlive it
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
