// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Recall on the GPU: the CUDA twin of episodic/recall/index.hpp (exact) and buffers.hpp (spec 5).
/// Event ids stay on the device: what is recalled is never asked for by the host.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "close_events.hpp"
#include "codes.hpp"
#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// Most elements of a representative.
inline constexpr std::int64_t kMostRecallWidth = 24 << 10;

/// All pointers are to device memory.
struct RecallParams {
  // -- the closed events
  const std::int64_t* n_events = nullptr;  ///< how many there are, <= max_events
  const EventRange* events = nullptr;      ///< [max_events], in order of time
  std::int64_t max_events = 0;             ///< room of the arrays over events, < 2^31
  std::int64_t n_init = 0;                 ///< where event 0 starts
  const std::int64_t* tokens = nullptr;    ///< tokens before this step
  std::int64_t n = 0;                      ///< tokens of this step

  // -- representatives
  const void* representatives = nullptr;  ///< [max_events, width] of `dtype`, aligned to 16 bytes
  DType dtype = DType::bfloat16;          ///< float32, float16 or bfloat16
  std::int64_t width = 0;                 ///< H * d, a multiple of 8; at most kMostRecallWidth
  const float* query = nullptr;           ///< [width] mean fixed-position query
  /// From so many events on, their codes are searched first; 0: there are none. Fewer are scanned.
  std::int64_t codes_from = 0;
  /// As encode_representatives leaves them for *n_events events (codes.hpp); only with codes_from.
  const std::int8_t* codes = nullptr;  ///< [max_events, code_stride(width)], aligned to 16 bytes
  const float* code_bounds = nullptr;  ///< [max_events, code_floats(width)]

  /// [max_events] not 0 where an event was forgotten: it is in no list, as if its score were below
  /// all others; its tokens still count as those of an event. null: none was.
  const std::uint8_t* maybe_forgotten = nullptr;

  // -- budgets (spec 5)
  std::int64_t n_local = 0, n_mem = 0, chunk = 0;
  std::int64_t min_block = 1;  ///< no event is shorter
  double contiguity = 0;       ///< share k_r, 0..1; 0 turns the contiguity buffer off
  std::int64_t neighbours = 1;

  // -- lists, each of recall_room() ids
  const DeviceEventId* queue = nullptr;  ///< contiguity list of the step before
  const std::int32_t* queue_size = nullptr;
  DeviceEventId* similarity = nullptr;       ///< written: by rank, or by time when all events fit
  DeviceEventId* contiguity_list = nullptr;  ///< written: in buffer order; may be `queue`
  DeviceEventId* recalled = nullptr;         ///< written: both, by time
  /// [3], written: sizes of similarity, contiguity_list and recalled; queue_size may be its [1]
  std::int32_t* sizes = nullptr;

  /// [1] 0 before the first call, and left so: blocks that are done. Calls that share it run one
  /// after the other.
  std::uint32_t* arrived = nullptr;

  void* workspace = nullptr;  ///< recall_workspace_bytes(), aligned to 16
  std::size_t workspace_bytes = 0;
};

/// Ids that a list can hold: what fits the capacity of events of min_block tokens, and the one that
/// passes it. 0 if the budgets make no sense or would need more room than a block has.
std::int64_t recall_room(const RecallParams& params);
std::size_t recall_workspace_bytes(const RecallParams& params);

/// Scores all events (dot product in float32, one pass over the representatives, bound by their
/// bytes: n_events * width * size_of(dtype)) and fills both buffers as spec 5 says, with its ties:
/// the earlier event first. A NaN score counts as -inf.
///
/// One launch. Its blocks scan, a warp four rows at a time. The last one that is done narrows the
/// range of scores by histograms of 2048 bins until what is left fits its shared memory, two passes
/// over the scores as a rule (4 bytes an event), then ranks, fills, and takes the neighbours. With
/// no more than `similarity capacity` tokens in events, or none, nothing is scanned.
///
/// With codes_from, two launches, and the same lists to the bit. The first reads n_events *
/// code_bytes(width) and bounds every score from both sides; its last block finds a score that
/// events enough to reach the capacity have for certain, and lists the candidates: those that may
/// have it. The second scores these from their vectors, and fills. Where codes cannot tell events
/// apart all are candidates, which costs time and nothing else.
///
/// The same bits on every run. Neither allocates nor waits; may be captured.
/// \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t recall_events(const RecallParams& params, cudaStream_t stream);
/// The field of them that recall_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RecallParams& params);

}  // namespace episodic::kernels
