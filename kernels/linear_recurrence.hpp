// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Gated DeltaNet and Mamba2, which stand in place of attention: the CUDA twin of
/// src/model/linear_recurrence.hpp.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/rules/host_device.hpp"

namespace episodic::kernels {

/// Channels of a head's keys, at most.
inline constexpr std::int64_t kMostRecurrentKey = 2048;
/// Columns of a head's matrix that a block has, each with a tag of its own.
inline constexpr std::int64_t kRecurrentColumns = 32;

/// Blocks of a head's matrix.
EPISODIC_HOST_DEVICE constexpr std::int64_t recurrent_pieces(std::int64_t value_dim) {
  return (value_dim + kRecurrentColumns - 1) / kRecurrentColumns;
}

/// All pointers are to device memory; elements are of `dtype`: float32, float16 or bfloat16. With
/// H heads of [K, V], of which those of one of the G key heads share queries and keys, a token has
/// channels = 2 G K + H V.
struct LinearRecurrenceParams {
  DType dtype = DType::bfloat16;
  bool delta = true;   ///< the delta rule; else Mamba2
  bool tiled = false;  ///< head h has the keys of h % key_heads, not of h / (heads / key_heads)
  std::int64_t n = 0;  ///< tokens of the step
  std::int64_t heads = 0, key_heads = 0, key_dim = 0, value_dim = 0;
  std::int64_t taps = 0;  ///< tokens that the convolution sees, its own the last; >= 1
  float eps = 1e-6f;
  float least_step = 0.0f, most_step = 0.0f;  ///< of Mamba2's time steps; may be infinite

  const std::int64_t* first_position = nullptr;  ///< token of row 0, >= 0; read on the device
  /// [n, row]: what the convolution reads (q, k, v, or of Mamba2 v, k, q), H V gates, H steps, and
  /// of the delta rule H weights of writing.
  const void* rows = nullptr;
  const float* maybe_rows_bias = nullptr;  ///< [row], added to them
  const float* tap = nullptr;              ///< [channels, taps]
  const float* maybe_bias = nullptr;       ///< [channels], of the convolution
  const float* log_rate = nullptr;         ///< [H]: the decay is exp(-exp(log_rate) * step)
  const float* step_bias = nullptr;        ///< [H]
  const float* maybe_skip = nullptr;       ///< [H], of Mamba2
  const float* norm = nullptr;             ///< [V], or of Mamba2 [H V]

  /// [ring_capacity, channels]: what the convolution reads of token t in row t % ring_capacity, as
  /// in ShortConvolutionParams.
  float* ring = nullptr;
  std::int64_t ring_capacity = 0;  ///< >= n + taps - 1
  /// [2, H, K, V]: matrices before and behind the step. Which is which the tags say.
  float* matrix = nullptr;
  /// [2, H * recurrent_pieces(V)]: the tokens that a piece of a matrix has seen. The one that has
  /// seen first_position tokens is read, the other written, so that a step that does not count may
  /// be made again. At token 0 none is read.
  std::int64_t* tag = nullptr;

  float* inputs = nullptr;   ///< [n, channels], written: a workspace
  float* weights = nullptr;  ///< [n, 2 H], written: a workspace
  float* y = nullptr;        ///< [n, H V], written: a workspace
  void* out = nullptr;       ///< [n, H V], written
};

/// Elements of a row of `rows`.
EPISODIC_HOST_DEVICE constexpr std::int64_t recurrent_row(const LinearRecurrenceParams& p) {
  return 2 * p.key_heads * p.key_dim + 2 * p.heads * p.value_dim + (p.delta ? 2 : 1) * p.heads;
}

/// The convolution and SiLU of all channels, every head's matrix through the tokens in order, and
/// the gated RMS norm of each head, or of Mamba2 of the heads of one key head. In float32, the
/// result rounded once. A token's result has the same bits whatever the step that it comes in. A
/// matrix that neither tag has seen so many tokens of gives NaN.
///
/// Three launches: a thread for a token's channel, a block for 32 columns of a head's matrix, a
/// block for a norm. The second takes the tokens one after another, and reads and writes the
/// matrices once for each: bound by the latency of the caches. n == 0 does nothing. Neither
/// allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress, or what a launch said
cudaError_t linear_recurrence(const LinearRecurrenceParams& params, cudaStream_t stream);
/// The field of them that linear_recurrence refuses, by its name; null: none. Reads no array.
const char* invalid_field(const LinearRecurrenceParams& params);

/// Of several sequences (batch.hpp), which share dtype, kind and sizes of heads.
cudaError_t linear_recurrence_batch(const LinearRecurrenceParams* params, std::int64_t n_sequences,
                                    cudaStream_t stream);
const char* invalid_field(const LinearRecurrenceParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
