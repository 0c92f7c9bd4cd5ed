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

template <class T>
cudaError_t launch_merge(const AttentionPlan& plan, const AttentionArgs& args,
                         cudaStream_t stream) {
  const std::int64_t rows = plan.rows * args.p.n_kv_heads;
  constexpr int kThreads = kWarpSize * kMergeWarps;
  // a warp takes as many splits in turn as hide each other's latency; beyond that, more warps
  if (plan.splits <= kMergeWarps)
    return launch(MergeSplitsKernel<T, 1>, blocks_for((rows + kMergeWarps - 1) / kMergeWarps),
                  kThreads, 0, stream, args);
  return launch(MergeSplitsKernel<T, kMergeWarps>, blocks_for(rows), kThreads, 0, stream, args);
}

}  // namespace episodic::kernels
