// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Surprise of tokens and the thresholds that turn it into boundary flags (spec 2; EM 3.2, eq. 1).

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"

namespace episodic {

/// -log softmax(logits[i])[targets[i]] in nats, one pass by log-sum-exp in float32.
/// \param logits [n, vocab], `row_stride` elements between rows
/// \param targets [n] token ids in [0, vocab)
/// \param out [n], written
/// \throws DataError if a row holds NaN, or its log-sum-exp is not finite, or a target is out of
/// range
void token_surprise(const float* logits, std::int64_t n, std::int64_t vocab,
                    std::int64_t row_stride, const std::int64_t* targets, float* out);

/// Thresholds T_t = mu + gamma * sigma over previous surprise values. Fed the surprise of every
/// token once, in order; keeps the last tau values.
class SurpriseThreshold {
 public:
  SurpriseThreshold() = default;
  SurpriseThreshold(ThresholdWindow window, std::int64_t tau, double gamma, std::int64_t n_init);

  /// The next n tokens (one step): their thresholds, +inf where there are fewer than 2 values.
  /// Token 0 has no surprise: its value is ignored, it is in no average, its threshold is +inf.
  /// `moving`: the result does not depend on how the stream is cut into steps, to the bit.
  /// Nothing counts before `commit`; another prepare takes the place of the last.
  /// \param surprise, threshold [n]
  void prepare(const float* surprise, std::int64_t n, float* threshold);
  /// The tokens of the last prepare have come.
  void commit() noexcept;
  void step(const float* surprise, std::int64_t n, float* threshold) {
    prepare(surprise, n, threshold);
    commit();
  }

  std::int64_t tokens() const { return tokens_; }

  /// Surprise of the last min(tokens, tau) tokens, in order of time.
  std::vector<float> recent() const;
  /// Goes on behind `tokens` tokens, the last of which had this surprise.
  /// \throws DataError if that is not min(tokens, tau) values
  void resume(std::int64_t tokens, std::span<const float> recent);

 private:
  ThresholdWindow window_ = ThresholdWindow::moving;
  std::int64_t tau_ = 1, n_init_ = 0, tokens_ = 0;
  double gamma_ = 1.0;
  std::vector<float> recent_;  // ring of the last tau values; value of token t at t % tau
  std::vector<float> line_;    // scratch of one step: those values and its own, in order of time
  std::vector<float> coming_;  // surprise of the step that is prepared
};

}  // namespace episodic
