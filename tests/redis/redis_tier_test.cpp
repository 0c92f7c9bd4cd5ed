// SPDX-License-Identifier: Apache-2.0
// A tier on a server of Redis or Valkey, which the test starts on a port of its own.
#include "support/refusal.hpp"
#include "support/temp_dir.hpp"
#include "support/test.hpp"
#include "support/tier_contract.hpp"

#include <arpa/inet.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <optional>
#include <thread>

#include "driver.hpp"
#include "episodic/base/error.hpp"
#include "episodic/redis/redis_tier.hpp"

using namespace episodic;
namespace fs = std::filesystem;

namespace redis_tier_test {

std::optional<std::string> server_program() {
  const char* const path = std::getenv("PATH");
  for (const char* name : {"redis-server", "valkey-server"}) {
    std::string all = path ? path : "/usr/bin";
    for (std::size_t at = 0; at <= all.size();) {
      const std::size_t end = std::min(all.find(':', at), all.size());
      const fs::path program = fs::path(all.substr(at, end - at)) / name;
      if (::access(program.c_str(), X_OK) == 0) return program.string();
      at = end + 1;
    }
  }
  return std::nullopt;
}

int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(fd, reinterpret_cast<sockaddr*>(&address), size);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  ::close(fd);
  return ntohs(address.sin_port);
}

/// A server that keeps all that it was told through its own death.
class Server {
 public:
  Server(std::string program, std::string password = "", std::string memory = "0")
      : program_(std::move(program)), password_(std::move(password)), memory_(std::move(memory)) {
    start();
  }
  ~Server() { stop(); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  int port() const { return port_; }
  pid_t process() const { return process_; }
  RedisOptions options() const { return {"127.0.0.1", port_, 2, password_}; }
  std::string place(const std::string& name, const std::string& host) const {
    return "redis://127.0.0.1:" + std::to_string(port_) + "/" + name +
           "?timeout_seconds=2,cache=" + (dir_ / host).string();
  }
  fs::path operator/(const std::string& name) const { return dir_ / name; }

  void start() {
    process_ = ::fork();
    if (process_ == 0) {
      const std::string port = std::to_string(port_), dir = dir_.path().string();
      ::execl(program_.c_str(), program_.c_str(), "--port", port.c_str(), "--bind", "127.0.0.1",
              "--dir", dir.c_str(), "--save", "", "--appendonly", "yes", "--appendfsync", "always",
              "--logfile", (dir + "/log").c_str(), "--requirepass", password_.c_str(),
              "--maxmemory", memory_.c_str(), static_cast<char*>(nullptr));
      std::_Exit(127);
    }
    for (int i = 0; i < 200; ++i) {
      if (refusal([&] { make_redis_tier(options())->head("none"); }) == "no error") return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    FAIL("the server did not start");
  }
  void stop() {
    if (process_ <= 0) return;
    ::kill(process_, SIGKILL);
    ::waitpid(process_, nullptr, 0);
    process_ = 0;
  }
  void damage(const BlockHash& name) const {
    redisContext* const context = redisConnect("127.0.0.1", port_);
    const std::string key = "episodic:1:block:" + name.text();
    auto* reply = static_cast<redisReply*>(redisCommand(context, "GETBIT %s 0", key.c_str()));
    const int other = reply->integer == 1 ? 0 : 1;
    freeReplyObject(reply);
    freeReplyObject(redisCommand(context, "SETBIT %s 0 %d", key.c_str(), other));
    redisFree(context);
  }

 private:
  std::string program_, password_, memory_;
  TempDir dir_;
  int port_ = free_port();
  pid_t process_ = 0;
};

#define EPISODIC_NEED_SERVER(program)                          \
  const std::optional<std::string> program = server_program(); \
  if (!program) EPISODIC_SKIP("there is no redis-server here (scripts/setup --tests)")

TEST_CASE("a tier on a server has blocks, heads and leases", "[redis][tier]") {
  EPISODIC_NEED_SERVER(program);
  Server server(*program);
  const tier_contract::Setting setting{[&] { return make_redis_tier(server.options()); },
                                       [&](const BlockHash& name) { server.damage(name); },
                                       [&] { server.stop(); }, [&] { server.start(); }};
  SECTION("blocks are named by their bytes") { tier_contract::check_blocks(setting); }
  SECTION("heads are exchanged, or stay") { tier_contract::check_heads(setting); }
  SECTION("a lease has one holder") { tier_contract::check_leases(setting); }
  SECTION("a tier that is away says so, and goes on") { tier_contract::check_loss(setting); }
}

TEST_CASE("a server that does not answer is an error within the time-out", "[redis][tier]") {
  EPISODIC_NEED_SERVER(program);
  Server server(*program);
  const auto tier = make_redis_tier(server.options());
  REQUIRE(tier->exchange("m", 0, tier_contract::bytes_of("x")));
  ::kill(server.process(), SIGSTOP);
  const auto begin = std::chrono::steady_clock::now();
  const std::string said = refusal<FileError>([&] { tier->head("m"); });
  const auto seconds = std::chrono::steady_clock::now() - begin;
  ::kill(server.process(), SIGCONT);
  CHECK(mentions(said, tier->where()));
  CHECK(seconds > std::chrono::milliseconds(1900));
  CHECK(seconds < std::chrono::seconds(8));
  CHECK(tier->head("m").version == 1);
}

TEST_CASE("a server's password is asked for, and its room is told", "[redis][tier]") {
  EPISODIC_NEED_SERVER(program);
  Server server(*program, "open-sesame", "4mb");
  RedisOptions options = server.options();
  CHECK(make_redis_tier(options)->head("m").version == 0);
  for (const char* wrong : {"", "another"}) {
    options.password = wrong;
    CHECK(mentions(refusal<FileError>([&] { make_redis_tier(options)->head("m"); }),
                   "REDISCLI_AUTH"));
  }
  const auto tier = make_redis_tier(server.options());
  const auto value = tier_contract::bytes_of(8 << 20, 5);
  const BlockTier::Block block{BlockHash::of(value), value};
  const std::string full = refusal<io::DiskFullError>([&] {
    for (int i = 0; i < 3; ++i) tier->put({&block, 1});  // it is past its bound, then refuses
    const auto more = tier_contract::bytes_of(1000, 6);
    const BlockTier::Block next{BlockHash::of(more), more};
    tier->put({&next, 1});
  });
  CHECK(mentions(full, "maxmemory"));
}

TEST_CASE("a memory on a server is the one in a folder", "[redis][tier][memory]") {
  EPISODIC_NEED_SERVER(program);
  Server server(*program);
  add_redis_scheme();
  const MemoryShape shape = driver::small_shape();
  MemoryConfig config = driver::small_config();
  config.host_bytes = least_host_bytes(
      {shape.n_layers, shape.n_kv_heads, shape.head_dim, DType::float32}, config.max_block, 1000);
  const auto tokens = driver::random_tokens(shape, 300, 21);
  const auto feed = [&](EpisodicMemory& memory, std::int64_t first, std::int64_t end) {
    std::vector<float> all;
    for (std::int64_t at = first; at < end; at += 12)
      for (const auto& layer : driver::step(memory, tokens, at, 12))
        all.insert(all.end(), layer.begin(), layer.end());
    return all;
  };
  const auto open = [](const fs::path& place, OpenMode mode) {
    KeepOptions keep;
    keep.dir = place;
    return EpisodicMemory::open(keep, mode);
  };
  const auto make = [&](const fs::path& place) {
    KeepOptions keep;
    keep.dir = place;
    EpisodicMemory memory = EpisodicMemory::create(keep, config, shape);
    feed(memory, 0, 120);
    memory.commit();
    feed(memory, 120, 240);
    memory.commit();
  };
  make(server / "plain");
  make(server.place("m", "one"));
  EpisodicMemory plain = open(server / "plain", OpenMode::read);
  const std::uint64_t digest = plain.digest();
  const std::vector<float> expected = feed(plain, 240, 300);
  EpisodicMemory memory = open(server.place("m", "two"), OpenMode::read);
  CHECK(memory.digest() == digest);
  CHECK((feed(memory, 240, 300) == expected));
  CHECK(verify_memory(server.place("m", "three")).damages.empty());
  fork_memory(server.place("m", "two"), server.place("fork", "two"));
  CHECK(open(server.place("fork", "three"), OpenMode::read).digest() == digest);

  // The server is killed in mid-run, and comes back.
  EpisodicMemory writer = open(server.place("m", "one"), OpenMode::write);
  CHECK(mentions(refusal<FileError>([&] { open(server.place("m", "two"), OpenMode::write); }),
                 "is writing to this memory"));
  feed(writer, 240, 264);
  const std::string nowhere = server.place("m", "two,cache_bytes=0");
  EpisodicMemory reader = open(nowhere, OpenMode::read);
  server.stop();
  CHECK(mentions(refusal<FileError>([&] { writer.commit(); }), "redis://127.0.0.1"));
  CHECK(mentions(refusal<FileError>([&] { feed(reader, 240, 300); }), "redis://127.0.0.1"));
  server.start();
  CHECK(open(nowhere, OpenMode::read).tokens() == 240);
  writer.commit();
  EpisodicMemory again = open(nowhere, OpenMode::read);
  CHECK(again.tokens() == 264);
  CHECK(again.digest() == writer.digest());
}

TEST_CASE("places on a server are checked", "[redis][tier]") {
  add_redis_scheme();
  for (const char* wrong : {"redis://:6379/m", "redis://host:0/m", "redis://host:x/m",
                            "redis://host:70000/m", "redis:///m"}) {
    INFO(wrong);
    CHECK(refusal<ConfigError>([&] { holds_memory(wrong); }) != "no error");
  }
  const std::string port = std::to_string(free_port());
  const std::string said =
      refusal<FileError>([&] { holds_memory("redis:/127.0.0.1:" + port + "/m"); });
  CHECK(mentions(said, "redis://127.0.0.1:" + port));
}

}  // namespace redis_tier_test
