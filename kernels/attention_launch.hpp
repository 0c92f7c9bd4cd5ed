// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The launches behind kernels/attention.hpp, one source for each dtype.

#include "attention_plan.hpp"

namespace episodic::kernels {

struct AttentionArgs;

/// Launches all passes that `plan` and `args` ask for. \return what the first failed launch said
cudaError_t launch_float_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                   cudaStream_t stream);
cudaError_t launch_half_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                  cudaStream_t stream);
cudaError_t launch_bfloat16_attention(const AttentionPlan& plan, const AttentionArgs& args,
                                      cudaStream_t stream);

}  // namespace episodic::kernels
