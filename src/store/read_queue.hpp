// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Reads that go on while their owner computes: through io_uring, or a few threads with pread.

#include <cstddef>
#include <cstdint>
#include <memory>

#include "episodic/base/io.hpp"
#include "episodic/store/disk_store.hpp"

namespace episodic {

/// One read. It stays where it is from submit() until wait() returned; so does its buffer.
struct PendingRead {
  int fd = -1;
  std::byte* to = nullptr;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
  std::int64_t grain = 1;   ///< what offset, length and buffer must be multiples of (O_DIRECT)
  std::int64_t result = 0;  ///< bytes read, fewer only at the end of the file; or -errno
  bool pending = false;
  PendingRead* next = nullptr;  ///< the queue's own, as is what follows
  std::uint64_t turn = 0;
};

/// Used by one thread. As many reads as one likes may be submitted: they are begun in their order.
class ReadQueue {
 public:
  virtual ~ReadQueue() = default;
  virtual void submit(PendingRead& read) = 0;
  /// Begins all that was submitted.
  virtual void start() = 0;
  virtual void wait(PendingRead& read) = 0;
  /// Whether wait() would return at once.
  virtual bool done(PendingRead& read) = 0;
};

/// \param depth most reads under way at once \throws NotBuiltError, ConfigError for an engine that
/// was asked for by name and is not to be had
std::unique_ptr<ReadQueue> make_read_queue(ReadEngine engine, io::Syscalls& calls,
                                           std::int64_t depth);

}  // namespace episodic
