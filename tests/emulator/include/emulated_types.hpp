// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA's vector types and qualifiers, as far as they are used here.

#define __host__
#define __device__
#define __global__ inline  // a header of kernels is in several units; nvcc allows the word on none
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __align__(n) alignas(n)
// Shared memory is declared by EPISODIC_SHARED (kernels/device.cuh), which the emulation counts.

struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint3 {
  unsigned x, y, z;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
