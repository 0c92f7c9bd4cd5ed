// SPDX-License-Identifier: Apache-2.0
#pragma once
// How events are judged otherwise than by the model's keys: --reader, heads that `train-lora
// --reader` trained, and --encoder, their text.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string_view>

#include "common.hpp"
#include "episodic/model/sentence_encoder.hpp"
#include "episodic/session/engine.hpp"
#include "episodic/session/event_reader.hpp"
#include "episodic/session/reader_heads.hpp"
#include "episodic/session/window_vectors.hpp"

namespace episodic::tools {

struct ReaderFlags {
  std::filesystem::path dir;  ///< empty: none

  void add_to(Command& app);
  /// Sets the recall hook of the memory that the engine has now: to be called after each `attach`.
  /// \throws ConfigError for heads of another model, full attention or a memory on a device;
  ///   FileError
  void apply(Engine& engine) const;

 private:
  mutable std::shared_ptr<const ReaderHeads> heads_;  // once they are read
};

/// Recalls the events whose text has to do with the question.
class TextReader {
 public:
  /// Both must outlive it.
  TextReader(const SentenceEncoder& encoder, const Tokenizer& tokenizer)
      : encoder_(encoder), tokenizer_(tokenizer) {}

  /// Takes part in the recall of the memory that the engine has now: to be called after each
  /// `attach`. Nothing changes before `ask`.
  /// \throws ConfigError for full attention, a memory on a device or events of single heads
  void attach(Engine& engine);
  /// From here on the memory recalls what has to do with this question.
  /// \param ids tokens of the sequence, at least to the end of its last event
  void ask(std::span<const std::int64_t> ids, std::string_view question);

 private:
  const SentenceEncoder& encoder_;
  const Tokenizer& tokenizer_;
  const EpisodicMemory* memory_ = nullptr;
  std::shared_ptr<EncoderReader> reader_;
};

struct EncoderFlags {
  std::filesystem::path dir;  ///< empty: none

  /// \param what it does, the begin of a sentence
  Option add_to(Command& app, const char* what = "Events are recalled");
  /// Null without --encoder. Lives as long as these flags. \throws FileError
  const SentenceEncoder* encoder() const;
  /// Its vectors of texts, for whatever finds passages. Null without --encoder. \throws FileError
  std::shared_ptr<WindowVectors> vectors() const;
  /// Null without --encoder. Lives no longer than these flags and the engine.
  std::unique_ptr<TextReader> open(Engine& engine) const;

 private:
  mutable std::shared_ptr<const SentenceEncoder> encoder_;
  mutable std::shared_ptr<WindowVectors> vectors_;
};

}  // namespace episodic::tools
