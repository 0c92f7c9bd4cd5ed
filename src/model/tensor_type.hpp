// SPDX-License-Identifier: Apache-2.0
#pragma once
// Names of element types as safetensors files spell them.

#include <optional>
#include <string_view>

#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// The plain type of that name ("BF16"); nothing for block types and unknown names.
std::optional<TensorType> plain_type(std::string_view name);

}  // namespace episodic
