// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of group/thread_group.hpp; how they become functions: base/inline.hpp.
#include "episodic/group/thread_group.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {
namespace thread_group_detail {

/// Messages from one rank to another.
struct Queue {
  struct Message {
    int kind = 0;
    std::vector<std::byte> bytes;
  };
  std::mutex mutex;
  std::condition_variable came;
  std::deque<Message> messages;
};

class ThreadGroup final : public Group {
 public:
  using Queues = std::vector<Queue>;  // [size * size], from a rank to a rank

  ThreadGroup(int rank, int size, const GroupOptions& options, std::shared_ptr<Queues> queues)
      : Group(rank, size, options), queues_(std::move(queues)) {}

 protected:
  void send(int to, Kind kind, std::span<const std::byte> bytes) override {
    Queue& queue = between(rank(), to);
    Queue::Message message{static_cast<int>(kind), {bytes.begin(), bytes.end()}};
    const std::lock_guard lock(queue.mutex);
    queue.messages.push_back(std::move(message));
    queue.came.notify_one();
  }
  std::optional<Incoming> wait(int from, Deadline until) override {
    Queue& queue = between(from, rank());
    std::unique_lock lock(queue.mutex);
    if (!queue.came.wait_until(lock, until, [&] { return !queue.messages.empty(); }))
      return std::nullopt;
    const Queue::Message& next = queue.messages.front();
    return Incoming{static_cast<Kind>(next.kind), next.bytes.size()};
  }
  bool take(int from, std::span<std::byte> to, Deadline /*until*/) override {
    Queue& queue = between(from, rank());
    const std::lock_guard lock(queue.mutex);
    std::copy_n(queue.messages.front().bytes.begin(), to.size(), to.begin());
    queue.messages.pop_front();
    return true;
  }
  bool flush(Deadline /*until*/) override { return true; }

 private:
  Queue& between(int from, int to) {
    return (*queues_)[static_cast<std::size_t>(from * size() + to)];
  }

  std::shared_ptr<Queues> queues_;
};

}  // namespace thread_group_detail

EPISODIC_INLINE std::vector<std::shared_ptr<Group>> make_thread_group(int size,
                                                                      const GroupOptions& options) {
  using thread_group_detail::ThreadGroup;
  if (size < 1) throw ConfigError(concat("group: ", size, " ranks; give at least 1"));
  auto queues = std::make_shared<ThreadGroup::Queues>(static_cast<std::size_t>(size) *
                                                      static_cast<std::size_t>(size));
  std::vector<std::shared_ptr<Group>> ends;
  for (int rank = 0; rank < size; ++rank)
    ends.push_back(std::make_shared<ThreadGroup>(rank, size, options, queues));
  return ends;
}

}  // namespace EPISODIC_NAMESPACE
