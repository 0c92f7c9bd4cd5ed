// SPDX-License-Identifier: Apache-2.0
#include "window.hpp"

#include "fields.hpp"
#include "window.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMaxStepElements = (std::int64_t{1} << 31) - 1;

constexpr std::int64_t kMaxQueryWidth = 1 << 24;  // a block for 32 channels and a split fits a grid

bool rotary_fits(std::int64_t rotary_dim, std::int64_t head_dim) {
  return rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim;
}

unsigned blocks_of_threads(std::int64_t items) {
  return blocks_for((items + kWindowThreads - 1) / kWindowThreads);
}

template <class T, int kPack>
cudaError_t launch_append(const AppendParams& p, cudaStream_t stream) {
  const std::int64_t items = p.n * p.n_kv_heads * (p.head_dim - p.rotary_dim / 2) / kPack;
  return launch(AppendWindowKernel<T, kPack>, blocks_of_threads(items), kWindowThreads, 0, stream,
                p);
}

/// Whether every access of a pack of `pack` elements is aligned.
bool takes_packs(const AppendParams& p, std::int64_t pack) {
  for (const std::int64_t stride :
       {p.head_dim, p.rotary_dim / 2, p.k_row_stride, p.v_row_stride, p.ring_head_stride})
    if (stride % pack != 0) return false;
  return all_aligned(16, p.k, p.v, p.cos, p.sin, p.ring_key, p.ring_rotated_key, p.ring_value,
                     p.sink_key, p.sink_value);
}

FieldError check(const AppendParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1);
  EPISODIC_FIELD(p, rotary_dim, rotary_fits(p.rotary_dim, p.head_dim));
  EPISODIC_FIELD(p, n, product_within(kMaxStepElements, p.n, p.n_kv_heads, p.head_dim));
  EPISODIC_FIELD(p, head_dim, product_within(kMaxElements, p.n_kv_heads, p.head_dim));
  EPISODIC_FIELD(p, k_row_stride,
                 p.k_row_stride >= p.n_kv_heads * p.head_dim &&
                     product_within(kMaxElements, p.n, p.k_row_stride));
  EPISODIC_FIELD(p, v_row_stride,
                 p.v_row_stride >= p.n_kv_heads * p.head_dim &&
                     product_within(kMaxElements, p.n, p.v_row_stride));
  EPISODIC_FIELD(p, ring_capacity, p.ring_capacity >= 1 && p.ring_capacity >= p.n);
  EPISODIC_FIELD(p, ring_pages, valid(p.ring_pages));
  EPISODIC_FIELD(p, ring_head_stride,
                 product_within(p.ring_head_stride, slots_in_a_piece(p.ring_pages, p.ring_capacity),
                                p.head_dim) &&
                     product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads));
  EPISODIC_FIELD(p, n_init, product_within(kMaxElements, p.n_init, p.n_kv_heads, p.head_dim));
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, first_position);
  EPISODIC_FIELD_GIVEN(p, k);
  EPISODIC_FIELD_GIVEN(p, v);
  EPISODIC_FIELD_GIVEN(p, ring_rotated_key);
  EPISODIC_FIELD_GIVEN(p, ring_value);
  EPISODIC_FIELD(p, cos, p.rotary_dim == 0 || p.cos);
  EPISODIC_FIELD(p, sin, p.rotary_dim == 0 || p.sin);
  EPISODIC_FIELD(p, sink_key, p.n_init == 0 || p.sink_key);
  EPISODIC_FIELD(p, sink_value, p.n_init == 0 || p.sink_value);
  const auto element = static_cast<std::size_t>(size_of(p.dtype));
  EPISODIC_FIELD_ALIGNED(p, k, element);
  EPISODIC_FIELD_ALIGNED(p, v, element);
  EPISODIC_FIELD_ALIGNED(p, ring_key, element);
  EPISODIC_FIELD_ALIGNED(p, ring_rotated_key, element);
  EPISODIC_FIELD_ALIGNED(p, ring_value, element);
  EPISODIC_FIELD_ALIGNED(p, sink_key, element);
  EPISODIC_FIELD_ALIGNED(p, sink_value, element);
  EPISODIC_FIELD_ALIGNED(p, cos, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, sin, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, first_position, 8);
  return {};
}

FieldError check(const RotaryAnglesParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, n_frequencies, product_within(kMaxElements, p.n_frequencies, p.n));
  if (p.n == 0 || p.n_frequencies == 0) return {};
  EPISODIC_FIELD_GIVEN(p, first_position);
  EPISODIC_FIELD_GIVEN(p, inverse_frequency);
  EPISODIC_FIELD_GIVEN(p, cos);
  EPISODIC_FIELD_GIVEN(p, sin);
  EPISODIC_FIELD_ALIGNED(p, cos, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, sin, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, inverse_frequency, sizeof(double));
  EPISODIC_FIELD_ALIGNED(p, first_position, 8);
  return {};
}

FieldError check_sizes(const MeanQueryParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n, p.n >= 1);
  EPISODIC_FIELD(p, n_heads, p.n_heads >= 1);
  EPISODIC_FIELD(p, head_dim,
                 p.head_dim >= 1 && product_within(kMaxQueryWidth, p.n_heads, p.head_dim));
  EPISODIC_FIELD(p, rotary_dim, rotary_fits(p.rotary_dim, p.head_dim));
  EPISODIC_FIELD(p, q_row_stride,
                 p.q_row_stride >= p.n_heads * p.head_dim &&
                     product_within(kMaxElements, p.n, p.q_row_stride));
  return {};
}

FieldError check(const MeanQueryParams& p) {
  if (const FieldError wrong = check_sizes(p)) return wrong;
  const std::size_t needed = mean_query_workspace_bytes(p);
  EPISODIC_FIELD_GIVEN(p, q);
  EPISODIC_FIELD_GIVEN(p, mean);
  EPISODIC_FIELD(p, fixed_cos, p.rotary_dim == 0 || p.fixed_cos);
  EPISODIC_FIELD(p, fixed_sin, p.rotary_dim == 0 || p.fixed_sin);
  EPISODIC_FIELD(p, workspace_bytes, p.workspace_bytes >= needed);
  EPISODIC_FIELD(p, workspace, needed == 0 || p.workspace);
  EPISODIC_FIELD_ALIGNED(p, workspace, 16);
  EPISODIC_FIELD_ALIGNED(p, q, static_cast<std::size_t>(size_of(p.dtype)));
  EPISODIC_FIELD_ALIGNED(p, mean, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, fixed_cos, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, fixed_sin, sizeof(float));
  return {};
}

template <class T, int kPack>
cudaError_t launch_sum(const MeanQueryParams& p, const MeanSplits& splits, cudaStream_t stream) {
  const std::int64_t width = p.n_heads * p.head_dim;
  constexpr std::int64_t kTile = kWarpSize * kPack;
  const auto blocks = static_cast<unsigned>((width + kTile - 1) / kTile * splits.count);
  return launch(SumQueriesKernel<T, kPack>, blocks, kWindowThreads, 0, stream,
                static_cast<const T*>(p.q), p.q_row_stride, p.n, width, splits,
                static_cast<double*>(p.workspace));
}

template <class T>
cudaError_t launch_mean(const MeanQueryParams& p, cudaStream_t stream) {
  const std::int64_t width = p.n_heads * p.head_dim;
  const unsigned blocks = blocks_of_threads(p.n_heads * (p.head_dim - p.rotary_dim / 2));
  if (p.n <= kMeanSplitRows)
    return launch(TurnMeanKernel<T>, blocks, kWindowThreads, 0, stream, static_cast<const T*>(p.q),
                  p.q_row_stride, p.n, p);
  const MeanSplits splits = mean_splits(p.n);
  const bool packs =
      aligned(p.q, 16) && p.q_row_stride % kPackOf<T> == 0 && width % kPackOf<T> == 0;
  const cudaError_t error =
      packs ? launch_sum<T, kPackOf<T>>(p, splits, stream) : launch_sum<T, 1>(p, splits, stream);
  if (error != cudaSuccess) return error;
  return launch(TurnMeanKernel<double>, blocks, kWindowThreads, 0, stream,
                static_cast<const double*>(p.workspace), width, splits.count, p);
}

}  // namespace

const char* invalid_field(const AppendParams& params) { return check(params).field; }
const char* invalid_field(const RotaryAnglesParams& params) { return check(params).field; }
const char* invalid_field(const MeanQueryParams& params) { return check(params).field; }

cudaError_t append_window(const AppendParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return takes_packs(p, kPackOf<T>) ? launch_append<T, kPackOf<T>>(p, stream)
                                      : launch_append<T, 1>(p, stream);
  });
}

cudaError_t rotary_angles(const RotaryAnglesParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0 || p.n_frequencies == 0) return cudaSuccess;
  return launch(RotaryAnglesKernel, blocks_of_threads(p.n * p.n_frequencies), kWindowThreads, 0,
                stream, p);
}

std::size_t mean_query_workspace_bytes(const MeanQueryParams& p) {
  if (check_sizes(p) || p.n <= kMeanSplitRows) return 0;
  // not mean_splits(n).count, which is less for some larger n
  const std::int64_t splits = (p.n + kMeanSplitRows - 1) / kMeanSplitRows;
  return sizeof(double) * static_cast<std::size_t>(p.n_heads * p.head_dim) *
         static_cast<std::size_t>(splits < kMeanMaxSplits ? splits : kMeanMaxSplits);
}

cudaError_t mean_fixed_query(const MeanQueryParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  return for_element(p.dtype, [&](auto element) {
    return launch_mean<typename decltype(element)::type>(p, stream);
  });
}

}  // namespace episodic::kernels
