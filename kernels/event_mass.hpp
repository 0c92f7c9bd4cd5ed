// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What attention recalled events receive: of a layer in a step, and summed over layers and steps
/// (Memoria 3.3). The CUDA twin of AttendOutput::segment_mass in episodic/attention and of
/// who adds it up (memory/detail/retention.hpp).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention.hpp"
#include "close_events.hpp"
#include "recall.hpp"

namespace episodic::kernels {

/// All pointers are to device memory.
struct EventMassParams {
  /// Of a call of segmented_attention that is behind on the stream, with the lse that it wrote. Its
  /// rows end in each list with those of the list's events, as far_rows writes them.
  AttentionParams attention;
  const EventRange* events = nullptr;  ///< list l: l table_stride numbers behind
  std::int64_t table_stride = 0;
  const DeviceEventId* recalled = nullptr;   ///< [n_lists, list_capacity]
  const std::int32_t* n_recalled = nullptr;  ///< list l: 3 l numbers behind; <= list_capacity
  std::int64_t list_capacity = 0;
  double* mass = nullptr;     ///< [n_lists, list_capacity], written: of the events in a list
  void* workspace = nullptr;  ///< event_mass_workspace_bytes(), aligned to 256; may be attention's
  std::size_t workspace_bytes = 0;
};

/// 0 for sizes that event_masses refuses. Reads no pointer.
std::size_t event_mass_workspace_bytes(const EventMassParams& params);

/// mass[l, k] = sum over the query heads of list l, the n queries and the tokens of its k-th event
/// of the probability that the token received, in the softmax over all keys that the query sees and
/// before value weights. A probability is float32, from scores anew and the log-sum-exp; sums over
/// queries are float32, over tokens and heads float64. The same bits on every run.
///
/// 2 d floating-point operations per (query, head) and token of an event, where attention has 4 d
/// for every key: of 16-bit elements on the tensor cores, but for the at most 16 rows of a decode
/// step. Reads each event's keys once. max_rows == 0 or list_capacity == 0 does nothing.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launches said
cudaError_t event_masses(const EventMassParams& params, cudaStream_t stream);
/// The field of them, or of `attention`, that event_masses refuses, by its name; null: none. Reads
/// no array.
const char* invalid_field(const EventMassParams& params);

/// Of several sequences (batch.hpp), which share dtype, n_kv_heads, head_dim and n_lists of
/// attention, in two launches. Many rows on the tensor cores fill the device: their first launch is
/// one of each.
cudaError_t event_masses_batch(const EventMassParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const EventMassParams* params, std::int64_t n_sequences);

/// What one layer's events received in a step.
struct LayerMasses {
  const DeviceEventId* recalled = nullptr;   ///< as in EventMassParams
  const std::int32_t* n_recalled = nullptr;  ///< the same
  const double* mass = nullptr;              ///< the same
};

/// All pointers are to device memory.
struct ReceiveParams {
  const LayerMasses* layers = nullptr;  ///< [n_layers]
  std::int64_t n_layers = 0, n_lists = 1, list_capacity = 0;
  double* received = nullptr;  ///< by event, added to; of one table for all layers and lists
};

/// received[e] += the masses of event e, layer by layer and list by list, as the host adds them:
/// the same order, so that equal masses have equal sums. One block; n_layers == 0 or list_capacity
/// == 0 does nothing.
///
/// Neither allocates nor waits; may be captured. \return as event_masses
cudaError_t receive_masses(const ReceiveParams& params, cudaStream_t stream);
/// The field of them that receive_masses refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ReceiveParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t receive_masses_batch(const ReceiveParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream);
const char* invalid_field(const ReceiveParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
