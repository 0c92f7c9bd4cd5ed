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

FieldError check(const RelevanceParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const RelevanceParams& p) { return check(p); },
      [](const RelevanceParams& p, const RelevanceParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, n_heads);
        EPISODIC_FIELD_SHARED(p, first, n_layers);
        return {};
      });
}

FieldError check(const RepresentativeParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const RepresentativeParams& p) { return check(p); },
      [](const RepresentativeParams& p, const RepresentativeParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, key_dtype);
        EPISODIC_FIELD_SHARED(p, first, repr_dtype);
        EPISODIC_FIELD_SHARED(p, first, n_heads);
        EPISODIC_FIELD_SHARED(p, first, n_kv_heads);
        EPISODIC_FIELD_SHARED(p, first, head_dim);
        EPISODIC_FIELD_SHARED(p, first, n_repr);
        EPISODIC_FIELD_SHARED(p, first, n_layers);
        EPISODIC_FIELD_SHARED(p, first, unit_length);
        return {};
      });
}

template <class Args, std::int64_t kMost>
dim3 grid_of_layers(const Batch<Args, kMost>& batch, std::int64_t blocks_of_layer) {
  dim3 grid = blocks_for_layers(blocks_of_layer, batch.of[0].n_layers);
  grid.z = static_cast<unsigned>(batch.n);
  return grid;
}

template <int kPack, std::int64_t kMost>
cudaError_t launch_relevance(const Batch<RelevanceParams, kMost>& batch, cudaStream_t stream) {
  const std::int64_t packs = largest(
      batch, [](const RelevanceParams& p) { return (p.n_local + p.n - 1) * p.n_heads / kPack; });
  dim3 grid(blocks_for((packs + kRelevanceThreads - 1) / kRelevanceThreads),
            static_cast<unsigned>(batch.of[0].n_layers), static_cast<unsigned>(batch.n));
  return launch(CommitRelevanceKernel<kPack, kRoomOf<decltype(batch)>>, grid, kRelevanceThreads, 0,
                stream, batch);
}

template <std::int64_t kMost>
cudaError_t launch_selection(const Batch<RepresentativeParams, kMost>& batch, cudaStream_t stream) {
  const RepresentativeParams& first = batch.of[0];
  const std::int64_t events =
      largest(batch, [](const RepresentativeParams& p) { return p.events.max_count; });
  const dim3 blocks =
      grid_of_layers(batch, (events * first.n_heads + kHeadsPerBlock - 1) / kHeadsPerBlock);
  const auto shared =
      static_cast<std::size_t>(kHeadsPerBlock * first.n_repr) * sizeof(std::int32_t);
  const cudaError_t error = for_element(first.key_dtype, [&](auto key) {
    return for_element(first.repr_dtype, [&](auto repr) {
      return launch(
          SelectRepresentativesKernel<typename decltype(key)::type, typename decltype(repr)::type,
                                      kRoomOf<decltype(batch)>>,
          blocks, kHeadsPerBlock * kWarpSize, shared, stream, batch);
    });
  });
  if (error != cudaSuccess || !first.unit_length) return error;
  return for_element(first.repr_dtype, [&](auto repr) {
    return launch(UnitLengthKernel<typename decltype(repr)::type, kRoomOf<decltype(batch)>>,
                  grid_of_layers(batch, events), kUnitThreads, 0, stream, batch);
  });
}

}  // namespace

const char* invalid_field(const RelevanceParams& params) { return check(params).field; }
const char* invalid_field(const RepresentativeParams& params) { return check(params).field; }
const char* invalid_field(const RelevanceParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const RepresentativeParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t commit_relevance_batch(const RelevanceParams* params, std::int64_t n_sequences,
                                   cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<RelevanceParams>(
      n_sequences,
      [&](std::int64_t i, RelevanceParams& args) {
        args = params[i];
        return args.n > 0 && args.n_layers > 0;
      },
      [&](const auto& batch) {
        return batch.of[0].n_heads % 4 == 0 ? launch_relevance<4>(batch, stream)
                                            : launch_relevance<1>(batch, stream);
      });
}

cudaError_t commit_relevance(const RelevanceParams& p, cudaStream_t stream) {
  return commit_relevance_batch(&p, 1, stream);
}

cudaError_t select_representatives_batch(const RepresentativeParams* params,
                                         std::int64_t n_sequences, cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<RepresentativeParams>(
      n_sequences, call_with_events_of(params),
      [&](const auto& batch) { return launch_selection(batch, stream); });
}

cudaError_t select_representatives(const RepresentativeParams& p, cudaStream_t stream) {
  return select_representatives_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
