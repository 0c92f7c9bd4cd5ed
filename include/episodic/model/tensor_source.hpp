// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `TensorSource`: where a model's weights, configuration and tokenizer come from, whatever the
/// files are (a Hugging Face directory, a GGUF file). Torch-free.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/tensor_type.hpp"

namespace episodic {

/// A tensor of a file, where it lies. Row-major, packed, little-endian; `data` may be unaligned. Of
/// a block type the last dimension is a multiple of block_elements.
struct StoredTensor {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;  ///< rank 0 and empty tensors are legal
  const std::byte* data = nullptr;  ///< null if the tensor is empty
  std::int64_t bytes = 0;           ///< elements() / block_elements(type) * block_bytes(type)

  std::int64_t elements() const { return bytes / block_bytes(type) * block_elements(type); }
};

/// Tensors by name. The views stay valid as long as the source.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  /// Null if there is no such tensor.
  virtual const StoredTensor* find(std::string_view name) const = 0;

  /// All tensors in the order of their names.
  virtual std::vector<const StoredTensor*> tensors() const = 0;

  /// The file that holds the tensor, or that ought to list it; for messages.
  virtual std::filesystem::path file_of(std::string_view name) const = 0;
};

}  // namespace episodic
