// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Session`: prefill and decoding over a model, whatever its attention and wherever it
/// computes. Torch-free.

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/model/language_model.hpp"
#include "episodic/session/sampling.hpp"
#include "episodic/text/tokenizer.hpp"

namespace episodic {

/// Why a generation ended.
enum class FinishReason : std::uint8_t { length, stop_token, stop_string, cancelled };

const char* name_of(FinishReason reason);

/// Called with each new token and the text that became certain with it (may be empty). Return false
/// to cancel.
using TokenCallback = std::function<bool(std::int64_t id, std::string_view text)>;

struct GenerateOptions {
  std::int64_t max_new = 128;  ///< most tokens to generate, >= 0
  SamplingOptions sampling;    ///< greedy by default
  /// Tokens that end the generation and are not part of it. Empty: the model's eos tokens.
  std::vector<std::int64_t> stop_tokens;
  bool ignore_eos = false;        ///< with it, empty stop_tokens mean none
  std::vector<std::string> stop;  ///< strings that end it; cut from the text. Need a tokenizer
  TokenCallback on_token;
};

struct GenerateResult {
  std::vector<std::int64_t> ids;  ///< generated tokens; all of them were fed back but the last
  std::string text;               ///< decoded, without stop strings; empty without a tokenizer
  FinishReason finish = FinishReason::length;
  double prefill_seconds = 0, decode_seconds = 0;
};

/// What a session has cost so far.
struct SessionCounters {
  std::int64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
};

/// Feeds a model. Holds no sequence state of its own: that is the model's.
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
  /// mixed text (spec 5). For a question about text read before, prefill the text, then generate
  /// from the question.
  /// \throws DataError for an empty prompt, ids out of the vocabulary or NaN logits
  GenerateResult generate(std::span<const std::int64_t> prompt, const GenerateOptions& options = {},
                          const ProgressCallback& progress = {});

  LanguageModel& model() { return *model_; }
  const SessionCounters& counters() const { return counters_; }

 private:
  void check_ids(std::span<const std::int64_t> ids) const;
  std::int64_t read(std::span<const std::int64_t> ids, const ProgressCallback& progress,
                    std::int64_t total);

  LanguageModel* model_;
  const Tokenizer* tokenizer_;
  SessionCounters counters_;
};

}  // namespace episodic
