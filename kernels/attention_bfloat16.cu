// SPDX-License-Identifier: Apache-2.0
#include "attention_mma_launch.cuh"

namespace episodic::kernels {

cudaError_t launch_bfloat16_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                      cudaStream_t stream) {
  return launch_mma_attention<__nv_bfloat16>(plan, args, stream);
}

}  // namespace episodic::kernels
