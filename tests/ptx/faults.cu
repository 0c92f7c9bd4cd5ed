// SPDX-License-Identifier: Apache-2.0
#include "faults.hpp"

#include "kernels/launch_early.cuh"
#include "kernels/ptx.cuh"

namespace ptx_faults {
namespace {

using namespace episodic::kernels;

constexpr int kThreads = 64;

/// Zeros, so that what a missing barrier leads to is a race and not an unset word.
__device__ void clear(float* cells) {
  cells[threadIdx.x] = 0.0f;
  __syncthreads();
}

template <bool kFault>
__global__ void MissingBarrierKernel(const float* in, float* out) {
  __shared__ float cells[kThreads];
  clear(cells);
  cells[threadIdx.x] = in[threadIdx.x];
  if (!kFault) __syncthreads();
  out[threadIdx.x] = cells[kThreads - 1 - threadIdx.x];
}

template <bool kFault>
__global__ void MissingSecondBarrierKernel(const float* in, float* out) {
  __shared__ float cells[kThreads];
  float sum = 0.0f;
  for (int round = 0; round < 2; ++round) {
    cells[threadIdx.x] = in[round * kThreads + threadIdx.x];
    __syncthreads();
    sum += cells[kThreads - 1 - threadIdx.x];
    if (!kFault) __syncthreads();
  }
  out[threadIdx.x] = sum;
}

template <bool kFault>
__global__ void MissingSyncwarpKernel(const float* in, float* out) {
  __shared__ float cells[kThreads];
  clear(cells);
  cells[threadIdx.x] = in[threadIdx.x];
  if (!kFault) __syncwarp();
  out[threadIdx.x] = cells[threadIdx.x ^ 1];
}

template <bool kFault>
__global__ void BarrierInABranchKernel(const float* in, float* out) {
  __shared__ float cells[kThreads];
  clear(cells);
  cells[threadIdx.x] = in[threadIdx.x];
  if (kFault) {
    if (threadIdx.x % 32 < 16)
      asm volatile("bar.sync 0;" ::: "memory");
    else
      asm volatile("bar.warp.sync 0xffff0000; bar.sync 0;" ::: "memory");
  } else {
    __syncthreads();
  }
  out[threadIdx.x] = cells[kThreads - 1 - threadIdx.x];
}

template <bool kFault>
__global__ void ShuffleInABranchKernel(const float* in, float* out) {
  float x = in[threadIdx.x];
  if (!kFault || threadIdx.x % 2 == 0) x += __shfl_xor_sync(kFullMask, x, 2);
  x += __shfl_xor_sync(kFullMask, x, 1);
  out[threadIdx.x] = x;
}

template <bool kFault>
__global__ void PastTheEndKernel(const float* in, float* out, bool reads) {
  const unsigned i = blockIdx.x * kThreads + threadIdx.x, shift = kFault ? 1 : 0;
  if (reads)
    out[i] = in[i + shift];
  else
    out[i + shift] = in[i];
}

template <bool kFault>
__global__ void PastASharedArrayKernel(const float* in, float* out) {
  __shared__ float first[kThreads];
  __shared__ float second[kThreads];
  first[threadIdx.x] = in[threadIdx.x];
  second[threadIdx.x] = in[kThreads + threadIdx.x];
  __syncthreads();
  const volatile float* p = first;
  out[threadIdx.x] = p[threadIdx.x + (kFault ? 1 : 0)] + second[threadIdx.x ^ 1];
}

template <bool kFault>
__global__ void PastDynamicMemoryKernel(const float* in, float* out) {
  extern __shared__ __align__(128) unsigned char bytes[];
  auto* cells = reinterpret_cast<float*>(bytes);
  cells[threadIdx.x + (kFault ? 1 : 0)] = in[threadIdx.x];
  out[threadIdx.x] = cells[threadIdx.x + (kFault ? 1 : 0)];
}

template <bool kFault>
__global__ void UnsetSharedKernel(const float* in, float* out) {
  __shared__ float cells[kThreads];
  if (!kFault || threadIdx.x != 17) cells[threadIdx.x] = in[threadIdx.x];
  __syncthreads();
  out[threadIdx.x] = cells[kThreads - 1 - threadIdx.x];
}

template <bool kFault>
__global__ void UnalignedKernel(const float* in, float* out) {
  const auto* pairs = reinterpret_cast<const float2*>(in + (kFault ? 1 : 0));
  const float2 pair = pairs[threadIdx.x];
  out[threadIdx.x] = pair.x + pair.y;
}

/// Every other thread's copy reads nothing.
template <bool kFault>
__global__ void AbsentCopyKernel(const float* in, float* out) {
  __shared__ __align__(16) float cells[4 * kThreads];
  const bool valid = threadIdx.x % 2 == 0;
  copy_async_16(cells + 4 * threadIdx.x, in + (valid || !kFault ? 0 : 1), valid);
  commit_copies();
  wait_copies<0>();
  out[threadIdx.x] = cells[4 * threadIdx.x];
}

/// Two groups of copies, of which both are needed.
template <Plant kPlant, bool kFault>
__global__ void CopyKernel(const float* in, float* out) {
  __shared__ __align__(16) float cells[2][4 * 16];
  clear(cells[0]);
  clear(cells[1]);
  if (threadIdx.x < 16) {
    copy_async_16(cells[0] + 4 * threadIdx.x, in + 4 * threadIdx.x);
    commit_copies();
    copy_async_16(cells[1] + 4 * threadIdx.x, in + 64 + 4 * threadIdx.x);
    commit_copies();
    if (kPlant == Plant::copy_not_waited_for && kFault)
      wait_copies<1>();
    else if (kPlant == Plant::copy_left_open && kFault)
      return;
    else
      wait_copies<0>();
  }
  if (kPlant == Plant::copy_without_barrier && kFault)
    __syncwarp();
  else
    __syncthreads();
  const unsigned from =
      kPlant == Plant::copy_not_waited_for && kFault ? threadIdx.x : kThreads - 1 - threadIdx.x;
  out[threadIdx.x] = cells[0][from] + cells[1][from];
}

template <bool kFault>
__global__ void BlocksWriteKernel(const float* in, float* out) {
  if (threadIdx.x == 0)
    out[kFault ? 0 : blockIdx.x] = in[blockIdx.x] + static_cast<float>(blockIdx.x);
}

/// The last of the blocks to arrive adds what all of them wrote.
template <bool kFault>
__global__ void HandoverKernel(const float* in, float* out, std::uint32_t* scratch) {
  __shared__ bool is_last;
  auto* sums = reinterpret_cast<float*>(scratch + 1);
  if (threadIdx.x == 0) {
    sums[blockIdx.x] = in[blockIdx.x];
    if (!kFault) __threadfence();
    is_last = atomicAdd(scratch, 1u) + 1 == gridDim.x;
  }
  __syncthreads();
  if (!is_last) return;
  if (!kFault) __threadfence();
  if (threadIdx.x < gridDim.x) out[threadIdx.x] = static_cast<volatile float*>(sums)[threadIdx.x];
}

template <bool kFault>
__global__ void PlainBesideAtomicKernel(float* out, std::uint32_t* scratch) {
  if (threadIdx.x < 63) atomicAdd(scratch, 1u);
  if (!kFault) __syncthreads();
  if (threadIdx.x == 63) scratch[0] = kFault ? 900u : scratch[0] + 100u;
  out[threadIdx.x] = 0.0f;
}

/// out = a b: a 16 x 16 of in[0..), b 16 x 8 of the same, as halves.
template <Plant kPlant, bool kFault>
__global__ void ProductKernel(const float* in, float* out) {
  __shared__ __align__(16) __half cells[2][16][16];
  for (unsigned i = threadIdx.x; i < 256; i += 32) {
    cells[0][i / 16][i % 16] = __float2half_rn(in[i]);
    cells[1][i / 16][i % 16] = __float2half_rn(in[i] - 1.0f);
  }
  __syncthreads();
  const unsigned lane = threadIdx.x;
  std::uint32_t a[4], b[4];
  load_matrices_x4(a, &cells[0][lane % 16][lane / 16 * 8]);
  if (kPlant == Plant::wrong_matrix_rows && kFault)
    load_matrices_x4(b, &cells[1][lane % 16][lane / 16 * 8]);
  else
    load_matrices_x4_transposed(b, &cells[1][lane % 16][lane / 16 * 8]);
  if (kPlant == Plant::wrong_fragment && kFault) {
    const std::uint32_t other = a[1];
    a[1] = a[2];
    a[2] = other;
  }
  float c[4] = {};
  const std::uint32_t left[2] = {b[0], b[1]};
  mma_m16n8k16<__half>(c, a, left);
  for (unsigned f = 0; f < 4; ++f) out[(lane / 4 + f / 2 * 8) * 8 + 2 * (lane % 4) + f % 2] = c[f];
}

__global__ void FirstLaunchKernel(const float* in, float* out, const std::uint32_t* scratch) {
  out[threadIdx.x] = in[threadIdx.x] + static_cast<float>(scratch[threadIdx.x]);
}
/// What may begin before the launch above has ended.
template <Plant kPlant, bool kFault>
__global__ void EarlyLaunchKernel(float* out, std::uint32_t* scratch) {
  const unsigned other = kThreads - 1 - threadIdx.x;
  if (kPlant == Plant::wait_too_late && kFault) out[kThreads + threadIdx.x] = out[other];
  if (kPlant == Plant::write_too_early && kFault) scratch[threadIdx.x] = 1;
  const bool never = kPlant == Plant::missing_wait || kPlant == Plant::nobody_waits;
  if (!(never && kFault)) await_launch_before();
  if (kPlant == Plant::nobody_waits)
    out[2 * kThreads + threadIdx.x] = 1.0f;
  else
    out[kThreads + threadIdx.x] = out[other];
  if (kPlant == Plant::write_too_early) scratch[threadIdx.x] = 1;
}

template <Plant kPlant, bool kFault>
void run_early(const float* in, float* out, std::uint32_t* scratch) {
  FirstLaunchKernel<<<1, kThreads>>>(in, out, scratch);
  static_cast<void>(
      launch_early(EarlyLaunchKernel<kPlant, kFault>, 1, kThreads, 0, nullptr, out, scratch));
}

__global__ void __launch_bounds__(128) SizesKernel(float* out) {
  __shared__ float cells[2048];
  extern __shared__ __align__(128) unsigned char bytes[];
  cells[threadIdx.x] = 1.0f;
  bytes[threadIdx.x] = 1;
  out[threadIdx.x] = cells[threadIdx.x] + static_cast<float>(bytes[threadIdx.x]);
}

template <bool kFault>
cudaError_t run_one(Plant plant, const float* in, float* out, std::uint32_t* scratch) {
  switch (plant) {
    case Plant::missing_barrier:
      MissingBarrierKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::missing_second_barrier:
      MissingSecondBarrierKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::missing_syncwarp:
      MissingSyncwarpKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::barrier_in_a_branch:
      BarrierInABranchKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::shuffle_in_a_branch:
      ShuffleInABranchKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::read_past_the_end:
      PastTheEndKernel<kFault><<<4, kThreads>>>(in, out, true);
      break;
    case Plant::write_past_the_end:
      PastTheEndKernel<kFault><<<4, kThreads>>>(in, out, false);
      break;
    case Plant::past_a_shared_array:
      PastASharedArrayKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::past_dynamic_memory:
      PastDynamicMemoryKernel<kFault><<<1, kThreads, 4 * kThreads>>>(in, out);
      break;
    case Plant::unset_shared_word:
      UnsetSharedKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::unset_global_word:
      MissingBarrierKernel<false><<<1, kThreads>>>(in, out);
      break;
    case Plant::unaligned_vector:
      UnalignedKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::unaligned_absent_copy:
      AbsentCopyKernel<kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::copy_not_waited_for:
      CopyKernel<Plant::copy_not_waited_for, kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::copy_without_barrier:
      CopyKernel<Plant::copy_without_barrier, kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::copy_left_open:
      CopyKernel<Plant::copy_left_open, kFault><<<1, kThreads>>>(in, out);
      break;
    case Plant::blocks_write_one_word:
      BlocksWriteKernel<kFault><<<4, kThreads>>>(in, out);
      break;
    case Plant::handover_without_fence:
      HandoverKernel<kFault><<<4, kThreads>>>(in, out, scratch);
      break;
    case Plant::plain_beside_atomic:
      PlainBesideAtomicKernel<kFault><<<1, kThreads>>>(out, scratch);
      break;
    case Plant::missing_wait:
      run_early<Plant::missing_wait, kFault>(in, out, scratch);
      break;
    case Plant::wait_too_late:
      run_early<Plant::wait_too_late, kFault>(in, out, scratch);
      break;
    case Plant::write_too_early:
      run_early<Plant::write_too_early, kFault>(in, out, scratch);
      break;
    case Plant::nobody_waits:
      run_early<Plant::nobody_waits, kFault>(in, out, scratch);
      break;
    case Plant::wrong_fragment:
      ProductKernel<Plant::wrong_fragment, kFault><<<1, 32>>>(in, out);
      break;
    case Plant::wrong_matrix_rows:
      ProductKernel<Plant::wrong_matrix_rows, kFault><<<1, 32>>>(in, out);
      break;
    case Plant::count:
      return cudaErrorInvalidValue;
    default:
      run_ring(plant, kFault, in, out, scratch);
  }
  return cudaGetLastError();
}

}  // namespace

const char* name_of(Plant plant) {
  switch (plant) {
    case Plant::missing_barrier:
      return "missing barrier";
    case Plant::missing_second_barrier:
      return "missing second barrier";
    case Plant::missing_syncwarp:
      return "missing syncwarp";
    case Plant::barrier_in_a_branch:
      return "barrier in a branch";
    case Plant::shuffle_in_a_branch:
      return "shuffle in a branch";
    case Plant::read_past_the_end:
      return "read past the end";
    case Plant::write_past_the_end:
      return "write past the end";
    case Plant::past_a_shared_array:
      return "past a shared array";
    case Plant::past_dynamic_memory:
      return "past dynamic memory";
    case Plant::unset_shared_word:
      return "unset shared word";
    case Plant::unset_global_word:
      return "unset global word";
    case Plant::unaligned_vector:
      return "unaligned vector";
    case Plant::unaligned_absent_copy:
      return "unaligned absent copy";
    case Plant::copy_not_waited_for:
      return "copy not waited for";
    case Plant::copy_without_barrier:
      return "copy without barrier";
    case Plant::copy_left_open:
      return "copy left open";
    case Plant::blocks_write_one_word:
      return "blocks write one word";
    case Plant::handover_without_fence:
      return "handover without fence";
    case Plant::plain_beside_atomic:
      return "plain beside atomic";
    case Plant::missing_wait:
      return "missing wait";
    case Plant::wait_too_late:
      return "wait too late";
    case Plant::write_too_early:
      return "write too early";
    case Plant::nobody_waits:
      return "nobody waits";
    case Plant::wrong_fragment:
      return "wrong fragment";
    case Plant::wrong_matrix_rows:
      return "wrong matrix rows";
    case Plant::product_not_waited_for:
      return "product not waited for";
    case Plant::product_without_fence:
      return "product without fence";
    case Plant::tile_not_published:
      return "tile not published";
    case Plant::tile_not_waited_for:
      return "tile not waited for";
    case Plant::tile_released_too_early:
      return "tile released too early";
    case Plant::tile_overwritten:
      return "tile overwritten";
    case Plant::barrier_of_too_many:
      return "barrier of too many";
    case Plant::wrong_parity:
      return "wrong parity";
    case Plant::warp_without_product:
      return "warp without product";
    case Plant::too_few_meet:
      return "too few meet";
    case Plant::wrong_matrix_stride:
      return "wrong matrix stride";
    case Plant::wrong_swizzle:
      return "wrong swizzle";
    case Plant::marks_not_handed_over:
      return "marks not handed over";
    case Plant::marks_released_too_early:
      return "marks released too early";
    case Plant::younger_group_not_waited_for:
      return "younger group not waited for";
    case Plant::tile_released_with_older_group:
      return "tile released with older group";
    case Plant::count:
      break;
  }
  return "?";
}

cudaError_t run(Plant plant, bool with_fault, const float* in, float* out, std::uint32_t* scratch) {
  return with_fault ? run_one<true>(plant, in, out, scratch)
                    : run_one<false>(plant, in, out, scratch);
}

cudaError_t launch_sizes(unsigned threads, std::size_t dynamic_bytes, float* out) {
  const cudaError_t error =
      allow_dynamic_shared(reinterpret_cast<const void*>(SizesKernel), dynamic_bytes);
  if (error != cudaSuccess) return error;
  SizesKernel<<<1, threads, dynamic_bytes>>>(out);
  return cudaGetLastError();
}

}  // namespace ptx_faults
