// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the sources behind kernels/attention_launch.hpp share.

#include "attention.cuh"
#include "attention_launch.hpp"

namespace episodic::kernels {

/// \param kv_heads of all sequences
inline dim3 attention_grid(const AttentionPlan& plan, std::int64_t kv_heads) {
  return {static_cast<unsigned>(plan.row_tiles), static_cast<unsigned>(plan.splits),
          static_cast<unsigned>(kv_heads)};
}
inline dim3 attention_grid(const AttentionPlan& most, const Batch<AttentionArgs>& batch) {
  return attention_grid(most, batch.n * batch.of[0].p.n_kv_heads);
}

inline bool wants_column_sums(const Batch<AttentionArgs>& batch) {
  return any_of(batch, [](const AttentionArgs& a) { return a.maybe_stats != nullptr; });
}

inline dim3 column_grid(const AttentionPlan& plan, const AttentionArgs& args, int keys) {
  return {static_cast<unsigned>((plan.window + keys - 1) / keys),
          static_cast<unsigned>(args.p.n_heads)};
}

/// Nothing, if no call needs it; they are alike (merge_of).
template <class T>
cudaError_t launch_merge(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                         cudaStream_t stream) {
  const AttentionMerge merge = merge_of(batch.of[0]);
  if (merge == AttentionMerge::no_launch) return cudaSuccess;
  const std::int64_t rows = most.rows * batch.of[0].p.n_kv_heads;
  constexpr int kThreads = kWarpSize * kMergeWarps;
  const bool warp_a_row = merge == AttentionMerge::warp_a_row;
  const dim3 grid =
      blocks_for_layers(warp_a_row ? (rows + kMergeWarps - 1) / kMergeWarps : rows, batch.n);
  return warp_a_row ? launch(MergeSplitsKernel<T, 1>, grid, kThreads, 0, stream, batch)
                    : launch(MergeSplitsKernel<T, kMergeWarps>, grid, kThreads, 0, stream, batch);
}

}  // namespace episodic::kernels
