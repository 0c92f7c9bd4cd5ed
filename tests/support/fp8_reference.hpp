// SPDX-License-Identifier: Apache-2.0
#pragma once
// E4M3 by its definition, slowly.

#include <cmath>
#include <cstdint>

namespace episodic::testing {

/// The number of a code; those of NaN are read as 480 of their sign.
inline double fp8_number(std::uint8_t code) {
  const int exponent = code >> 3 & 15, mantissa = code & 7;
  const double size =
      exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10);
  return (code & 0x80) != 0 ? -size : size;
}

/// The code of the number nearest to x, the even one at ties, out of all that are made.
inline std::uint8_t nearest_fp8(double x) {
  int best = 0;
  for (int code = 1; code <= 0x7e; ++code) {
    const double error = std::abs(fp8_number(static_cast<std::uint8_t>(code)) - std::abs(x));
    const double least = std::abs(fp8_number(static_cast<std::uint8_t>(best)) - std::abs(x));
    if (error < least || (error == least && code % 2 == 0)) best = code;
  }
  return static_cast<std::uint8_t>(best | (std::signbit(x) ? 0x80 : 0));
}

/// The least power of two with which `largest` is at most 448 codes; 0 where a float has none that
/// is normal, the largest for numbers beyond all.
inline double fp8_scale_of(double largest) {
  if (largest <= 448 * std::ldexp(1.0, -127)) return 0.0;
  int exponent = -126;
  while (exponent < 119 && largest > 448 * std::ldexp(1.0, exponent)) ++exponent;
  return std::ldexp(1.0, exponent);
}

}  // namespace episodic::testing
