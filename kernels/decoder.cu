// SPDX-License-Identifier: Apache-2.0
#include "decoder.hpp"

#include "decoder.cuh"

namespace episodic::kernels {
namespace {

/// One block a row, rows beyond the grid in a loop. \param kernels of float32, float16, bfloat16
template <class Params>
cudaError_t launch_rows(void (*of_float)(Params), void (*of_half)(Params), void (*of_brain)(Params),
                        const Params& p, cudaStream_t stream) {
  const auto run = [&](void (*kernel)(Params)) {
    return launch(kernel, blocks_for(p.n), kDecoderThreads, 0, stream, p);
  };
  switch (p.dtype) {
    case DType::float32:
      return run(of_float);
    case DType::float16:
      return run(of_half);
    case DType::bfloat16:
      return run(of_brain);
    case DType::int8:
      break;  // activations are floats
  }
  return cudaErrorInvalidValue;
}

}  // namespace

cudaError_t embed_tokens(const EmbedParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1 || p.vocab < 1) return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.table || !p.ids || !p.hidden) return cudaErrorInvalidValue;
  return launch_rows(EmbedKernel<float>, EmbedKernel<__half>, EmbedKernel<__nv_bfloat16>, p,
                     stream);
}

cudaError_t rms_norm(const RmsNormParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1 || !(p.eps >= 0)) return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.x || !p.weight || !p.y) return cudaErrorInvalidValue;
  return launch_rows(RmsNormKernel<float>, RmsNormKernel<__half>, RmsNormKernel<__nv_bfloat16>, p,
                     stream);
}

cudaError_t silu_times(const SiluParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1) return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.gate_up || !p.y) return cudaErrorInvalidValue;
  return launch_rows(SiluKernel<float>, SiluKernel<__half>, SiluKernel<__nv_bfloat16>, p, stream);
}

cudaError_t add_bias(const BiasParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1) return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.bias || !p.y) return cudaErrorInvalidValue;
  return launch_rows(BiasKernel<float>, BiasKernel<__half>, BiasKernel<__nv_bfloat16>, p, stream);
}

}  // namespace episodic::kernels
