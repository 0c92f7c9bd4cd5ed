// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <cstdint>
#include <limits>

#include "rows.cuh"

namespace episodic::kernels {

/// Blocks x: lanes, y: sequences.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kRowsThreads)
    RowsKernel(KernelArgument<Batch<RowsParams, kMost>> batch, int element) {
  EPISODIC_SHARED(shared, RowsShared);
  write_rows(batch.of[blockIdx.y], blockIdx.x, element, shared);
}

namespace {

/// How far the values of neighbouring heads of a list are apart, as rows of a ring say it (KvRow).
std::int64_t value_stride_of_rows(const RowsParams& p) {
  return value_dim(p) == p.head_dim ? p.ring_head_stride
                                    : p.ring_head_stride / p.head_dim * value_dim(p);
}

}  // namespace

FieldError check_rows(const RowsParams& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  EPISODIC_FIELD(p, dtype, !is_code(p.dtype));
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1);
  EPISODIC_FIELD(p, value_dim, p.value_dim >= 0 && p.value_dim <= kMost);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 1 && p.n_kv_heads % p.n_lanes == 0);
  EPISODIC_FIELD(p, count_stride, p.count_stride >= 0);
  EPISODIC_FIELD(p, table_stride, p.table_stride >= 0);
  EPISODIC_FIELD(p, max_events, p.n_lanes == 1 || !p.recalled || p.max_events >= 1);
  EPISODIC_FIELD(p, list_capacity, p.n_lanes == 1 || !p.recalled || p.list_capacity >= 1);
  EPISODIC_FIELD(p, n, p.n >= 1);
  EPISODIC_FIELD(p, n_init, p.n_init >= 0);
  EPISODIC_FIELD(p, n_local, p.n_local >= 1);
  EPISODIC_FIELD(p, ring_capacity, p.ring_capacity >= 1);
  EPISODIC_FIELD(p, max_rows, p.max_rows >= 1 && p.max_rows <= kMost);
  EPISODIC_FIELD(p, ring_pages, valid(p.ring_pages));
  EPISODIC_FIELD(
      p, ring_head_stride,
      p.ring_head_stride <= kMost &&
          p.ring_head_stride >= slots_in_a_piece(p.ring_pages, p.ring_capacity) * p.head_dim);
  if (const FieldError wrong = check_value_ring(p)) return wrong;
  EPISODIC_FIELD(p, value_head_stride,
                 p.n_kv_heads == p.n_lanes || value_head_stride(p) == value_stride_of_rows(p));
  EPISODIC_FIELD(p, n_init, p.n_init <= kMost / p.head_dim);
  EPISODIC_FIELD_GIVEN(p, tokens);
  EPISODIC_FIELD_GIVEN(p, sink_key);
  EPISODIC_FIELD_GIVEN(p, sink_value);
  EPISODIC_FIELD_GIVEN(p, ring_key);
  EPISODIC_FIELD_GIVEN(p, ring_value);
  EPISODIC_FIELD_GIVEN(p, n_events);
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD(p, event_block, !p.recalled || p.event_block);
  EPISODIC_FIELD(p, n_recalled, !p.recalled || p.n_recalled);
  EPISODIC_FIELD(p, row_scales, !p.maybe_event_scales || p.row_scales);
  EPISODIC_FIELD_GIVEN(p, rows);
  EPISODIC_FIELD_GIVEN(p, n_rows);
  EPISODIC_FIELD_GIVEN(p, overflow);
  EPISODIC_FIELD_ALIGNED(p, rows, alignof(KvRow));
  EPISODIC_FIELD_ALIGNED(p, row_scales, alignof(const float*));
  return {};
}

FieldError check_rows_alike(const RowsParams& p, const RowsParams& first) {
  EPISODIC_FIELD_SHARED(p, first, dtype);
  EPISODIC_FIELD_SHARED(p, first, n_kv_heads);
  EPISODIC_FIELD_SHARED(p, first, head_dim);
  EPISODIC_FIELD(p, value_dim, value_dim(p) == value_dim(first));
  EPISODIC_FIELD_SHARED(p, first, n_lanes);
  return {};
}

const char* invalid_field(const RowsParams& params) { return check_rows(params).field; }
const char* invalid_field(const RowsParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, check_rows, check_rows_alike).field;
}

cudaError_t far_rows_batch(const RowsParams* params, std::int64_t n_sequences,
                           cudaStream_t stream) {
  if (const FieldError wrong = check_batch(params, n_sequences, check_rows, check_rows_alike))
    return wrong.error;
  return launch_in_batches<RowsParams>(
      n_sequences,
      [&](std::int64_t i, RowsParams& args) {
        args = with_value_width(params[i]);
        return true;
      },
      [&](const auto& batch) {
        const RowsParams& p = batch.of[0];
        const dim3 grid(static_cast<unsigned>(p.n_lanes), static_cast<unsigned>(batch.n));
        return launch(RowsKernel<kRoomOf<decltype(batch)>>, grid, kRowsThreads, 0, stream, batch,
                      static_cast<int>(size_of(p.dtype)));
      });
}

cudaError_t far_rows(const RowsParams& p, cudaStream_t stream) {
  return far_rows_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
