// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The rules of a search through 8-bit codes on a device: how a query becomes integers, and how far
/// the result may be from a score. Derived in docs/search.md ("On a device").

#include <cmath>
#include <cstdint>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

/// Channels that share a scale, of a representative and of a query.
inline constexpr std::int64_t kCodeBlock = 128;

/// Beyond it sums of products might overflow, of which a bound says nothing.
inline constexpr float kMostCodedNorm = 1e15f;
/// A query of which a block has something, but nothing of this size, is not coded: steps of its
/// scale would be too small for float32.
inline constexpr float kLeastCodedQuery = 1e-20f;
/// What products that underflow add to the error, whatever the norms.
inline constexpr float kCodeFloor = 1e-37f;

/// A query's channel is scale * (256 high + low), both of 8 bits: 127 * 256 + 127 at most in size.
inline constexpr int kQuerySteps = 32'639;
struct QueryCode {
  std::int8_t high = 0, low = 0;
};
/// Whether a block with this largest size has codes; false for NaN.
EPISODIC_HOST_DEVICE inline bool query_block_is_coded(float largest) {
  return largest == 0.0f || (largest >= kLeastCodedQuery && largest < kMostCodedNorm);
}
EPISODIC_HOST_DEVICE inline float query_scale(float largest) {
  return largest / static_cast<float>(kQuerySteps);
}
EPISODIC_HOST_DEVICE inline float inverse_query_scale(float largest) {
  return largest > 0.0f ? static_cast<float>(kQuerySteps) / largest : 0.0f;
}
/// To the nearest step. \param inverse inverse_query_scale of the block
EPISODIC_HOST_DEVICE inline QueryCode query_code(float q, float inverse) {
  const float y = q * inverse;
  int steps = static_cast<int>(y + (y < 0.0f ? -0.5f : 0.5f));
  if (steps > kQuerySteps) steps = kQuerySteps;
  if (steps < -kQuerySteps) steps = -kQuerySteps;
  const int low = ((steps + 128) & 255) - 128;
  return {static_cast<std::int8_t>((steps - low) / 256), static_cast<std::int8_t>(low)};
}

/// A coded query differs from the query by at most this, per unit of its norm: 0.51 steps in each
/// of a block's 128 channels, where a step is the block's largest size / 32,639. So it is at most
/// 0.51 sqrt(128) / 32,639 of the block's norm, and of all.
inline constexpr double kQueryRest = 1.8e-4;

/// A row's error per unit of the query's norm: what its codes leave, what the query's codes leave
/// of the row's, and the rounding of both sums. No chain of additions in those is longer than width
/// / 8 + 256. \param norm of the row x = m + s c + e \param mean of m \param coded of s c \param
/// rest of e. \return infinity where nothing is bounded
EPISODIC_HOST_DEVICE inline float code_reach(double norm, double mean, double coded, double rest,
                                             std::int64_t width) {
  const double rounding = static_cast<double>(width / 8 + 256) * 0x1p-24;
  const double reach =
      (rest + kQueryRest * coded + 2.0 * rounding * (2.0 * (norm + mean) + rest)) * (1.0 + 1e-6);
  constexpr double kMost = static_cast<double>(kMostCodedNorm);
  return norm < kMost && reach < kMost ? static_cast<float>(reach) : INFINITY;
}

}  // namespace episodic::rules
