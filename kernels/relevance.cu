// SPDX-License-Identifier: Apache-2.0
#include "relevance.hpp"

#include "relevance.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMaxGridRows = 65'535;  // a launch's limit

bool fits(const RepresentativeParams& p) {
  return is_float(p.key_dtype) && is_float(p.repr_dtype) && p.events.max_count >= 0 &&
         p.n_heads >= 1 && p.n_kv_heads >= 1 && p.n_heads % p.n_kv_heads == 0 && p.head_dim >= 1 &&
         p.n_repr >= 1 && p.n_repr <= kMostRepresentatives && p.ring_capacity >= 1 &&
         // an event's tokens are counted in int32
         p.ring_capacity <= INT32_MAX - kWarpSize && p.capacity >= 0 &&
         product_within(p.ring_head_stride, p.ring_capacity, p.head_dim) &&
         product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads) &&
         product_within(kMaxElements, p.capacity, p.n_repr, p.n_heads, p.head_dim) &&
         product_within(kMaxElements, p.ring_capacity, p.n_heads) &&
         product_within(kMaxElements, p.n_layers, p.events.max_count, p.n_heads);
}

}  // namespace

cudaError_t commit_relevance(const RelevanceParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.n_heads < 1 || p.n_local < 1 || p.capacity < 1 || p.n > kMaxElements ||
      p.n_local > kMaxElements || p.capacity < p.n_local + p.n - 1 ||
      !product_within(kMaxElements, p.capacity, p.n_heads) || p.n_layers < 0 ||
      p.n_layers > kMaxGridRows)
    return cudaErrorInvalidValue;
  if (p.n == 0 || p.n_layers == 0) return cudaSuccess;
  if (!p.first_position || !p.layers) return cudaErrorInvalidValue;
  if (!all_aligned(8, p.first_position, p.layers)) return cudaErrorMisalignedAddress;
  const std::int64_t floats = (p.n_local + p.n - 1) * p.n_heads;
  const auto grid = [&](std::int64_t pack) {
    return dim3(blocks_for((floats / pack + kRelevanceThreads - 1) / kRelevanceThreads),
                static_cast<unsigned>(p.n_layers));
  };
  if (p.n_heads % 4 == 0)
    return launch(CommitRelevanceKernel<4>, grid(4), kRelevanceThreads, 0, stream, p);
  return launch(CommitRelevanceKernel<1>, grid(1), kRelevanceThreads, 0, stream, p);
}

cudaError_t select_representatives(const RepresentativeParams& p, cudaStream_t stream) {
  if (!fits(p)) return cudaErrorInvalidValue;
  if (p.events.max_count == 0 || p.n_layers == 0) return cudaSuccess;
  if (!p.events.start || !p.events.end || !p.events.count || !p.events.first_id || !p.layers ||
      !p.full)
    return cudaErrorInvalidValue;
  if (!all_aligned(4, p.full, p.events.count) ||
      !all_aligned(8, p.events.start, p.events.end, p.events.first_id, p.layers))
    return cudaErrorMisalignedAddress;
  const unsigned blocks = blocks_for(
      (p.n_layers * p.events.max_count * p.n_heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  const auto shared = static_cast<std::size_t>(kHeadsPerBlock * p.n_repr) * sizeof(std::int32_t);
  const cudaError_t error = for_element(p.key_dtype, [&](auto key) {
    return for_element(p.repr_dtype, [&](auto repr) {
      return launch(
          SelectRepresentativesKernel<typename decltype(key)::type, typename decltype(repr)::type>,
          blocks, kHeadsPerBlock * kWarpSize, shared, stream, p);
    });
  });
  if (error != cudaSuccess || !p.unit_length) return error;
  return for_element(p.repr_dtype, [&](auto repr) {
    return launch(UnitLengthKernel<typename decltype(repr)::type>,
                  blocks_for(p.n_layers * p.events.max_count), kUnitThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
