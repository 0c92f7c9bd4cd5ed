// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What reweighted attention recalls, and by what weights (EpMAN 3.2, 3.5).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "close_events.hpp"
#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// All pointers are to device memory. Lanes are heads of a layer, side by side, that recall by
/// themselves: arrays are [n_lanes, ...], and each lane reads and writes only its own.
struct EventScoreParams {
  const float* query = nullptr;            ///< [H * d], mean_fixed_query
  std::int64_t width = 0;                  ///< H * d of a lane's query heads, 1 .. 24576
  DType dtype = DType::float32;            ///< of the representatives: float32, float16 or bfloat16
  const void* representative = nullptr;    ///< [max_events, width], row = event
  const std::int64_t* n_events = nullptr;  ///< <= max_events, read on the device
  std::int64_t max_events = 0;             ///< < 2^31
  float* score = nullptr;  ///< [max_events], the first n_events written, or those that are listed
  /// [max_listed] events < n_events that alone are scored; null: all.
  const DeviceEventId* maybe_listed = nullptr;
  const std::int32_t* n_listed = nullptr;  ///< <= max_listed, read on the device
  std::int64_t max_listed = 0;
  std::int64_t n_lanes = 1;  ///< <= 65,535
  /// Numbers between two lanes' *n_events and *n_listed; 0 where there is one number for all.
  std::int64_t count_stride = 0, listed_stride = 0;
};

/// The key-space reader: score[e] = max(0, cosine of the query and representative e), 0 where one
/// of them is zero or not finite. Products are summed in float32 by lane, lanes in float64; the
/// same bits on every run. max_events == 0 does nothing.
///
/// Reads the representatives once, 16 bytes at a time where rows are aligned: 256 MB for 31,250
/// events, H = 32, d = 128 in bfloat16; of a list its events alone. Neither allocates nor waits;
/// may be captured. \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch
/// said
cudaError_t score_events(const EventScoreParams& params, cudaStream_t stream);
/// The field of them that score_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const EventScoreParams& params);

/// Of several sequences (batch.hpp), which share dtype and n_lanes. Those whose representatives can
/// be read 16 bytes at a time and those whose cannot are launches of their own.
cudaError_t score_events_batch(const EventScoreParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const EventScoreParams* params, std::int64_t n_sequences);

/// All pointers are to device memory. Lanes as those of EventScoreParams.
struct RecallTopParams {
  std::int64_t top_k = 0;        ///< K >= 1: the events of largest score (ties: the earlier event)
  bool neighbours = false;       ///< and the events next to them (EpMAN's broad attention)
  const float* score = nullptr;  ///< [max_events] of score_events; NaN and less than 0 count as 0
  const std::int64_t* n_events = nullptr;  ///< <= max_events, read on the device
  std::int64_t max_events = 0;             ///< < 2^31
  /// [max_events] not 0 where an event was forgotten: it is in no list. null: none was.
  const std::uint8_t* maybe_forgotten = nullptr;
  std::uint8_t* is_top = nullptr;  ///< [n_lanes, max_events], scratch
  /// Written, in order of time, [list_capacity] each: the top, their neighbours that are not of
  /// them, and both. list_capacity >= max_events, or what top_k events (with neighbours: 3 top_k)
  /// can be at most.
  DeviceEventId *similarity = nullptr, *contiguity_list = nullptr, *recalled = nullptr;
  std::int64_t list_capacity = 0;
  std::int32_t* sizes = nullptr;  ///< [3], written: of the three lists
  std::int64_t n_lanes = 1;       ///< <= 65,535
  std::int64_t count_stride = 0;  ///< numbers between two lanes' *n_events; 0: one for all
  std::int64_t mark_stride = 0;   ///< between two lanes' maybe_forgotten; 0: they have one table
};

/// The recall of `narrow` and `broad`, in place of recall_events: one block a lane, a radix select
/// over the scores and two passes more. The same bits on every run.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t recall_top(const RecallTopParams& params, cudaStream_t stream);
/// The field of them that recall_top refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RecallTopParams& params);

/// Of several sequences (batch.hpp), which share n_lanes.
cudaError_t recall_top_batch(const RecallTopParams* params, std::int64_t n_sequences,
                             cudaStream_t stream);
const char* invalid_field(const RecallTopParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
