// SPDX-License-Identifier: Apache-2.0
#pragma once
// Experts as gpt-oss's checkpoints hold them, in the order in which products read them. Torch-free.

#include <memory>

#include "episodic/model/hf_config.hpp"
#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// The tensors of a gpt_oss checkpoint with, for each layer with a mixture, in place of
///
///   mlp.experts.gate_up_proj   [experts, hidden, 2 width], a column of a gate before one of an up,
///   mlp.experts.down_proj      [experts, width, hidden], or
///   ..._blocks, ..._scales     the same in MXFP4 [experts, out, in / 32, 16] and [.., in / 32],
///   ..._bias                   [experts, 2 width] and [experts, hidden]
///
/// these, as GGUF files have them (MixtureTensors::stacked):
///
///   mlp.experts.{gate,up,down}_proj.weight   [experts, out, in] of the same type, or MXFP4
///   mlp.experts.{gate,up,down}_proj.bias     [experts, out]
///
/// and the router as mlp.gate. Weights are copied: no file has a product's rows side by side.
/// Tensors that have these names already stay where they lie.
/// \throws FileError naming the tensor that is missing, of another shape or type, before any is
///         copied
std::shared_ptr<const TensorSource> with_stacked_experts(
    std::shared_ptr<const TensorSource> tensors, const ModelConfig& config);

}  // namespace episodic
