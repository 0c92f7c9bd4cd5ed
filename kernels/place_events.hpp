// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where the events that a step has closed are to lie: the lists that the step's later kernels read
/// (kernels/closed_events.hpp), and the tables of blocks that attention's rows are made from.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "close_events.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// All pointers are to device memory, but that `home` is any memory that the device can address. A
/// lane is a layer, or heads of it that recall by themselves.
struct PlaceEventsParams {
  const TimelineState* state = nullptr;  ///< [timelines], after close_events
  const EventRange* events = nullptr;    ///< [timelines, max_events]
  std::int64_t max_events = 0;           ///< room of each table of events and of each lane's blocks
  std::int64_t n_init = 0;
  std::int64_t n_lanes = 0;
  bool of_each = false;  ///< each lane has a table of events of its own; else all are of timeline 0
  /// [n_lanes] whose events each lane's are; null: that of its own number. Only with of_each.
  const std::int32_t* maybe_timeline = nullptr;

  /// Events tile the sequence, so a token's place in `home` follows from its number alone: that of
  /// token t of lane l begins at home + l * lane_bytes + (t - n_init) * token_bytes.
  unsigned char* home = nullptr;
  std::int64_t lane_bytes = 0;
  std::int64_t token_bytes = 0;
  /// `home` is for this step's events alone: a lane's first one begins where the lane does.
  bool staged = false;

  void** blocks = nullptr;  ///< [n_lanes, max_events]: the new events' entries are written

  // the step's lists (kernels/closed_events.hpp), written: of one table, or of n_lanes
  std::int64_t max_count = 0;
  std::int64_t* start = nullptr;     ///< [tables, max_count]
  std::int64_t* end = nullptr;       ///< [tables, max_count]
  std::int32_t* count = nullptr;     ///< [tables] <= max_count
  std::int64_t* first_id = nullptr;  ///< [tables]
  void** step_blocks = nullptr;      ///< [n_lanes, max_count]; null where home has no room
};

/// One block a table. Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// or what the launch said
cudaError_t place_events(const PlaceEventsParams& params, cudaStream_t stream);
/// The field of them that place_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const PlaceEventsParams& params);

/// Of several sequences (batch.hpp), which share n_lanes and of_each.
cudaError_t place_events_batch(const PlaceEventsParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const PlaceEventsParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
