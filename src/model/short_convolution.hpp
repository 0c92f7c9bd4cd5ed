// SPDX-License-Identifier: Apache-2.0
#pragma once
// The gated short convolution of LFM2, which stands where attention would.

#include <cstdint>
#include <span>
#include <vector>

#include "linear.hpp"

namespace episodic {

/// Of one layer: `in` gives each token three rows B, C and x. With u = B * x,
/// y[t] = C[t] * (bias + sum of tap[i] * u[t - taps + 1 + i]); the layer's last product reads y.
struct ShortConvolution {
  Linear in;                ///< [3 * width, hidden]: B, C, x
  std::int64_t taps = 0;    ///< 0: the layer has attention
  std::vector<float> tap;   ///< [taps, width]; the last meets the token itself
  std::vector<float> bias;  ///< [width], or empty
  std::int64_t width() const { return in.out / 3; }
};

/// n >= 1 tokens of one sequence. Every token's numbers are summed in the same order, whatever the
/// length of the step.
/// \param rows [n, 3 * width] of the first product; u stands in place of x then
/// \param before [taps - 1, width]: u of the tokens before the first, the oldest first
/// \param after the same behind the last token, written; not `before`
/// \param y [n, width], written
void short_convolution(const ShortConvolution& of, std::int64_t n, float* rows,
                       std::span<const float> before, std::span<float> after, float* y);

}  // namespace episodic
