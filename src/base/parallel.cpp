// SPDX-License-Identifier: Apache-2.0
#include "episodic/base/parallel.hpp"

#include <omp.h>

#include <atomic>
#include <exception>

namespace episodic {

int max_threads() { return omp_get_max_threads(); }

void set_max_threads(int n) { omp_set_num_threads(n < 1 ? 1 : n); }

namespace detail {

void parallel_for_impl(std::int64_t n, void (*body)(void*, std::int64_t), void* context) {
  if (n <= 1 || omp_in_parallel() || omp_get_max_threads() == 1) {
    for (std::int64_t i = 0; i < n; ++i) body(context, i);
    return;
  }
  std::exception_ptr failure;
  std::atomic<bool> failed{false};
#pragma omp parallel for schedule(dynamic, 1)
  for (std::int64_t i = 0; i < n; ++i) {
    if (failed.load(std::memory_order_relaxed)) continue;
    try {
      body(context, i);
    } catch (...) {
      if (!failed.exchange(true)) failure = std::current_exception();
    }
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace detail
}  // namespace episodic
