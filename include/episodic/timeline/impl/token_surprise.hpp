// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of timeline/surprise.hpp; how they become functions: base/inline.hpp.
//
// Floor: one read of the logits from memory, n * vocab * 4 bytes; the exponentials take about as
// long on one core (16 floats in 14 cycles) and are spread over the threads by rows.
#include <algorithm>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/text.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/timeline/surprise.hpp"

namespace EPISODIC_NAMESPACE {

static_assert(SurpriseInPieces::kPiece % cpu::kExpStretch == 0);

namespace token_surprise_detail {

/// Surprise from a row's log-sum-exp, in parts, and its target's logit.
inline float surprise_of(std::int64_t row, float max, double sum, float target) {
  const double log_sum = static_cast<double>(max) + std::log(sum);
  const double surprise = log_sum - static_cast<double>(target);
  if (!std::isfinite(log_sum) || std::isnan(surprise)) {
    throw DataError(concat("token_surprise: the logits of row ", row,
                           " hold NaN or infinity (log-sum-exp ", log_sum,
                           "); check the model's weights and dtype"));
  }
  // a token whose logit is the only one left gives +-1e-16, never a negative surprise
  return static_cast<float>(std::max(0.0, surprise));
}

inline void check_target(std::int64_t row, std::int64_t target, std::int64_t vocab) {
  if (target < 0 || target >= vocab) {
    throw DataError(concat("token_surprise: token ", target, " at row ", row,
                           " is outside the vocabulary of ", vocab));
  }
}

/// Runs f(row) for n rows, each a pass over `cols` logits.
template <class F>
void over_rows(std::int64_t n, std::int64_t cols, F&& f) {
  constexpr std::int64_t kTaskLogits = 1 << 16;  // about 20 us
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskLogits / cols);
  parallel_for((n + rows - 1) / rows, [&](std::int64_t task) {
    for (std::int64_t i = task * rows; i < n && i < (task + 1) * rows; ++i) f(i);
  });
}

}  // namespace token_surprise_detail

EPISODIC_INLINE void token_surprise(const float* logits, std::int64_t n, std::int64_t vocab,
                                    std::int64_t row_stride, const std::int64_t* targets,
                                    float* out) {
  using namespace token_surprise_detail;
  if (n < 0 || vocab < 1 || (n > 1 && row_stride < vocab)) {
    throw DataError(concat("token_surprise: n is ", n, ", vocab ", vocab, ", row_stride ",
                           row_stride, "; rows of at least one logit must not overlap"));
  }
  for (std::int64_t i = 0; i < n; ++i) check_target(i, targets[i], vocab);
  const auto add_exp = cpu::kernels().add_exp;
  over_rows(n, vocab, [&](std::int64_t i) {
    const float* x = logits + i * row_stride;
    float max = cpu::kLowestExp;
    double sum = 0;
    add_exp(x, vocab, &max, &sum);
    out[i] = surprise_of(i, max, sum, x[targets[i]]);
  });
}

EPISODIC_INLINE void SurpriseInPieces::begin(std::int64_t n, std::int64_t vocab,
                                             const std::int64_t* targets) {
  for (std::int64_t i = 0; i < n; ++i) token_surprise_detail::check_target(i, targets[i], vocab);
  rows_.resize(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i)
    rows_[static_cast<std::size_t>(i)] = {.max = cpu::kLowestExp, .target = targets[i]};
  vocab_ = vocab;
  seen_ = 0;
}

EPISODIC_INLINE void SurpriseInPieces::add(const float* logits, std::int64_t cols,
                                           std::int64_t row_stride) {
  const auto n = static_cast<std::int64_t>(rows_.size());
  const std::int64_t first = seen_, end = first + cols;
  if (cols < 1 || end > vocab_ || (n > 1 && row_stride < cols) ||
      (end < vocab_ && cols % kPiece != 0)) {
    throw DataError(concat("SurpriseInPieces: a piece of ", cols, " logits behind ", first, " of ",
                           vocab_, "; pieces are multiples of ", kPiece,
                           " but for the last, rows must not overlap"));
  }
  const auto add_exp = cpu::kernels().add_exp;
  token_surprise_detail::over_rows(n, cols, [&](std::int64_t i) {
    Row& row = rows_[static_cast<std::size_t>(i)];
    const float* x = logits + i * row_stride;
    add_exp(x, cols, &row.max, &row.sum);
    if (row.target >= first && row.target < end) row.logit = x[row.target - first];
  });
  seen_ = end;
}

EPISODIC_INLINE void SurpriseInPieces::finish(float* out) const {
  if (seen_ != vocab_)
    throw DataError(concat("SurpriseInPieces: ", seen_, " of ", vocab_, " logits came"));
  for (std::size_t i = 0; i < rows_.size(); ++i)
    out[i] = token_surprise_detail::surprise_of(static_cast<std::int64_t>(i), rows_[i].max,
                                                rows_[i].sum, rows_[i].logit);
}

}  // namespace EPISODIC_NAMESPACE
