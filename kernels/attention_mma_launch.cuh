// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Instances and launches of attention_mma.cuh for one dtype.

#include "attention_launch.cuh"
#include "attention_mma.cuh"

namespace episodic::kernels {

/// Of few rows. \param most of each of the calls, which merge in one way
template <class Half, int kDim>
cudaError_t launch_few_rows(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                            cudaStream_t stream) {
  constexpr MmaTile kTile = mma_tile(kDim, true);
  cudaError_t error =
      launch_early(MmaAttentionKernel<Half, kDim, true>, attention_grid(most, batch),
                   kWarpSize * kTile.warps, mma_shared_bytes(kDim, kTile), stream, batch);
  if (error == cudaSuccess) error = launch_merge<Half>(most, batch, stream);
  if (error != cudaSuccess || !wants_column_sums(batch)) return error;
  const std::int64_t scores = most.window * batch.of[0].p.n_heads;
  return launch(ScoresToColumnSumsKernel<Half>, blocks_for_layers((scores + 255) / 256, batch.n),
                256, 0, stream, batch);
}

/// Of many rows.
template <class Half, int kDim>
cudaError_t launch_many_rows(const AttentionPlan& plan, const AttentionArgs& args,
                             cudaStream_t stream) {
  constexpr MmaTile kTile = mma_tile(kDim, false);
  const MmaBatch<false> one = batch_of_one<1>(args);
  const bool wgmma = runs_on_wgmma(args.p);
  cudaError_t error =
      wgmma ? launch_wgmma_attention(plan, args, stream)
            : launch(MmaAttentionKernel<Half, kDim, false>, attention_grid(plan, args.p.n_kv_heads),
                     kWarpSize * kTile.warps, mma_shared_bytes(kDim, kTile), stream, one);
  if (error == cudaSuccess) error = launch_merge<Half>(plan, batch_of_one(args), stream);
  if (error != cudaSuccess || !args.p.maybe_column_sums) return error;
  if (wgmma) return launch_wgmma_column_sums(plan, args, stream);
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

template <class Half, int kDim>
cudaError_t launch_mma_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                 cudaStream_t stream) {
  if (most.few_rows) return launch_few_rows<Half, kDim>(most, batch, stream);
  AttentionArgs args = batch.of[0];  // of many rows there is one
  if (most.widens)
    if (const cudaError_t error = launch_widening<Half>(args, stream)) return error;
  return launch_many_rows<Half, kDim>(most, args, stream);
}

template <class Half>
cudaError_t launch_mma_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                                 cudaStream_t stream) {
  switch (most.dim) {
    case 64:
      return launch_mma_attention<Half, 64>(most, batch, stream);
    case 96:
      return launch_mma_attention<Half, 96>(most, batch, stream);
    case 128:
      return launch_mma_attention<Half, 128>(most, batch, stream);
    case 256:
      return launch_mma_attention<Half, 256>(most, batch, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace episodic::kernels
