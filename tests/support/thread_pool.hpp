// SPDX-License-Identifier: Apache-2.0
#pragma once
// An executor as a program with its own threads would write it: a fixed pool and one loop at a
// time.

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

#include "episodic/base/parallel.hpp"

namespace episodic::testing {

class ThreadPool final : public Executor {
 public:
  explicit ThreadPool(int n) : concurrency_(n) {
    for (int i = 0; i < n; ++i) threads_.emplace_back([this] { work(); });
  }
  ~ThreadPool() override {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

  int concurrency() const override { return concurrency_; }
  std::int64_t loops() const { return loops_; }

  void run(std::int64_t n, void (*task)(void*, std::int64_t), void* context) override {
    const std::lock_guard one_loop(run_mutex_);
    std::unique_lock lock(mutex_);
    n_ = n, next_ = 0, task_ = task, context_ = context;
    left_ = n;
    ++loops_;
    wake_.notify_all();
    done_.wait(lock, [this] { return left_ == 0; });
    n_ = 0;
  }

 private:
  void work() {
    std::unique_lock lock(mutex_);
    for (;;) {
      wake_.wait(lock, [this] { return stop_ || next_ < n_; });
      if (stop_) return;
      const std::int64_t i = next_++;
      lock.unlock();
      task_(context_, i);
      lock.lock();
      if (--left_ == 0) done_.notify_one();
    }
  }

  const int concurrency_;
  std::mutex run_mutex_, mutex_;
  std::condition_variable wake_, done_;
  std::int64_t n_ = 0, next_ = 0, left_ = 0;
  std::atomic<std::int64_t> loops_{0};
  void (*task_)(void*, std::int64_t) = nullptr;
  void* context_ = nullptr;
  bool stop_ = false;
  std::vector<std::thread> threads_;
};

/// Runs every task on the calling thread, last first.
class BackwardExecutor final : public Executor {
 public:
  explicit BackwardExecutor(int claimed = 2) : claimed_(claimed) {}
  int concurrency() const override { return claimed_; }
  std::int64_t tasks() const { return tasks_; }
  void run(std::int64_t n, void (*task)(void*, std::int64_t), void* context) override {
    for (std::int64_t i = n; i-- > 0;) task(context, i);
    tasks_ += n;
  }

 private:
  int claimed_;
  std::int64_t tasks_ = 0;
};

}  // namespace episodic::testing
