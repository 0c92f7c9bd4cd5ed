// SPDX-License-Identifier: Apache-2.0
#include "relevance.hpp"

#include "fields.hpp"
#include "relevance.cuh"

namespace episodic::kernels {
namespace {

FieldError check(const RelevanceParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0 && p.n <= kMaxElements);
  EPISODIC_FIELD(p, n_heads, p.n_heads >= 1);
  EPISODIC_FIELD(p, n_local, p.n_local >= 1 && p.n_local <= kMaxElements);
  EPISODIC_FIELD(p, capacity,
                 p.capacity >= 1 && p.capacity >= p.n_local + p.n - 1 &&
                     product_within(kMaxElements, p.capacity, p.n_heads));
  EPISODIC_FIELD(p, n_layers, p.n_layers >= 0 && p.n_layers <= kMostGridRows);
  EPISODIC_FIELD(p, deferred, !p.deferred || p.n == 1);
  if (p.n == 0 || p.n_layers == 0) return {};
  EPISODIC_FIELD_GIVEN(p, first_position);
  EPISODIC_FIELD_GIVEN(p, layers);
  EPISODIC_FIELD_ALIGNED(p, first_position, 8);
  EPISODIC_FIELD_ALIGNED(p, layers, 8);
  return {};
}

FieldError check(const RepresentativeParams& p) {
  EPISODIC_FIELD(p, key_dtype, is_float(p.key_dtype));
  EPISODIC_FIELD(p, repr_dtype, is_float(p.repr_dtype));
  EPISODIC_FIELD(p, events.max_count, p.events.max_count >= 0);
  EPISODIC_FIELD(p, n_heads, p.n_heads >= 1);
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1 && p.n_heads % p.n_kv_heads == 0);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1);
  EPISODIC_FIELD(p, n_repr, p.n_repr >= 1 && p.n_repr <= kMostRepresentatives);
  // an event's tokens are counted in int32
  EPISODIC_FIELD(p, ring_capacity,
                 p.ring_capacity >= 1 && p.ring_capacity <= INT32_MAX - kWarpSize &&
                     product_within(kMaxElements, p.ring_capacity, p.n_heads));
  EPISODIC_FIELD(p, ring_pages, valid(p.ring_pages));
  EPISODIC_FIELD(p, ring_head_stride,
                 product_within(p.ring_head_stride, slots_in_a_piece(p.ring_pages, p.ring_capacity),
                                p.head_dim) &&
                     product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads));
  EPISODIC_FIELD(p, relevance_stride, p.relevance_stride == 0 || p.relevance_stride >= p.n_heads);
  EPISODIC_FIELD(p, relevance_stride,
                 product_within(kMaxElements, p.ring_capacity, p.relevance_stride));
  EPISODIC_FIELD(p, capacity,
                 product_within(kMaxElements, p.capacity, p.n_repr, p.n_heads, p.head_dim));
  EPISODIC_FIELD(p, n_layers, p.n_layers >= 0 && p.n_layers <= kMostGridRows);
  EPISODIC_FIELD(p, events.max_count,
                 product_within(kMaxElements, p.n_layers, p.events.max_count, p.n_heads));
  if (p.events.max_count == 0 || p.n_layers == 0) return {};
  EPISODIC_FIELD_GIVEN(p, events.start);
  EPISODIC_FIELD_GIVEN(p, events.end);
  EPISODIC_FIELD_GIVEN(p, events.count);
  EPISODIC_FIELD_GIVEN(p, events.first_id);
  EPISODIC_FIELD_GIVEN(p, layers);
  EPISODIC_FIELD_GIVEN(p, full);
  EPISODIC_FIELD_ALIGNED(p, full, 4);
  EPISODIC_FIELD_ALIGNED(p, events.count, 4);
  EPISODIC_FIELD_ALIGNED(p, events.start, 8);
  EPISODIC_FIELD_ALIGNED(p, events.end, 8);
  EPISODIC_FIELD_ALIGNED(p, events.first_id, 8);
  EPISODIC_FIELD_ALIGNED(p, layers, 8);
  return {};
}

}  // namespace

const char* invalid_field(const RelevanceParams& params) { return check(params).field; }
const char* invalid_field(const RepresentativeParams& params) { return check(params).field; }

cudaError_t commit_relevance(const RelevanceParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0 || p.n_layers == 0) return cudaSuccess;
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
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.events.max_count == 0 || p.n_layers == 0) return cudaSuccess;
  const dim3 blocks = blocks_for_layers(
      (p.events.max_count * p.n_heads + kHeadsPerBlock - 1) / kHeadsPerBlock, p.n_layers);
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
                  blocks_for_layers(p.events.max_count, p.n_layers), kUnitThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
