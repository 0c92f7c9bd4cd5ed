// SPDX-License-Identifier: Apache-2.0
#include "short_convolution.hpp"

#include <algorithm>

#include "episodic/base/parallel.hpp"

namespace episodic {
namespace {

void gate_input(const float* b, std::int64_t width, float* x) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) x[c] *= b[c];
}

void add_tap(const float* tap, const float* u, std::int64_t width, float* y) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) y[c] += tap[c] * u[c];
}

void gate_output(const float* gate, std::int64_t width, float* y) {
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) y[c] *= gate[c];
}

/// f(t) of every token, in pieces that are worth a thread.
template <class F>
void over_tokens(std::int64_t n, std::int64_t width, F&& f) {
  const std::int64_t piece = std::max<std::int64_t>(1, 32768 / width);
  parallel_for((n + piece - 1) / piece, [&](std::int64_t p) {
    for (std::int64_t t = p * piece; t < std::min(n, (p + 1) * piece); ++t) f(t);
  });
}

}  // namespace

void short_convolution(const ShortConvolution& of, std::int64_t n, float* rows,
                       std::span<const float> before, std::span<float> after, float* y) {
  const std::int64_t width = of.width(), taps = of.taps;
  over_tokens(n, width, [&](std::int64_t t) {
    float* row = rows + 3 * t * width;
    gate_input(row, width, row + 2 * width);
  });
  // u of token t; those before the first have negative numbers
  const auto u = [&](std::int64_t t) {
    return t < 0 ? before.data() + (t + taps - 1) * width : rows + (3 * t + 2) * width;
  };
  over_tokens(n, width, [&](std::int64_t t) {
    float* to = y + t * width;
    if (of.bias.empty())
      std::fill_n(to, width, 0.0f);
    else
      std::copy_n(of.bias.data(), width, to);
    for (std::int64_t i = 0; i < taps; ++i)
      add_tap(of.tap.data() + i * width, u(t - taps + 1 + i), width, to);
    gate_output(rows + (3 * t + 1) * width, width, to);
  });
  for (std::int64_t i = 0; i + 1 < taps; ++i)
    std::copy_n(u(n - taps + 1 + i), width, after.data() + i * width);
}

}  // namespace episodic
