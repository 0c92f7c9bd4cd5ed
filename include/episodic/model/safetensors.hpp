// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// safetensors files, read in place and written. Torch-free. Whatever a file says is checked before
/// it is believed: lengths, ranges, shapes and names come from outside.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/mapped_file.hpp"
#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// What the bytes of a safetensors file hold; the views point into them.
struct SafetensorsContent {
  std::vector<StoredTensor> tensors;  ///< in the order of their names
  std::map<std::string, std::string> metadata;
};

/// Reads the header and checks every range of it. Bytes that no tensor claims are ignored.
/// \param label the file's path, for messages
/// \throws FileError naming the file, the tensor and the remedy
SafetensorsContent parse_safetensors(std::span<const std::byte> bytes, std::string_view label);

/// One file, mapped.
class SafetensorsFile {
 public:
  /// \throws FileError as parse_safetensors
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  std::span<const StoredTensor> tensors() const { return content_.tensors; }
  const std::map<std::string, std::string>& metadata() const { return content_.metadata; }

  /// Null if there is no such tensor.
  const StoredTensor* find(std::string_view name) const;

  /// \throws FileError naming file and tensor if there is none
  const StoredTensor& at(std::string_view name) const;

 private:
  MappedFile file_;
  SafetensorsContent content_;
};

/// The weights of a model directory: model.safetensors, or all tensors of the shards that
/// model.safetensors.index.json lists.
class Weights final : public TensorSource {
 public:
  /// \throws FileError for missing or damaged files, and for shard names that leave the directory
  explicit Weights(const std::filesystem::path& model_dir);

  const StoredTensor* find(std::string_view name) const override;
  std::vector<const StoredTensor*> tensors() const override;
  std::filesystem::path file_of(std::string_view name) const override;

  /// \throws FileError naming the file that should hold the tensor
  const StoredTensor& at(std::string_view name) const;

 private:
  struct Place {
    std::size_t file;
    const StoredTensor* view;
  };
  std::filesystem::path listing_;  // what decides which tensors there are
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

/// A tensor to write: `data` holds the packed row-major elements.
struct TensorToWrite {
  std::string name;
  TensorType type = TensorType::f32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
};

/// Writes a file that appears whole or not at all (temporary file, then rename). The bytes depend
/// on the tensors only, not on their order in the list.
/// \throws DataError for a negative size or a repeated or reserved name; FileError if it cannot be
///         written
void write_safetensors(const std::filesystem::path& path, std::span<const TensorToWrite> tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace episodic
