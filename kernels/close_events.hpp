// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Closing of events on the GPU: the CUDA twin of EventTable in episodic/timeline/event_table.hpp
/// (EM 3.1).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// Tokens [start, end) of a closed event.
struct EventRange {
  std::int64_t start = 0, end = 0;
};

/// All pointers are to device memory.
struct CloseEventsParams {
  std::int64_t n_local = 0;      ///< length of the local window, >= 1
  std::int64_t min_block = 1;    ///< >= 1
  std::int64_t max_block = 1;    ///< >= min_block
  std::int64_t n = 0;            ///< tokens of this step
  std::int64_t n_timelines = 1;  ///< with flags and events of their own (HEM 2.4: heads)

  TimelineState* state = nullptr;  ///< [n_timelines]
  /// [n_timelines, flag_capacity] rings over tokens: final flag of token t at t % flag_capacity.
  const std::uint8_t* flags = nullptr;
  std::int64_t flag_capacity = 0;  ///< >= n_local + max_block + n
  /// [n_timelines, event_capacity], appended to: in order of time and without gaps.
  EventRange* events = nullptr;
  std::int64_t event_capacity = 0;  ///< >= 1
};

/// Closes what the closing rule closes up to tokens + n - n_local and ends the step:
/// pending_start, n_events, n_closed and tokens of the state are updated. The events closed are
/// events[n_events - n_closed .. n_events). If the table is full, kEventTableIsFull is set and the
/// rest stays pending; nothing is written beyond it. n == 0 does nothing.
///
/// One block per timeline looks at the n + max_block flags at most that may close an event, 256 at
/// a time.
///
/// Neither allocates nor waits; may be captured. \return what the launch said
cudaError_t close_events(const CloseEventsParams& params, cudaStream_t stream);
/// The field of them that close_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const CloseEventsParams& params);

/// Of several sequences (batch.hpp).
cudaError_t close_events_batch(const CloseEventsParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const CloseEventsParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
