// SPDX-License-Identifier: Apache-2.0
#include "read_queue.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <limits>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"

#if EPISODIC_URING
#include <liburing.h>
#endif

namespace episodic {
namespace {

constexpr std::int64_t kReaders = 4;

/// Goes on after `got` bytes (or -errno) until all is read, the file ends or a call fails.
std::int64_t finish(io::Syscalls& calls, const PendingRead& read, std::int64_t got) {
  std::int64_t at = 0;
  while (got > 0 && at + got < read.bytes) {
    // With O_DIRECT only whole grains count; what came of the next one is read again.
    const std::int64_t whole = (at + got) / read.grain * read.grain;
    if (whole == at) return -EIO;
    at = whole;
    got = calls.read(io::Kind::segment, read.fd, read.to + at, read.bytes - at, read.offset + at);
  }
  return got < 0 ? got : at + got;
}

/// Reads that nobody has begun yet.
class Fifo {
 public:
  bool empty() const { return !first_; }
  void push(PendingRead& read) {
    read.next = nullptr;
    (first_ ? last_->next : first_) = &read;
    last_ = &read;
  }
  PendingRead& pop() { return *std::exchange(first_, first_->next); }

 private:
  PendingRead* first_ = nullptr;
  PendingRead* last_ = nullptr;
};

class ThreadQueue final : public ReadQueue {
 public:
  ThreadQueue(io::Syscalls& calls, std::int64_t depth) : calls_(calls) {
    const auto n = static_cast<std::size_t>(std::min(depth, kReaders));
    threads_.reserve(n);
    try {
      while (threads_.size() < n) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& e) {
      stop();
      throw ConfigError(fmt::format("disk store: no thread to read with: {}", e.what()));
    }
  }
  ~ThreadQueue() override { stop(); }

  void submit(PendingRead& read) override {
    const std::lock_guard lock(mutex_);
    read.pending = true;
    waiting_.push(read);
  }
  void start() override { work_.notify_all(); }
  void wait(PendingRead& read) override {
    std::unique_lock lock(mutex_);
    done_.wait(lock, [&] { return !read.pending; });
  }
  bool done(PendingRead& read) override {
    const std::lock_guard lock(mutex_);
    return !read.pending;
  }

 private:
  void serve() {
    std::unique_lock lock(mutex_);
    for (;;) {
      work_.wait(lock, [&] { return !waiting_.empty() || stopping_; });
      if (waiting_.empty()) return;
      PendingRead& read = waiting_.pop();
      lock.unlock();
      const std::int64_t got =
          calls_.read(io::Kind::segment, read.fd, read.to, read.bytes, read.offset);
      const std::int64_t result = finish(calls_, read, got);
      lock.lock();
      read.result = result;
      read.pending = false;
      done_.notify_all();
    }
  }

  void stop() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    work_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  io::Syscalls& calls_;
  std::mutex mutex_;
  std::condition_variable work_, done_;
  Fifo waiting_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

#if EPISODIC_URING
class UringQueue final : public ReadQueue {
 public:
  UringQueue(io::Syscalls& calls, std::int64_t depth) : calls_(calls), depth_(depth) {
    const int r = io_uring_queue_init(static_cast<unsigned>(depth), &ring_, 0);
    if (r < 0)
      throw ConfigError(
          fmt::format("disk store: io_uring is not to be had here ({}); use the engine \"threads\"",
                      std::generic_category().message(-r)));
  }
  ~UringQueue() override { io_uring_queue_exit(&ring_); }

  void submit(PendingRead& read) override {
    read.pending = true;
    if (broken_) {
      read.turn = kNeverTaken;
      return;
    }
    waiting_.push(read);
    fill();
  }
  void start() override { enter(false); }
  void wait(PendingRead& read) override {
    // Even for one that is there: what waits goes on in the place of what came.
    reap();
    while (read.pending) {
      if (read_alone(read)) return;
      enter(true);
      reap();
    }
  }
  bool done(PendingRead& read) override {
    if (read.pending) reap();
    return !read.pending || read_alone(read);
  }

 private:
  static constexpr std::uint64_t kNeverTaken = std::numeric_limits<std::uint64_t>::max();

  /// Hands on what waits, as far as the depth goes.
  void fill() {
    while (!broken_ && under_way_ < depth_ && !waiting_.empty()) {
      io_uring_sqe* const entry = io_uring_get_sqe(&ring_);
      if (!entry) return;  // until those before it are submitted
      PendingRead& read = waiting_.pop();
      io_uring_prep_read(entry, read.fd, read.to, static_cast<unsigned>(read.bytes),
                         static_cast<std::uint64_t>(read.offset));
      io_uring_sqe_set_data(entry, &read);
      read.turn = n_filled_++;
      ++under_way_;
    }
  }

  /// Gives the kernel what was filled in. \param wait until one read has come
  void enter(bool wait) {
    if (broken_) {
      // What the kernel has taken still comes, by itself.
      if (wait) std::this_thread::sleep_for(std::chrono::microseconds(50));
      return;
    }
    int r = calls_.submit(io::Kind::segment);
    if (r >= 0) r = wait ? io_uring_submit_and_wait(&ring_, 1) : io_uring_submit(&ring_);
    if (r >= 0) {
      refused_ = 0;
    } else if (r != -EINTR && r != -EAGAIN && r != -EBUSY) {
      give_up();
    } else if (wait) {
      // A signal came, or the kernel is short of memory for a while: it is asked again.
      constexpr int kTries = 1000;
      if (++refused_ == kTries) return give_up();
      if (r != -EINTR) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  /// io_uring serves no more. What the kernel has not taken is read without it, when it is waited
  /// for; the kernel is not called again, so that it never does.
  void give_up() {
    broken_ = true;
    first_not_taken_ = n_filled_ - io_uring_sq_ready(&ring_);
    while (!waiting_.empty()) waiting_.pop().turn = kNeverTaken;
  }

  /// Reads what the kernel will not. \return whether it was that
  bool read_alone(PendingRead& read) {
    if (!broken_ || read.turn < first_not_taken_) return false;
    const std::int64_t got =
        calls_.read(io::Kind::segment, read.fd, read.to, read.bytes, read.offset);
    read.result = finish(calls_, read, got);
    read.pending = false;
    return true;
  }

  void reap() {
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(&ring_, &completion) == 0) {
      auto& read = *static_cast<PendingRead*>(io_uring_cqe_get_data(completion));
      std::int64_t got = completion->res;
      io_uring_cqe_seen(&ring_, completion);
      got =
          calls_.completed_read(io::Kind::segment, read.fd, read.to, read.bytes, read.offset, got);
      if (got == -EINTR || got == -EAGAIN)
        got = calls_.read(io::Kind::segment, read.fd, read.to, read.bytes, read.offset);
      read.result = finish(calls_, read, got);
      read.pending = false;
      --under_way_;
    }
    fill();
    // Before the caller turns to what came, so that the medium goes on meanwhile.
    if (!broken_ && io_uring_sq_ready(&ring_) > 0) enter(false);
  }

  io::Syscalls& calls_;
  std::int64_t depth_, under_way_ = 0;
  Fifo waiting_;
  io_uring ring_{};
  std::uint64_t n_filled_ = 0;         // reads that were handed to the ring
  bool broken_ = false;                // the kernel takes no more
  std::uint64_t first_not_taken_ = 0;  // then: of them
  int refused_ = 0;                    // in a row
};
#endif

}  // namespace

std::unique_ptr<ReadQueue> make_read_queue(ReadEngine engine, io::Syscalls& calls,
                                           std::int64_t depth) {
#if EPISODIC_URING
  if (engine == ReadEngine::io_uring) return std::make_unique<UringQueue>(calls, depth);
  if (engine == ReadEngine::automatic) try {
      return std::make_unique<UringQueue>(calls, depth);
    } catch (const ConfigError&) {  // the kernel or its policy has none
    }
#else
  if (engine == ReadEngine::io_uring)
    throw NotBuiltError(
        "disk store: this build has no io_uring (liburing was not found); use the engine "
        "\"threads\"");
#endif
  return std::make_unique<ThreadQueue>(calls, depth);
}

}  // namespace episodic
