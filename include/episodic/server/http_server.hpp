// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `HttpServer`: the protocols that clients speak, over a Service.
///
/// \code
/// server::HttpServer http(service, {.model_name = "qwen"});
/// const int port = http.bind("127.0.0.1", 0);  // http://127.0.0.1:PORT/v1
/// http.listen();  // until another thread calls http.stop()
/// \endcode
///
/// One that is asked while its model is still being loaded:
///
/// \code
/// server::HttpServer http({.model_name = "qwen"});
/// http.bind("127.0.0.1", 8080);
/// std::thread listener([&] { http.listen(); });  // /health: "loading model"
/// server::Service service(load_model(dir), start);
/// http.serve(service);
/// listener.join();
/// \endcode

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "episodic/model/sentence_encoder.hpp"
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
  std::shared_ptr<const SentenceEncoder> encoder;  ///< of /v1/embeddings; null: there are none
  std::string encoder_name;                        ///< what answers call it
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
  /// Without a service: until `serve`, /health says "loading model", and all else is told to come
  /// again (503). \throws as the other
  explicit HttpServer(ServerOptions options);
  ~HttpServer();

  /// \param port 0: any that is free \return the port \throws ConfigError where it cannot be taken
  int bind(const std::string& host, int port);
  /// Listens at a path of the file system, with mode 0600, beside a port or alone. Whoever comes
  /// there may say any Host. A socket that nobody listens at any more is replaced.
  /// \throws ConfigError where another program listens, something else lies there, or the path is
  ///         too long; FileError where none can be made
  void bind_socket(const std::filesystem::path& path);
  /// From now on requests are answered, those of connections that are open too. Once, and only
  /// where the server was made without a service. From any thread.
  /// \param service must outlive it \throws ConfigError where it has one
  void serve(Service& service);
  /// Serves until `stop`. After `bind` or `bind_socket`.
  void listen();
  /// From any thread: ends what is being answered, and `listen`.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic::server
