// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The instructions of compute capability 9.0 (sm_90a) that CUDA C++ has no name for: mbarriers,
/// registers that warpgroups hand each other, and products of a warpgroup (128 threads) whose right
/// sides lie in shared memory. Not for the emulation: tests/ptx interprets what nvcc makes of it.

#if !defined(EPISODIC_EMULATED_CUDA)

#include "ptx.cuh"

namespace episodic::kernels {

inline constexpr int kWarpgroupSize = 128;

// ---- mbarriers ----------------------------------------------------------------------------------
// 8 bytes of shared memory, complete when `count` arrivals have come, again and again; phases are
// told apart by their parity, 0 first.

__device__ inline void init_barrier(std::uint64_t* barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count)
               : "memory");
}

/// What this thread did before is known to those who wait.
__device__ inline void arrive(std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// One arrival, once the copies that this thread began have ended (copy_async_16).
__device__ inline void arrive_after_copies(std::uint64_t* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

/// Waits for the end of the phase of this parity.
__device__ inline void wait_for(std::uint64_t* barrier, int parity) {
  int done;
  do {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.b32 %0, 1, 0, p;\n}"
        : "=r"(done)
        : "r"(shared_address(barrier)), "r"(parity)
        : "memory");
  } while (done == 0);
}

/// Threads of barrier `id` (1 to 15) wait for each other, as many as `threads` says.
template <int kThreads>
__device__ inline void sync_threads(int id) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "n"(kThreads) : "memory");
}

/// What was written to shared memory by loads, stores and copy_async_16 that this thread knows of
/// can be read by products.
__device__ inline void publish_to_products() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// A warpgroup gives up registers, or takes those that others gave up: so many a thread from here
/// on.
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// ---- products -----------------------------------------------------------------------------------

/// A matrix in shared memory as rows of 128 bytes (64 elements of 16 bits), 8 rows a pattern: the
/// 16 bytes that are the `chunk`-th of a row lie where chunk_place says. Patterns begin at
/// multiples of 1024 bytes.
__device__ inline int chunk_place(int row, int chunk) { return row * 128 + (chunk ^ row % 8) * 16; }

/// What products take for such a matrix (PTX ISA, matrix descriptor). `rows`: bytes from one
/// pattern to the next 8 rows; `columns`: to the next 64 columns, where rows are the product's
/// depth.
__device__ inline std::uint64_t matrix_at(const void* start, int rows, int columns = 16) {
  constexpr std::uint64_t kSwizzled = std::uint64_t{1} << 62;
  return kSwizzled | static_cast<std::uint64_t>(rows >> 4) << 32 |
         static_cast<std::uint64_t>(columns >> 4) << 16 |
         static_cast<std::uint64_t>((shared_address(start) & 0x3ffff) >> 4);
}

/// The same matrix from a place `bytes` behind its start.
__device__ inline std::uint64_t moved_by(std::uint64_t matrix, int bytes) {
  return matrix + static_cast<std::uint64_t>(bytes >> 4);
}

/// Registers that were written are ready for products.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
/// Closes the group of the products begun since the last call.
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits until at most `kGroupsLeft` of this warpgroup's groups are on their way.
template <int kGroupsLeft>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroupsLeft) : "memory");
}
/// Waits for all products of this warpgroup.
__device__ inline void end_products() {
  commit_products();
  wait_products<0>();
}
/// The compiler moves no use of these registers over this point.
template <int kCount>
__device__ inline void hold(float (&x)[kCount]) {
  EPISODIC_UNROLL
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(x[i])::"memory");
}

/// Products of a warpgroup: sums += left right, 64 x kColumns, depth 16. Warp w, lane l: sums[4 j],
/// [4 j + 1] are row 16 w + l / 4, columns 8 j + 2 (l % 4) and the next; [4 j + 2], [4 j + 3] those
/// of 8 rows below.
template <class Half, int kColumns>
struct Products;

// Lists of operands, ten at a time.
#define EPISODIC_FIVE(t, a, b, c, d, e) \
  "%" #t #a ", %" #t #b ", %" #t #c ", %" #t #d ", %" #t #e ", "
#define EPISODIC_TEN(t) EPISODIC_FIVE(t, 0, 1, 2, 3, 4) EPISODIC_FIVE(t, 5, 6, 7, 8, 9)
#define EPISODIC_TO_30 EPISODIC_TEN() EPISODIC_TEN(1) EPISODIC_TEN(2)
#define EPISODIC_TO_60 EPISODIC_TO_30 EPISODIC_TEN(3) EPISODIC_TEN(4) EPISODIC_TEN(5)
#define EPISODIC_TO_90 EPISODIC_TO_60 EPISODIC_TEN(6) EPISODIC_TEN(7) EPISODIC_TEN(8)
#define EPISODIC_TO_120 EPISODIC_TO_90 EPISODIC_TEN(9) EPISODIC_TEN(10) EPISODIC_TEN(11)
#define EPISODIC_LIST_32 EPISODIC_TO_30 "%30, %31"
#define EPISODIC_LIST_64 EPISODIC_TO_60 "%60, %61, %62, %63"
#define EPISODIC_LIST_128 EPISODIC_TO_120 "%120, %121, %122, %123, %124, %125, %126, %127"
#define EPISODIC_SUMS_4(i) "+f"(sums[i]), "+f"(sums[i + 1]), "+f"(sums[i + 2]), "+f"(sums[i + 3])
#define EPISODIC_SUMS_16(i) \
  EPISODIC_SUMS_4(i), EPISODIC_SUMS_4(i + 4), EPISODIC_SUMS_4(i + 8), EPISODIC_SUMS_4(i + 12)
#define EPISODIC_SUMS_32(i) EPISODIC_SUMS_16(i), EPISODIC_SUMS_16(i + 16)
#define EPISODIC_SUMS_64(i) EPISODIC_SUMS_32(i), EPISODIC_SUMS_32(i + 32)
#define EPISODIC_SUMS_128(i) EPISODIC_SUMS_64(i), EPISODIC_SUMS_64(i + 64)

/// of_columns: the left side's rows and the right side's columns lie as rows in shared memory; sums
/// are set if not `adds`. of_rows: the left side is a fragment as of mma_m16n8k16 for each warp,
/// the right side's rows lie as rows. The last five: numbers of the operands behind the sums.
#define EPISODIC_PRODUCTS(Half, type, columns, count, n0, n1, n2, n3, n4)                          \
  template <>                                                                                      \
  struct Products<Half, columns> {                                                                 \
    static __device__ void of_columns(float (&sums)[count], std::uint64_t left,                    \
                                      std::uint64_t right, bool adds) {                            \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #n2                                        \
                   ", 0;\n"                                                                        \
                   "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type           \
                   " {" EPISODIC_LIST_##count "}, %" #n0 ", %" #n1 ", p, 1, 1, 0, 0;\n}"           \
                   : EPISODIC_SUMS_##count(0)                                                      \
                   : "l"(left), "l"(right), "r"(static_cast<int>(adds))                            \
                   : "memory");                                                                    \
    }                                                                                              \
    static __device__ void of_rows(float (&sums)[count], const std::uint32_t (&left)[4],           \
                                   std::uint64_t right) {                                          \
      asm volatile("wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." type "." type           \
                   " {" EPISODIC_LIST_##count "}, {%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 \
                                              ", 1, 1, 1, 1;"                                      \
                   : EPISODIC_SUMS_##count(0)                                                      \
                   : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right)            \
                   : "memory");                                                                    \
    }                                                                                              \
  };
EPISODIC_PRODUCTS(__half, "f16", 64, 32, 32, 33, 34, 35, 36)
EPISODIC_PRODUCTS(__half, "f16", 128, 64, 64, 65, 66, 67, 68)
EPISODIC_PRODUCTS(__half, "f16", 256, 128, 128, 129, 130, 131, 132)
EPISODIC_PRODUCTS(__nv_bfloat16, "bf16", 64, 32, 32, 33, 34, 35, 36)
EPISODIC_PRODUCTS(__nv_bfloat16, "bf16", 128, 64, 64, 65, 66, 67, 68)
EPISODIC_PRODUCTS(__nv_bfloat16, "bf16", 256, 128, 128, 129, 130, 131, 132)

#undef EPISODIC_PRODUCTS
#undef EPISODIC_SUMS_128
#undef EPISODIC_SUMS_64
#undef EPISODIC_SUMS_32
#undef EPISODIC_SUMS_16
#undef EPISODIC_SUMS_4
#undef EPISODIC_LIST_128
#undef EPISODIC_LIST_64
#undef EPISODIC_LIST_32
#undef EPISODIC_TO_120
#undef EPISODIC_TO_90
#undef EPISODIC_TO_60
#undef EPISODIC_TO_30
#undef EPISODIC_TEN
#undef EPISODIC_FIVE

}  // namespace episodic::kernels

#endif
