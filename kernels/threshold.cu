// SPDX-License-Identifier: Apache-2.0
#include "threshold.hpp"

#include "threshold.cuh"

namespace episodic::kernels {

cudaError_t surprise_threshold(const ThresholdParams& params, cudaStream_t stream) {
  if (params.n < 0 || params.tau < 1 || params.n_init < 0) return cudaErrorInvalidValue;
  if (params.window != ThresholdWindow::moving && params.window != ThresholdWindow::chunked)
    return cudaErrorInvalidValue;
  if (params.n == 0) return cudaSuccess;
  if (params.recent_capacity < params.n || params.recent_capacity - params.n < params.tau)
    return cudaErrorInvalidValue;
  if (!params.state || !params.surprise || !params.recent || !params.threshold || !params.raw)
    return cudaErrorInvalidValue;
  constexpr std::int64_t kTokens = kThresholdThreads / kThresholdLanes;
  return launch(ThresholdKernel, blocks_for((params.n - 1) / kTokens + 1), kThresholdThreads, 0,
                stream, params);
}

}  // namespace episodic::kernels
