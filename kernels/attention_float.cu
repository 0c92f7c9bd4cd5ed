// SPDX-License-Identifier: Apache-2.0
#include "attention_float.cuh"

#include "attention_launch.cuh"

namespace episodic::kernels {
namespace {

template <int kDim>
cudaError_t launch_for(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                       cudaStream_t stream) {
  cudaError_t error = launch(FloatAttentionKernel<kDim>, attention_grid(most, batch), kFloatThreads,
                             float_shared_bytes(kDim), stream, batch);
  if (error == cudaSuccess) error = launch_merge<float>(most, batch, stream);
  if (error != cudaSuccess || !wants_column_sums(batch)) return error;
  dim3 grid = column_grid(most, batch.of[0], kFloatRows);
  grid.z = static_cast<unsigned>(batch.n);
  return launch(FloatColumnSumsKernel<kDim>, grid, kFloatThreads, float_column_shared_bytes(kDim),
                stream, batch);
}

}  // namespace

cudaError_t launch_float_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                   cudaStream_t stream) {
  switch (most.dim) {
    case 64:
      return launch_for<64>(most, batch, stream);
    case 128:
      return launch_for<128>(most, batch, stream);
    case 256:
      return launch_for<256>(most, batch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace episodic::kernels
