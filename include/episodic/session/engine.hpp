// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Engine`: a model and one sequence of it that reads and answers text, for programs that have one
/// conversation. Torch-free; the host's engine is part of episodic::episodic, the device's of
/// episodic::device (device/device_engine.hpp).

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "episodic/session/model.hpp"
#include "episodic/session/sequence.hpp"
#include "episodic/session/session.hpp"

namespace episodic {

/// A `Sequence` with the calls that take text. What attention reads, states, events and budgets are
/// the sequence's.
///
/// \code
/// auto engine = load_engine("models/recall-2m6");
/// engine->attach();    // an empty memory with the settings of memory.json
/// engine->read(book);  // any length
/// std::string answer = engine->ask("\n\n\nWho closed the door?\n\nIt was").text;
/// \endcode
///
/// One thread at a time.
class Engine final : public Sequence {
 public:
  /// A new sequence of a model that others may use too.
  explicit Engine(std::shared_ptr<const Model> model);
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // -- of the model -----------------------------------------------------------------------------

  const std::filesystem::path& model_dir() const { return model().dir(); }
  const ModelOptions& model_options() const { return model().options(); }
  /// \throws FileError if the directory has no tokenizer, or one that cannot be used
  const Tokenizer& tokenizer() const { return model().tokenizer(); }
  bool has_tokenizer() const { return model().has_tokenizer(); }
  /// "cpu" or "cuda".
  const char* device() const { return model().device(); }

  // -- reading and answering ----------------------------------------------------------------------

  /// Reads a text after what was read before; the tokenizer's special tokens (BOS) open an empty
  /// sequence only. \return tokens read \throws as Session::prefill, FileError without a tokenizer
  std::int64_t read(std::string_view text, const ProgressCallback& progress = {});
  std::int64_t read(std::span<const std::int64_t> ids, const ProgressCallback& progress = {});

  /// Continues: prompt and answer become part of the sequence. \throws as Session::generate
  GenerateResult generate(std::string_view prompt, const GenerateOptions& options = {});
  GenerateResult generate(std::span<const std::int64_t> prompt,
                          const GenerateOptions& options = {});

  /// Answers from what was read and comes back: the sequence is then as it was.
  /// \throws as generate, ConfigError if it has no snapshots
  GenerateResult ask(std::string_view question, const GenerateOptions& options = {});
  GenerateResult ask(std::span<const std::int64_t> question, const GenerateOptions& options = {});

  /// The session behind these calls; its counters count them.
  Session& session() { return session_; }

 private:
  Session session_;
};

/// The model of a directory or a GGUF file in host memory, with a sequence (episodic::episodic).
/// \param options adapters beside or merged into its weights, and rounding of them
/// \throws FileError, DataError naming the file, tensor or key
std::unique_ptr<Engine> load_engine(const std::filesystem::path& model_dir,
                                    const ModelOptions& options = {});

}  // namespace episodic
