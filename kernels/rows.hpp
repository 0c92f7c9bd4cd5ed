// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The far keys of a step as rows for segmented attention: sinks, pending tokens and recalled
/// events, of one layer (spec 1).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention.hpp"
#include "close_events.hpp"
#include "episodic/base/dtype.hpp"
#include "fields.hpp"
#include "recall.hpp"

namespace episodic::kernels {

/// All pointers are to device memory, but that blocks may lie wherever the device can read.
struct RowsParams {
  DType dtype = DType::bfloat16;  ///< of keys and values
  std::int64_t n_kv_heads = 0, head_dim = 0;
  const std::int64_t* tokens = nullptr;  ///< before this step
  std::int64_t n = 0;                    ///< of this step
  std::int64_t n_init = 0, n_local = 0;

  const void* sink_key = nullptr;  ///< [G, n_init, d] before rotary embedding
  const void* sink_value = nullptr;

  const void* ring_key = nullptr;  ///< rings over tokens before rotary embedding (attention.hpp)
  const void* ring_value = nullptr;
  std::int64_t ring_capacity = 0, ring_head_stride = 0;

  const std::int64_t* n_events = nullptr;
  const EventRange* events = nullptr;  ///< [max_events], in order of time
  /// [max_events]: this layer's keys [G, length, d] of an event, its values behind them
  const void* const* event_block = nullptr;
  const float* maybe_event_weight = nullptr;  ///< [max_events] value weights; null: all 1
  const DeviceEventId* recalled = nullptr;    ///< events of this step, by time; null: none
  const std::int32_t* n_recalled = nullptr;

  KvRow* rows = nullptr;             ///< [max_rows], written: sinks, pending, events
  std::int32_t* n_rows = nullptr;    ///< written
  std::int64_t max_rows = 0;         ///< rows beyond it are left out, which n_rows then exceeds by
                                     ///< nothing and *overflow says
  std::int32_t* overflow = nullptr;  ///< set to 1 if rows were left out; else left alone
};

/// One block: bound by writing 32 bytes a row. Neither allocates nor waits; may be captured.
/// \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t far_rows(const RowsParams& params, cudaStream_t stream);
/// The field of them that far_rows refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RowsParams& params);
/// What far_rows finds wrong with these parameters before it launches.
FieldError check_rows(const RowsParams& params);

/// recall_events and far_rows of what it recalls, in one launch: the same bits. Where recalled
/// events must be fetched first, they are two.
/// \param rows of the lists that recall writes: its recalled and sizes + 2
cudaError_t recall_rows(const RecallParams& recall, const RowsParams& rows, cudaStream_t stream);
/// The field of either that recall_rows refuses, null if none.
const char* invalid_field(const RecallParams& recall, const RowsParams& rows);

}  // namespace episodic::kernels
