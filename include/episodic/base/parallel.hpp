// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Data-parallel loops, on the caller's OpenMP team or on an executor of the caller's. Work is cut
/// into tasks by the caller, and the cut never depends on the number of threads: results are the
/// same to the bit for any team size and any executor.

#include <atomic>
#include <cstdint>
#include <type_traits>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// Threads that parallel loops run on, given by a program that has its own.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Tasks that can run at the same time, the calling thread included if it takes part; at least 1.
  /// 1 keeps every loop on the calling thread.
  virtual int concurrency() const = 0;
  /// Calls task(context, i) exactly once for each i in [0, n), on any threads and in any order, and
  /// returns when all calls have returned and what they wrote is visible to the caller. The task
  /// throws nothing. Loops do not nest: a task never calls run.
  virtual void run(std::int64_t n, void (*task)(void* context, std::int64_t i), void* context) = 0;
};

/// All later parallel loops of the process run on `executor`, from any thread (so its `run` must
/// accept calls from several at once if the program computes on several); null: OpenMP again, or
/// the calling thread alone in a build without OpenMP. Not while a loop is running. The executor
/// must outlive its use: until another one is set and the loops that began before have ended.
/// \return the executor before, null for the default
Executor* set_executor(Executor* executor);

/// While it lives, parallel loops begun by this thread run on `executor`, whatever set_executor
/// said. Scopes nest and end in reverse order, on the thread that opened them.
class ExecutorScope {
 public:
  /// \param executor must outlive the scope
  explicit ExecutorScope(Executor& executor);
  ~ExecutorScope();
  ExecutorScope(const ExecutorScope&) = delete;
  ExecutorScope& operator=(const ExecutorScope&) = delete;

 private:
  Executor* before_;
};

/// Threads a parallel loop of this thread would use now: the executor's concurrency, or OpenMP's.
int max_threads();

/// Threads that later parallel loops of the process use on OpenMP; n >= 1. An executor decides for
/// itself. For programs, not for the library.
void set_max_threads(int n);

namespace detail {
/// Runs body(context, i) for i in [0, n), dynamically scheduled. The first exception is rethrown.
void parallel_for_impl(std::int64_t n, void (*body)(void*, std::int64_t), void* context);
}  // namespace detail

/// Runs f(i) for every i in [0, n); each call once, in no order. Exceptions reach the caller (one
/// of them; tasks that have not begun are then left out). Serial when n == 1 or inside another
/// parallel loop. Allocates nothing, but at a thread's first loop, or when its OpenMP team grows.
/// \throws Error then, if the system refuses as many threads; what OpenMP itself does is to exit
template <class F>
void parallel_for(std::int64_t n, F&& f) {
  using Fn = std::remove_reference_t<F>;
  detail::parallel_for_impl(
      n, [](void* c, std::int64_t i) { (*static_cast<Fn*>(c))(i); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

/// Runs f(i) for every i in [0, n), each call once: on this thread alone where no others are to be
/// had. For what must not fail any more. \pre f throws nothing
template <class F>
void parallel_for_or_alone(std::int64_t n, F&& f) noexcept {
  std::atomic<std::int64_t> next{0};
  const auto take_one = [&](std::int64_t) {
    if (const std::int64_t i = next.fetch_add(1, std::memory_order_relaxed); i < n) f(i);
  };
  try {
    parallel_for(n, take_one);
  } catch (...) {  // threads were refused, or an executor of the caller's gave up
  }
  for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) f(i);
}

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/base/impl/parallel.hpp"
#endif
