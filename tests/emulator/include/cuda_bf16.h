// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>

#include "episodic/base/dtype.hpp"

struct alignas(2) __nv_bfloat16 {
  std::uint16_t bits;
};
struct alignas(4) __nv_bfloat162 {
  __nv_bfloat16 x, y;
};
inline float __bfloat162float(__nv_bfloat16 h) { return episodic::from_bfloat16(h.bits); }
inline __nv_bfloat16 __float2bfloat16_rn(float x) { return {episodic::to_bfloat16(x)}; }
inline __nv_bfloat16 __float2bfloat16(float x) { return __float2bfloat16_rn(x); }
inline __nv_bfloat162 __floats2bfloat162_rn(float x, float y) {
  return {__float2bfloat16_rn(x), __float2bfloat16_rn(y)};
}
