// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What launchers and kernels over arrays of elements share: the choice of an instance by dtype,
/// access in packs of 16 bytes, and checks of sizes and alignment.

#include <cstddef>
#include <cstdint>

#include "device.cuh"
#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// `kCount` elements side by side, read and written at once: 16 bytes, or more in steps of 16.
template <class T, int kCount>
struct alignas(sizeof(T) * kCount < 16 ? sizeof(T) * kCount : 16) Pack {
  T at[kCount];
};
template <class T>
inline constexpr int kPackOf = 16 / static_cast<int>(sizeof(T));

template <int kCount, class T>
__device__ inline Pack<T, kCount> load_pack(const T* from) {
  return *reinterpret_cast<const Pack<T, kCount>*>(from);
}
template <int kCount, class T>
__device__ inline void store_pack(T* to, const Pack<T, kCount>& pack) {
  *reinterpret_cast<Pack<T, kCount>*>(to) = pack;
}

template <class T>
struct Element {
  using type = T;
};

/// f(Element<T>{}) with the element type of `dtype`. \return cudaErrorInvalidValue for codes, which
/// are no numbers by themselves
template <class F>
cudaError_t for_element(DType dtype, F&& f) {
  switch (dtype) {
    case DType::float32:
      return f(Element<float>{});
    case DType::float16:
      return f(Element<__half>{});
    case DType::bfloat16:
      return f(Element<__nv_bfloat16>{});
    case DType::int8:
    case DType::fp8:
      break;
  }
  return cudaErrorInvalidValue;
}

/// The same within a kernel. \pre dtype is a float's
template <class F>
__device__ inline void for_float(DType dtype, F&& f) {
  if (dtype == DType::float32)
    f(Element<float>{});
  else if (dtype == DType::float16)
    f(Element<__half>{});
  else
    f(Element<__nv_bfloat16>{});
}

inline bool is_float(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16;
}

inline bool aligned(const void* p, std::size_t bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

/// The same of several arrays; a null pointer is aligned.
template <class... Pointers>
bool all_aligned(std::size_t bytes, Pointers... p) {
  return (aligned(p, bytes) && ...);
}

/// Whether a * b * ... <= limit, for factors that are not negative.
template <class... Rest>
bool product_within(std::int64_t limit, std::int64_t a, Rest... rest) {
  if (a < 0 || a > limit) return false;
  if constexpr (sizeof...(rest) == 0)
    return true;
  else
    return a == 0 || product_within(limit / a, rest...);
}

/// Elements that an array may have: their bytes, and sums of two such offsets, stay in int64.
inline constexpr std::int64_t kMaxElements = std::int64_t{1} << 56;

}  // namespace episodic::kernels
