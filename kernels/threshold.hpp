// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Thresholds over previous surprise on the GPU: the CUDA twin of SurpriseThreshold in
/// episodic/timeline/surprise.hpp (EM 3.2, eq. 1).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// Over which tokens mu and sigma are taken (EM 3.2).
enum class ThresholdWindow : std::uint8_t { moving, chunked };

/// All pointers are to device memory.
struct ThresholdParams {
  ThresholdWindow window = ThresholdWindow::moving;
  std::int64_t tau = 0;     ///< length of the window in tokens, >= 1
  std::int64_t n_init = 0;  ///< `chunked`: the first step's own window
  double gamma = 1.0;
  std::int64_t n = 0;               ///< tokens of this step
  TimelineState* state = nullptr;   ///< tokens read, errors written
  const float* surprise = nullptr;  ///< [n] of this step's tokens; that of token 0 is ignored
  /// [recent_capacity] ring over tokens, written: value of token t at t % recent_capacity.
  float* recent = nullptr;
  std::int64_t recent_capacity = 0;  ///< >= tau + n: this step's values overwrite none in use
  float* threshold = nullptr;        ///< [n], written; +inf with fewer than 2 values before
  std::uint8_t* raw = nullptr;       ///< [n], written: 1 where surprise > threshold, else 0
  float* maybe_kept = nullptr;       ///< [n], written: `surprise`, for whoever reads it later
};

/// Thresholds mu + gamma * sigma and raw boundary flags of one step. Sums are in float64 in the
/// very order of the CPU twin: the same bits, however the stream is cut into steps (`moving`).
/// A NaN sets kSurpriseIsNaN in the state. n == 0 does nothing.
///
/// Each token's window is summed by 8 threads, twice: 2 n tau additions, of n windows of 4 tau
/// bytes that overlap in the cache. A decode step is a chain of tau / 4 additions: 1024 for tau =
/// 4096.
///
/// Neither allocates nor waits; may be captured. \return what the launch said
cudaError_t surprise_threshold(const ThresholdParams& params, cudaStream_t stream);
/// The field of them that surprise_threshold refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ThresholdParams& params);

/// Of several sequences (batch.hpp).
cudaError_t surprise_threshold_batch(const ThresholdParams* params, std::int64_t n_sequences,
                                     cudaStream_t stream);
const char* invalid_field(const ThresholdParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
