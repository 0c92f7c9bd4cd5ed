// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Data-parallel loops on the caller's OpenMP team. Work is cut into tasks by the caller, and the
/// cut never depends on the number of threads: results are the same to the bit for any team size.

#include <cstdint>
#include <type_traits>

namespace episodic {

/// Threads a parallel loop of this thread would use now.
int max_threads();

/// Threads that later parallel loops of the process use; n >= 1. For programs, not for the library.
void set_max_threads(int n);

namespace detail {
/// Runs body(context, i) for i in [0, n), dynamically scheduled. The first exception is rethrown.
void parallel_for_impl(std::int64_t n, void (*body)(void*, std::int64_t), void* context);
}  // namespace detail

/// Runs f(i) for every i in [0, n); each call once, in no order. Exceptions reach the caller (one
/// of them). Serial when n == 1 or inside another parallel loop. Allocates nothing.
template <class F>
void parallel_for(std::int64_t n, F&& f) {
  using Fn = std::remove_reference_t<F>;
  detail::parallel_for_impl(
      n, [](void* c, std::int64_t i) { (*static_cast<Fn*>(c))(i); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

}  // namespace episodic
