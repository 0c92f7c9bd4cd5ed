// SPDX-License-Identifier: Apache-2.0
#include "episodic/redis/redis_tier.hpp"

#include <fmt/format.h>
#include <hiredis/hiredis.h>
#include <signal.h>
#include <sys/time.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <initializer_list>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "episodic/base/error.hpp"

namespace episodic {
namespace {

// Under one prefix, so that a server may hold other things as well.
constexpr const char* kPrefix = "episodic:1:";
constexpr std::size_t kGetAtOnce = 64;                       // blocks of one MGET
constexpr std::int64_t kSendAtOnce = std::int64_t{4} << 20;  // bytes sent before answers are read

constexpr const char* kExchange = R"(
local version = tonumber(redis.call('HGET', KEYS[1], 'version') or '0')
if version ~= tonumber(ARGV[1]) then return 0 end
redis.call('HSET', KEYS[1], 'version', version + 1, 'bytes', ARGV[2])
if ARGV[2] == '' then redis.call('EXPIRE', KEYS[1], 3600) else redis.call('PERSIST', KEYS[1]) end
return 1)";

// A lease is "token\nseconds\nholder", and goes by itself.
constexpr const char* kTakeLease = R"(
local lease = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. '\n'
if lease and string.sub(lease, 1, #mine) ~= mine then return lease end
redis.call('SET', KEYS[1], mine .. ARGV[2] .. '\n' .. ARGV[3], 'PX', ARGV[4])
return false)";

constexpr const char* kEndLease = R"(
local lease = redis.call('GET', KEYS[1])
local mine = ARGV[1] .. '\n'
if lease and string.sub(lease, 1, #mine) == mine then redis.call('DEL', KEYS[1]) end
return 1)";

struct FreeReply {
  void operator()(redisReply* reply) const { freeReplyObject(reply); }
};
using Reply = std::unique_ptr<redisReply, FreeReply>;

struct FreeContext {
  void operator()(redisContext* context) const { redisFree(context); }
};

/// A server that has gone is an error of this call, not a signal to the process.
class NoPipeSignal {
 public:
  NoPipeSignal() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigemptyset(&pending);
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoPipeSignal() {
    const timespec now{};
    if (!was_pending_) sigtimedwait(&pipe_, nullptr, &now);
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  NoPipeSignal(const NoPipeSignal&) = delete;
  NoPipeSignal& operator=(const NoPipeSignal&) = delete;

 private:
  sigset_t pipe_{}, before_{};
  bool was_pending_ = false;
};

std::string_view text_of(const redisReply& reply) { return {reply.str, reply.len}; }

BlockTier::Bytes bytes_of(const redisReply& reply) {
  const auto* const first = reinterpret_cast<const std::byte*>(reply.str);
  return {first, first + reply.len};
}

std::string_view text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

class RedisTier final : public BlockTier {
 public:
  explicit RedisTier(const RedisOptions& options) : options_(options) {}

  std::string where() const override {
    return fmt::format("redis://{}:{}", options_.host, options_.port);
  }

  std::vector<std::optional<Bytes>> get(std::span<const BlockHash> names) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    std::vector<std::optional<Bytes>> blocks;
    blocks.reserve(names.size());
    for (std::size_t first = 0; first < names.size(); first += kGetAtOnce) {
      const auto some = names.subspan(first, std::min(kGetAtOnce, names.size() - first));
      std::vector<std::string> keys;
      for (const BlockHash& name : some) keys.push_back(key_of(name));
      std::vector<std::string_view> words{"MGET"};
      words.insert(words.end(), keys.begin(), keys.end());
      const Reply reply = ask(words);
      if (reply->type != REDIS_REPLY_ARRAY || reply->elements != some.size()) unexpected();
      for (std::size_t i = 0; i < some.size(); ++i) {
        const redisReply& one = *reply->element[i];
        blocks.push_back(one.type == REDIS_REPLY_STRING ? std::optional(bytes_of(one))
                                                        : std::nullopt);
      }
    }
    return blocks;
  }

  std::vector<bool> has(std::span<const BlockHash> names) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    std::vector<bool> there;
    for (const BlockHash& name : names) send({"TOUCH", key_of(name)});
    for (std::size_t i = 0; i < names.size(); ++i) there.push_back(receive()->integer == 1);
    return there;
  }

  void put(std::span<const Block> blocks) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    std::int64_t sent = 0;
    std::size_t unanswered = 0;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
      send({"SET", key_of(blocks[i].name), text_of(blocks[i].bytes)});
      ++unanswered;
      sent += static_cast<std::int64_t>(blocks[i].bytes.size());
      if (sent < kSendAtOnce && i + 1 < blocks.size()) continue;
      for (; unanswered > 0; --unanswered) receive();
      sent = 0;
    }
  }

  void drop(std::span<const BlockHash> names) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    for (const BlockHash& name : names) send({"DEL", key_of(name)});
    for (std::size_t i = 0; i < names.size(); ++i) receive();
  }

  std::vector<BlockHash> unused(double seconds) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    std::vector<BlockHash> old;
    const std::vector<std::string> keys = scan("block:");
    for (std::size_t first = 0; first < keys.size(); first += kGetAtOnce) {
      const auto some = std::span(keys).subspan(first, std::min(kGetAtOnce, keys.size() - first));
      for (const std::string& key : some) send({"OBJECT", "IDLETIME", std::string_view(key)});
      for (const std::string& key : some) {
        const Reply reply = receive();
        const auto name =
            BlockHash::parse(std::string_view(key).substr(key_of("block:", "").size()));
        if (name && reply->type == REDIS_REPLY_INTEGER &&
            static_cast<double>(reply->integer) >= seconds)
          old.push_back(*name);
      }
    }
    return old;
  }

  std::vector<std::string> names() override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    std::vector<std::string> found;
    const std::vector<std::string> keys = scan("head:");
    for (std::size_t first = 0; first < keys.size(); first += kGetAtOnce) {
      const auto some = std::span(keys).subspan(first, std::min(kGetAtOnce, keys.size() - first));
      for (const std::string& key : some) send({"HSTRLEN", std::string_view(key), "bytes"});
      for (const std::string& key : some)
        if (receive()->integer > 0) found.push_back(key.substr(key_of("head:", "").size()));
    }
    return found;
  }

  Head head(const std::string& name) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    const Reply reply = ask({"HMGET", key_of("head:", name), "version", "bytes"});
    if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) unexpected();
    if (reply->element[0]->type != REDIS_REPLY_STRING) return {};
    if (reply->element[1]->type != REDIS_REPLY_STRING) unexpected();
    Head head{bytes_of(*reply->element[1]), 0};
    const std::string_view version = text_of(*reply->element[0]);
    std::from_chars(version.data(), version.data() + version.size(), head.version);
    if (head.version < 1) unexpected();
    return head;
  }

  bool exchange(const std::string& name, std::int64_t version,
                std::span<const std::byte> next) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    return ask({"EVAL", kExchange, "1", key_of("head:", name), std::to_string(version),
                text_of(next)})
               ->integer == 1;
  }

  std::optional<Lease> take_lease(const std::string& name, const Lease& mine) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    const auto milliseconds =
        std::max<std::int64_t>(1, static_cast<std::int64_t>(1000 * mine.seconds));
    const Reply reply =
        ask({"EVAL", kTakeLease, "1", key_of("lease:", name), mine.token,
             fmt::format("{}", mine.seconds), mine.holder, std::to_string(milliseconds)});
    if (reply->type != REDIS_REPLY_STRING) return std::nullopt;
    const std::string_view text = text_of(*reply);
    const std::size_t first = text.find('\n'), second = text.find('\n', first + 1);
    if (first == text.npos || second == text.npos) unexpected();
    Lease other{std::string(text.substr(0, first)), std::string(text.substr(second + 1)), 0};
    const std::string_view seconds = text.substr(first + 1, second - first - 1);
    std::from_chars(seconds.data(), seconds.data() + seconds.size(), other.seconds);
    return other;
  }

  void end_lease(const std::string& name, const std::string& token) override {
    const std::lock_guard lock(mutex_);
    const NoPipeSignal guard;
    ask({"EVAL", kEndLease, "1", key_of("lease:", name), token});
  }

 private:
  static std::string key_of(const BlockHash& name) {
    return std::string(kPrefix) + "block:" + name.text();
  }
  static std::string key_of(const char* kind, const std::string& name) {
    return std::string(kPrefix) + kind + name;
  }

  /// All keys of a kind, each once.
  std::vector<std::string> scan(const char* kind) {
    std::set<std::string> keys;
    std::string cursor = "0";
    do {
      const Reply reply = ask({"SCAN", cursor, "MATCH", key_of(kind, "*"), "COUNT", "1000"});
      if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2) unexpected();
      cursor = text_of(*reply->element[0]);
      const redisReply& some = *reply->element[1];
      for (std::size_t i = 0; i < some.elements; ++i)
        keys.insert(std::string(text_of(*some.element[i])));
    } while (cursor != "0");
    return {keys.begin(), keys.end()};
  }

  /// Words of a command; they live until it is sent.
  struct Word {
    Word(const char* text) : view(text) {}                          // NOLINT: meant to convert
    Word(std::string_view text) : view(text) {}                     // NOLINT
    Word(std::string text) : own(std::move(text)), is_own(true) {}  // NOLINT
    std::string_view text() const { return is_own ? std::string_view(own) : view; }
    std::string own;
    std::string_view view;
    bool is_own = false;
  };

  void connect() {
    if (context_) return;
    const auto seconds = static_cast<long>(options_.timeout_seconds);
    const timeval limit{seconds, static_cast<suseconds_t>(1e6 * (options_.timeout_seconds -
                                                                 static_cast<double>(seconds)))};
    context_.reset(redisConnectWithTimeout(options_.host.c_str(), options_.port, limit));
    if (!context_) throw FileError(where() + ": no memory is left to connect with");
    if (context_->err != 0) lost("could not be reached");
    if (redisSetTimeout(context_.get(), limit) != REDIS_OK) lost("could not be given a time-out");
    if (options_.password.empty()) return;
    send({"AUTH", std::string_view(options_.password)});
    receive();
  }

  /// What is under way is given up: its answers belong to nobody.
  [[noreturn]] void lost(const char* what) {
    const std::string why = context_->errstr;
    context_.reset();
    throw FileError(
        fmt::format("{}: {} ({}); see that the server runs and is to be reached, then try again",
                    where(), what, why));
  }
  [[noreturn]] void unexpected() {
    context_.reset();
    throw FileError(where() +
                    ": gave an answer of another kind than was asked for; is it a server of Redis "
                    "or Valkey, and does nothing else use the keys episodic:*?");
  }

  void send(std::initializer_list<Word> words) {
    std::vector<std::string_view> texts;
    for (const Word& word : words) texts.push_back(word.text());
    send(texts);
  }
  void send(const std::vector<std::string_view>& words) {
    connect();
    std::vector<const char*> at;
    std::vector<std::size_t> lengths;
    for (const std::string_view word : words) {
      at.push_back(word.data());
      lengths.push_back(word.size());
    }
    if (redisAppendCommandArgv(context_.get(), static_cast<int>(words.size()), at.data(),
                               lengths.data()) != REDIS_OK)
      lost("took no command");
  }

  Reply receive() {
    void* answer = nullptr;
    if (redisGetReply(context_.get(), &answer) != REDIS_OK) lost("gave no answer");
    Reply reply(static_cast<redisReply*>(answer));
    if (reply->type != REDIS_REPLY_ERROR) return reply;
    const std::string why(text_of(*reply));
    context_.reset();
    if (why.starts_with("OOM"))
      throw io::DiskFullError(
          fmt::format("{}: has no room left ({}); raise its maxmemory", where(), why));
    if (why.starts_with("NOAUTH") || why.starts_with("WRONGPASS") || why.starts_with("ERR AUTH"))
      throw FileError(fmt::format(
          "{}: refuses the password ({}); set REDISCLI_AUTH to its password", where(), why));
    throw FileError(fmt::format("{}: refused a command ({})", where(), why));
  }

  template <class Words>
  Reply ask(const Words& words) {
    send(words);
    return receive();
  }
  Reply ask(std::initializer_list<Word> words) {
    send(words);
    return receive();
  }

  RedisOptions options_;
  std::mutex mutex_;
  std::unique_ptr<redisContext, FreeContext> context_;
};

std::shared_ptr<BlockTier> tier_at(const TierPlace& place) {
  RedisOptions options;
  std::string_view at = place.at;
  while (at.starts_with('/')) at.remove_prefix(1);
  // HOST, HOST:PORT, [ADDRESS]:PORT
  const bool brackets = at.starts_with('[');
  const std::size_t end = brackets ? at.find(']') : at.rfind(':');
  const std::size_t colon = brackets && end != at.npos && end + 1 < at.size() ? end + 1 : end;
  options.host = brackets ? at.substr(1, end == at.npos ? end : end - 1) : at.substr(0, end);
  options.timeout_seconds = place.timeout_seconds;
  if (const char* const password = std::getenv("REDISCLI_AUTH")) options.password = password;
  if (colon != at.npos && colon < at.size() && at[colon] == ':') {
    const std::string_view port = at.substr(colon + 1);
    const auto [last, error] =
        std::from_chars(port.data(), port.data() + port.size(), options.port);
    if (error != std::errc() || last != port.data() + port.size()) options.port = 0;
  }
  constexpr int kMostPort = 65535;
  if (options.host.empty() || options.port < 1 || options.port > kMostPort)
    throw ConfigError(fmt::format("{}: expected redis://HOST:PORT/NAME with a port from 1 to {}",
                                  place.text(), kMostPort));
  return make_redis_tier(options);
}

}  // namespace

std::shared_ptr<BlockTier> make_redis_tier(const RedisOptions& options) {
  return std::make_shared<RedisTier>(options);
}

void add_redis_scheme() {
  add_tier_scheme("redis", [](const TierPlace& place, io::Syscalls&) { return tier_at(place); });
}

}  // namespace episodic
