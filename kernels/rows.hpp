// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The far keys of a step as rows for segmented attention: sinks, pending tokens and recalled
/// events, of one layer (EM 3.1), in one list or in one for each of its lanes.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention.hpp"
#include "batch.hpp"
#include "close_events.hpp"
#include "episodic/base/dtype.hpp"
#include "fields.hpp"
#include "recall.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

/// All pointers are to device memory, but that blocks may lie wherever the device can read.
struct RowsParams {
  DType dtype = DType::bfloat16;              ///< of keys and values
  std::int64_t n_kv_heads = 0, head_dim = 0;  ///< of the layer: G, d
  std::int64_t value_dim = 0;                 ///< e, of values; 0: d
  /// Kv heads side by side that recall by themselves, each with a list of rows; a divisor of
  /// n_kv_heads. Arrays below are [n_lanes, ...] where they say so.
  std::int64_t n_lanes = 1;
  const std::int64_t* tokens = nullptr;  ///< before this step
  std::int64_t n = 0;                    ///< of this step
  std::int64_t n_init = 0, n_local = 0;

  const void* sink_key = nullptr;    ///< [G, n_init, d] before rotary embedding
  const void* sink_value = nullptr;  ///< [G, n_init, e]

  const void* ring_key = nullptr;  ///< rings over tokens before rotary embedding (attention.hpp)
  const void* ring_value = nullptr;
  std::int64_t ring_capacity = 0, ring_head_stride = 0;
  /// Elements between heads of ring_value; 0: ring_head_stride. Where a list has several heads it
  /// is ring_head_stride / d * e, for a row tells only of its keys how far its heads are apart
  /// (KvRow).
  std::int64_t value_head_stride = 0;
  RingPages ring_pages;
  std::uint32_t value_page_stride = 0;  ///< of ring_value's pool; 0: ring_pages.page_stride

  /// Of one table of events or several, as in kernels/recall.hpp.
  const std::int64_t* n_events = nullptr;
  const EventRange* events = nullptr;  ///< [max_events], in order of time
  std::int64_t count_stride = 0, table_stride = 0;
  /// [n_lanes, max_events]: a lane's keys [G, length, d] of an event, its values [G, length, e]
  /// behind them
  const void* const* event_block = nullptr;
  /// [n_lanes, max_events, 2 G / n_lanes]: events are codes of 8 bits, with a scale for the keys of
  /// each of the lane's heads and then for the values of each; null: they are of `dtype`
  const float* maybe_event_scales = nullptr;
  const float* maybe_event_weight = nullptr;  ///< [n_lanes, max_events] value weights; null: all 1
  std::int64_t max_events = 0;                ///< not looked at for one lane
  /// [n_lanes, list_capacity] events of this step, by time; null: none
  const DeviceEventId* recalled = nullptr;
  const std::int32_t* n_recalled = nullptr;  ///< lane p: 3 p numbers behind
  std::int64_t list_capacity = 0;            ///< not looked at for one lane

  KvRow* rows = nullptr;  ///< [n_lanes, max_rows], written: sinks, pending, events
  /// [n_lanes, max_rows], written: as AttentionParams::row_scales. May be null if no event is
  /// codes.
  const float** row_scales = nullptr;
  std::int32_t* n_rows = nullptr;    ///< [n_lanes], written
  std::int64_t max_rows = 0;         ///< rows beyond it are left out, which n_rows then exceeds by
                                     ///< nothing and *overflow says
  std::int32_t* overflow = nullptr;  ///< set to 1 if rows were left out; else left alone
};

/// One block a lane: bound by writing 32 bytes a row, 40 where events are codes. Neither allocates
/// nor waits; may be captured. \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what
/// the launch said
cudaError_t far_rows(const RowsParams& params, cudaStream_t stream);
/// The field of them that far_rows refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RowsParams& params);
/// What far_rows finds wrong with these parameters before it launches.
FieldError check_rows(const RowsParams& params);

/// Of several sequences (batch.hpp), which share dtype, n_kv_heads, head_dim, value_dim and
/// n_lanes.
cudaError_t far_rows_batch(const RowsParams* params, std::int64_t n_sequences, cudaStream_t stream);
const char* invalid_field(const RowsParams* params, std::int64_t n_sequences);
/// What differs of what a batch must share.
FieldError check_rows_alike(const RowsParams& params, const RowsParams& first);

/// recall_events and far_rows of what it recalls, in one launch: the same bits. Where recalled
/// events must be fetched first, they are two.
/// \param rows of the lists that recall writes: its recalled and sizes + 2
cudaError_t recall_rows(const RecallParams& recall, const RowsParams& rows, cudaStream_t stream);
/// The field of either that recall_rows refuses, null if none.
const char* invalid_field(const RecallParams& recall, const RowsParams& rows);

/// Of several sequences, which share what they must in recall_events_batch and far_rows_batch.
/// \param recall [n_sequences] \param rows [n_sequences]
cudaError_t recall_rows_batch(const RecallParams* recall, const RowsParams* rows,
                              std::int64_t n_sequences, cudaStream_t stream);
const char* invalid_field(const RecallParams* recall, const RowsParams* rows,
                          std::int64_t n_sequences);

}  // namespace episodic::kernels
