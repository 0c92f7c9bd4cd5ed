// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the exact index and its search share.
#include <algorithm>
#include <cstdint>
#include <limits>

#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"

namespace EPISODIC_NAMESPACE::detail::exact_index_detail {

/// Not a number would break the ranking's order; such an event comes last.
inline float rankable(float score) {
  return score == score ? score : -std::numeric_limits<float>::infinity();
}

/// f(i) for i in [0, n), in parallel by fixed blocks.
template <class F>
void parallel_blocks(std::int64_t n, F&& f) {
  constexpr std::int64_t kBlock = 64;
  parallel_for((n + kBlock - 1) / kBlock, [&](std::int64_t block) {
    const std::int64_t end = std::min(n, (block + 1) * kBlock);
    for (std::int64_t i = block * kBlock; i < end; ++i) f(i);
  });
}

}  // namespace EPISODIC_NAMESPACE::detail::exact_index_detail
