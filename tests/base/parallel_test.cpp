// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/parallel.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "support/address_space.hpp"
#include "support/test.hpp"
#include "support/thread_pool.hpp"

namespace episodic {
namespace {

using testing::BackwardExecutor;
using testing::ThreadPool;

std::vector<int> count_calls(std::int64_t n) {
  std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
  parallel_for(n, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
  return {calls.begin(), calls.end()};
}

TEST_CASE("a parallel loop calls each task once, on OpenMP, a pool and a serial executor") {
  ThreadPool pool(3);
  BackwardExecutor serial;
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool),
                             static_cast<Executor*>(&serial)}) {
    REQUIRE(set_executor(executor) == nullptr);
    for (std::int64_t n : {0, 1, 2, 7, 1000}) {
      REQUIRE(count_calls(n) == std::vector<int>(static_cast<std::size_t>(n), 1));
    }
    REQUIRE(set_executor(nullptr) == executor);
  }
  REQUIRE(pool.loops() == 3);  // not those of 0 and 1 tasks
  REQUIRE(serial.tasks() == 1009);
}

TEST_CASE("a scope's executor goes before the process's, for its own thread only") {
  BackwardExecutor process(5), first(2), second(3);
  set_executor(&process);
  REQUIRE(max_threads() == 5);
  {
    const ExecutorScope outer(first);
    REQUIRE(max_threads() == 2);
    {
      const ExecutorScope inner(second);
      REQUIRE(max_threads() == 3);
      count_calls(4);
    }
    count_calls(6);
    int elsewhere = 0;
    std::thread([&] { elsewhere = max_threads(); }).join();
    REQUIRE(elsewhere == 5);
  }
  count_calls(8);
  set_executor(nullptr);
  REQUIRE(second.tasks() == 4);
  REQUIRE(first.tasks() == 6);
  REQUIRE(process.tasks() == 8);
  BackwardExecutor alone(1);
  const ExecutorScope scope(alone);
  count_calls(9);
  REQUIRE(alone.tasks() == 0);
}

TEST_CASE("an exception of a task reaches the caller of the loop, on every executor") {
  ThreadPool pool(2);
  BackwardExecutor serial;
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool),
                             static_cast<Executor*>(&serial)}) {
    set_executor(executor);
    std::string message;
    try {
      parallel_for(100, [](std::int64_t i) {
        if (i % 10 == 3) throw std::runtime_error("task failed");
      });
    } catch (const std::runtime_error& e) {
      message = e.what();
    }
    REQUIRE(message == "task failed");
    REQUIRE(count_calls(5) == std::vector<int>(5, 1));  // and the next loop runs
    set_executor(nullptr);
  }
}

TEST_CASE("a loop inside a task runs on the task's thread") {
  ThreadPool pool(2);
  const ExecutorScope scope(pool);
  std::atomic<int> calls{0}, moved{0};
  parallel_for(8, [&](std::int64_t) {
    const auto here = std::this_thread::get_id();
    parallel_for(8, [&](std::int64_t) {
      ++calls;
      if (std::this_thread::get_id() != here) ++moved;
    });
  });
  REQUIRE(calls == 64);
  REQUIRE(moved == 0);
  REQUIRE(pool.loops() == 1);
}

/// Runs the first of the tasks that it is given, then says no.
class Refusing final : public Executor {
 public:
  explicit Refusing(std::int64_t first) : first_(first) {}
  int concurrency() const override { return 4; }
  void run(std::int64_t n, void (*task)(void*, std::int64_t), void* context) override {
    for (std::int64_t i = 0; i < std::min(n, first_); ++i) task(context, i);
    throw Error("no threads today");
  }

 private:
  std::int64_t first_;
};

TEST_CASE("a loop that must not fail runs each task once, alone where threads are refused") {
  ThreadPool pool(3);
  BackwardExecutor serial;
  Refusing all(0), half(3), none(100);
  for (Executor* executor : {static_cast<Executor*>(nullptr), static_cast<Executor*>(&pool),
                             static_cast<Executor*>(&serial), static_cast<Executor*>(&all),
                             static_cast<Executor*>(&half), static_cast<Executor*>(&none)}) {
    set_executor(executor);
    for (std::int64_t n : {0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<std::size_t>(n));
      parallel_for_or_alone(n, [&](std::int64_t i) { ++calls[static_cast<std::size_t>(i)]; });
      REQUIRE(std::vector<int>(calls.begin(), calls.end()) ==
              std::vector<int>(static_cast<std::size_t>(n), 1));
    }
    set_executor(nullptr);
  }
}

// OpenMP's own answer is to end the process.
TEST_CASE(
    "a team of threads that the system refuses is an error, and a smaller one works after it") {
#if !defined(_OPENMP) || defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  EPISODIC_SKIP("without OpenMP; or under a sanitizer, which cannot run with little address space");
#else
  std::string message;
  std::vector<int> after;
  std::thread([&] {  // it has no team yet
    set_max_threads(100);
    {
      const testing::AddressSpace few(std::int64_t{64} << 20);  // stacks of 8 MiB
      try {
        count_calls(7);
      } catch (const Error& e) {
        message = e.what();
      }
    }
    set_max_threads(3);
    after = count_calls(7);
  })
      .join();
  REQUIRE(message ==
          "OpenMP: the system refused a team of 100 threads (Resource temporarily unavailable); "
          "set OMP_NUM_THREADS lower, or allow more threads or memory");
  REQUIRE(after == std::vector<int>(7, 1));
#endif
}

}  // namespace
}  // namespace episodic
