// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Relevance weights of events for reweighted attention (spec 8, EpMAN 3.2, 3.5).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// All pointers are to device memory.
struct EventScoreParams {
  const float* query = nullptr;            ///< [H * d], mean_fixed_query
  std::int64_t width = 0;                  ///< H * d, 1 .. 24576
  DType dtype = DType::float32;            ///< of the representatives: float32, float16 or bfloat16
  const void* representative = nullptr;    ///< [max_events, width], row = event
  const std::int64_t* n_events = nullptr;  ///< <= max_events, read on the device
  std::int64_t max_events = 0;
  float* score = nullptr;  ///< [max_events], the first n_events written
};

/// The key-space reader: score[e] = max(0, cosine of the query and representative e), 0 where one
/// of them is zero or not finite. Products are summed in float32 by lane, lanes in float64; the
/// same bits on every run. max_events == 0 does nothing.
///
/// Reads the representatives once, 16 bytes at a time where rows are aligned: 256 MB for 31,250
/// events, H = 32, d = 128 in bfloat16. Neither allocates nor waits; may be captured. \return
/// cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t score_events(const EventScoreParams& params, cudaStream_t stream);

/// Which events take part, and with what weight.
enum class Reweight : std::uint8_t {
  exact,   ///< all, each with its score
  narrow,  ///< the top_k of largest score (ties: the earlier event), weight 1
  broad    ///< those and the events next to them, weight 1
};

/// All pointers are to device memory.
struct EventWeightParams {
  Reweight mode = Reweight::exact;
  std::int64_t top_k = 0;  ///< >= 1, of narrow and broad
  /// [max_events]: of score_events or any other reader; NaN and less than 0 count as 0.
  const float* score = nullptr;
  const std::int64_t* n_events = nullptr;  ///< <= max_events, read on the device
  std::int64_t max_events = 0;             ///< < 2^31
  float* value_weight = nullptr;  ///< [max_events], the first n_events written; absent events: 0
  /// [list_capacity], written: the events that take part, in order of time. list_capacity >=
  /// max_events, or what top_k events (broad: 3 top_k) can be at most.
  std::int64_t* events = nullptr;
  std::int64_t list_capacity = 0;
  std::int32_t* count = nullptr;  ///< written
};

/// Turns the reader's scores into the factor of each event's values and the list of events that are
/// in the softmax, in one launch; one block in narrow and broad, a radix select over the scores and
/// two passes more. The same bits on every run.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what the launch said
cudaError_t weigh_events(const EventWeightParams& params, cudaStream_t stream);

}  // namespace episodic::kernels
