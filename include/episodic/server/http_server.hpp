// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `HttpServer`: the protocols that clients speak, over a Service.
///
/// \code
/// server::HttpServer http(service, {.model_name = "qwen"});
/// std::printf("http://127.0.0.1:%d/v1\n", http.bind("127.0.0.1", 0));
/// http.listen();  // until another thread calls http.stop()
/// \endcode

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "episodic/server/conversations.hpp"
#include "episodic/server/http_options.hpp"
#include "episodic/server/service.hpp"

namespace episodic::server {

struct ServerOptions {
  std::string model_name;    ///< what /v1/models calls the model
  AccessOptions access;      ///< who may ask
  GenerateOptions defaults;  ///< of what a request leaves open
  ConnectionLimits limits;
  /// After so long without a token a stream gets a line that says nothing, so that nobody on the
  /// way takes it for dead.
  std::chrono::milliseconds silence{15'000};
  /// Most tokens of a text that are read into a memory from one commit to the next.
  std::int64_t commit_tokens = 65536;
  /// Responses and conversations, which are kept where the service has memories by name.
  ConversationsOptions conversations;
  /// Hears of each request in a line, for people; from several threads, one at a time.
  std::function<void(const std::string&)> log;
};

/// What it answers stands in docs/serve.md. Requests wait for each other (Scheduler), connections
/// do not.
class HttpServer {
 public:
  /// \param service must outlive it \throws ConfigError for origins that are none, and for origin
  /// "*" without a key
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

}  // namespace episodic::server
