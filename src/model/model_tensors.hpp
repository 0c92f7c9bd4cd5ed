// SPDX-License-Identifier: Apache-2.0
#pragma once
// The tensors of a model directory by name and expected shape: what every loader of weights checks
// before it believes a file. Torch-free.

#include <filesystem>
#include <string>
#include <vector>

#include "episodic/model/safetensors.hpp"

namespace episodic {

class ModelTensors {
 public:
  explicit ModelTensors(const std::filesystem::path& model_dir) : weights_(model_dir) {}

  /// \throws FileError naming file, tensor and both shapes; for a type that is no F32, F16 or BF16
  const StoredTensor& at(const std::string& name, const std::vector<std::int64_t>& shape) const;
  bool has(const std::string& name) const { return weights_.find(name) != nullptr; }
  /// In the order of their names.
  std::vector<const StoredTensor*> all() const { return weights_.tensors(); }

 private:
  Weights weights_;
};

}  // namespace episodic
