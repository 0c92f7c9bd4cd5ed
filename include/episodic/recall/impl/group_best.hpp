// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of recall/group_best.hpp; how they become functions: base/inline.hpp.
#include "episodic/recall/group_best.hpp"

#include <algorithm>
#include <span>
#include <utility>

#include "episodic/recall/detail/exact_index.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE void merge_best(Group& group, std::int64_t k, std::vector<ScoredEvent>& list) {
  k = std::max<std::int64_t>(k, 0);
  // Lists of one length: what is missing is no event.
  list.resize(static_cast<std::size_t>(k), {-1, 0.0f});
  std::vector<ScoredEvent> all(list.size() * static_cast<std::size_t>(group.size()));
  group.gather(std::as_bytes(std::span(list)), std::as_writable_bytes(std::span(all)));
  std::erase_if(all, [](const ScoredEvent& e) { return e.event < 0; });
  detail::keep_best(all, k);
  list = std::move(all);
}

}  // namespace EPISODIC_NAMESPACE
