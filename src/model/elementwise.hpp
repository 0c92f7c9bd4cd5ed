// SPDX-License-Identifier: Apache-2.0
#pragma once
// The decoder's work between matrix products, over raw rows.

#include <cstdint>

#include "episodic/model/tensor_source.hpp"

namespace episodic {

/// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + eps) * weight; all [n, width] packed; x == y is fine.
void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, std::int64_t width,
              float* y);

/// y[i, :] = (x[i, :] - mean) / sqrt(variance + eps) * weight + maybe_bias, mean and variance those
/// of the row; all [n, width] packed; x == y is fine.
void layer_norm(const float* x, const float* weight, const float* maybe_bias, float eps,
                std::int64_t n, std::int64_t width, float* y);

/// x[i] = silu(x[i])
void silu(float* x, std::int64_t n);

/// x[i] = gelu(x[i]), GELU by its tanh formula
void gelu(float* x, std::int64_t n);

/// x[i] = max(x[i], 0)^2
void relu_squared(float* x, std::int64_t n);

/// xIELU (arXiv 2411.13010): positive x^2 + beta x above 0, else
/// negative (expm1(min(x, eps)) - x) + beta x.
struct Xielu {
  float positive = 0, negative = 0, beta = 0, eps = 0;
};

/// x[i] = xielu(x[i])
void apply_xielu(const Xielu& of, float* x, std::int64_t n);

/// gate[i] = silu(gate[i]) * up[i]
void silu_times(float* gate, const float* up, std::int64_t n);

/// gate[i] = gelu(gate[i]) * up[i], GELU by its tanh formula
void gelu_times(float* gate, const float* up, std::int64_t n);

/// gate[i] = g * sigmoid(slope * g) * (u + 1), g = gate[i] but at most limit, u = up[i] within
/// limit either way
void clamped_silu_times(float slope, float limit, float* gate, const float* up, std::int64_t n);

/// x[i] *= sigmoid(gate[i])
void sigmoid_times(const float* gate, std::int64_t n, float* x);

/// x[i] *= factor
void scale(float factor, float* x, std::int64_t n);

/// to[i] += factor * x[i]
void add_scaled(float factor, const float* x, float* to, std::int64_t n);

/// x[i] = cap * tanh(x[i] / cap)
void soft_cap(float cap, float* x, std::int64_t n);

/// n elements as float32, exact, on the calling thread; `from` may be unaligned. False for a type
/// that is none of weights.
bool widen(TensorType type, const std::byte* from, std::int64_t n, float* out);

}  // namespace episodic
