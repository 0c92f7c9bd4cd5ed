// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a decoder does between its matrix products, on the GPU: the CUDA twin of the model's
/// element-wise work. The residual stream is float32, all else in the weights' dtype.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// hidden[i, :] = table[ids[i], :]. An id outside [0, vocab) gives a row of NaNs, which its
/// surprise and all that follows then shows.
struct EmbedParams {
  DType dtype = DType::bfloat16;      ///< of the table: float32, float16, bfloat16
  const void* table = nullptr;        ///< [vocab, width]
  std::int64_t vocab = 0, width = 0;  ///< width: any
  const std::int64_t* ids = nullptr;  ///< [n]
  std::int64_t n = 0;
  float* hidden = nullptr;  ///< [n, width], written
};
cudaError_t embed_tokens(const EmbedParams& params, cudaStream_t stream);

/// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + eps) * weight, in float32, rounded once.
struct RmsNormParams {
  DType dtype = DType::bfloat16;  ///< of y
  const float* x = nullptr;       ///< [n, width]
  const float* weight = nullptr;  ///< [width]
  std::int64_t n = 0, width = 0;
  float eps = 1e-6f;
  void* y = nullptr;  ///< [n, width], written
};
cudaError_t rms_norm(const RmsNormParams& params, cudaStream_t stream);

/// y[i, c] = silu(gate[i, c]) * up[i, c], in float32, rounded once.
struct SiluParams {
  DType dtype = DType::bfloat16;
  const void* gate_up = nullptr;  ///< [n, 2 * width]: a row's gates, then its ups
  std::int64_t n = 0, width = 0;
  void* y = nullptr;  ///< [n, width], written
};
cudaError_t silu_times(const SiluParams& params, cudaStream_t stream);

/// y[i, :] += bias.
struct BiasParams {
  DType dtype = DType::bfloat16;  ///< of y
  const float* bias = nullptr;    ///< [width]
  std::int64_t n = 0, width = 0;
  void* y = nullptr;  ///< [n, width]
};
cudaError_t add_bias(const BiasParams& params, cudaStream_t stream);

}  // namespace episodic::kernels
