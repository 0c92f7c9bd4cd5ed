// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/surprise.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "device.cuh"
#include "episodic/base/rules/threshold.hpp"
#include "online_softmax.hpp"
#include "surprise.hpp"

namespace episodic::kernels {

inline constexpr int kSurpriseThreads = 512;

/// Adds all of a row's elements that are this thread's: 16 bytes at a time where the row is
/// aligned, single elements before and after.
template <class Logit>
__device__ OnlineSoftmax scan_row(const Logit* row, std::int64_t vocab) {
  constexpr int kPack = 16 / sizeof(Logit);
  struct alignas(16) Pack {
    Logit at[kPack];
  };
  OnlineSoftmax state;
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(row) % 16);
  std::int64_t head = (16 - misaligned) % 16 / static_cast<std::int64_t>(sizeof(Logit));
  if (head > vocab) head = vocab;
  const std::int64_t packs = (vocab - head) / kPack;
  if (threadIdx.x < head) add(state, widen(row[threadIdx.x]));
  const Pack* body = reinterpret_cast<const Pack*>(row + head);
  for (std::int64_t i = threadIdx.x; i < packs; i += kSurpriseThreads) {
    const Pack pack = body[i];
    EPISODIC_UNROLL
    for (int j = 0; j < kPack; ++j) add(state, widen(pack.at[j]));
  }
  const std::int64_t tail = head + packs * kPack + threadIdx.x;
  if (tail < vocab) add(state, widen(row[tail]));
  return state;
}

struct MergeSoftmax {
  __device__ OnlineSoftmax operator()(const OnlineSoftmax& a, const OnlineSoftmax& b) const {
    return merge(a, b);
  }
};

/// One block per row; blocks beyond the grid's limit take several rows.
template <class Logit>
__global__ void __launch_bounds__(kSurpriseThreads) SurpriseKernel(SurpriseParams p) {
  using Reduce = cub::BlockReduce<OnlineSoftmax, kSurpriseThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const Logit* row = static_cast<const Logit*>(p.logits) + i * p.row_stride;
    const OnlineSoftmax state = Reduce(storage).Reduce(scan_row(row, p.vocab), MergeSoftmax{});
    if (threadIdx.x == 0) {
      const double total = log_sum_exp(state);
      const std::int64_t target = p.targets[i];
      const bool known = target >= 0 && target < p.vocab;
      p.surprise[i] = known ? rules::surprise_of(total, widen(row[target])) : NAN;
      if (p.maybe_log_sum_exp) p.maybe_log_sum_exp[i] = static_cast<float>(total);
    }
    __syncthreads();  // the storage is used again for the next row
  }
}

}  // namespace episodic::kernels
