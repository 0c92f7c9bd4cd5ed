// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/relevance.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "relevance.hpp"
#include "ring_pages.cuh"

namespace episodic::kernels {

inline constexpr int kRelevanceThreads = 256;
inline constexpr int kHeadsPerBlock = 4;  // a warp for each query head of an event

// The z of these grids is sequences.

/// One thread for kPack heads of a local token, a row of the grid for a layer.
template <int kPack, std::int64_t kMost>
__global__ void __launch_bounds__(kRelevanceThreads)
    CommitRelevanceKernel(KernelArgument<Batch<RelevanceParams, kMost>> batch) {
  const RelevanceParams& p = batch.of[blockIdx.z];
  const std::int64_t first = *p.first_position;
  const std::int64_t local = first + 1 - p.n_local > 0 ? first + 1 - p.n_local : 0;
  const RelevanceLayer layer = p.layers[blockIdx.y];
  const std::int64_t per_row = p.n_heads / kPack, items = (first + p.n - local) * per_row;
  const std::int64_t local_slot = local % p.capacity;  // the ring holds all of the rows
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kRelevanceThreads;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kRelevanceThreads + threadIdx.x;
       item < items; item += stride) {
    const std::int64_t row = item / per_row, part = item - row * per_row;
    std::int64_t slot = local_slot + row;
    if (slot >= p.capacity) slot -= p.capacity;
    float* const at = layer.relevance + slot * p.n_heads + part * kPack;
    Pack<float, kPack> sums = load_pack<kPack>(layer.column_sums + item * kPack);
    if (p.deferred) {
      const ColumnStats* const stats = layer.maybe_stats + part * kPack;
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) sums.at[j] = column_share(sums.at[j], stats[j]);
    }
    if (local + row < first) {
      const Pack<float, kPack> before = load_pack<kPack>(at);
      EPISODIC_UNROLL
      for (int j = 0; j < kPack; ++j) sums.at[j] += before.at[j];
    }
    store_pack<kPack>(at, sums);
  }
}

/// A token's place in the order of relevance. The order is total: equal tokens by time.
struct Ranked {
  float relevance;
  std::int32_t token;
};
__device__ inline bool ranks_before(const Ranked& a, const Ranked& b) {
  return a.relevance > b.relevance || (a.relevance == b.relevance && a.token < b.token);
}
/// The first of the values of all 32 lanes; every lane gets it.
__device__ inline Ranked first_of_warp(Ranked value) {
  EPISODIC_UNROLL
  for (int lanes = kWarpSize / 2; lanes > 0; lanes /= 2) {
    const Ranked other = {__shfl_xor_sync(kFullMask, value.relevance, lanes),
                          __shfl_xor_sync(kFullMask, value.token, lanes)};
    if (ranks_before(other, value)) value = other;
  }
  return value;
}

/// Relevance of one head for the tokens of an event, in a ring.
struct HeadRelevance {
  const float* data;  // [capacity, H], at this head
  std::int64_t first_slot, capacity, row_stride;

  __device__ Ranked operator()(std::int32_t i) const {
    std::int64_t slot = first_slot + i;
    if (slot >= capacity) slot -= capacity;
    const float r = data[slot * row_stride];
    return {r == r ? r : -INFINITY, i};
  }
};

/// The last of the `count` best of n tokens, by a warp: each round finds the best one behind that
/// of the round before, so that nothing is kept but its place, whatever n and count.
__device__ inline Ranked last_chosen(const HeadRelevance& relevance, std::int32_t n,
                                     std::int32_t count) {
  const auto lane = static_cast<std::int32_t>(threadIdx.x % kWarpSize);
  Ranked last = {INFINITY, -1};
  for (std::int32_t round = 0; round < count; ++round) {
    Ranked best = {-INFINITY, n};  // behind every token
    for (std::int32_t i = lane; i < n; i += kWarpSize) {
      const Ranked token = relevance(i);
      if (ranks_before(last, token) && ranks_before(token, best)) best = token;
    }
    last = first_of_warp(best);
  }
  return last;
}

/// One warp for a query head of a closed event, a row of the grid for a layer.
template <class Key, class Repr, std::int64_t kMost>
__global__ void __launch_bounds__(kHeadsPerBlock* kWarpSize)
    SelectRepresentativesKernel(KernelArgument<Batch<RepresentativeParams, kMost>> batch) {
  const RepresentativeParams& p = batch.of[blockIdx.z];
  EPISODIC_DYNAMIC_SHARED(bytes);  // [warps, n_repr] chosen tokens, in order of time
  const auto lane = static_cast<std::int32_t>(threadIdx.x % kWarpSize);
  const auto warp = static_cast<std::int64_t>(threadIdx.x / kWarpSize);
  auto* const chosen = reinterpret_cast<std::int32_t*>(bytes) + warp * p.n_repr;
  const std::int64_t width = p.n_heads * p.head_dim;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kHeadsPerBlock;
  const auto l = static_cast<std::int64_t>(blockIdx.y);
  const RepresentativeLayer layer = p.layers[l];
  const ClosedEvents events = p.events.of(l);
  const std::int64_t n_events = *events.count < events.max_count ? *events.count : events.max_count;
  for (std::int64_t item = static_cast<std::int64_t>(blockIdx.x) * kHeadsPerBlock + warp;
       item < n_events * p.n_heads; item += stride) {
    const std::int64_t event = item / p.n_heads, head = item % p.n_heads;
    const std::int64_t id = *events.first_id + event, start = events.start[event];
    if (id < 0 || id >= p.capacity) {
      *p.full = 1;
      continue;
    }
    const auto n = static_cast<std::int32_t>(events.end[event] - start);
    const auto count = static_cast<std::int32_t>(p.n_repr < n ? p.n_repr : n);
    const HeadRelevance relevance{layer.relevance + head, start % p.ring_capacity, p.ring_capacity,
                                  p.relevance_stride > 0 ? p.relevance_stride : p.n_heads};
    const Ranked last = count < n ? last_chosen(relevance, n, count) : Ranked{-INFINITY, n};
    std::int32_t held = 0;
    for (std::int32_t i = lane; i - lane < n; i += kWarpSize) {
      const bool is_chosen = i < n && !ranks_before(last, relevance(i));
      const unsigned all = __ballot_sync(kFullMask, is_chosen);
      if (is_chosen) chosen[held + __popc(all & ((1u << lane) - 1u))] = i;
      held += __popc(all);
    }
    __syncwarp();
    const Key* const keys = static_cast<const Key*>(layer.ring_key) +
                            head / (p.n_heads / p.n_kv_heads) * p.ring_head_stride;
    Repr* const mean = static_cast<Repr*>(layer.mean) + id * width + head * p.head_dim;
    Repr* const each = layer.maybe_each ? static_cast<Repr*>(layer.maybe_each) +
                                              id * p.n_repr * width + head * p.head_dim
                                        : nullptr;
    for (std::int64_t c = lane; c < p.head_dim; c += kWarpSize) {
      double sum = 0.0;
      for (std::int32_t j = 0; j < count; ++j) {
        const std::int64_t slot = (relevance.first_slot + chosen[j]) % p.ring_capacity;
        const float key = widen(keys[ring_row(p.ring_pages, slot, p.head_dim) + c]);
        sum += static_cast<double>(key);
        if (each) each[j * width + c] = narrow<Repr>(key);
      }
      mean[c] = narrow<Repr>(static_cast<float>(sum / static_cast<double>(count)));
    }
    __syncwarp();  // the list is used again for the next head
  }
}

inline constexpr int kUnitThreads = 256;

/// One block for a closed event, a row of the grid for a layer.
template <class Repr, std::int64_t kMost>
__global__ void __launch_bounds__(kUnitThreads)
    UnitLengthKernel(KernelArgument<Batch<RepresentativeParams, kMost>> batch) {
  const RepresentativeParams& p = batch.of[blockIdx.z];
  using Reduce = cub::BlockReduce<double, kUnitThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(length, double);
  const std::int64_t width = p.n_heads * p.head_dim;
  const auto l = static_cast<std::int64_t>(blockIdx.y);
  const ClosedEvents events = p.events.of(l);
  const std::int64_t n_events = *events.count < events.max_count ? *events.count : events.max_count;
  for (std::int64_t event = blockIdx.x; event < n_events; event += gridDim.x) {
    const std::int64_t id = *events.first_id + event;
    if (id < 0 || id >= p.capacity) continue;  // as was said
    Repr* const mean = static_cast<Repr*>(p.layers[l].mean) + id * width;
    double squares = 0.0;
    for (std::int64_t c = threadIdx.x; c < width; c += kUnitThreads) {
      const auto x = static_cast<double>(widen(mean[c]));
      squares += x * x;
    }
    const double sum = Reduce(storage).Sum(squares);
    if (threadIdx.x == 0) length = sqrt(sum);
    __syncthreads();
    if (length > 0.0)
      for (std::int64_t c = threadIdx.x; c < width; c += kUnitThreads)
        mean[c] = narrow<Repr>(static_cast<float>(static_cast<double>(widen(mean[c])) / length));
    __syncthreads();  // length and storage serve the next event
  }
}

}  // namespace episodic::kernels
