// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The gated short convolution that LFM2 has in place of attention: the CUDA twin of
/// src/model/short_convolution.hpp.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// All pointers are to device memory; elements are of `dtype`: float32, float16 or bfloat16.
struct ShortConvolutionParams {
  DType dtype = DType::bfloat16;
  std::int64_t n = 0;      ///< tokens of the step; n * width < 2^31
  std::int64_t width = 0;  ///< channels
  std::int64_t taps = 0;   ///< tokens that one sees, itself the last; >= 1

  const std::int64_t* first_position = nullptr;  ///< token of row 0, >= 0; read on the device
  const void* rows = nullptr;                    ///< [n, 3 * width]: B, C and x of each token
  const float* maybe_rows_bias = nullptr;        ///< [3 * width], added to them
  const float* tap = nullptr;                    ///< [width, taps]
  const float* maybe_bias = nullptr;             ///< [width]

  /// [ring_capacity, width]: B * x of token t in row t % ring_capacity. Those of the taps - 1
  /// tokens before the step are read, those of the step's tokens written; nothing else is touched.
  float* ring = nullptr;
  std::int64_t ring_capacity = 0;  ///< >= n + taps - 1
  void* out = nullptr;             ///< [n, width], written
};

/// With u = B * x in float32, out[t] = C[t] * (bias + sum of tap[i] * u[t - taps + 1 + i]); u of
/// tokens before the first is 0. A token's result has the same bits whatever the step that it comes
/// in. One launch, a thread for a token's channel. n == 0 does nothing.
///
/// Reads n * width * (2 taps + 1) elements, most of them from caches, and writes n * width elements
/// and as many float32. Neither allocates nor waits; may be captured. \return
/// cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t short_convolution(const ShortConvolutionParams& params, cudaStream_t stream);
/// The field of them that short_convolution refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ShortConvolutionParams& params);

/// Of several sequences (batch.hpp), which share dtype, width and taps.
cudaError_t short_convolution_batch(const ShortConvolutionParams* params, std::int64_t n_sequences,
                                    cudaStream_t stream);
const char* invalid_field(const ShortConvolutionParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
