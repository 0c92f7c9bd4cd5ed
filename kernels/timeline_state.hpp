// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the timeline plane carries from step to step in device memory.
///
/// One step of n tokens is, on one stream: raw flags (kernels/threshold.hpp, or
/// kernels/key_segmenter.hpp, or the caller's) -> final flags (kernels/refine.hpp) -> events
/// (kernels/close_events.hpp, which ends the step). n is known to the host, every position is read
/// here: a captured graph of one decode step serves all of them.

#include <cstdint>

namespace episodic::kernels {

/// Number of an event in order of time.
using DeviceEventId = std::int32_t;

/// Bits of TimelineState::errors. They stay until the host clears them.
enum TimelineError : std::uint32_t {
  kSurpriseIsNaN = 1u << 0,     ///< of some token but the first; it has no boundary, nor have those
                                ///< whose window holds it
  kStepsTooLong = 1u << 1,      ///< refinement met a previous step longer than max_previous
  kEventTableIsFull = 1u << 2,  ///< what would have been closed is left pending
};

/// One sequence (or one head of it, where heads have events of their own). The host writes
/// `initial_timeline(n_init)` once; from then on only the kernels write.
struct TimelineState {
  std::int64_t tokens = 0;             ///< before this step; close_events adds the step's n
  std::int64_t last_boundary = -1;     ///< last final boundary of any step; -1: none
  std::int64_t last_in_previous = -1;  ///< last final boundary inside the previous step; -1: none
  std::int64_t pending_start = 0;      ///< first token in no closed event
  std::int64_t n_events = 0;           ///< closed so far
  std::int64_t n_closed = 0;           ///< of them in the last step: the table's last ones
  std::uint32_t errors = 0;            ///< TimelineError
  std::uint32_t steps = 0;             ///< before this step; close_events adds one
};

inline TimelineState initial_timeline(std::int64_t n_init) {
  TimelineState state;
  state.pending_start = n_init;
  return state;
}

}  // namespace episodic::kernels
