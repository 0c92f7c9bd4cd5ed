// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The few instructions that CUDA C++ has no name for: asynchronous copies into shared memory,
/// loads of 8x8 matrices, and the tensor cores' product m16n8k16 (compute capability 8.0 and
/// later).

#include "device.cuh"

#if defined(EPISODIC_EMULATED_CUDA)
#include "emulated_ptx.hpp"
#else

#include <type_traits>

namespace episodic::kernels {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

/// Begins a copy of 16 bytes from global to shared memory, both aligned to 16; zeros where not
/// `valid` (`global` is then not read, but must be aligned all the same).
__device__ inline void copy_async_16(void* shared, const void* global, bool valid = true) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)),
               "l"(global), "r"(valid ? 16 : 0)
               : "memory");
}

/// The same of 8 bytes, both aligned to 8, all of which are read.
__device__ inline void copy_async_8(void* shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}

/// Asks for the 128 bytes around an address, to be in the second cache when they are read.
__device__ inline void prefetch_second(const void* global) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(global));
}

/// Closes the group of the copies begun since the last call.
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/// Waits until at most `kGroupsLeft` of this thread's groups are on their way.
template <int kGroupsLeft>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroupsLeft) : "memory");
}

/// Four 8x8 matrices of 16-bit elements from shared memory. Lane 8 m + r gives the address of row r
/// of matrix m, aligned to 16; out[m] of lane i holds the elements 2 (i % 4) and the next of its
/// row i / 4.
__device__ inline void load_matrices_x4(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

/// The same of the transposed matrices: out[m] of lane i holds, of column i / 4, rows 2 (i % 4) and
/// the next.
__device__ inline void load_matrices_x4_transposed(std::uint32_t (&out)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared_address(row))
               : "memory");
}

/// c += a b over a warp: a 16 x 16, b 16 x 8, c 16 x 8 in float32. With g = lane / 4, t = lane % 4:
/// a[0], a[1] hold columns 2t, 2t+1 of rows g, g+8; a[2], a[3] columns 2t+8, 2t+9 of the same rows;
/// b[0] holds rows 2t, 2t+1 and b[1] rows 2t+8, 2t+9 of column g; c[0], c[1] are row g, columns
/// 2t, 2t+1, and c[2], c[3] row g+8.
template <class Half>
__device__ inline void mma_m16n8k16(float (&c)[4], const std::uint32_t (&a)[4],
                                    const std::uint32_t (&b)[2]) {
  if constexpr (std::is_same_v<Half, __half>) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  } else {
    static_assert(std::is_same_v<Half, __nv_bfloat16>, "tensor cores take __half, __nv_bfloat16");
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  }
}

/// 2^x, within 2 ulp; 0 for -inf.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// 1 / x, within 1 ulp; 0 for infinity.
__device__ inline float reciprocal_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace episodic::kernels

#endif
