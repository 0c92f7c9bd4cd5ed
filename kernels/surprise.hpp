// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Surprise of tokens on the GPU: the CUDA twin of episodic/timeline/surprise.hpp (spec 2).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// All pointers are to device memory.
struct SurpriseParams {
  const void* logits = nullptr;  ///< [n, vocab] of `dtype`, elements of a row side by side
  DType dtype = DType::float32;
  std::int64_t n = 0, vocab = 0;
  std::int64_t row_stride = 0;            ///< elements between rows; >= vocab
  const std::int64_t* targets = nullptr;  ///< [n] token ids
  float* surprise = nullptr;              ///< [n], written: nats
  float* maybe_log_sum_exp = nullptr;     ///< [n], written; or null
};

/// surprise[i] = log-sum-exp(logits[i]) - logits[i][targets[i]], never below 0, in one pass over
/// the logits with sums in float32. NaN where the CPU's twin refuses the row (it holds NaN or +inf,
/// or nothing but -inf) or the target is not in [0, vocab): the caller looks at the values where it
/// reads them. The same bits on every run. n == 0 does nothing.
///
/// Neither allocates nor waits. \return what the launch said
cudaError_t token_surprise(const SurpriseParams& params, cudaStream_t stream);

}  // namespace episodic::kernels
