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
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// A model whose files are open and whose weights are mapped; nothing large was read.
struct OpenModel {
  std::filesystem::path path;  ///< as given
  ModelConfig config;
  std::string config_json;      ///< text of config.json
  std::string generation_json;  ///< text of generation_config.json, or empty
  std::shared_ptr<const TensorSource> tensors;
  /// Directory with tokenizer.json and tokenizer_config.json; empty for a GGUF file.
  std::filesystem::path tokenizer_dir;
};

/// \param path of a Hugging Face directory, or of a GGUF file (the first part of a split one)
/// \throws FileError naming the path, or the file and key in it, and the remedy
OpenModel open_model(const std::filesystem::path& path);

/// The tokenizer of a Hugging Face directory (text/tokenizer.hpp) or out of a GGUF file.
/// \throws FileError
std::unique_ptr<Tokenizer> load_model_tokenizer(const std::filesystem::path& path);

/// The chat template of a Hugging Face directory (text/chat_template.hpp) or out of a GGUF file.
/// \param tokenizer the model's: a GGUF file's template prints its bos and eos
/// \throws FileError if there is none, or it is not supported
ChatTemplate load_model_chat_template(const std::filesystem::path& path,
                                      const Tokenizer& tokenizer);

/// True if the path is a file rather than a directory: a model in one piece (GGUF).
bool is_model_file(const std::filesystem::path& path);

/// Fingerprints of an open model (model/identity.hpp).
MemoryIdentity identity_of(const OpenModel& model);

}  // namespace episodic
