// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `KeysHook`: what a model's layers give attention to keep. Torch-free.

#include <cstdint>
#include <functional>
#include <span>

namespace episodic {

/// Called in each step for each layer of the model, in order, before its attention.
/// \param keys of the step's tokens, before rotary embedding: [n, G, d] of the layer, float32 in
///        host memory, valid during the call. What it throws ends the step as an error of its own.
using KeysHook = std::function<void(std::int64_t layer, std::span<const float> keys)>;

}  // namespace episodic
