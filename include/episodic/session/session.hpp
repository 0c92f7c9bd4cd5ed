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

/// Feeds a model. The state of the sequence is the model's; the session remembers which tokens it
/// fed, for the repetition penalty, and where the model's count of tokens went back (a restore, a
/// reset) it forgets those behind. One thread at a time.
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

  /// Tokens of the sequence that were read before this session: it does not know them, and the
  /// repetition penalty does not cover them unless they are handed over here (a kept memory's
  /// token_ids; negative ids are unknown). \param ids the last ones before `history_start`
  void set_earlier_history(std::vector<std::int64_t> ids) { earlier_ = std::move(ids); }
  std::int64_t history_start() {
    align_history();
    return history_start_;
  }

  LanguageModel& model() { return *model_; }
  /// Null if it was made without one.
  const Tokenizer* tokenizer() const { return tokenizer_; }
  const SessionCounters& counters() const { return counters_; }

 private:
  void accept(Generation& generation, std::span<const float> logits);
  void align_history();
  void step(std::span<const std::int64_t> ids, StepKind kind);
  std::int64_t read(std::span<const std::int64_t> ids, const ProgressCallback& progress,
                    std::int64_t total);

  LanguageModel* model_;
  const Tokenizer* tokenizer_;
  SessionCounters counters_;
  std::vector<std::int64_t> earlier_;  // of tokens before history_start_
  std::vector<std::int32_t> history_;  // ids of tokens [history_start_, ...); -1: unknown
  std::int64_t history_start_ = 0;
  bool aligned_ = false;
};

}  // namespace episodic
