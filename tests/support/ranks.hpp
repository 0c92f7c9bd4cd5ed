// SPDX-License-Identifier: Apache-2.0
#pragma once
// Ranks of a group as threads of the test.

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "episodic/group/thread_group.hpp"

namespace episodic_test {

/// Runs f on every rank. \return of each rank what it threw, null if nothing
inline std::vector<std::exception_ptr> try_ranks(
    int size, const std::function<void(const std::shared_ptr<episodic::Group>&)>& f,
    std::chrono::milliseconds timeout = std::chrono::seconds(300)) {
  auto ends = episodic::make_thread_group(size, {timeout});
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      const auto at = static_cast<std::size_t>(r);
      try {
        f(ends[at]);
      } catch (...) {
        errors[at] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

/// The same where no rank may fail.
inline void run_ranks(int size,
                      const std::function<void(const std::shared_ptr<episodic::Group>&)>& f) {
  for (const std::exception_ptr& error : try_ranks(size, f))
    if (error) std::rethrow_exception(error);
}

/// What an exception says; empty for none.
inline std::string message_of(const std::exception_ptr& error) {
  if (!error) return {};
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& e) {
    return e.what();
  }
}

}  // namespace episodic_test
