// SPDX-License-Identifier: Apache-2.0
#include "attention_float.cuh"

#include "attention_launch.cuh"

namespace episodic::kernels {
namespace {

template <int kDim>
cudaError_t launch_for(const AttentionPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  cudaError_t error = launch(FloatAttentionKernel<kDim>, attention_grid(plan, args), kFloatThreads,
                             float_shared_bytes(kDim), stream, args);
  if (error == cudaSuccess && plan.splits > 1) error = launch_merge<float>(plan, args, stream);
  if (error != cudaSuccess || !args.p.maybe_column_sums) return error;
  return launch(FloatColumnSumsKernel<kDim>, column_grid(plan, args, kFloatRows), kFloatThreads,
                float_column_shared_bytes(kDim), stream, args);
}

}  // namespace

cudaError_t launch_float_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                   cudaStream_t stream) {
  switch (plan.dim) {
    case 64:
      return launch_for<64>(plan, args, stream);
    case 128:
      return launch_for<128>(plan, args, stream);
    case 256:
      return launch_for<256>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace episodic::kernels
