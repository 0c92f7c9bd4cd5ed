// SPDX-License-Identifier: Apache-2.0
// Compiled for sm_90a alone, and only where the library is for 9.0 (CMakeLists.txt).
#include "attention_wgmma.cuh"

#include "attention_launch.cuh"

namespace episodic::kernels {
namespace {

template <class Half, int kDim>
cudaError_t launch_for(const AttentionPlan& plan, const AttentionArgs& args, cudaStream_t stream) {
  static_assert(wgmma_tile(kDim).rows() == mma_tile(kDim, false).rows(), "plans are for both");
  return launch(WgmmaAttentionKernel<Half, kDim>, attention_grid(plan, args.p.n_kv_heads),
                wgmma_tile(kDim).threads(), wgmma_shared_bytes(kDim), stream, args);
}

template <class Half, int kDim>
cudaError_t launch_sums_for(const AttentionPlan& plan, const AttentionArgs& args,
                            cudaStream_t stream) {
  constexpr WgmmaColumnTile kTile = wgmma_column_tile(kDim);
  return launch(WgmmaColumnSumsKernel<Half, kDim>, column_grid(plan, args, kTile.keys()),
                kTile.threads(), wgmma_column_shared_bytes(kDim), stream, args);
}

/// f(a Half, the instance's head size) for what is planned.
template <class F>
cudaError_t choose(const AttentionPlan& plan, const AttentionArgs& args, F&& f) {
  const auto of = [&](auto half) {
    switch (plan.dim) {
      case 64:
        return f(half, std::integral_constant<int, 64>{});
      case 96:
      case 128:
        return f(half, std::integral_constant<int, 128>{});
      case 256:
        return f(half, std::integral_constant<int, 256>{});
      default:
        return cudaErrorInvalidValue;
    }
  };
  return args.p.dtype == DType::float16 ? of(__half{}) : of(__nv_bfloat16{});
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
  return choose(plan, args, [&](auto half, auto dim) {
    return launch_for<decltype(half), decltype(dim)::value>(plan, args, stream);
  });
}

cudaError_t launch_wgmma_column_sums(const AttentionPlan& plan, const AttentionArgs& args,
                                     cudaStream_t stream) {
  return choose(plan, args, [&](auto half, auto dim) {
    return launch_sums_for<decltype(half), decltype(dim)::value>(plan, args, stream);
  });
}

}  // namespace episodic::kernels
