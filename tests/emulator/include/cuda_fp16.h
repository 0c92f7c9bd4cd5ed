// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "episodic/base/dtype.hpp"

struct alignas(2) __half {
  std::uint16_t bits;
};
struct alignas(4) __half2 {
  __half x, y;
};
inline float __half2float(__half h) { return episodic::from_float16(h.bits); }
inline __half __float2half_rn(float x) { return {episodic::to_float16(x)}; }
inline __half __float2half(float x) { return __float2half_rn(x); }
inline __half2 __floats2half2_rn(float x, float y) {
  return {__float2half_rn(x), __float2half_rn(y)};
}
