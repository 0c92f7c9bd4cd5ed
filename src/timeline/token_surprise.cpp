// SPDX-License-Identifier: Apache-2.0
// Floor: one read of the logits from memory, n * vocab * 4 bytes; the exponentials take about as
// long on one core (16 floats in 14 cycles) and are spread over the threads by rows.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"
#include "episodic/timeline/surprise.hpp"

namespace episodic {

void token_surprise(const float* logits, std::int64_t n, std::int64_t vocab,
                    std::int64_t row_stride, const std::int64_t* targets, float* out) {
  if (n < 0 || vocab < 1 || (n > 1 && row_stride < vocab)) {
    throw DataError(fmt::format(
        "token_surprise: n is {}, vocab {}, row_stride {}; rows of at least one logit must not "
        "overlap",
        n, vocab, row_stride));
  }
  for (std::int64_t i = 0; i < n; ++i) {
    if (targets[i] < 0 || targets[i] >= vocab) {
      throw DataError(
          fmt::format("token_surprise: token {} at row {} is outside the vocabulary of {}",
                      targets[i], i, vocab));
    }
  }
  const auto sum_exp = cpu::kernels().sum_exp;
  const auto row = [&](std::int64_t i) {
    const float* x = logits + i * row_stride;
    float max = 0.0f;
    const double sum = sum_exp(x, vocab, &max);
    const double log_sum = static_cast<double>(max) + std::log(sum);
    const double surprise = log_sum - static_cast<double>(x[targets[i]]);
    if (!std::isfinite(log_sum) || std::isnan(surprise)) {
      throw DataError(fmt::format(
          "token_surprise: the logits of row {} hold NaN or infinity (log-sum-exp {}); check the "
          "model's weights and dtype",
          i, log_sum));
    }
    // a token whose logit is the only one left gives +-1e-16, never a negative surprise
    out[i] = static_cast<float>(std::max(0.0, surprise));
  };
  constexpr std::int64_t kTaskLogits = 1 << 16;  // about 20 us
  const std::int64_t rows = std::max<std::int64_t>(1, kTaskLogits / vocab);
  parallel_for((n + rows - 1) / rows, [&](std::int64_t task) {
    for (std::int64_t i = task * rows; i < n && i < (task + 1) * rows; ++i) row(i);
  });
}

}  // namespace episodic
