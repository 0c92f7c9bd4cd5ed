// SPDX-License-Identifier: Apache-2.0
#include "attention_mma_launch.cuh"

namespace episodic::kernels {

cudaError_t launch_half_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                  cudaStream_t stream) {
  return launch_mma_attention<__half>(most, batch, stream);
}

}  // namespace episodic::kernels
