// SPDX-License-Identifier: Apache-2.0
#include "elementwise.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/clones.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/weights.hpp"

namespace episodic {
namespace {

/// e^x to 2 units in the last place, without branches so that loops of it vectorise. Results below
/// the smallest normal number become that number; overflow ends near the largest.
inline float fast_exp(float x) {
  constexpr float kLog2e = 1.44269504088896341f;
  constexpr float kLn2High = 0.693359375f, kLn2Low = -2.12194440e-4f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  x = std::min(std::max(x, -87.0f), 88.0f);
  const float shifted = x * kLog2e + kRound;
  const float k = shifted - kRound;
  const float r = (x - k * kLn2High) - k * kLn2Low;
  // Taylor series on |r| <= ln(2) / 2
  float p = 1.0f / 5040;
  p = p * r + 1.0f / 720;
  p = p * r + 1.0f / 120;
  p = p * r + 1.0f / 24;
  p = p * r + 1.0f / 6;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
  const auto exponent = std::bit_cast<std::uint32_t>(shifted) << 23;  // low bits of shifted hold k
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(p) + exponent);
}

EPISODIC_CLONES void rms_norm_row(const float* x, const float* weight, float eps,
                                  std::int64_t width, float* y) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < width; ++c) sum += x[c] * x[c];
  // Squares that overflow would make a row of zeros, and so of a broken model a silent one.
  const float scale = sum <= std::numeric_limits<float>::max()
                          ? 1.0f / std::sqrt(sum / static_cast<float>(width) + eps)
                          : std::numeric_limits<float>::quiet_NaN();
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) y[c] = x[c] * scale * weight[c];
}

EPISODIC_CLONES void layer_norm_row(const float* x, const float* weight, const float* bias,
                                    float eps, std::int64_t width, float* y) {
  float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < width; ++c) sum += x[c];
  const float mean = sum / static_cast<float>(width);
  float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
  for (std::int64_t c = 0; c < width; ++c) squares += (x[c] - mean) * (x[c] - mean);
  const float scale = squares <= std::numeric_limits<float>::max()
                          ? 1.0f / std::sqrt(squares / static_cast<float>(width) + eps)
                          : std::numeric_limits<float>::quiet_NaN();
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) y[c] = (x[c] - mean) * scale * weight[c];
  if (!bias) return;
#pragma omp simd
  for (std::int64_t c = 0; c < width; ++c) y[c] += bias[c];
}

EPISODIC_CLONES void silu_span(float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] / (1.0f + fast_exp(-x[i]));
}

EPISODIC_CLONES void gelu_span(float* x, std::int64_t n) {
  constexpr float kTwice = 1.59576912160573f;  // as gelu_times_span
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float twice_u = kTwice * (x[i] + 0.044715f * x[i] * x[i] * x[i]);
    x[i] = x[i] / (1.0f + fast_exp(-twice_u));
  }
}

EPISODIC_CLONES void relu_squared_span(float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float positive = x[i] < 0.0f ? 0.0f : x[i];  // NaN stays
    x[i] = positive * positive;
  }
}

EPISODIC_CLONES void silu_times_span(float* gate, const float* up, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) gate[i] = gate[i] / (1.0f + fast_exp(-gate[i])) * up[i];
}

EPISODIC_CLONES void sigmoid_times_span(const float* gate, float* x, std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = x[i] / (1.0f + fast_exp(-gate[i]));
}

/// 0.5 x (1 + tanh(u)) = x / (1 + e^-2u), u = sqrt(2 / pi) (x + 0.044715 x^3)
EPISODIC_CLONES void gelu_times_span(float* gate, const float* up, std::int64_t n) {
  constexpr float kTwice = 1.59576912160573f;  // 2 sqrt(2 / pi)
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float x = gate[i], twice_u = kTwice * (x + 0.044715f * x * x * x);
    gate[i] = x / (1.0f + fast_exp(-twice_u)) * up[i];
  }
}

EPISODIC_CLONES void clamped_silu_times_span(float slope, float limit, float* gate, const float* up,
                                             std::int64_t n) {
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = std::min(gate[i], limit), u = std::max(std::min(up[i], limit), -limit);
    gate[i] = g / (1.0f + fast_exp(-slope * g)) * (u + 1.0f);
  }
}

/// cap * tanh(x / cap) with tanh(t) = 1 - 2 / (1 + e^2t)
EPISODIC_CLONES void soft_cap_span(float cap, float* x, std::int64_t n) {
  const float twice = 2.0f / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < n; ++i) x[i] = cap - 2.0f * cap / (1.0f + fast_exp(twice * x[i]));
}

constexpr std::int64_t kSpan = 1 << 14;  // elements of one task, a multiple of every vector length

/// f(begin, end) over [0, n) in spans, parallel if there are several.
template <class F>
void over_spans(std::int64_t n, F&& f) {
  parallel_for((n + kSpan - 1) / kSpan,
               [&](std::int64_t i) { f(i * kSpan, std::min(n, (i + 1) * kSpan)); });
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, std::int64_t width,
              float* y) {
  const std::int64_t rows = std::max<std::int64_t>(1, kSpan / width);
  parallel_for((n + rows - 1) / rows, [&](std::int64_t block) {
    for (std::int64_t i = block * rows; i < std::min(n, (block + 1) * rows); ++i)
      rms_norm_row(x + i * width, weight, eps, width, y + i * width);
  });
}

void layer_norm(const float* x, const float* weight, const float* maybe_bias, float eps,
                std::int64_t n, std::int64_t width, float* y) {
  const std::int64_t rows = std::max<std::int64_t>(1, kSpan / width);
  parallel_for((n + rows - 1) / rows, [&](std::int64_t block) {
    for (std::int64_t i = block * rows; i < std::min(n, (block + 1) * rows); ++i)
      layer_norm_row(x + i * width, weight, maybe_bias, eps, width, y + i * width);
  });
}

void silu(float* x, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) { silu_span(x + a, b - a); });
}

void gelu(float* x, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) { gelu_span(x + a, b - a); });
}

void relu_squared(float* x, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) { relu_squared_span(x + a, b - a); });
}

void apply_xielu(const Xielu& of, float* x, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = a; i < b; ++i) {
      const float curved = x[i] > 0.0f ? of.positive * x[i] * x[i]
                                       : of.negative * (std::expm1(std::min(x[i], of.eps)) - x[i]);
      x[i] = curved + of.beta * x[i];
    }
  });
}

void sigmoid_times(const float* gate, std::int64_t n, float* x) {
  over_spans(n,
             [&](std::int64_t a, std::int64_t b) { sigmoid_times_span(gate + a, x + a, b - a); });
}

void silu_times(float* gate, const float* up, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) { silu_times_span(gate + a, up + a, b - a); });
}

void gelu_times(float* gate, const float* up, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) { gelu_times_span(gate + a, up + a, b - a); });
}

void clamped_silu_times(float slope, float limit, float* gate, const float* up, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) {
    clamped_silu_times_span(slope, limit, gate + a, up + a, b - a);
  });
}

void scale(float factor, float* x, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = a; i < b; ++i) x[i] *= factor;
  });
}

void add_scaled(float factor, const float* x, float* to, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) {
    for (std::int64_t i = a; i < b; ++i) to[i] += factor * x[i];
  });
}

void soft_cap(float cap, float* x, std::int64_t n) {
  over_spans(n, [&](std::int64_t a, std::int64_t b) { soft_cap_span(cap, x + a, b - a); });
}

bool widen(TensorType type, const std::byte* from, std::int64_t n, float* out) {
  if (!cpu::is_weight_type(type)) return false;
  if (n > 0) cpu::widen_row(type, from, n, out);
  return true;
}

}  // namespace episodic
