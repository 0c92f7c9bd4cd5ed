// SPDX-License-Identifier: Apache-2.0
#include "episodic/attention/rotary.hpp"

#include <fmt/format.h>

#include <cmath>
#include <cstring>

#include "episodic/base/error.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/cpu/kernels.hpp"

namespace episodic {
namespace {

// The angle of position 64 a + b is turned from that of 64 a by that of b: two library calls for
// each anchor and each remainder instead of one per position, and the same bits for a position
// whatever `first` is. The product adds an error of 2e-16, which float32 does not see.
constexpr std::int64_t kAnchor = 64;

constexpr std::int64_t kSerialElements = 1 << 17;  // about 20 us

}  // namespace

RotaryTable plain_rotary(std::int64_t rotary_dim, double theta) {
  if (rotary_dim < 0 || rotary_dim % 2 != 0) {
    throw DataError(
        fmt::format("plain_rotary: rotary_dim is {}, must be even and not negative", rotary_dim));
  }
  if (!(theta > 0.0) || !std::isfinite(theta)) {
    throw DataError(fmt::format("plain_rotary: theta is {}, must be positive", theta));
  }
  RotaryTable table;
  table.inverse_frequency.resize(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t c = 0; c < table.inverse_frequency.size(); ++c) {
    table.inverse_frequency[c] =
        std::pow(theta, -2.0 * static_cast<double>(c) / static_cast<double>(rotary_dim));
  }
  return table;
}

void RotaryAngles::compute(const RotaryTable& table, std::int64_t first, std::int64_t count) {
  if (count < 0 || first < 0) {
    throw DataError(fmt::format(
        "RotaryAngles::compute: first is {} and n is {}, must not be negative", first, count));
  }
  n = count;
  const std::size_t half = table.inverse_frequency.size();
  cos.resize(static_cast<std::size_t>(n) * half);
  sin.resize(static_cast<std::size_t>(n) * half);
  if (n == 0) return;
  double turn_cos[kAnchor], turn_sin[kAnchor];
  for (std::size_t c = 0; c < half; ++c) {
    const double frequency = table.inverse_frequency[c];
    bool known[kAnchor] = {};
    double anchor_cos = 0.0, anchor_sin = 0.0;
    std::int64_t anchor = -1;
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t a = (first + i) / kAnchor, b = (first + i) % kAnchor;
      if (a != anchor) {
        anchor = a;
        const double angle = static_cast<double>(a * kAnchor) * frequency;
        anchor_cos = std::cos(angle) * table.attention_factor;
        anchor_sin = std::sin(angle) * table.attention_factor;
      }
      if (!known[b]) {
        known[b] = true;
        turn_cos[b] = std::cos(static_cast<double>(b) * frequency);
        turn_sin[b] = std::sin(static_cast<double>(b) * frequency);
      }
      const std::size_t at = static_cast<std::size_t>(i) * half + c;
      cos[at] = static_cast<float>(anchor_cos * turn_cos[b] - anchor_sin * turn_sin[b]);
      sin[at] = static_cast<float>(anchor_sin * turn_cos[b] + anchor_cos * turn_sin[b]);
    }
  }
}

void rotate(const RotaryTable& table, const RotaryAngles& angles, std::int64_t n,
            std::int64_t heads, std::int64_t head_dim, const float* x, std::int64_t x_row,
            std::int64_t x_head, float* y, std::int64_t y_row, std::int64_t y_head) {
  const std::int64_t rotary_dim = table.rotary_dim(), half = rotary_dim / 2;
  if (n < 0 || heads < 0 || head_dim < rotary_dim) {
    throw DataError(
        fmt::format("rotate: n is {}, heads {}, head_dim {}; head_dim must hold rotary_dim {}", n,
                    heads, head_dim, rotary_dim));
  }
  if (angles.n != 1 && angles.n != n) {
    throw DataError(fmt::format("rotate: angles has {} rows, must have 1 or n = {}", angles.n, n));
  }
  if (static_cast<std::int64_t>(angles.cos.size()) != angles.n * half) {
    throw DataError(
        fmt::format("rotate: angles were computed for another rotary table than this "
                    "one with rotary_dim {}",
                    rotary_dim));
  }
  const auto turn = cpu::kernels().rotate;
  const auto row = [&](std::int64_t i) {
    const std::int64_t at = angles.n == 1 ? 0 : i * half;
    for (std::int64_t h = 0; h < heads; ++h) {
      const float* from = x + i * x_row + h * x_head;
      float* to = y + i * y_row + h * y_head;
      turn(from, angles.cos.data() + at, angles.sin.data() + at, half, to);
      if (to != from && head_dim > rotary_dim) {
        std::memcpy(to + rotary_dim, from + rotary_dim,
                    static_cast<std::size_t>(head_dim - rotary_dim) * sizeof(float));
      }
    }
  };
  if (n * heads * head_dim < kSerialElements) {
    for (std::int64_t i = 0; i < n; ++i) row(i);
  } else {
    constexpr std::int64_t kRows = 16;
    parallel_for((n + kRows - 1) / kRows, [&](std::int64_t run) {
      for (std::int64_t i = run * kRows; i < n && i < (run + 1) * kRows; ++i) row(i);
    });
  }
}

}  // namespace episodic
