// SPDX-License-Identifier: Apache-2.0
#pragma once
// System calls that fail, fall short, are late or flip a bit, as a script says.
#include <fcntl.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "episodic/base/io.hpp"

class FaultyCalls : public episodic::io::Syscalls {
 public:
  using Kind = episodic::io::Kind;
  using Op = episodic::io::Op;
  using Site = episodic::io::Site;

  enum class Fault : std::uint8_t {
    error,  ///< the call fails with `error`, nothing is done
    half,   ///< half of the bytes are read or written
    flip,   ///< a bit of what was read is another
    late,   ///< the call is done after `delay`
  };
  struct Script {
    Site site{};
    Fault fault = Fault::error;
    int error = 5;          ///< errno
    std::int64_t at = 0;    ///< the first call of the site that it befalls, from 0
    bool for_ever = false;  ///< and all later ones
    std::chrono::milliseconds delay{1};
    bool any = false;  ///< calls of all sites, counted together, instead of those of `site`
  };

  void play(const Script& script) {
    const std::lock_guard lock(mutex_);
    script_ = script;
    calls_.clear();
    faults_ = all_ = 0;
  }
  /// Called before each call, from the thread that makes it.
  std::function<void(Site)> watch;

  /// No more faults.
  void heal() {
    const std::lock_guard lock(mutex_);
    script_.reset();
  }
  /// How often the script struck since play().
  std::int64_t faults() const {
    const std::lock_guard lock(mutex_);
    return faults_;
  }
  std::int64_t calls(Site site) const {
    const std::lock_guard lock(mutex_);
    const auto at = calls_.find(key(site));
    return at == calls_.end() ? 0 : at->second;
  }
  /// "segment read", ... in the order of Kind and Op: all sites that were called.
  std::vector<std::string> seen() const {
    const std::lock_guard lock(mutex_);
    std::vector<std::string> out;
    for (const auto& [k, n] : calls_)
      out.push_back(std::string(name_of(static_cast<Kind>(k.first))) + " " +
                    name_of(static_cast<Op>(k.second)));
    return out;
  }
  std::vector<Site> sites() const {
    const std::lock_guard lock(mutex_);
    std::vector<Site> out;
    for (const auto& [k, n] : calls_)
      out.push_back({static_cast<Kind>(k.first), static_cast<Op>(k.second)});
    return out;
  }

  int open(Kind kind, int dir, const char* path, int flags) override {
    const bool creates = (flags & O_CREAT) != 0 || (flags & O_TMPFILE) == O_TMPFILE;
    if (const int e = failing({kind, creates ? Op::create : Op::open})) return -e;
    return Syscalls::open(kind, dir, path, flags);
  }
  std::int64_t read(Kind kind, int fd, void* to, std::int64_t bytes, std::int64_t offset) override {
    const auto fault = next({kind, Op::read});
    if (fault && fault->fault == Fault::error) return -fault->error;
    const std::int64_t most = fault && fault->fault == Fault::half ? (bytes + 1) / 2 : bytes;
    const std::int64_t got = Syscalls::read(kind, fd, to, most, offset);
    if (fault && fault->fault == Fault::flip) flip(to, got);
    return got;
  }
  std::int64_t completed_read(Kind kind, int, void* to, std::int64_t, std::int64_t,
                              std::int64_t result) override {
    const auto fault = next({kind, Op::read});
    if (!fault || result <= 0) return result;
    if (fault->fault == Fault::error) return -fault->error;
    if (fault->fault == Fault::flip) flip(to, result);
    return fault->fault == Fault::half ? (result + 1) / 2 : result;
  }
  std::int64_t write(Kind kind, int fd, const void* from, std::int64_t bytes,
                     std::int64_t offset) override {
    const auto fault = next({kind, Op::write});
    if (fault && fault->fault == Fault::error) return -fault->error;
    return Syscalls::write(kind, fd, from,
                           fault && fault->fault == Fault::half ? (bytes + 1) / 2 : bytes, offset);
  }
  /// Only says that it did: no test can see the difference without pulling the plug.
  int sync(Kind kind, int) override { return -failing({kind, Op::sync}); }
  int allocate(Kind kind, int fd, std::int64_t offset, std::int64_t bytes) override {
    if (const int e = failing({kind, Op::allocate})) return -e;
    return Syscalls::allocate(kind, fd, offset, bytes);
  }
  int truncate(Kind kind, int fd, std::int64_t bytes) override {
    if (const int e = failing({kind, Op::truncate})) return -e;
    return Syscalls::truncate(kind, fd, bytes);
  }
  int rename(Kind kind, int dir, const char* from, const char* to) override {
    if (const int e = failing({kind, Op::rename})) return -e;
    return Syscalls::rename(kind, dir, from, to);
  }
  int link(Kind kind, int from_dir, const char* from, int to_dir, const char* to) override {
    if (const int e = failing({kind, Op::link})) return -e;
    return Syscalls::link(kind, from_dir, from, to_dir, to);
  }
  int unlink(Kind kind, int dir, const char* name) override {
    if (const int e = failing({kind, Op::unlink})) return -e;
    return Syscalls::unlink(kind, dir, name);
  }
  int make_directory(const char* path) override {
    if (const int e = failing({Kind::directory, Op::create})) return -e;
    return Syscalls::make_directory(path);
  }
  int lock(Kind kind, int fd, bool exclusive) override {
    if (const int e = failing({kind, Op::lock})) return -e;
    return Syscalls::lock(kind, fd, exclusive);
  }
  int submit(Kind kind) override { return -failing({kind, Op::submit}); }

 private:
  using Key = std::pair<int, int>;
  static Key key(Site site) { return {static_cast<int>(site.kind), static_cast<int>(site.op)}; }

  /// Counts a call; what befalls it.
  std::optional<Script> next(Site site) {
    if (watch) watch(site);
    std::unique_lock lock(mutex_);
    const std::int64_t of_site = calls_[key(site)]++, of_all = all_++;
    if (!script_ || !(script_->any || script_->site == site)) return std::nullopt;
    const std::int64_t number = script_->any ? of_all : of_site;
    if (number < script_->at || (number > script_->at && !script_->for_ever)) return std::nullopt;
    ++faults_;
    const Script script = *script_;
    lock.unlock();
    if (script.fault == Fault::late) std::this_thread::sleep_for(script.delay);
    return script;
  }
  /// The errno of a call that can only fail or be late.
  int failing(Site site) {
    const auto fault = next(site);
    return fault && fault->fault == Fault::error ? fault->error : 0;
  }
  void flip(void* bytes, std::int64_t n) {
    if (n <= 0) return;
    const std::lock_guard lock(mutex_);
    static_cast<unsigned char*>(bytes)[flips_++ * 7919 % n] ^= 0x10;
  }

  mutable std::mutex mutex_;
  std::optional<Script> script_;
  std::map<Key, std::int64_t> calls_;
  std::int64_t faults_ = 0, all_ = 0, flips_ = 37;
};
