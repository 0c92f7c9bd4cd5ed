// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Session`: prefill and decoding over a model, whatever its attention and wherever it
/// computes. Torch-free.

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/model/language_model.hpp"
#include "episodic/model/token_history.hpp"
#include "episodic/session/generation.hpp"
#include "episodic/text/chat_template.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// What a session has cost so far.
struct SessionCounters {
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

/// Ids of a text that goes on after another one, without special tokens. Tokenizers that put a
/// space before every text (LLaMA 2's) put none before this one.
std::vector<std::int64_t> encode_continuation(const Tokenizer& tokenizer, std::string_view text);
/// The same of a conversation, or a part of one (`encode_prompt`).
std::vector<std::int64_t> encode_continuation(const Tokenizer& tokenizer,
                                              const RenderedPrompt& prompt);

/// Feeds a model: a `Sequence`, or a decoder. The state of the sequence is the model's, and so is
/// what it was fed (for the repetition penalty), where it remembers that. One thread at a time.
class Session {
 public:
  /// Both must outlive the session. \param tokenizer may be null: then there is no text.
  explicit Session(LanguageModel& model, const Tokenizer* tokenizer = nullptr);

  /// Reads tokens in steps of the state's chunk, the last one as long as what is left.
  /// \param progress called after each step; returning false stops there
  /// \return tokens read: ids.size() unless cancelled
  /// \throws DataError for ids out of the vocabulary, before anything is read
  std::int64_t prefill(std::span<const std::int64_t> ids, const ProgressCallback& progress = {});

  /// Reads the prompt, its last token in a step of its own, and continues it. So the query that
  /// decides what is recalled for the first answer token is the question's end, never a chunk of
  /// mixed text (EM 3.4). For a question about text read before, prefill the text, then generate
  /// from the question.
  /// \throws DataError for an empty prompt, ids out of the vocabulary or NaN logits
  GenerateResult generate(std::span<const std::int64_t> prompt, const GenerateOptions& options = {},
                          const ProgressCallback& progress = {});

  /// Of a model that does not remember what it was fed: the first token that this session knows.
  /// The repetition penalty does not cover those before.
  std::int64_t history_start() {
    follow_model();
    return history_.start();
  }

  LanguageModel& model() { return *model_; }
  /// Null if it was made without one.
  const Tokenizer* tokenizer() const { return tokenizer_; }
  const SessionCounters& counters() const { return counters_; }

 private:
  void accept(Generation& generation, std::span<const float> logits);
  void follow_model();
  void step(std::span<const std::int64_t> ids, StepKind kind);
  std::int64_t read(std::span<const std::int64_t> ids, const ProgressCallback& progress,
                    std::int64_t total);

  LanguageModel* model_;
  const Tokenizer* tokenizer_;
  SessionCounters counters_;
  TokenHistory history_;  // of a model that keeps none
};

}  // namespace episodic
