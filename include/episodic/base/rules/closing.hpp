// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The rule that cuts pending tokens into events (EM 3.1 to 3.3).

#include <cstdint>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

/// What is pending, and how long an event may be.
struct Pending {
  std::int64_t start = 0;  ///< first token in no closed event
  std::int64_t min_block = 1, max_block = 1;
};

/// Closes pieces of max_block while they fit before `limit`.
/// \param close callable (start, end) -> bool; false: there is no room, and the rule stops as it is
/// \return false if `close` was
template <class Close>
EPISODIC_HOST_DEVICE bool close_pieces(Pending& pending, std::int64_t limit, Close&& close) {
  while (limit - pending.start >= pending.max_block) {
    if (!close(pending.start, pending.start + pending.max_block)) return false;
    pending.start += pending.max_block;
  }
  return true;
}

/// A boundary at token b, pending.start < b: pieces before it, then the event that it ends, unless
/// that is shorter than min_block: it is then merged into the next one.
template <class Close>
EPISODIC_HOST_DEVICE bool close_at_boundary(Pending& pending, std::int64_t b, Close&& close) {
  if (!close_pieces(pending, b, close)) return false;
  if (b - pending.start < pending.min_block) return true;
  if (!close(pending.start, b)) return false;
  pending.start = b;
  return true;
}

}  // namespace episodic::rules
