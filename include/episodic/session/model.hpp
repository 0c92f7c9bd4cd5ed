// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Model`: weights, tokenizer and chat format, for any number of sequences and threads.
/// Torch-free; the host's is part of episodic::episodic, a device's of episodic::device.
///
/// \code
/// const auto model = episodic::load_model("models/recall-2m6");
/// episodic::Sequence a(model), b(model);  // session/sequence.hpp: each with a memory of its own
/// \endcode

#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "episodic/memory/kept_memory.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/session/generation.hpp"
#include "episodic/session/model_executor.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// Nothing of it changes once it is loaded, so all of it may be called from any thread.
class Model {
 public:
  /// \param executor with the weights of the model in `dir`
  /// \throws FileError if there is no model
  Model(const std::filesystem::path& dir, const ModelOptions& options,
        std::unique_ptr<const ModelExecutor> executor);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model();

  /// The directory or file it was loaded from.
  const std::filesystem::path& dir() const { return dir_; }
  /// What was done with its weights.
  const ModelOptions& options() const { return options_; }
  const ModelConfig& config() const { return executor_->config(); }
  /// "cpu" or "cuda".
  const char* device() const { return executor_->device(); }

  bool has_tokenizer() const { return tokenizer_ != nullptr; }
  /// \throws FileError if the directory has no tokenizer, or one that cannot be used
  const Tokenizer& tokenizer() const;
  /// Read at the first call. \throws FileError if the model's files have none; DataError
  const ChatTemplate& chat_template() const;
  /// Tokens that end an answer (session/stop.hpp).
  const std::vector<std::int64_t>& end_tokens() const { return end_tokens_; }

  /// Whose memories it opens. Reads all weights at the first call.
  /// \throws FileError where its files are no longer there
  const MemoryIdentity& identity() const;

  /// An answer of this model, to be driven by `run` or by hand.
  /// \throws as the constructor of Generation
  Generation generation(std::vector<std::int64_t> prompt, GenerateOptions options = {}) const;

  const ModelExecutor& executor() const { return *executor_; }

 private:
  std::filesystem::path dir_;
  ModelOptions options_;
  std::unique_ptr<const ModelExecutor> executor_;
  std::unique_ptr<const Tokenizer> tokenizer_;
  std::string tokenizer_problem_;  // why there is none
  std::vector<std::int64_t> end_tokens_;
  mutable std::once_flag template_read_;
  mutable std::optional<ChatTemplate> template_;
  mutable std::once_flag identity_read_;
  mutable MemoryIdentity identity_;
};

/// The model of a directory or a GGUF file in host memory (episodic::episodic).
/// \param options adapters beside or merged into its weights, and rounding of them
/// \throws FileError, DataError naming the file, tensor or key
std::shared_ptr<const Model> load_model(const std::filesystem::path& dir,
                                        const ModelOptions& options = {});

/// What stands at a path that should be a model directory, as a sentence: empty if it has a
/// config.json. A missing folder, a file, a GGUF file, the name of a model on a hub, a folder with
/// weights but no configuration: each with what to do.
std::string model_dir_problem(const std::filesystem::path& model_dir);

/// \throws FileError with model_dir_problem, if there is one
void require_model_dir(const std::filesystem::path& model_dir);

}  // namespace episodic
