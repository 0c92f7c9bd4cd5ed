// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where the events that a step has closed are to lie: the lists that the step's later kernels read
/// (kernels/closed_events.hpp), and the tables of blocks that attention's rows are made from.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "close_events.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// All pointers are to device memory, but that `home` is any memory that the device can address.
struct PlaceEventsParams {
  const TimelineState* state = nullptr;  ///< after close_events
  const EventRange* events = nullptr;
  std::int64_t max_events = 0;  ///< room of `events` and of each layer's table
  std::int64_t n_init = 0;

  /// Events tile the sequence, so a token's place in `home` follows from its number alone: that of
  /// token t of layer l begins at home + l * layer_bytes + (t - n_init) * token_bytes.
  unsigned char* home = nullptr;
  std::int64_t n_layers = 0;
  std::int64_t layer_bytes = 0;
  std::int64_t token_bytes = 0;

  void** blocks = nullptr;  ///< [n_layers, max_events]: the new events' entries are written

  // the step's list, written
  std::int64_t max_count = 0;
  std::int64_t* start = nullptr;  ///< [max_count]
  std::int64_t* end = nullptr;    ///< [max_count]
  std::int32_t* count = nullptr;  ///< <= max_count
  std::int64_t* first_id = nullptr;
  void** step_blocks = nullptr;  ///< [n_layers, max_count]; null where home has no room
};

/// One block. Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue, or what
/// the launch said
cudaError_t place_events(const PlaceEventsParams& params, cudaStream_t stream);
/// The field of them that place_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const PlaceEventsParams& params);

}  // namespace episodic::kernels
