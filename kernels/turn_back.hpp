// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Queries and keys that come after rotary embedding, as they were before it: the CUDA twin of
/// RotaryAngles::compute_back.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// All pointers are to device memory; elements are of `dtype`: float32, float16 or bfloat16.
struct TurnBackParams {
  DType dtype = DType::bfloat16;
  std::int64_t n = 0;           ///< tokens; n * n_heads * d < 2^31
  std::int64_t n_heads = 0;     ///< of queries or of keys
  std::int64_t head_dim = 0;    ///< d
  std::int64_t rotary_dim = 0;  ///< even, 2 <= it <= d
  bool interleaved = false;     ///< pairs of channels as in kernels/attention.hpp
  const void* x = nullptr;      ///< [n, n_heads, d], each token rotated by its position
  std::int64_t row_stride = 0;  ///< elements between tokens, >= n_heads * d
  const float* cos = nullptr;   ///< [n, rotary_dim / 2] of the tokens' positions: rotary_angles
  const float* sin = nullptr;
  double attention_factor = 1.0;  ///< that is in these angles, not 0
  void* y = nullptr;              ///< [n, n_heads, d] packed, written; does not overlap x
};

/// y = x turned back by each token's angles and divided by the attention factor, in float32 and
/// rounded once. Channels from rotary_dim on are copied. n == 0 does nothing.
///
/// Takes 16 bytes at a time where arrays, sizes and stride allow it, single elements otherwise.
/// Reads and writes n n_heads d elements, and reads the angles. Neither allocates nor waits; may be
/// captured. \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t turn_back(const TurnBackParams& params, cudaStream_t stream);
/// The field of them that turn_back refuses, by its name; null: none. Reads no array.
const char* invalid_field(const TurnBackParams& params);

/// Of several sequences (batch.hpp), which share dtype.
cudaError_t turn_back_batch(const TurnBackParams* params, std::int64_t n_sequences,
                            cudaStream_t stream);
const char* invalid_field(const TurnBackParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
