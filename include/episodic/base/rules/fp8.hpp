// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Numbers of 8 bits, E4M3: a sign, 4 bits of exponent (bias 7), 3 of mantissa; 448 is the largest,
/// the unit below 2^-6 is 2^-9, and there is no infinity. Codes of NaN, 0x7f and 0xff, are never
/// made; read they are 480 and -480. The scale of many numbers is a power of two.

#include <cstdint>
#include <cstring>

#include "episodic/base/rules/host_device.hpp"

namespace episodic::rules {

inline constexpr float kLargestFp8 = 448.0f;

EPISODIC_HOST_DEVICE inline std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}
EPISODIC_HOST_DEVICE inline float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

/// float32 -> E4M3, to nearest even; beyond 448 it is 448, and so is NaN, which callers refuse.
EPISODIC_HOST_DEVICE inline std::uint8_t to_fp8(float x) {
  const std::uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffffu;
  // below 2^-6 the unit is that of floats in [2^14, 2^15): the addition rounds
  const std::uint32_t code =
      magnitude < 0x3c800000u
          ? bits_of(float_of(magnitude) + 16384.0f) - 0x46800000u
          : (magnitude - 0x3c000000u + 0x7ffffu + ((magnitude >> 20) & 1u)) >> 20;
  return static_cast<std::uint8_t>((code < 0x7eu ? code : 0x7eu) | ((bits >> 24) & 0x80u));
}

/// E4M3 -> float32, exact.
EPISODIC_HOST_DEVICE inline float from_fp8(std::uint8_t code) {
  const std::uint32_t sign = static_cast<std::uint32_t>(code & 0x80u) << 24;
  const std::uint32_t magnitude = (code & 0x7fu) << 20;
  // a number below 2^-6 as what is above 2^-6, so that no float is subnormal
  const float size = magnitude < 0x800000u ? float_of(magnitude + 0x3c800000u) - 0.015625f
                                           : float_of(magnitude + 0x3c000000u);
  return float_of(bits_of(size) | sign);
}

/// Of numbers of which the largest magnitude is known: what their codes are multiplied with, and
/// its inverse, with which they are multiplied to become codes.
struct Fp8Scale {
  float scale = 0.0f, inverse = 0.0f;
};

/// The least power of two with which the largest number is at most 448 codes; both 0, and so are
/// the numbers, where that is below FLT_MIN. At most 2^119, so that every code's number is finite:
/// from 1.75 * 2^127 on all are that.
/// \param largest finite, not negative
EPISODIC_HOST_DEVICE inline Fp8Scale fp8_scale(float largest) {
  const std::uint32_t bits = bits_of(largest);
  // 448 is 1.75 * 2^8
  const std::uint32_t above = (bits >> 23) + ((bits & 0x7fffffu) > 0x600000u ? 1u : 0u);
  if (above <= 8u) return {};
  const std::uint32_t exponent = above - 8u < 246u ? above - 8u : 246u;
  return {float_of(exponent << 23), float_of((254u - exponent) << 23)};
}

}  // namespace episodic::rules
