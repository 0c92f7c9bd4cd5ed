// SPDX-License-Identifier: Apache-2.0
#include "surprise.hpp"

#include "surprise.cuh"

namespace episodic::kernels {
namespace {

template <class Logit>
cudaError_t launch_for(const SurpriseParams& p, cudaStream_t stream) {
  return launch(SurpriseKernel<Logit>, blocks_for(p.n), kSurpriseThreads, 0, stream, p);
}

}  // namespace

cudaError_t token_surprise(const SurpriseParams& params, cudaStream_t stream) {
  if (params.n < 0 || params.vocab < 1 || params.row_stride < params.vocab)
    return cudaErrorInvalidValue;
  if (params.n == 0) return cudaSuccess;
  if (!params.logits || !params.targets || !params.surprise) return cudaErrorInvalidValue;
  switch (params.dtype) {
    case DType::float32:
      return launch_for<float>(params, stream);
    case DType::float16:
      return launch_for<__half>(params, stream);
    case DType::bfloat16:
      return launch_for<__nv_bfloat16>(params, stream);
    case DType::int8:
      break;  // logits are floats
  }
  return cudaErrorInvalidValue;
}

cudaError_t surprise_piece(const SurprisePieceParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.cols < 1 || p.row_stride < p.cols || p.first < 0 || p.cols > p.vocab - p.first)
    return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.logits || !p.last || (p.n > 1 && (!p.targets || !p.state || !p.surprise)))
    return cudaErrorInvalidValue;
  return launch(SurprisePieceKernel, blocks_for(p.n), kSurpriseThreads, 0, stream, p);
}

}  // namespace episodic::kernels
