// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/surprise.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "episodic/base/rules/threshold.hpp"
#include "last_arrival.cuh"
#include "online_softmax.hpp"
#include "surprise.hpp"

namespace episodic::kernels {

inline constexpr int kSurpriseThreads = 512;
/// Loads of a thread that are on their way together, and logits that a piece's thread adds at once.
inline constexpr int kSurpriseAhead = 4;

/// How a row is cut among blocks, by its length alone.
struct SurpriseParts {
  std::int64_t count, logits;  ///< of a part, but for the last one
};
EPISODIC_HOST_DEVICE inline SurpriseParts surprise_parts(const SurpriseParams& p) {
  if (!p.maybe_parts) return {1, p.vocab};
  constexpr std::int64_t kLeast = 4 * kSurpriseThreads;  // a multiple of what is read at once
  const std::int64_t wanted = (p.vocab + kSurpriseParts * kLeast - 1) / (kSurpriseParts * kLeast);
  return {(p.vocab + wanted * kLeast - 1) / (wanted * kLeast), wanted * kLeast};
}

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
  const auto add_pack = [&](const Pack& pack) {
    float x[kPack];
    EPISODIC_UNROLL
    for (int j = 0; j < kPack; ++j) x[j] = widen(pack.at[j]);
    add(state, x);
  };
  std::int64_t i = threadIdx.x;
  for (; i + (kSurpriseAhead - 1) * kSurpriseThreads < packs;
       i += kSurpriseAhead * kSurpriseThreads) {
    Pack ahead[kSurpriseAhead];
    EPISODIC_UNROLL
    for (int a = 0; a < kSurpriseAhead; ++a) ahead[a] = body[i + a * kSurpriseThreads];
    EPISODIC_UNROLL
    for (int a = 0; a < kSurpriseAhead; ++a) add_pack(ahead[a]);
  }
  for (; i < packs; i += kSurpriseThreads) add_pack(body[i]);
  const std::int64_t tail = head + packs * kPack + threadIdx.x;
  if (tail < vocab) add(state, widen(row[tail]));
  return state;
}

struct MergeSoftmax {
  __device__ OnlineSoftmax operator()(const OnlineSoftmax& a, const OnlineSoftmax& b) const {
    return merge(a, b);
  }
};

/// One block for each part of a row; blocks beyond the grid's limit take several. The y of the grid
/// is sequences.
template <class Logit, std::int64_t kMost>
__global__ void __launch_bounds__(kSurpriseThreads)
    SurpriseKernel(KernelArgument<Batch<SurpriseParams, kMost>> batch) {
  const SurpriseParams& p = batch.of[blockIdx.y];
  using Reduce = cub::BlockReduce<OnlineSoftmax, kSurpriseThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  const SurpriseParts parts = surprise_parts(p);
  for (std::int64_t at = blockIdx.x; at < p.n * parts.count; at += gridDim.x) {
    const std::int64_t i = at / parts.count, part = at % parts.count;
    const Logit* const row = static_cast<const Logit*>(p.logits) + i * p.row_stride;
    const std::int64_t first = part * parts.logits;
    const std::int64_t left = p.vocab - first;
    OnlineSoftmax state = Reduce(storage).Reduce(
        scan_row(row + first, left < parts.logits ? left : parts.logits), MergeSoftmax{});
    if (parts.count > 1) {
      OnlineSoftmax* const of_row = p.maybe_parts + i * kSurpriseParts;
      if (threadIdx.x == 0) of_row[part] = state;
      // the same for all threads, which meet there: the storage may be used again
      if (!is_last_arrival(p.maybe_arrived + i, static_cast<unsigned>(parts.count))) continue;
      state = Reduce(storage).Reduce(
          threadIdx.x < parts.count ? of_row[threadIdx.x] : OnlineSoftmax{}, MergeSoftmax{});
    }
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

/// The same, of a piece.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kSurpriseThreads)
    SurprisePieceKernel(KernelArgument<Batch<SurprisePieceParams, kMost>> batch) {
  const SurprisePieceParams& p = batch.of[blockIdx.y];
  using Reduce = cub::BlockReduce<OnlineSoftmax, kSurpriseThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  const auto finished = [&](float product) {
    const float x = p.multiplier * product;
    return p.soft_cap > 0.0f ? p.soft_cap * tanhf(x / p.soft_cap) : x;
  };
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    float* const row = p.logits + i * p.row_stride;
    const bool is_last = i == p.n - 1;
    OnlineSoftmax seen;
    const auto keep = [&](std::int64_t c, float x) {
      if (is_last) p.last[p.first + c] = x;
      if (p.write_back) row[c] = x;
    };
    std::int64_t c = threadIdx.x;
    for (; c + (kSurpriseAhead - 1) * kSurpriseThreads < p.cols;
         c += kSurpriseAhead * kSurpriseThreads) {
      float x[kSurpriseAhead];
      EPISODIC_UNROLL
      for (int a = 0; a < kSurpriseAhead; ++a) x[a] = row[c + a * kSurpriseThreads];
      EPISODIC_UNROLL
      for (int a = 0; a < kSurpriseAhead; ++a) {
        x[a] = finished(x[a]);
        keep(c + a * kSurpriseThreads, x[a]);
      }
      if (!is_last) add(seen, x);
    }
    for (; c < p.cols; c += kSurpriseThreads) {
      const float x = finished(row[c]);
      keep(c, x);
      if (!is_last) add(seen, x);
    }
    if (is_last) continue;  // the block's last row
    seen = Reduce(storage).Reduce(seen, MergeSoftmax{});
    if (threadIdx.x == 0) {
      SurpriseState state;
      if (p.first > 0) state = p.state[i];
      state.softmax = merge(state.softmax, seen);
      const std::int64_t target = p.targets[i], at = target - p.first;
      if (at >= 0 && at < p.cols) state.target_logit = p.write_back ? row[at] : finished(row[at]);
      p.state[i] = state;
      if (p.first + p.cols == p.vocab)
        p.surprise[i] = target >= 0 && target < p.vocab
                            ? rules::surprise_of(log_sum_exp(state.softmax), state.target_logit)
                            : NAN;
    }
    __syncthreads();  // the storage is used again for the next row
  }
}

}  // namespace episodic::kernels
