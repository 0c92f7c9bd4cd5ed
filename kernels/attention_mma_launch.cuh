// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Instances and launches of attention_mma.cuh for one dtype.

#include "attention_launch.cuh"
#include "attention_mma.cuh"

namespace episodic::kernels {

template <class Half, int kDim>
cudaError_t launch_mma_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                 cudaStream_t stream) {
  const auto attend = [&](auto few_rows) {
    constexpr bool kFew = decltype(few_rows)::value;
    constexpr MmaTile kTile = mma_tile(kDim, kFew);
    const dim3 grid = attention_grid(plan, args);
    constexpr int kThreads = kWarpSize * kTile.warps;
    const std::size_t bytes = mma_shared_bytes(kDim, kTile);
    const auto kernel = MmaAttentionKernel<Half, kDim, kFew>;
    return kFew ? launch_early(kernel, grid, kThreads, bytes, stream, args)
                : launch(kernel, grid, kThreads, bytes, stream, args);
  };
  cudaError_t error = plan.few_rows           ? attend(std::true_type{})
                      : runs_on_wgmma(args.p) ? launch_wgmma_attention(plan, args, stream)
                                              : attend(std::false_type{});
  if (error == cudaSuccess && plan.splits > 1 && args.merge_group == 0)
    error = launch_merge<Half>(plan, args, stream);
  if (error != cudaSuccess || !args.p.maybe_column_sums || args.p.maybe_column_stats) return error;
  if (plan.few_rows)
    return launch(ScoresToColumnSumsKernel<Half>,
                  blocks_for((plan.window * args.p.n_heads + 255) / 256), 256, 0, stream, args);
  if (runs_on_wgmma(args.p)) return launch_wgmma_column_sums(plan, args, stream);
  constexpr ColumnTile kColumns = column_tile(kDim);
  return launch(MmaColumnSumsKernel<Half, kDim>, column_grid(plan, args, kColumns.keys()),
                kWarpSize * kColumns.warps, column_shared_bytes(kDim, kColumns), stream, args);
}

/// All rows are of `Half` behind it.
template <class Half>
cudaError_t launch_widening(AttentionArgs& args, cudaStream_t stream) {
  AttentionParams& p = args.p;
  const dim3 grid(blocks_for((p.max_rows + kWidenWarps - 1) / kWidenWarps),
                  static_cast<unsigned>(p.n_lists));
  const cudaError_t error =
      launch(WidenRowsKernel<Half>, grid, kWarpSize * kWidenWarps, 0, stream, args);
  p.rows = args.wide_rows;
  p.max_code_rows = 0;
  return error;
}

template <class Half>
cudaError_t launch_mma_attention(const AttentionPlan& plan, AttentionArgs args,
                                 cudaStream_t stream) {
  if (plan.widens)
    if (const cudaError_t error = launch_widening<Half>(args, stream)) return error;
  switch (plan.dim) {
    case 64:
      return launch_mma_attention<Half, 64>(plan, args, stream);
    case 96:
      return launch_mma_attention<Half, 96>(plan, args, stream);
    case 128:
      return launch_mma_attention<Half, 128>(plan, args, stream);
    case 256:
      return launch_mma_attention<Half, 256>(plan, args, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace episodic::kernels
