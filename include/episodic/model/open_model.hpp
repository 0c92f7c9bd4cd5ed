// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `open_model`: a model's weights, configuration and tokenizer, whatever files they lie in.
/// Torch-free.

#include <filesystem>
#include <memory>
#include <string>

#include "episodic/memory/kept_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// A model whose files are open and whose weights are mapped; nothing large was read.
struct OpenModel {
  std::filesystem::path path;  ///< as given
  ModelConfig config;
  std::string config_json;      ///< text of config.json
  std::string generation_json;  ///< text of generation_config.json, or empty
  std::shared_ptr<const TensorSource> tensors;
  /// Directory with tokenizer.json and tokenizer_config.json.
  std::filesystem::path tokenizer_dir;
};

/// \param path of a Hugging Face directory
/// \throws FileError naming the path, or the file and key in it, and the remedy
OpenModel open_model(const std::filesystem::path& path);

/// Fingerprints of an open model (model/identity.hpp).
MemoryIdentity identity_of(const OpenModel& model);

}  // namespace episodic
