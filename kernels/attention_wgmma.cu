// SPDX-License-Identifier: Apache-2.0
// Compiled for sm_90a alone, and only where the library is for 9.0 (CMakeLists.txt).
#include "attention_wgmma.cuh"

#include "attention_launch.cuh"

namespace episodic::kernels {
namespace {

template <class Half, int kDim>
cudaError_t launch_for(const AttentionPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  static_assert(wgmma_tile(kDim).rows() == mma_tile(kDim, false).rows(), "plans are for both");
  return launch(WgmmaAttentionKernel<Half, kDim>, attention_grid(plan, args),
                wgmma_tile(kDim).threads(), wgmma_shared_bytes(kDim), stream, args);
}

template <class Half>
cudaError_t launch_any(const AttentionPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  switch (plan.dim) {
    case 64:
      return launch_for<Half, 64>(plan, args, stream);
    case 96:
    case 128:
      return launch_for<Half, 128>(plan, args, stream);
    case 256:
      return launch_for<Half, 256>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

bool device_has_wgmma() {
  int device = 0, major = 0, minor = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device) == cudaSuccess &&
         major == 9 && minor == 0;
}

cudaError_t launch_wgmma_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                   cudaStream_t stream) {
  return args.p.dtype == DType::float16 ? launch_any<__half>(plan, args, stream)
                                        : launch_any<__nv_bfloat16>(plan, args, stream);
}

}  // namespace episodic::kernels
