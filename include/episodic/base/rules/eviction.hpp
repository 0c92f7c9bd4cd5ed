// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Which event leaves a slot to make room (EM C.3): free slots come first, then the least recently
/// recalled event, and pinned ones last; one that the present step recalls never leaves.

#include <cstdint>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

/// An event in a slot, and the step of its last recall (-1: never).
struct Resident {
  std::int64_t last_recalled = -1;
  std::int64_t event = -1;  ///< -1: the slot is free
  bool pinned = false;
};

EPISODIC_HOST_DEVICE inline bool is_free(const Resident& slot) { return slot.event < 0; }

/// Whether it may leave in a step that has recalled, or may recall, events from stamp `since` on.
EPISODIC_HOST_DEVICE inline bool may_leave(const Resident& slot, std::int64_t since) {
  return !is_free(slot) && slot.last_recalled < since;
}

/// Whether `a` leaves before `b`, both in use: it alone is not pinned, it was recalled longer ago,
/// or it is the earlier event.
EPISODIC_HOST_DEVICE inline bool leaves_before(const Resident& a, const Resident& b) {
  if (a.pinned != b.pinned) return b.pinned;
  return a.last_recalled < b.last_recalled ||
         (a.last_recalled == b.last_recalled && a.event < b.event);
}

}  // namespace episodic::rules
