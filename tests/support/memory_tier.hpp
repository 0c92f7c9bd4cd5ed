// SPDX-License-Identifier: Apache-2.0
#pragma once
// A tier in this process, whose calls can be made to fail, be late, or be watched.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/store/block_tier.hpp"

class MemoryTier final : public episodic::BlockTier {
  template <class F>
  auto locked(F&& f) const {
    const std::lock_guard lock(mutex_);
    return f();
  }

 public:
  enum class Call : std::uint8_t { get, has, put, drop, head, exchange, lease };

  /// Called before each call, from the thread that makes it. It may throw.
  std::function<void(Call)> watch;
  /// Every call fails.
  bool lost = false;
  /// The next exchange is done, and its answer lost.
  bool fail_behind_exchange = false;
  /// More than this do not fit.
  std::int64_t room = std::int64_t{1} << 62;

  std::int64_t put_bytes() const {
    return locked([&] { return put_bytes_; });
  }
  std::int64_t got_bytes() const {
    return locked([&] { return got_bytes_; });
  }
  std::vector<episodic::BlockHash> block_names() const {
    return locked([&] {
      std::vector<episodic::BlockHash> all;
      for (const auto& [name, bytes] : blocks_) all.push_back(name);
      return all;
    });
  }
  void damage(const episodic::BlockHash& name) {
    locked([&] { blocks_.at(name).front() ^= std::byte{1}; });
  }
  void remove(const episodic::BlockHash& name) {
    locked([&] { blocks_.erase(name); });
  }
  /// All leases run out now.
  void expire() {
    locked([&] {
      for (auto& [name, held] : leases_) held.until = {};
    });
  }

  std::string where() const override { return "memory:tests"; }

  std::vector<std::optional<Bytes>> get(std::span<const episodic::BlockHash> names) override {
    begin(Call::get);
    return locked([&] {
      std::vector<std::optional<Bytes>> found;
      for (const auto& name : names) {
        const auto at = blocks_.find(name);
        found.push_back(at == blocks_.end() ? std::nullopt : std::optional(at->second));
        if (found.back()) got_bytes_ += static_cast<std::int64_t>(found.back()->size());
      }
      return found;
    });
  }
  std::vector<bool> has(std::span<const episodic::BlockHash> names) override {
    begin(Call::has);
    return locked([&] {
      std::vector<bool> there;
      for (const auto& name : names) {
        there.push_back(blocks_.contains(name));
        used_[name] = Clock::now();
      }
      return there;
    });
  }
  void put(std::span<const Block> blocks) override {
    begin(Call::put);
    locked([&] {
      for (const Block& block : blocks) {
        const auto bytes = static_cast<std::int64_t>(block.bytes.size());
        used_[block.name] = Clock::now();
        if (blocks_.contains(block.name)) continue;
        if (bytes > room) throw episodic::io::DiskFullError(where() + ": there is no room left");
        room -= bytes;
        put_bytes_ += bytes;
        blocks_[block.name] = Bytes(block.bytes.begin(), block.bytes.end());
      }
    });
  }
  void drop(std::span<const episodic::BlockHash> names) override {
    begin(Call::drop);
    locked([&] {
      for (const auto& name : names) blocks_.erase(name);
    });
  }
  std::vector<episodic::BlockHash> unused(double seconds) override {
    begin(Call::drop);
    return locked([&] {
      std::vector<episodic::BlockHash> old;
      for (const auto& [name, bytes] : blocks_)
        if (Clock::now() - used_[name] >= std::chrono::duration<double>(seconds))
          old.push_back(name);
      return old;
    });
  }
  std::vector<std::string> names() override {
    begin(Call::head);
    return locked([&] {
      std::vector<std::string> all;
      for (const auto& [name, head] : heads_)
        if (!head.bytes.empty()) all.push_back(name);
      return all;
    });
  }
  Head head(const std::string& name) override {
    begin(Call::head);
    return locked([&] { return heads_[name]; });
  }
  bool exchange(const std::string& name, std::int64_t version,
                std::span<const std::byte> next) override {
    begin(Call::exchange);
    return locked([&] {
      Head& head = heads_[name];
      if (head.version != version) return false;
      head = {Bytes(next.begin(), next.end()), version + 1};
      if (std::exchange(fail_behind_exchange, false)) throw episodic::FileError("no answer came");
      return true;
    });
  }
  std::optional<Lease> take_lease(const std::string& name, const Lease& mine) override {
    begin(Call::lease);
    return locked([&]() -> std::optional<Lease> {
      Held& held = leases_[name];
      const auto now = std::chrono::steady_clock::now();
      if (!held.lease.token.empty() && held.lease.token != mine.token && now < held.until)
        return held.lease;
      held.lease = mine;
      held.until = now + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                             std::chrono::duration<double>(mine.seconds));
      return std::nullopt;
    });
  }
  void end_lease(const std::string& name, const std::string& token) override {
    begin(Call::lease);
    locked([&] {
      if (leases_[name].lease.token == token) leases_[name] = {};
    });
  }

 private:
  using Clock = std::chrono::steady_clock;
  struct Held {
    Lease lease;
    std::chrono::steady_clock::time_point until{};
  };

  void begin(Call call) {
    if (watch) watch(call);
    if (lost) throw episodic::FileError(where() + ": is not there");
  }

  mutable std::mutex mutex_;
  std::map<episodic::BlockHash, Bytes> blocks_;
  std::map<episodic::BlockHash, Clock::time_point> used_;
  std::map<std::string, Head> heads_;
  std::map<std::string, Held> leases_;
  std::int64_t put_bytes_ = 0, got_bytes_ = 0;
};
