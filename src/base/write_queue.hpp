// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Writing behind: what is to be written waits in a queue, and a thread writes it.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <list>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "episodic/base/io.hpp"

namespace episodic::io {

/// Writes to files, made by one thread in the order of their places, neighbours at once where there
/// is room to put them together. A write that fails stays in the queue; all wait until the failure
/// was told to somebody, and are tried again when the next call waits for them.
///
/// The queue's mutex is its user's too, for what the writes are made of: calls take the lock that
/// they are made under. A machine that gives no thread has its writes made by who waits for them.
class WriteQueue {
 public:
  using Lock = std::unique_lock<std::mutex>;

  struct Write {
    File* file = nullptr;
    std::int64_t offset = 0;
    std::span<const std::byte> bytes;  ///< stay where they are until they were written
    std::vector<std::byte> own;        ///< or are the queue's: `bytes` is this
    std::uint64_t tag = 0;             ///< its maker's
  };
  /// One write, not yet in the queue, so that putting it there needs no memory.
  using Ready = std::list<Write>;

  /// \param most_bytes that may wait; 0: the user has a bound of its own
  /// \param gather room to put neighbours together; may be empty
  /// \param written called under the lock for each write that was made; may be empty
  WriteQueue(std::int64_t most_bytes, std::span<std::byte> gather,
             std::function<void(const Write&)> written);
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  /// Ends the thread, before its user ends. What was not written yet never is.
  void stop();

  Lock lock() const { return Lock(mutex_); }

  /// Waits until so many more bytes may be queued. If a write failed before, all are tried again
  /// first. \throws what a write failed with; nothing is lost then
  void admit(Lock& lock, std::int64_t bytes);
  void push(const Lock& lock, Ready one) noexcept;
  /// Takes back all writes to [offset, offset + bytes) of a file, waiting for one under way.
  void withdraw(Lock& lock, const File& file, std::int64_t offset, std::int64_t bytes) noexcept;
  /// Waits until all is written. \throws what a write failed with; nothing is lost then
  void drain(Lock& lock);
  /// Waits for the next write to be made or to fail. \throws what one failed with; the next call
  /// has them tried again
  void progress(Lock& lock);
  /// For those in `progress`: something else may have changed.
  void wake() noexcept { written_.notify_all(); }
  /// If a write is queued that has all of these bytes, they are copied. \return whether it was
  bool copy(const Lock& lock, const File& file, std::int64_t offset, std::span<std::byte> to) const;

 private:
  void work();
  void wait(Lock& lock);
  [[noreturn]] void tell();
  void try_again();
  void write_batch(Lock& lock);
  std::list<Write>::iterator write_run(std::list<Write>::iterator first);

  mutable std::mutex mutex_;
  std::condition_variable work_;     ///< for the thread: something to write
  std::condition_variable written_;  ///< from it: something was written, or could not be
  std::list<Write> queue_, batch_;   ///< to be written; being written
  std::int64_t most_bytes_, queued_bytes_ = 0;
  std::span<std::byte> gather_;
  std::function<void(const Write&)> on_written_;
  std::exception_ptr error_;  ///< of the last write; nothing is written while there is one
  bool told_ = false;         ///< whether somebody was told of it
  bool stopping_ = false;
  std::thread thread_;  ///< begun by the first write
};

}  // namespace episodic::io
