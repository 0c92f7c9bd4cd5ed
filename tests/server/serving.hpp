// SPDX-License-Identifier: Apache-2.0
#pragma once
// A server of the shipped model within the test, and clients for it: proper ones and bare sockets.
#include <arpa/inet.h>
#include <httplib.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "episodic/server/http_server.hpp"
#include "episodic/session/engine.hpp"
#include "program.hpp"
#include "protocol/request.hpp"
#include "support/test.hpp"

namespace serving {

namespace fs = std::filesystem;
using namespace episodic;
using namespace episodic::server;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr const char* kTemplate =
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}";

/// The same in Hermes' form of calls, which many templates have.
constexpr const char* kToolTemplate =
    "{% if tools %}You may call <tools>{% for t in tools %}{{ t | tojson }}{% endfor %}"
    "</tools> as <tool_call>{\"name\": ..., \"arguments\": ...}</tool_call>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}"
    "{% for c in m.tool_calls %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>"
    "{% endfor %}\n{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}";

inline fs::path shipped() { return fs::path(EPISODIC_SOURCE_DIR) / "models/recall-2m6"; }

/// The shipped model with a chat format.
inline void make_chat_model(const fs::path& dir, const std::string& chat_template = kTemplate) {
  fs::create_directories(dir);
  for (const auto& entry : fs::directory_iterator(shipped()))
    if (entry.path().filename() != "tokenizer_config.json")
      fs::create_symlink(entry.path(), dir / entry.path().filename());
  json config = json::parse(program::contents(shipped() / "tokenizer_config.json"));
  config["chat_template"] = chat_template;
  program::put(dir / "tokenizer_config.json", config.dump());
}

/// The model with an empty memory.
inline std::unique_ptr<Engine> engine_of(const fs::path& dir) {
  auto engine = load_engine(dir);
  engine->attach();
  return engine;
}

inline GenerateOptions few_tokens(std::int64_t n = 6) {
  GenerateOptions options;
  options.max_new = n;
  return options;
}

inline json say(const char* role, const std::string& content) {
  return {{"role", role}, {"content", content}};
}

/// Waits as long as a loaded machine may need. \return whether it came
inline bool comes(const std::function<bool()>& done) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!done()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(milliseconds(5));
  }
  return true;
}

/// A server on a thread of its own.
class Running {
 public:
  explicit Running(Service& service, ServerOptions options = {})
      : server_(service, complete(std::move(options))) {
    port_ = server_.bind("127.0.0.1", 0);
    thread_ = std::thread([this] { server_.listen(); });
  }
  ~Running() {
    server_.stop();
    thread_.join();
  }
  httplib::Client client() const {
    httplib::Client client("127.0.0.1", port_);
    client.set_read_timeout(60);
    client.set_write_timeout(60);
    client.set_tcp_nodelay(true);
    return client;
  }
  HttpServer& server() { return server_; }
  int port() const { return port_; }
  bool healthy() const {
    const auto response = client().Get("/health");
    return response && response->status == 200;
  }
  /// Lines of the log that hold a text.
  int logged(const std::string& part) const {
    const std::lock_guard lock(mutex_);
    int n = 0;
    for (const std::string& line : lines_) n += line.find(part) != line.npos ? 1 : 0;
    return n;
  }

 private:
  ServerOptions complete(ServerOptions options) {
    options.model_name = "tiny";
    options.defaults = few_tokens();
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
    return options;
  }

  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
  HttpServer server_;
  int port_ = 0;
  std::thread thread_;
};

/// Status and body; 0 where there was no answer.
inline std::pair<int, json> post(const Running& running, const char* path, const std::string& body,
                                 const httplib::Headers& headers = {}) {
  const auto response = running.client().Post(path, headers, body, "application/json");
  if (!response) return {0, nullptr};
  return {response->status, json::parse(response->body)};
}

/// A client that says what the test says, byte by byte.
class Raw {
 public:
  /// \param room of what it has not read; 0: the system's
  explicit Raw(const Running& running, int room = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (room > 0) setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &room, sizeof room);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(running.port()));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    // no REQUIRE: Catch2 takes assertions of one thread at a time, and clients are threads
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
      throw std::system_error(errno, std::generic_category(), "a client cannot connect");
  }
  Raw(Raw&& other) noexcept : socket_(std::exchange(other.socket_, -1)) {}
  Raw(const Raw&) = delete;
  ~Raw() { leave(); }

  /// \return whether all of it was taken; the server may have hung up
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(n));
    }
    return true;
  }
  void half_close() { shutdown(socket_, SHUT_WR); }
  void leave() {
    if (socket_ >= 0) close(std::exchange(socket_, -1));
  }
  /// Leaves without a word to the other side's buffers.
  void reset() {
    const linger now{1, 0};
    setsockopt(socket_, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    leave();
  }
  /// All up to the end of the connection, or to `end`.
  std::string receive(std::string_view end = {}) {
    std::string all;
    std::array<char, 4096> buffer;
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < until) {
      if (!end.empty() && all.find(end) != all.npos) break;
      pollfd entry{socket_, POLLIN, 0};
      if (poll(&entry, 1, 1000) <= 0) continue;
      const ssize_t n = recv(socket_, buffer.data(), buffer.size(), 0);
      if (n <= 0) break;
      all.append(buffer.data(), static_cast<std::size_t>(n));
    }
    return all;
  }
  /// Up to `most` bytes of it; empty at its end.
  std::string receive_some(std::size_t most) {
    std::string some(most, ' ');
    const ssize_t n = recv(socket_, some.data(), most, 0);
    some.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
    return some;
  }
  /// The status of the answer; 0 where the connection ends without one.
  int status() {
    std::string line = receive("\r\n");
    return line.starts_with("HTTP/1.1 ") ? std::stoi(line.substr(9, 3)) : 0;
  }

 private:
  int socket_;
};

inline std::string get(const std::string& path, const std::string& headers = "") {
  return "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + "\r\n";
}

inline std::string post_text(const json& body, const std::string& headers = "",
                             const std::string& path = "/v1/completions") {
  const std::string text = body.dump();
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: " +
         std::to_string(text.size()) + "\r\n" + headers + "\r\n" + text;
}

}  // namespace serving
