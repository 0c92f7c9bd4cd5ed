// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the sources behind kernels/attention_launch.hpp share.

#include "attention.cuh"
#include "attention_launch.hpp"

namespace episodic::kernels {

inline dim3 attention_grid(const AttentionPlan& plan, const AttentionArgs& args) {
  return {static_cast<unsigned>(plan.row_tiles), static_cast<unsigned>(plan.splits),
          static_cast<unsigned>(args.p.n_kv_heads)};
}

inline dim3 column_grid(const AttentionPlan& plan, const AttentionArgs& args, int keys) {
  return {static_cast<unsigned>((plan.window + keys - 1) / keys),
          static_cast<unsigned>(args.p.n_heads)};
}

/// And the column sums, where the first pass wrote scores.
template <class T>
cudaError_t launch_merge(const AttentionPlan& plan, const AttentionArgs& args,
                         cudaStream_t stream) {
  const std::int64_t rows = plan.rows * args.p.n_kv_heads;
  constexpr int kThreads = kWarpSize * kMergeWarps;
  std::int64_t column_blocks = 0;
  if (args.maybe_scores)
    column_blocks = (args.p.n_heads + kColumnHeads - 1) / kColumnHeads *
                    ((plan.window + kColumnKeys - 1) / kColumnKeys);
  // a warp takes as many splits in turn as hide each other's latency; beyond that, more warps
  const bool warp_a_row = plan.splits <= kMergeWarps;
  const unsigned merge = blocks_for(warp_a_row ? (rows + kMergeWarps - 1) / kMergeWarps : rows);
  const auto blocks = static_cast<unsigned>(merge + column_blocks);
  return warp_a_row
             ? launch(MergeSplitsKernel<T, 1>, blocks, kThreads, 0, stream, args, merge)
             : launch(MergeSplitsKernel<T, kMergeWarps>, blocks, kThreads, 0, stream, args, merge);
}

}  // namespace episodic::kernels
