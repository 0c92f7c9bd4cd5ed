// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `open_model`: a model's weights, configuration and tokenizer, whatever files they lie in.
/// Torch-free.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/group/group.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/lora.hpp"
#include "episodic/model/tensor_source.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// An adapter by its directory, with a factor of the caller's.
struct LoraChoice {
  std::filesystem::path dir;
  double scale = 1;
};

/// What is done with the weights of a model when it is opened.
struct ModelOptions {
  std::vector<LoraChoice> lora;  ///< any number; their additions add up
  bool merge_lora = false;       ///< into the weights (floats only) instead of beside them
  /// Q8_0 or Q4_0: matrices are rounded to blocks in memory (model/quantize.hpp), after merging.
  std::optional<TensorType> quantize = {};
  /// On a device: DeviceDecoder::Options::fp8_weights. A host refuses it.
  bool fp8 = false;
  /// The ranks that the model is divided among (model/tensor_parallel.hpp); null: one process.
  std::shared_ptr<Group> group = {};
  /// Told where a model's files contradict each other and which of them was believed: warnings.
  LogCallback log = {};

  bool none() const { return lora.empty() && !quantize; }
};

/// A model whose files are open and whose weights are mapped; nothing large was read, unless
/// ModelOptions changed the weights.
struct OpenModel {
  std::filesystem::path path;  ///< as given
  ModelConfig config;
  std::string config_json;      ///< text of config.json
  std::string generation_json;  ///< text of generation_config.json, or empty
  std::shared_ptr<const TensorSource> tensors;
  /// The tensors as they are stored, where `tensors` were changed; null: they were not.
  std::shared_ptr<const TensorSource> stored;
  std::vector<AppliedLora> adapters;         ///< beside the weights, or merged into them
  bool merged = false;                       ///< which of both
  std::optional<TensorType> quantized = {};  ///< what the matrices were rounded to in memory
  std::shared_ptr<Group> group = {};         ///< whose rank's share it is; null: it is whole
  /// Directory with tokenizer.json and tokenizer_config.json; empty for a GGUF file.
  std::filesystem::path tokenizer_dir;
  /// Where the files contradict each other, a line each: config.json says tied and the file has a
  /// head of its own, ... What `config` says is what the weights are.
  std::vector<std::string> notes = {};
};

/// \param path of a Hugging Face directory, or of a GGUF file (the first part of a split one)
/// \throws FileError naming the path, or the file and key in it, and the remedy
OpenModel open_model(const std::filesystem::path& path);

/// The same, changed as the options say. \throws as LoraAdapter::load, merge_lora, quantize_weights
OpenModel open_model(const std::filesystem::path& path, const ModelOptions& options);

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

/// Fingerprints of an open model (model/identity.hpp): of its files, and of the adapters and the
/// rounding that change what it computes. Merged or beside, and in whatever order, adapters give
/// the same.
MemoryIdentity identity_of(const OpenModel& model);

/// The same as of open_model(path, options), without changing any weights.
MemoryIdentity identity_of(const std::filesystem::path& path, const ModelOptions& options);

}  // namespace episodic
