// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What the device code of this folder is written in: CUDA C++, or its emulation on the host that
/// the tests compile the same sources with (tests/emulator). Includes the CUDA headers, the launch,
/// conversions and the reductions over a warp.

#if defined(EPISODIC_EMULATED_CUDA)
#include "emulated_device.hpp"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <cstdint>

#include "limits.hpp"
#include "online_softmax.hpp"

/// EPISODIC_DYNAMIC_SHARED(name) declares the block's dynamic shared memory, as an array of bytes
/// aligned to 128. EPISODIC_SHARED(name, type) declares a variable of static shared memory, also of
/// an array's type: EPISODIC_SHARED(sums, float[4][32]). The emulation counts those, and sees that
/// a block finds nothing of the block before it in them.
#if defined(EPISODIC_EMULATED_CUDA)
#define EPISODIC_DYNAMIC_SHARED(name) unsigned char* const name = emulator::dynamic_shared()
#define EPISODIC_SHARED(name, ...)        \
  static constexpr char name##_place = 0; \
  auto& name = *emulator::static_shared<__VA_ARGS__>(&name##_place)
#define EPISODIC_UNROLL
#define EPISODIC_UNROLL_BY(n)
#else
#define EPISODIC_PRAGMA(text) _Pragma(#text)
#define EPISODIC_DYNAMIC_SHARED(name) extern __shared__ __align__(128) unsigned char name[]
#define EPISODIC_SHARED(name, ...) __shared__ episodic::kernels::Same<__VA_ARGS__> name
#define EPISODIC_UNROLL _Pragma("unroll")
#define EPISODIC_UNROLL_BY(n) EPISODIC_PRAGMA(unroll n)
#endif

namespace episodic::kernels {

inline constexpr int kWarpSize = 32;
inline constexpr unsigned kFullMask = 0xffffffffu;

/// T: lets a declaration name an array's type.
template <class T>
using Same = T;

/// Launches `kernel`, allowing it the shared memory it asks for. \return what the launch said
template <class... Params, class... Args>
cudaError_t launch(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                   cudaStream_t stream, const Args&... args) {
  if (shared_bytes > 0) {
    const cudaError_t error =
        allow_dynamic_shared(reinterpret_cast<const void*>(kernel), shared_bytes);
    if (error != cudaSuccess) return error;
  }
#if defined(EPISODIC_EMULATED_CUDA)
  // Runs it now, or keeps the arguments by value, as a launch does, until the graph is launched
  // that the stream captures.
  emulator::launch(kernel, grid, block, shared_bytes, stream, args...);
#else
  kernel<<<grid, block, shared_bytes, stream>>>(args...);
#endif
  return cudaGetLastError();
}

/// `count` as a grid's first dimension. Beyond some waves of any device more blocks gain nothing:
/// kernels take the rest in a loop.
inline unsigned blocks_for(std::int64_t count) {
  constexpr std::int64_t kLimit = 4096;
  return static_cast<unsigned>(count < kLimit ? count : kLimit);
}

/// Rows of a grid, which are layers or lanes: a launch's limit.
inline constexpr std::int64_t kMostGridRows = 65'535;

/// A grid with a row for each layer (or lane), of about as many blocks as blocks_for allows;
/// kernels take the rest of a row's work in a loop. \param blocks_each that a layer has work for
/// \param n_layers 1 .. kMostGridRows
inline dim3 blocks_for_layers(std::int64_t blocks_each, std::int64_t n_layers) {
  const std::int64_t limit = blocks_for(INT64_MAX) / n_layers;
  const std::int64_t most = limit > 1 ? limit : 1;
  return dim3(static_cast<unsigned>(blocks_each < most ? blocks_each : most),
              static_cast<unsigned>(n_layers));
}

__device__ inline float widen(float x) { return x; }
__device__ inline float widen(__half x) { return __half2float(x); }
__device__ inline float widen(__nv_bfloat16 x) { return __bfloat162float(x); }

/// float32 -> T, to nearest even.
template <class T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline __half narrow<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ inline __nv_bfloat16 narrow<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

/// op over the values of all 32 lanes, in an order that is always the same; every lane gets it.
template <class T, class Op>
__device__ inline T warp_reduce(T value, Op op) {
  EPISODIC_UNROLL
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2)
    value = op(value, __shfl_xor_sync(kFullMask, value, lanes));
  return value;
}
struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Largest {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return b > a ? b : a;
  }
};

}  // namespace episodic::kernels
