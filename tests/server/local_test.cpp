// SPDX-License-Identifier: Apache-2.0
// Keys from a file, and a socket of the file system.
#include "support/test.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "episodic/base/error.hpp"
#include "episodic/server/api_keys.hpp"
#include "http/access.hpp"
#include "http/local_socket.hpp"
#include "serving.hpp"
#include "support/refusal.hpp"

using namespace serving;

namespace {

/// What a program that connects to a path gets; 0 bytes where nobody listens.
std::string answer_at(const fs::path& path, const std::string& text) {
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.string().copy(address.sun_path, sizeof address.sun_path - 1);
  std::string all;
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
    REQUIRE(send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
    std::array<char, 4096> buffer;
    for (ssize_t n = 0; (n = recv(fd, buffer.data(), buffer.size(), 0)) > 0;)
      all.append(buffer.data(), static_cast<std::size_t>(n));
  }
  close(fd);
  return all;
}

int mode_of(const fs::path& path) {
  struct stat status {};
  REQUIRE(lstat(path.c_str(), &status) == 0);
  return static_cast<int>(status.st_mode & 07777);
}

/// A server that listens at a socket, and at a port where it is asked to.
class Local {
 public:
  Local(Service& service, const fs::path& path, bool port = false, ServerOptions options = {})
      : http_(service, with_defaults(std::move(options))) {
    if (port) port_ = http_.bind("127.0.0.1", 0);
    http_.bind_socket(path);
    thread_ = std::thread([this] { http_.listen(); });
  }
  ~Local() {
    http_.stop();
    thread_.join();
  }
  int port() const { return port_; }

 private:
  static ServerOptions with_defaults(ServerOptions options) {
    options.model_name = "tiny";
    options.defaults = few_tokens();
    return options;
  }
  HttpServer http_;
  int port_ = 0;
  std::thread thread_;
};

int status_with(const Access& access, const std::string& lines) {
  try {
    access.check(parse_head("GET /v1/models HTTP/1.1\r\nHost: any\r\n" + lines + "\r\n"));
  } catch (const HttpError& e) {
    return e.status();
  }
  return 200;
}

}  // namespace

TEST_CASE("local: a file of keys, one a line") {
  const TempDir dir;
  const fs::path file =
      dir.write("keys", "# of the team\n\n  alpha-1  \r\nbeta=2\n#gamma\ndelta#3");
  chmod(file.c_str(), 0600);
  ApiKeys read = read_api_keys(file);
  REQUIRE(read.keys == std::vector<std::string>{"alpha-1", "beta=2", "delta#3"});
  REQUIRE(read.warning.empty());
  for (const int mode : {0640, 0604, 0620, 0666}) {
    chmod(file.c_str(), static_cast<mode_t>(mode));
    INFO(mode);
    REQUIRE(read_api_keys(file).warning.find("chmod 600") != std::string::npos);
  }
  for (const std::string& text :
       {std::string(), std::string("# nothing\n\n"), std::string("two words\n"),
        std::string("caf\xC3\xA9\n"), std::string("a\x01\n"), std::string(1025, 'a')}) {
    INFO(text.substr(0, 40));
    const fs::path bad = dir.write("bad", text);
    const std::string said = refusal<FileError>([&] { read_api_keys(bad); });
    REQUIRE(said.find(bad.string()) != std::string::npos);
    REQUIRE(said.find('\n') == std::string::npos);
    REQUIRE(said.find("caf\xC3") == std::string::npos);  // a key is no message
  }
  REQUIRE(mentions(refusal<FileError>([&] { read_api_keys(dir / "none"); }), "none"));
  REQUIRE(mentions(refusal<FileError>([&] { read_api_keys(dir.path()); }), "read"));
}

TEST_CASE("local: each key opens the server, as either client sends it, and no part of one does") {
  const Access access({"own", "127.0.0.1", {}, {"alpha", "beta-22"}});
  for (const char* key : {"own", "alpha", "beta-22"}) {
    INFO(key);
    REQUIRE(status_with(access, fmt::format("Authorization: Bearer {}\r\n", key)) == 200);
    REQUIRE(status_with(access, fmt::format("x-api-key: {}\r\n", key)) == 200);
    REQUIRE(status_with(access, fmt::format("X-Api-Key:  {} \r\n", key)) == 200);
    // clients that have a key of their own in one and the server's in the other
    REQUIRE(status_with(access, fmt::format("Authorization: Bearer x\r\nx-api-key: {}\r\n", key)) ==
            200);
    REQUIRE(status_with(access, fmt::format("Authorization: Bearer {}\r\nx-api-key: x\r\n", key)) ==
            200);
  }
  for (const char* lines :
       {"", "x-api-key: \r\n", "x-api-key: alph\r\n", "x-api-key: alphaa\r\n",
        "x-api-key: alphaalpha\r\n", "x-api-key: ALPHA\r\n", "x-api-key: alpha,own\r\n",
        "x-api-key: Bearer own\r\n", "Authorization: own\r\n", "Authorization: Bearer\r\n",
        "x-api-key: own\r\nx-api-key: own\r\n",
        "Authorization: Bearer own\r\nAuthorization: Bearer own\r\n", "api-key: own\r\n"}) {
    INFO(lines);
    REQUIRE(status_with(access, lines) == 401);
  }
  // an empty one is no key, and opens nothing
  const Access open({"", "127.0.0.1", {}, {""}});
  REQUIRE(status_with(open, "") == 403);  // Host, which is looked at where there is no key
  const Access listed({"", "127.0.0.1", {"*"}, {"alpha"}});
  REQUIRE(status_with(listed, "x-api-key: alpha\r\n") == 200);
  REQUIRE(status_with(listed, "x-api-key:\r\n") == 401);
}

TEST_CASE("local: a socket answers whatever Host says, to its owner alone") {
  const TempDir dir;
  const auto engine = engine_of(shipped());
  Service service(*engine);
  const fs::path path = dir / "episodic.sock";
  const std::string ask = "GET /v1/models HTTP/1.1\r\nConnection: close\r\nHost: ";
  {
    const Local local(service, path);
    REQUIRE(mode_of(path) == 0600);
    REQUIRE(fs::is_socket(path));
    for (const char* host : {"localhost", "evil.example", "", "anything:80"}) {
      INFO(host);
      REQUIRE(answer_at(path, ask + host + "\r\n\r\n").starts_with("HTTP/1.1 200"));
    }
    // a page of another site is refused there too
    REQUIRE(answer_at(path, ask + "a\r\nOrigin: http://evil.example\r\n\r\n")
                .starts_with("HTTP/1.1 403"));
    const std::string text = answer_at(
        path, post_text({{"prompt", "The king said"}, {"stream", true}, {"max_tokens", 3}}));
    REQUIRE(text.find("data: [DONE]") != std::string::npos);
  }
  REQUIRE(!fs::exists(path));
  {
    ServerOptions options;
    options.access.api_keys = {"key"};
    const Local both(service, path, true, options);
    REQUIRE(answer_at(path, ask + "a\r\n\r\n").starts_with("HTTP/1.1 401"));
    REQUIRE(answer_at(path, ask + "a\r\nx-api-key: key\r\n\r\n").starts_with("HTTP/1.1 200"));
    httplib::Client client("127.0.0.1", both.port());
    REQUIRE(client.Get("/v1/models", {{"x-api-key", "key"}})->status == 200);
  }
}

TEST_CASE("local: a client of the socket that leaves gives its request up") {
  const TempDir dir;
  const auto engine = engine_of(shipped());
  Service service(*engine);
  const Local local(service, dir / "s");
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  (dir / "s").string().copy(address.sun_path, sizeof address.sun_path - 1);
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
  const std::string text = post_text(
      {{"prompt", "The"}, {"max_tokens", 2'000'000}, {"ignore_eos", true}, {"stream", true}});
  REQUIRE(send(fd, text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size()));
  REQUIRE(comes([&] { return service.scheduler().counters().running == 1; }));
  close(fd);
  REQUIRE(comes([&] { return service.scheduler().counters().given_up == 1; }));
}

TEST_CASE("local: a socket that is left behind is replaced, and nothing else is") {
  const TempDir dir;
  const fs::path path = dir / "s";
  {  // as a killed server leaves it
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.string().copy(address.sun_path, sizeof address.sun_path - 1);
    REQUIRE(bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
    close(fd);
  }
  REQUIRE(fs::is_socket(path));
  {
    const LocalSocket first(path);
    REQUIRE(mode_of(path) == 0600);
    REQUIRE(mentions(refusal<ConfigError>([&] { LocalSocket second(path); }), "another program"));
    REQUIRE(fs::is_socket(path));
  }
  REQUIRE(!fs::exists(path));
  // one that another program has put there meanwhile stays
  auto mine = std::make_unique<LocalSocket>(path);
  fs::remove(path);
  const LocalSocket theirs(path);
  mine.reset();
  REQUIRE(fs::is_socket(path));

  dir.write("file", "text");
  REQUIRE(mentions(refusal<ConfigError>([&] { LocalSocket at(dir / "file"); }), "no socket"));
  REQUIRE(program::contents(dir / "file") == "text");
  fs::create_symlink(dir / "file", dir / "link");
  REQUIRE(mentions(refusal<ConfigError>([&] { LocalSocket at(dir / "link"); }), "no socket"));
  REQUIRE(mentions(refusal<ConfigError>([&] { LocalSocket at(dir.path()); }), "no socket"));
  REQUIRE(mentions(refusal<FileError>([&] { LocalSocket at(dir / "none/s"); }), "none/s"));
  REQUIRE(mentions(refusal<ConfigError>([&] { LocalSocket at(dir / std::string(120, 'a')); }),
                   "107 bytes"));
  REQUIRE(mentions(refusal<ConfigError>([&] { LocalSocket at(""); }), "bytes"));
}
