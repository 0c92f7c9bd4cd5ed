// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the launchers of attention and of what comes behind it (kernels/event_mass.hpp) share: the
/// check of a call's parameters, and what kernels are told of it.

#include <cmath>

#include "attention.cuh"
#include "fields.hpp"
#include "value_width.cuh"

namespace episodic::kernels {

/// What segmented_attention finds wrong with these parameters before it launches.
FieldError check_attention(const AttentionParams& params);

/// All but splits and workspace.
inline AttentionArgs attention_args(const AttentionParams& params) {
  AttentionArgs args;
  args.p = with_value_width(params);
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

}  // namespace episodic::kernels
