// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The hand-over from many blocks to the last of them to be done.

#include "device.cuh"

namespace episodic::kernels {

/// Whether the calling block is the last of `count` to come here, and sees what the others wrote
/// before they did. All threads call it. \param arrived 0, and left so
__device__ inline bool is_last_arrival(std::uint32_t* arrived, unsigned count) {
  EPISODIC_SHARED(is_last, int);
  __threadfence();  // what this block wrote, before it is counted
  __syncthreads();
  if (threadIdx.x == 0) {
    is_last = atomicAdd(arrived, 1u) + 1 == count;
    __threadfence();  // what the other blocks had written is read behind this
  }
  __syncthreads();
  if (!is_last) return false;
  __threadfence();
  if (threadIdx.x == 0) *arrived = 0;  // for the next launch
  return true;
}

}  // namespace episodic::kernels
