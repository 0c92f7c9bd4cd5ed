// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Element types of stored keys, values and weights, and scalar conversions between them.
/// C++17-clean: also included by CUDA sources.

#include <cstdint>
#include <cstring>

namespace episodic {

enum class DType : std::uint8_t { float32, bfloat16, float16 };

/// Bytes of one element.
constexpr std::int64_t size_of(DType t) { return t == DType::float32 ? 4 : 2; }

/// Name as used in configuration files: "float32", "bfloat16", "float16".
constexpr const char* name_of(DType t) {
  return t == DType::float32 ? "float32" : t == DType::bfloat16 ? "bfloat16" : "float16";
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

}  // namespace episodic
