// SPDX-License-Identifier: Apache-2.0
#pragma once
// The products of Qwen3-Next's recurrences as Qwen3.5 holds them. Torch-free.

#include <memory>

#include "episodic/model/hf_config.hpp"
#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// The tensors of a qwen3_next checkpoint with, for each layer with a recurrence, in place of
///
///   linear_attn.in_proj_qkvz   rows of each key head: its q, its k, its heads' v, and their z
///   linear_attn.in_proj_ba     the same: its heads' b, and their a
///
/// these, the rows of all heads behind each other:
///
///   linear_attn.in_proj_qkv, in_proj_z, in_proj_b, in_proj_a
///
/// Rows are copied. Tensors that have these names already stay where they lie.
/// \throws FileError naming a tensor of another shape
std::shared_ptr<const TensorSource> with_parted_projections(
    std::shared_ptr<const TensorSource> tensors, const ModelConfig& config);

}  // namespace episodic
