// SPDX-License-Identifier: Apache-2.0
#include "model_tensors.hpp"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "episodic/base/error.hpp"

namespace episodic {

const StoredTensor& ModelTensors::at(const std::string& name,
                                     const std::vector<std::int64_t>& shape) const {
  const StoredTensor& view = weights_.at(name);
  if (view.shape != shape)
    throw FileError(
        fmt::format("{}: tensor '{}' has shape [{}], config.json calls for [{}]; weights "
                    "and config.json must be of one model",
                    weights_.file_of(name).string(), name, fmt::join(view.shape, ", "),
                    fmt::join(shape, ", ")));
  if (view.type != TensorType::f32 && view.type != TensorType::f16 && view.type != TensorType::bf16)
    throw FileError(fmt::format("{}: tensor '{}' is stored as {}; store it as F32, F16 or BF16",
                                weights_.file_of(name).string(), name, name_of(view.type)));
  return view;
}

}  // namespace episodic
