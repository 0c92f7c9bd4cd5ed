// SPDX-License-Identifier: Apache-2.0
#include "close_events.hpp"

#include "close_events.cuh"

namespace episodic::kernels {

cudaError_t close_events(const CloseEventsParams& params, cudaStream_t stream) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;  // sums of three stay within int64
  if (params.n < 0 || params.n > kMost || params.n_local < 1 || params.n_local > kMost)
    return cudaErrorInvalidValue;
  if (params.min_block < 1 || params.max_block < params.min_block || params.max_block > kMost)
    return cudaErrorInvalidValue;
  if (params.n_timelines < 1 || params.n_timelines > INT32_MAX || params.event_capacity < 1)
    return cudaErrorInvalidValue;
  if (params.n == 0) return cudaSuccess;
  if (params.flag_capacity < params.n_local + params.max_block + params.n)
    return cudaErrorInvalidValue;
  if (!params.state || !params.flags || !params.events) return cudaErrorInvalidValue;
  return launch(CloseEventsKernel, static_cast<unsigned>(params.n_timelines), kCloseThreads, 0,
                stream, params);
}

}  // namespace episodic::kernels
