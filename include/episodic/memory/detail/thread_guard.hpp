// SPDX-License-Identifier: Apache-2.0
#pragma once
// What refuses two threads that are in one memory at once, instead of letting them damage it.

#include <atomic>
#include <thread>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Refuses the second of two threads that are in one memory at once. A thread that is inside may
/// call again, from a callback say.
class ThreadGuard {
 public:
  /// For the time of a call. \throws Error if another thread is inside
  class Inside {
   public:
    explicit Inside(ThreadGuard& guard) : guard_(guard) {
      const std::thread::id self = std::this_thread::get_id();
      std::thread::id owner;  // nobody; if that is wrong, whoever was inside
      if (guard.owner_.compare_exchange_strong(owner, self, std::memory_order_acquire)) return;
      // Whoever it was may have left since. To look again would be to go on without the guard.
      if (owner != self) refuse();
      outer_ = true;
    }
    ~Inside() {
      if (!outer_) guard_.owner_.store(std::thread::id(), std::memory_order_release);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

   private:
    ThreadGuard& guard_;
    bool outer_ = false;  // an outer call of this thread holds the guard
  };

  /// For a look that takes no time. \throws Error if another thread is inside
  void check() const {
    const std::thread::id owner = owner_.load(std::memory_order_acquire);
    if (owner != std::thread::id() && owner != std::this_thread::get_id()) refuse();
  }

 private:
  [[noreturn]] static void refuse() {
    throw Error(
        "episodic memory: used from two threads at once; give each thread a memory of its own "
        "(EpisodicMemory::share), or let them take turns");
  }

  std::atomic<std::thread::id> owner_{};
};

}  // namespace EPISODIC_NAMESPACE::detail
