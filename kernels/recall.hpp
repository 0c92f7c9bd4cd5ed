// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Recall on the GPU: the CUDA twin of episodic/recall/index.hpp (exact) and buffers.hpp (EM 3.4).
/// Event ids stay on the device: what is recalled is never asked for by the host.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "batch.hpp"
#include "close_events.hpp"
#include "codes.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/rules/recall.hpp"

namespace episodic::kernels {

/// Most elements of a representative.
inline constexpr std::int64_t kMostRecallWidth = 24 << 10;

/// Sequences of one launch of few recalls, whose parameters are many (batch.hpp); of more 51.
inline constexpr std::int64_t kMostRecallsInLaunch = 6;

/// All pointers are to device memory. Lanes are heads of a layer, side by side, that recall by
/// themselves: arrays are [n_lanes, ...], and each lane finds only its own.
struct RecallParams {
  std::int64_t n_lanes = 1;  ///< <= 65,535

  // -- the closed events: one table, that of all lanes, or a table for each
  /// How many there are, <= max_events; that of lane p `count_stride` numbers behind.
  const std::int64_t* n_events = nullptr;
  const EventRange* events = nullptr;    ///< [max_events], in order of time; lane p: `table_stride`
  std::int64_t count_stride = 0;         ///< 0 where there is one table
  std::int64_t table_stride = 0;         ///< the same; else >= max_events
  std::int64_t max_events = 0;           ///< room of the arrays over events, < 2^31
  std::int64_t n_init = 0;               ///< where event 0 starts
  const std::int64_t* tokens = nullptr;  ///< tokens before this step
  std::int64_t n = 0;                    ///< tokens of this step

  // -- representatives
  /// [max_events, width] of `dtype`, aligned to 16 bytes; not read with maybe_each
  const void* representatives = nullptr;
  DType dtype = DType::bfloat16;  ///< float32, float16 or bfloat16
  /// H * d of a lane's query heads, a multiple of 8; at most kMostRecallWidth
  std::int64_t width = 0;
  const float* query = nullptr;  ///< [width] mean fixed-position query
  /// Individual representatives, as select_representatives writes them (relevance.hpp):
  /// [max_events, n_repr, width] of `dtype`, aligned to 16 bytes, of an event the first
  /// min(n_repr, tokens). An event's score is then the sum over the query heads of the best of its
  /// representatives there. null: the score is by the one vector.
  const void* maybe_each = nullptr;
  std::int64_t n_repr = 0;   ///< with maybe_each: 1 .. kMostRepresentatives
  std::int64_t n_heads = 0;  ///< with maybe_each: query heads of a lane, each of a multiple of 8
  /// From so many events on, their codes are searched first; 0: there are none. Fewer are scanned.
  /// 0 with maybe_each: no codes bound the best of several.
  std::int64_t codes_from = 0;
  /// As encode_representatives leaves them for *n_events events (codes.hpp); only with codes_from.
  const std::int8_t* codes = nullptr;  ///< [max_events, code_stride(width)], aligned to 16 bytes
  const float* code_bounds = nullptr;  ///< [max_events, code_floats(width)]

  /// [max_events] not 0 where an event was forgotten: it is in no list, as if its score were below
  /// all others; its tokens still count as those of an event. Lane p: `table_stride` marks behind.
  /// null: none was.
  const std::uint8_t* maybe_forgotten = nullptr;

  // -- budgets (EM 3.4)
  std::int64_t n_local = 0, n_mem = 0, chunk = 0;
  std::int64_t min_block = 1;  ///< no event is shorter
  double contiguity = 0;       ///< share k_r, 0..1; 0 turns the contiguity buffer off
  std::int64_t neighbours = 1;

  // -- lists, each of recall_room() ids
  const DeviceEventId* queue = nullptr;      ///< contiguity list of the step before
  const std::int32_t* queue_size = nullptr;  ///< lane p: 3 p numbers behind
  DeviceEventId* similarity = nullptr;       ///< written: by rank, or by time when all events fit
  DeviceEventId* contiguity_list = nullptr;  ///< written: in buffer order; may be `queue`
  DeviceEventId* recalled = nullptr;         ///< written: both, by time
  /// [3], written: sizes of similarity, contiguity_list and recalled; queue_size may be its [1]
  std::int32_t* sizes = nullptr;

  /// [n_lanes] 0 before the first call, and left so: blocks that are done. Calls that share it run
  /// one after the other.
  std::uint32_t* arrived = nullptr;
  /// [n_lanes, rules::kScoreBins] as arrived: tokens of events by their scores.
  unsigned long long* histogram = nullptr;
  /// [n_lanes] of these representatives and no others, 0 before the first call: where the scores
  /// were decided in the call before, read and written. It changes the time of a call, and no list.
  rules::ScoreCentre* centre = nullptr;

  void* workspace = nullptr;  ///< recall_workspace_bytes(), aligned to 16
  std::size_t workspace_bytes = 0;
};

/// Ids that a list can hold: what fits the capacity of events of min_block tokens, and the one that
/// passes it. 0 if the budgets make no sense or would need more room than a block has.
std::int64_t recall_room(const RecallParams& params);
std::size_t recall_workspace_bytes(const RecallParams& params);

/// Scores all events (dot product in float32, one pass over the representatives, bound by their
/// bytes: n_events * width * size_of(dtype)) and fills both buffers as in EM 3.4, with its ties:
/// the earlier event first. A NaN score counts as -inf.
///
/// With maybe_each reads up to n_events * n_repr * width * size_of(dtype) bytes instead: of each
/// event what it has. The best of a head's products is that of those that are numbers, -inf where
/// none is.
///
/// One launch. Its blocks scan, a warp a row, or with maybe_each two representatives of some heads
/// of one event, and add the tokens of events to bins of their scores. The last block that is done
/// finds the bin at which the best events reach the capacity, lists those in it and above in one
/// pass over the scores (4 bytes an event), ranks them, fills, and takes the neighbours. Bins are
/// narrow where the call before was decided (`centre`). Where they list more than a block has room
/// for, that block narrows the range of ranks by histograms of its own, two passes or three. Lanes
/// share the blocks of the launch, each having some to itself. With no more than `similarity
/// capacity` tokens in events, or none, nothing is scanned.
///
/// With codes_from, two launches, and the same lists to the bit. The first reads n_events *
/// code_bytes(width) and bounds every score from both sides; the bins are of what scores are at
/// least. In the second all blocks find the bin at which events reach the capacity for certain, and
/// score those of their events from the vectors that may be in it or above; the last block ranks
/// these and goes on as above. Where codes cannot tell events apart all are scored, which costs
/// time and nothing else.
///
/// The same bits on every run. Neither allocates nor waits; may be captured.
/// \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t recall_events(const RecallParams& params, cudaStream_t stream);
/// The field of them that recall_events refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RecallParams& params);

/// Of several sequences (batch.hpp), which share dtype, width, n_lanes, n_repr, n_heads and whether
/// there is maybe_each.
cudaError_t recall_events_batch(const RecallParams* params, std::int64_t n_sequences,
                                cudaStream_t stream);
const char* invalid_field(const RecallParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
