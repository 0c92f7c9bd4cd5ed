// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the sources behind kernels/attention_launch.hpp share.

#include <cmath>

#include "attention.cuh"
#include "attention_launch.hpp"

namespace episodic::kernels {

/// What the kernels are told of a call, but for splits and workspace.
inline AttentionArgs attention_args(const AttentionParams& params) {
  AttentionArgs args;
  args.p = params;
  const double scale = params.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(params.head_dim))
                                            : static_cast<double>(params.scale);
  constexpr double kLog2e = 1.4426950408889634;
  args.scale = static_cast<float>(std::fabs(scale) * kLog2e);
  args.sign = scale < 0.0 ? -1.0f : 1.0f;
  if (params.soft_cap > 0.0f) {
    const double cap = static_cast<double>(params.soft_cap);
    args.cap_in = static_cast<float>(std::fabs(scale) / cap);
    args.cap_out = static_cast<float>(cap / std::fabs(scale));
    args.cap_exponent = static_cast<float>(2 * kLog2e * std::fabs(scale) / cap);
    args.cap_twice = -2.0f * args.cap_out;
  }
  args.group = static_cast<int>(params.n_heads / params.n_kv_heads);
  args.rows = static_cast<int>(params.n_queries * args.group);
  return args;
}

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
