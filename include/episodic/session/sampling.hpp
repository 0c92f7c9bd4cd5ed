// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// From logits to the next token.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace episodic {

/// How the next token is drawn; names, meaning and order are those of Hugging Face's `generate`:
/// repetition penalty, temperature, top-k, top-p, min-p.
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

  /// \param logits (vocabulary); -infinity: never drawn
  /// \throws DataError if logits are empty, NaN, +infinity or all -infinity, or a token that was
  ///   seen is out of the vocabulary
  std::int64_t sample(std::span<const float> logits);
  /// The same with the whole context in one call. \param history tokens so far
  std::int64_t sample(std::span<const float> logits, std::span<const std::int64_t> history) {
    seen_.clear();
    seen_list_.clear();
    see(history);
    return sample(logits);
  }

  /// Random numbers used so far.
  std::uint64_t draws() const { return draws_; }
  const SamplingOptions& options() const { return options_; }

 private:
  void see_one(std::int64_t id);
  void penalize();
  std::size_t keep_top_k();
  std::size_t keep_top_p(std::size_t kept);
  std::size_t keep_min_p(std::size_t kept);
  double uniform();

  SamplingOptions options_;
  std::uint64_t draws_;
  std::vector<double> scores_;           // (vocabulary), reused from call to call
  std::vector<double> weights_;          // (vocabulary) unnormalised probabilities
  std::vector<std::int64_t> order_;      // candidates
  std::vector<bool> seen_;               // by id
  std::vector<std::int64_t> seen_list_;  // the same, each once
};

}  // namespace episodic
