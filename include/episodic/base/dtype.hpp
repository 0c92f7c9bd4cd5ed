// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Element types of stored keys, values and weights, and scalar conversions between them.
/// C++17-clean: also included by CUDA sources.

#include <cstdint>
#include <cstring>

namespace episodic {

/// int8 and fp8 (E4M3, base/rules/fp8.hpp) are codes: the element is code * scale, with one float
/// scale per head (attention/segment.hpp). Files hold the numbers of these: new ones come last.
enum class DType : std::uint8_t { float32, bfloat16, float16, int8, fp8 };

/// Whether elements are codes of 8 bits, which stand for something beside their scales alone.
constexpr bool is_code(DType t) { return t == DType::int8 || t == DType::fp8; }

/// Bytes of one element.
constexpr std::int64_t size_of(DType t) { return t == DType::float32 ? 4 : is_code(t) ? 1 : 2; }

/// Name as used in configuration files: "float32", "bfloat16", "float16", "int8", "fp8".
constexpr const char* name_of(DType t) {
  return t == DType::float32    ? "float32"
         : t == DType::bfloat16 ? "bfloat16"
         : t == DType::float16  ? "float16"
         : t == DType::int8     ? "int8"
                                : "fp8";
}

/// float32 -> bfloat16, round to nearest even; NaN stays NaN.
inline std::uint16_t to_bfloat16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  if ((u & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((u >> 16) | 0x40u);
  return static_cast<std::uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/// bfloat16 -> float32, exact.
inline float from_bfloat16(std::uint16_t h) {
  const std::uint32_t u = static_cast<std::uint32_t>(h) << 16;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

/// float32 -> float16, round to nearest even; from 65520 on infinity, NaN stays NaN.
inline std::uint16_t to_float16(float x) {
  std::uint32_t u;
  std::memcpy(&u, &x, 4);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((u >> 13) & 0x3ffu));
  if (u >= 0x47800000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (u < 0x38800000u) {
    // below 2^-14 the unit is 2^-24, as it is of floats in [0.5, 1): the addition rounds
    float shifted;
    std::memcpy(&shifted, &u, 4);
    shifted += 0.5f;
    std::memcpy(&u, &shifted, 4);
    return static_cast<std::uint16_t>(sign | (u - 0x3f000000u));
  }
  return static_cast<std::uint16_t>(sign | ((u - 0x38000000u + 0xfffu + ((u >> 13) & 1u)) >> 13));
}

/// float16 -> float32, exact.
inline float from_float16(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t magnitude = h & 0x7fffu;
  std::uint32_t u;
  if (magnitude >= 0x400u) {
    u = (magnitude << 13) + (magnitude >= 0x7c00u ? 0x70000000u : 0x38000000u);
  } else {
    const float subnormal = static_cast<float>(magnitude) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&u, &subnormal, 4);
  }
  u |= sign;
  float x;
  std::memcpy(&x, &u, 4);
  return x;
}

}  // namespace episodic
