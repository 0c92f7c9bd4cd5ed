// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// From logits to the next token.

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

namespace episodic {

/// How the next token is drawn. Applied in this order: `logit_bias`, `repetition_penalty`,
/// `frequency_penalty` and `presence_penalty`, a grammar's choice of tokens (`sample_among`),
/// `temperature`, `top_k`, `top_p`, `min_p`. The names and meanings are those of Hugging Face's
/// `generate`, and of OpenAI's API where that one has them.
struct SamplingOptions {
  /// Logits are divided by it; 0: greedy, the token of the largest logit.
  double temperature = 0.0;
  /// Only the k largest logits, and those equal to the k-th, may be drawn; 0: all.
  std::int64_t top_k = 0;
  /// Only the likeliest tokens that together reach this probability may be drawn, at least one.
  double top_p = 1.0;
  /// Logits of tokens in the history are divided by it if positive, multiplied if negative; 1: off.
  double repetition_penalty = 1.0;
  std::uint64_t seed = 0;
  /// Only tokens of at least this share of the likeliest one's probability may be drawn; 0: all.
  double min_p = 0.0;
  /// Subtracted from the logit of a token that was generated before, in [-2, 2]; 0: off. Only
  /// tokens of this answer count, not the prompt's, nor those read before it.
  double presence_penalty = 0.0;
  /// Subtracted from a token's logit as many times as it was generated, in [-2, 2]; counted alike.
  double frequency_penalty = 0.0;
  /// Added to a token's logit, by id, in [-100, 100]; -100: never drawn.
  std::map<std::int64_t, double> logit_bias = {};

  /// \throws ConfigError naming the value out of range
  void validate() const;
};

/// Draws tokens. The same seed and logits give the same tokens with every standard library. Equal
/// logits: the smaller id first, in greedy choice and where top-p cuts.
class Sampler {
 public:
  /// \param draws random numbers already used: go on where a saved sampler stood
  /// \throws ConfigError
  explicit Sampler(const SamplingOptions& options, std::uint64_t draws = 0);

  /// Tokens of the context (read and generated), which the repetition penalty is for; negative ids
  /// are skipped. Costs nothing where there is no penalty.
  void see(std::span<const std::int64_t> ids);
  void see(std::span<const std::int32_t> ids);
  void see(std::int64_t id) { see(std::span(&id, 1)); }
  /// A token of the answer: seen, and counted for the presence and frequency penalties.
  void generated(std::int64_t id);

  /// \param logits (vocabulary); -infinity: never drawn
  /// \throws DataError if logits are empty, NaN, +infinity or all -infinity, or a token that was
  ///   seen, or has a bias, is out of the vocabulary
  std::int64_t sample(std::span<const float> logits) { return draw(logits, nullptr); }
  /// The same among some tokens. \param allowed a bit for each token: word id / 64, bit id % 64;
  ///   tokens behind its end are not allowed
  /// \throws DataError also if none of them can be drawn
  std::int64_t sample_among(std::span<const float> logits, std::span<const std::uint64_t> allowed) {
    return draw(logits, &allowed);
  }
  /// The same with the whole context in one call. \param history tokens so far
  std::int64_t sample(std::span<const float> logits, std::span<const std::int64_t> history) {
    seen_.clear();
    seen_list_.clear();
    see(history);
    return sample(logits);
  }

  /// Random numbers used so far.
  std::uint64_t draws() const { return draws_; }
  /// Goes on with the numbers of another seed, from their beginning.
  void reseed(std::uint64_t seed) {
    options_.seed = seed;
    draws_ = 0;
  }
  const SamplingOptions& options() const { return options_; }

 private:
  std::int64_t draw(std::span<const float> logits, const std::span<const std::uint64_t>* allowed);
  void see_one(std::int64_t id);
  double& score_of(std::int64_t id, const char* what);
  void bias();
  void penalize();
  std::size_t keep_top_k();
  std::size_t keep_top_p(std::size_t kept);
  std::size_t keep_min_p(std::size_t kept);
  double uniform();

  SamplingOptions options_;
  std::uint64_t draws_;
  std::vector<double> scores_;                      // (vocabulary), reused from call to call
  std::vector<double> weights_;                     // (vocabulary) unnormalised probabilities
  std::vector<std::int64_t> order_;                 // candidates
  std::vector<bool> seen_;                          // by id
  std::vector<std::int64_t> seen_list_;             // the same, each once
  std::map<std::int64_t, std::int64_t> generated_;  // how often, by id
};

/// A token and the logarithm of its probability, in nats.
struct TokenLogprob {
  std::int64_t id = 0;
  double logprob = 0;
  friend bool operator==(const TokenLogprob&, const TokenLogprob&) = default;
};

/// What a model gives for the next token, before any of the options: log-softmax of its logits, in
/// float64.
struct Logprobs {
  TokenLogprob token;             ///< the one that was drawn
  std::vector<TokenLogprob> top;  ///< the likeliest first; of equal ones the smaller id
  friend bool operator==(const Logprobs&, const Logprobs&) = default;
};

/// \param logits (vocabulary), none NaN or +infinity and not all -infinity
/// \param id the token drawn \param top how many of the likeliest; all, if there are fewer
Logprobs logprobs_of(std::span<const float> logits, std::int64_t id, std::int64_t top);

}  // namespace episodic
