// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `Generation`: an answer as it is being written, as a value that knows no model. Torch-free.
///
/// \code
/// Generation answer(prompt, options, {vocab_size, eos_tokens}, &tokenizer);
/// while (!answer.done()) {
///   const Generation::Input input = answer.next_input(model.chunk());
///   model.step(input.ids, input.kind);
///   answer.accept(input.wants_logits ? model.logits() : std::span<const float>());
/// }
/// const GenerateResult& result = answer.result();
/// \endcode
///
/// Whoever drives it decides when its next step is made and with which others: a session, a server
/// that makes one step of many sequences, a program in another language.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/grammar/token_grammar.hpp"
#include "episodic/session/sampling.hpp"
#include "episodic/session/stop.hpp"
#include "episodic/text/tokenizer.hpp"
#include "episodic/timeline/step_kind.hpp"

namespace episodic {

/// Why a generation ended. `stop_token` is also the end of an answer that a grammar lets go on no
/// further, where there are no stop tokens, and of one that GenerateOptions::ends ended.
enum class FinishReason : std::uint8_t { length, stop_token, stop_string, cancelled };

const char* name_of(FinishReason reason);

/// In place of an id, where there is text, but no new token.
inline constexpr std::int64_t kNoToken = -1;

/// Called with each new token and the text that became certain with it (may be empty), and last, if
/// text was held back until the end, with kNoToken and that: look before an id is used as an index.
/// Return false to cancel.
using TokenCallback = std::function<bool(std::int64_t id, std::string_view text)>;

struct GenerateOptions {
  std::int64_t max_new = 128;  ///< most tokens to generate, >= 0
  SamplingOptions sampling;    ///< greedy by default
  /// Tokens that end the generation and are not part of it. Empty: those of the model's files and
  /// its tokenizer (end_tokens in session/stop.hpp).
  std::vector<std::int64_t> stop_tokens;
  bool ignore_eos = false;  ///< with it, empty stop_tokens mean none
  /// Also feed the last token, though nothing follows it: the state then holds the whole answer,
  /// to be gone on with or committed. Costs one step.
  bool feed_last = false;
  std::vector<std::string> stop;  ///< strings that end it; cut from the text. Need a tokenizer
  /// The tokens' bytes together make a text of it, unless `max_new`, a stop string or the callback
  /// ends the answer first. Special tokens are then never drawn, and stop tokens only where the
  /// text may end. Null: none.
  std::shared_ptr<const TokenGrammar> grammar;
  /// Keep the log-probability of each token, and of so many of the likeliest; negative: nothing.
  std::int64_t logprobs = -1;
  /// Special tokens whose text is part of the answer's (ToolCallFormat::shown_tokens); others have
  /// none.
  std::vector<std::int64_t> shown_tokens;
  TokenCallback on_token;
  /// Asked with the text that became certain with each token, which may be empty: true ends the
  /// answer behind it, whole, as a stop token would. Null: nothing does.
  std::function<bool(std::string_view text)> ends;
};

struct GenerateResult {
  std::vector<std::int64_t> ids;  ///< generated tokens
  /// How many of them the model's state holds: all but the last, for nothing needed what follows
  /// it; all of them with `feed_last`, and where a stop token ended the answer.
  std::int64_t fed = 0;
  std::string text;  ///< decoded, without stop strings; empty without a tokenizer
  FinishReason finish = FinishReason::length;
  std::string stop;  ///< the stop string that ended it; empty where none did
  /// With GenerateOptions::logprobs, of each of `ids`: what the model gave, before all options.
  std::vector<Logprobs> logprobs;
  double prefill_seconds = 0, decode_seconds = 0;  ///< of a Session; a Generation has no clock
};

/// \throws DataError naming the first id that is not in [0, vocab_size)
void check_token_ids(std::span<const std::int64_t> ids, std::int64_t vocab_size);

/// A prompt being read and an answer being written behind it. Copies go on apart from each other.
///
/// The prompt's last token is a step of its own, so the query that decides what is recalled for the
/// first answer token is the question's end, never a chunk of mixed text.
class Generation {
 public:
  /// What the model is to be told of itself.
  struct Model {
    std::int64_t vocab_size = 0;
    std::vector<std::int64_t> eos_tokens;  ///< that end an answer where options name none
  };
  /// \param tokenizer null: there is no text. It must outlive the generation
  /// \throws DataError for an empty prompt and for ids out of the vocabulary; ConfigError for
  ///         options out of their range, and for stop strings without a tokenizer
  ///         (logit_bias: of ids out of the vocabulary, a DataError)
  Generation(std::vector<std::int64_t> prompt, GenerateOptions options, const Model& model,
             const Tokenizer* tokenizer = nullptr);

  /// Tokens of the sequence before the prompt, which the repetition penalty covers too; negative
  /// ids are unknown.
  void see(std::span<const std::int64_t> ids) { sampler_.see(ids); }
  void see(std::span<const std::int32_t> ids) { sampler_.see(ids); }

  struct Input {
    std::span<const std::int64_t> ids;  ///< valid until the next call of `accept`
    StepKind kind = StepKind::prompt;
    /// False: nothing is drawn behind this step, and a device need not be waited for.
    bool wants_logits = false;
  };
  /// What the model's next step is to read; the same until `accept`. \param chunk most tokens of a
  /// step, >= 1 \return no ids once `done`
  Input next_input(std::int64_t chunk);
  /// The step of the last `next_input` was made. Draws the next token, if one is wanted.
  /// \param logits [vocab] that follow the step's last token; looked at if they were wanted
  /// \throws DataError for logits that nothing can be drawn from, for logits of another size, and
  ///         where no token of the vocabulary goes on as the grammar asks for;
  ///         ConfigError where `next_input` was not called. The generation is then as before
  void accept(std::span<const float> logits);

  /// Ends it, whatever it was at; nothing more is wanted from the model.
  void cancel();
  /// Nothing is left to feed.
  bool done() const { return stage_ == Stage::done; }
  /// The prompt has been read.
  bool writing() const { return read_ == prompt_.size(); }
  /// Tokens of the prompt that were fed.
  std::int64_t prompt_read() const { return static_cast<std::int64_t>(read_); }
  std::int64_t prompt_tokens() const { return static_cast<std::int64_t>(prompt_.size()); }

  /// Draws with another seed from here on: for copies that are to be other answers.
  void reseed(std::uint64_t seed) { sampler_.reseed(seed); }

  /// The answer so far; whole once `done`.
  const GenerateResult& result() const { return result_; }

 private:
  enum class Stage : std::uint8_t { reading, writing, last_token, done };

  std::optional<std::int64_t> draw(std::span<const float> logits);
  bool stops(std::int64_t id) const;
  void take(std::int64_t id);
  void end(FinishReason reason);

  std::vector<std::int64_t> prompt_;
  GenerateOptions options_;
  std::vector<std::int64_t> stop_tokens_;
  Sampler sampler_;
  StopMatcher matcher_;
  std::optional<GrammarState> grammar_;
  std::optional<StreamDecoder> decoder_;
  std::int64_t vocab_size_;
  std::size_t read_ = 0;     // tokens of the prompt
  std::size_t pending_ = 0;  // tokens of the step that next_input asked for
  Stage stage_ = Stage::reading;
  GenerateResult result_;
};

}  // namespace episodic
