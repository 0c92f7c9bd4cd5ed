// SPDX-License-Identifier: Apache-2.0
#pragma once
// Checkpoints whose weights were quantised by other programs: FP8 and FP4 with scales, and integers
// of 4 or 8 bits in groups (GPTQ, AWQ, compressed-tensors, ModelOpt). They are converted when a
// model is opened, to types that are multiplied as they are stored:
//
// | stored | becomes | |
// |---|---|---|
// | 4 bits, zero point 8 | Q4_0 | the same numbers; the scale is rounded to float16 |
// | 4 bits, other zero points | Q4_1 | its minimum, scale times zero point, is rounded to float16 |
// | 8 bits, zero point 128 or signed | Q8_0 | as Q4_0 |
// | FP8 (E4M3) | BF16 | each number rounded to nearest even |
// | FP4 with a power of two for each 32 (MXFP4) | MXFP4 | the same numbers |
// | FP4 with an E4M3 for each 16, and one scale of all (NVFP4) | BF16 | as FP8 |
// | groups that no block of 32 fits, or in another order (desc_act) | BF16 | the same |
//
// Scales of activations are not read: activations are not quantised here. Torch-free.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "episodic/model/tensor_source.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic {

/// The same tensors with such weights as "X.weight", without what belongs to their packing; null
/// where there are none.
/// \param config_json text of config.json, which parsed well
/// \param plan of the model: a bias of zeros that it does not have is left out (GPTQ writes such)
/// \param label of config.json, for messages
/// \throws FileError naming the tensor or the key, and the remedy: for shapes that do not fit each
///         other, and for numbers of bits and layouts that are not read
std::shared_ptr<const TensorSource> unpacked_weights(std::shared_ptr<const TensorSource> tensors,
                                                     std::string_view config_json,
                                                     std::span<const WeightEntry> plan,
                                                     const std::string& label);

}  // namespace episodic
