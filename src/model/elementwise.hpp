// SPDX-License-Identifier: Apache-2.0
#pragma once
// The decoder's work between matrix products, over raw rows.

#include <cstdint>

#include "episodic/model/safetensors.hpp"

namespace episodic {

/// y[i, :] = x[i, :] / sqrt(mean(x[i, :]^2) + eps) * weight; all [n, width] packed.
void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, std::int64_t width,
              float* y);

/// gate[i] = silu(gate[i]) * up[i]
void silu_times(float* gate, const float* up, std::int64_t n);

/// Elements of an F32, F16 or BF16 tensor as float32, exact. False for any other type.
bool widen(const TensorView& tensor, float* out);

}  // namespace episodic
