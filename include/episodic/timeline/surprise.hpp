// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Surprise of tokens and the thresholds that turn it into boundary flags (EM 3.2, eq. 1).

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// -log softmax(logits[i])[targets[i]] in nats, one pass by log-sum-exp in float32.
/// \param logits [n, vocab], `row_stride` elements between rows
/// \param targets [n] token ids in [0, vocab)
/// \param out [n], written
/// \throws DataError if a row holds NaN, or its log-sum-exp is not finite, or a target is out of
/// range
void token_surprise(const float* logits, std::int64_t n, std::int64_t vocab,
                    std::int64_t row_stride, const std::int64_t* targets, float* out);

/// The same of rows whose logits come in pieces of the vocabulary, so that none need ever lie there
/// as a whole: each row's log-sum-exp is carried on from piece to piece. The same bits as
/// token_surprise.
class SurpriseInPieces {
 public:
  /// Every piece but the last has a multiple of so many logits.
  static constexpr std::int64_t kPiece = 1024;

  /// \param targets [n] token ids in [0, vocab) \throws DataError for one out of range
  void begin(std::int64_t n, std::int64_t vocab, const std::int64_t* targets);
  /// The next `cols` logits of every row. \param logits [n, cols], `row_stride` elements between
  /// rows \throws DataError for a piece that cannot follow
  void add(const float* logits, std::int64_t cols, std::int64_t row_stride);
  /// After the last piece. \param out [n], written
  /// \throws DataError if a row holds NaN, or its log-sum-exp is not finite, or pieces are missing
  void finish(float* out) const;

 private:
  struct Row {
    float max = 0, logit = 0;  // what is taken off before the exponentials; the target's logit
    double sum = 0;
    std::int64_t target = 0;
  };
  std::vector<Row> rows_;
  std::int64_t vocab_ = 0, seen_ = 0;
};

/// What the logits of a step of n tokens say, where nobody asked for all rows of them.
struct StepSurprise {
  std::span<const float> following;    ///< [n - 1] nats: of the tokens behind the step's first
  std::span<const float> last_logits;  ///< [vocab] that follow the step's last token
};

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

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/timeline/impl/surprise_threshold.hpp"
#include "episodic/timeline/impl/token_surprise.hpp"
#endif
