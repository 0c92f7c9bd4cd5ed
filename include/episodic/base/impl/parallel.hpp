// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of base/parallel.hpp; how they become functions: base/inline.hpp.
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"

#ifdef _OPENMP
#include <omp.h>
#endif

#include <atomic>
#include <exception>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "episodic/base/error.hpp"

namespace EPISODIC_NAMESPACE {
namespace parallel_detail {

inline std::atomic<Executor*> process_executor{nullptr};
inline thread_local Executor* thread_executor = nullptr;
inline thread_local bool in_loop = false;  // this thread runs a task of a parallel loop

inline Executor* current_executor() {
  return thread_executor != nullptr ? thread_executor
                                    : process_executor.load(std::memory_order_acquire);
}

inline bool inside_loop() {
#ifdef _OPENMP
  if (omp_in_parallel()) return true;  // also in a region of the caller's
#endif
  return in_loop;
}

// A loop with its first exception, which waits for the calling thread.
struct Loop {
  void (*body)(void*, std::int64_t);
  void* context;
  std::atomic<bool> failed{false};
  std::exception_ptr failure;

  void run(std::int64_t i) noexcept {
    if (failed.load(std::memory_order_relaxed)) return;
    const bool before = in_loop;
    in_loop = true;
    try {
      body(context, i);
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
    in_loop = before;
  }
};

#ifdef __SANITIZE_THREAD__
// ThreadSanitizer cannot see how libgomp's threads wait for each other, but it knows std::thread.
inline void run_by_default(std::int64_t n, Loop& loop) {
  std::atomic<std::int64_t> next{0};
  const auto work = [&] {
    for (std::int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < n;) loop.run(i);
  };
  std::vector<std::thread> others;
  try {
    for (int t = 1; t < max_threads(); ++t) others.emplace_back(work);
  } catch (const std::system_error&) {  // refused: those that began do the rest
  }
  work();
  for (std::thread& other : others) other.join();
}
#else

#ifdef _OPENMP
inline thread_local int team_size = 1;  // of this thread's OpenMP team, as far as is known here

// OpenMP's runtime ends the process when the system refuses it a thread. So before a team grows, as
// many threads run at once under std::thread, which throws; the team then takes their places.
inline void require_threads(int n) {
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(n));
  std::mutex gate;
  std::unique_lock<std::mutex> closed(gate);
  std::string refusal;
  try {
    for (int t = 1; t < n; ++t) {
      threads.emplace_back([&gate] { const std::lock_guard<std::mutex> wait(gate); });
    }
  } catch (const std::system_error& e) {
    refusal = e.code().message();
  }
  closed.unlock();
  for (std::thread& thread : threads) thread.join();
  if (!refusal.empty()) {
    throw Error("OpenMP: the system refused a team of " + std::to_string(n) + " threads (" +
                refusal + "); set OMP_NUM_THREADS lower, or allow more threads or memory");
  }
}
#endif

inline void run_by_default(std::int64_t n, Loop& loop) {
#ifdef _OPENMP
  const int threads = omp_get_max_threads();
  if (threads > team_size) require_threads(threads);
  team_size = threads;
#pragma omp parallel for schedule(dynamic, 1)
#endif
  for (std::int64_t i = 0; i < n; ++i) loop.run(i);
}
#endif

}  // namespace parallel_detail

EPISODIC_INLINE Executor* set_executor(Executor* executor) {
  return parallel_detail::process_executor.exchange(executor, std::memory_order_acq_rel);
}

EPISODIC_INLINE ExecutorScope::ExecutorScope(Executor& executor)
    : before_(parallel_detail::thread_executor) {
  parallel_detail::thread_executor = &executor;
}

EPISODIC_INLINE ExecutorScope::~ExecutorScope() { parallel_detail::thread_executor = before_; }

EPISODIC_INLINE int max_threads() {
  if (const Executor* executor = parallel_detail::current_executor()) {
    const int n = executor->concurrency();
    return n < 1 ? 1 : n;
  }
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}

EPISODIC_INLINE void set_max_threads([[maybe_unused]] int n) {
#ifdef _OPENMP
  omp_set_num_threads(n < 1 ? 1 : n);
#endif
}

namespace detail {

EPISODIC_INLINE void parallel_for_impl(std::int64_t n, void (*body)(void*, std::int64_t),
                                       void* context) {
  using namespace parallel_detail;
  if (n <= 1 || inside_loop() || max_threads() == 1) {
    for (std::int64_t i = 0; i < n; ++i) body(context, i);
    return;
  }
  Loop loop{body, context, {false}, nullptr};
  if (Executor* executor = current_executor()) {
    executor->run(
        n, [](void* l, std::int64_t i) { static_cast<Loop*>(l)->run(i); }, &loop);
  } else {
    run_by_default(n, loop);
  }
  if (loop.failure) std::rethrow_exception(loop.failure);
}

}  // namespace detail
}  // namespace EPISODIC_NAMESPACE
