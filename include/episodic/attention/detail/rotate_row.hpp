// SPDX-License-Identifier: Apache-2.0
#pragma once
// Rotary position embedding of one row.

#include <cstdint>
#include <cstring>

#include "episodic/attention/rotary.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/cpu/kernels.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Rotates a row of float32; y == x is allowed. Channels from rotary_dim on are copied.
class RotateRow {
 public:
  RotateRow(const cpu::Kernels& k, const RotaryTable& table, std::int64_t head_dim)
      : rotate_(table.pairs == RotaryPairs::halves ? k.rotate : k.rotate_interleaved),
        half_(table.rotary_dim() / 2),
        head_dim_(head_dim) {}

  /// \param row of the angles; there may be one row for all
  void operator()(const AngleRows& angles, std::int64_t row, const float* x, float* y) const {
    const std::int64_t at = angles.n == 1 ? 0 : row * half_;
    rotate_(x, angles.cos + at, angles.sin + at, half_, y);
    const std::int64_t rest = head_dim_ - 2 * half_;
    if (y != x && rest > 0) {
      std::memcpy(y + 2 * half_, x + 2 * half_, static_cast<std::size_t>(rest) * sizeof(float));
    }
  }

 private:
  decltype(cpu::Kernels::rotate) rotate_;
  std::int64_t half_, head_dim_;
};

}  // namespace EPISODIC_NAMESPACE::detail
