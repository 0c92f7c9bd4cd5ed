// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rotary position embedding, Hugging Face's rotate-half layout. Angles are computed in float64, so
/// that positions near 10^7 keep their meaning (spec 1, trap a).

#include <cstdint>
#include <vector>

namespace episodic {

/// The rotation of a model as data: channel pairs (c, c + rotary_dim / 2) turn by
/// position * inverse_frequency[c]; channels from rotary_dim on are left alone.
struct RotaryTable {
  std::vector<double> inverse_frequency;  ///< [rotary_dim / 2]
  double attention_factor = 1.0;          ///< multiplies cos and sin (yarn, longrope)

  std::int64_t rotary_dim() const {
    return 2 * static_cast<std::int64_t>(inverse_frequency.size());
  }
  bool operator==(const RotaryTable&) const = default;
};

/// inverse_frequency[c] = theta^(-2c / rotary_dim), no scaling.
RotaryTable plain_rotary(std::int64_t rotary_dim, double theta);

/// cos and sin of positions first .. first + n - 1, each [n, rotary_dim / 2] float32 (rounded from
/// float64), attention_factor included.
struct RotaryAngles {
  std::vector<float> cos, sin;
  std::int64_t n = 0;

  /// Refills in place; allocates only when n grows.
  void compute(const RotaryTable& table, std::int64_t first, std::int64_t n);
};

/// y[i, h, :] = x[i, h, :] turned by the angles of row i (row 0 for all i if angles.n == 1).
/// x: [n, heads, head_dim], y likewise with element strides; x == y is allowed when strides agree.
/// \param x_row, x_head strides of x between tokens and between heads; y_row, y_head those of y.
void rotate(const RotaryTable& table, const RotaryAngles& angles, std::int64_t n,
            std::int64_t heads, std::int64_t head_dim, const float* x, std::int64_t x_row,
            std::int64_t x_head, float* y, std::int64_t y_row, std::int64_t y_head);

}  // namespace episodic
