// SPDX-License-Identifier: Apache-2.0
#include "window.hpp"

#include <numeric>

#include "fields.hpp"
#include "value_width.cuh"
#include "window.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMaxStepElements = (std::int64_t{1} << 31) - 1;

constexpr std::int64_t kMaxQueryWidth = 1 << 24;  // a block for 32 channels and a split fits a grid

bool rotary_fits(std::int64_t rotary_dim, std::int64_t head_dim) {
  return rotary_dim >= 0 && rotary_dim % 2 == 0 && rotary_dim <= head_dim;
}

/// \param items(args) that a sequence has, a thread each
template <class Args, std::int64_t kMost, class Items>
dim3 grid_of(const Batch<Args, kMost>& batch, const Items& items) {
  return blocks_for_layers((largest(batch, items) + kWindowThreads - 1) / kWindowThreads, batch.n);
}

template <class T, int kPack, std::int64_t kMost>
cudaError_t launch_append(const Batch<AppendParams, kMost>& batch, cudaStream_t stream) {
  const dim3 grid = grid_of(batch, [](const AppendParams& p) {
    return p.n * p.n_kv_heads * (p.head_dim - p.rotary_dim / 2 + p.value_dim) / kPack;
  });
  return launch(AppendWindowKernel<T, kPack, kMost>, grid, kWindowThreads, 0, stream, batch);
}

/// Whether every access of a pack of `pack` elements is aligned.
bool takes_packs(const AppendParams& p, std::int64_t pack) {
  for (const std::int64_t stride : {p.head_dim, p.value_dim, p.rotary_dim / 2, p.k_row_stride,
                                    p.v_row_stride, p.ring_head_stride, p.value_head_stride})
    if (stride % pack != 0) return false;
  return all_aligned(16, p.k, p.v, p.cos, p.sin, p.ring_key, p.ring_rotated_key, p.ring_value,
                     p.sink_key, p.sink_value);
}

FieldError check(const AppendParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1);
  EPISODIC_FIELD(p, rotary_dim, rotary_fits(p.rotary_dim, p.head_dim));
  EPISODIC_FIELD(p, head_dim, product_within(kMaxElements, p.n_kv_heads, p.head_dim));
  EPISODIC_FIELD(p, value_dim,
                 p.value_dim >= 0 && product_within(kMaxElements, p.n_kv_heads, value_dim(p)));
  EPISODIC_FIELD(p, n,
                 product_within(kMaxStepElements, p.n, p.n_kv_heads, p.head_dim + value_dim(p)));
  EPISODIC_FIELD(p, k_row_stride,
                 p.k_row_stride >= p.n_kv_heads * p.head_dim &&
                     product_within(kMaxElements, p.n, p.k_row_stride));
  EPISODIC_FIELD(p, v_row_stride,
                 p.v_row_stride >= p.n_kv_heads * value_dim(p) &&
                     product_within(kMaxElements, p.n, p.v_row_stride));
  EPISODIC_FIELD(p, ring_capacity, p.ring_capacity >= 1 && p.ring_capacity >= p.n);
  EPISODIC_FIELD(p, ring_pages, valid(p.ring_pages));
  EPISODIC_FIELD(p, ring_head_stride,
                 product_within(p.ring_head_stride, slots_in_a_piece(p.ring_pages, p.ring_capacity),
                                p.head_dim) &&
                     product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads));
  if (const FieldError wrong = check_value_ring(p)) return wrong;
  EPISODIC_FIELD(p, n_init,
                 product_within(kMaxElements, p.n_init, p.n_kv_heads, p.head_dim + value_dim(p)));
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
  EPISODIC_FIELD_ALIGNED(p, maybe_arrived, 4);
  return {};
}

FieldError check(const AppendParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const AppendParams& p) { return check(p); },
      [](const AppendParams& p, const AppendParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, n_kv_heads);
        EPISODIC_FIELD_SHARED(p, first, head_dim);
        EPISODIC_FIELD(p, value_dim, value_dim(p) == value_dim(first));
        return {};
      });
}

FieldError check(const RotaryAnglesParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const RotaryAnglesParams& p) { return check(p); });
}

FieldError check(const MeanQueryParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const MeanQueryParams& p) { return check(p); },
      [](const MeanQueryParams& p, const MeanQueryParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, n_heads);
        EPISODIC_FIELD_SHARED(p, first, head_dim);
        return {};
      });
}

template <class T, int kPack, std::int64_t kMost>
cudaError_t launch_sums(Batch<MeanQueryArgs, kMost> batch, cudaStream_t stream) {
  const MeanQueryParams& p = batch.of[0].p;
  const std::int64_t width = p.n_heads * p.head_dim;
  constexpr std::int64_t kTile = kWarpSize * kPack;
  for (int i = 0; i < batch.n; ++i)
    batch.of[i].group_tiles = batch.of[i].p.maybe_arrived ? std::lcm(kTile, p.head_dim) / kTile : 0;
  const std::int64_t splits = largest(batch, [](const MeanQueryArgs& a) { return a.splits.count; });
  const dim3 grid(static_cast<unsigned>((width + kTile - 1) / kTile * splits),
                  static_cast<unsigned>(batch.n));
  return launch(SumQueriesKernel<T, kPack, kMost>, grid, kWindowThreads, 0, stream, batch);
}

template <class Row, std::int64_t kMost>
cudaError_t launch_turn(const Batch<MeanQueryArgs, kMost>& batch, cudaStream_t stream) {
  const dim3 grid = grid_of(batch, [](const MeanQueryArgs& a) {
    return a.p.n_heads * (a.p.head_dim - a.p.rotary_dim / 2);
  });
  return launch(TurnMeanKernel<Row, kMost>, grid, kWindowThreads, 0, stream, batch);
}

template <class T>
cudaError_t launch_means(const MeanQueryParams* params, std::int64_t n_sequences,
                         cudaStream_t stream) {
  // Few queries are their own rows, more are summed first.
  const auto of = [&](bool few, bool arrive) {
    return [=](std::int64_t i, MeanQueryArgs& args) {
      const MeanQueryParams& p = params[i];
      args.p = p;
      args.splits = mean_splits(p.n);
      args.rows = few ? p.q : p.workspace;
      args.row_stride = few ? p.q_row_stride : p.n_heads * p.head_dim;
      args.n_rows = few ? p.n : args.splits.count;
      return few == (p.n <= kMeanSplitRows) && (few || arrive == (p.maybe_arrived != nullptr));
    };
  };
  const cudaError_t error = launch_in_batches<MeanQueryArgs>(
      n_sequences, of(true, false),
      [&](const auto& batch) { return launch_turn<T>(batch, stream); });
  if (error != cudaSuccess) return error;
  for (const bool arrive : {true, false}) {
    const cudaError_t failed =
        launch_in_batches<MeanQueryArgs>(n_sequences, of(false, arrive), [&](const auto& batch) {
          const bool single = any_of(batch, [](const MeanQueryArgs& a) {
            return !aligned(a.p.q, 16) || a.p.q_row_stride % kPackOf<T> != 0 ||
                   a.p.n_heads * a.p.head_dim % kPackOf<T> != 0;
          });
          const cudaError_t of_sums =
              single ? launch_sums<T, 1>(batch, stream) : launch_sums<T, kPackOf<T>>(batch, stream);
          return of_sums != cudaSuccess || arrive ? of_sums : launch_turn<double>(batch, stream);
        });
    if (failed != cudaSuccess) return failed;
  }
  return cudaSuccess;
}

}  // namespace

const char* invalid_field(const AppendParams& params) { return check(params).field; }
const char* invalid_field(const RotaryAnglesParams& params) { return check(params).field; }
const char* invalid_field(const MeanQueryParams& params) { return check(params).field; }
const char* invalid_field(const AppendParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const RotaryAnglesParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const MeanQueryParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t append_window_batch(const AppendParams* params, std::int64_t n_sequences,
                                cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return launch_in_batches<AppendParams>(
        n_sequences,
        [&](std::int64_t i, AppendParams& args) {
          args = with_value_width(params[i]);
          return args.n > 0;
        },
        [&](const auto& batch) {
          const bool single =
              any_of(batch, [](const AppendParams& p) { return !takes_packs(p, kPackOf<T>); });
          return single ? launch_append<T, 1>(batch, stream)
                        : launch_append<T, kPackOf<T>>(batch, stream);
        });
  });
}

cudaError_t append_window(const AppendParams& p, cudaStream_t stream) {
  return append_window_batch(&p, 1, stream);
}

cudaError_t rotary_angles_batch(const RotaryAnglesParams* params, std::int64_t n_sequences,
                                cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<RotaryAnglesParams>(
      n_sequences,
      [&](std::int64_t i, RotaryAnglesParams& args) {
        args = params[i];
        return args.n > 0 && args.n_frequencies > 0;
      },
      [&](const auto& batch) {
        const dim3 grid =
            grid_of(batch, [](const RotaryAnglesParams& p) { return p.n * p.n_frequencies; });
        return launch(RotaryAnglesKernel<kRoomOf<decltype(batch)>>, grid, kWindowThreads, 0, stream,
                      batch);
      });
}

cudaError_t rotary_angles(const RotaryAnglesParams& p, cudaStream_t stream) {
  return rotary_angles_batch(&p, 1, stream);
}

std::size_t mean_query_workspace_bytes(const MeanQueryParams& p) {
  if (check_sizes(p) || p.n <= kMeanSplitRows) return 0;
  // not mean_splits(n).count, which is less for some larger n
  const std::int64_t splits = (p.n + kMeanSplitRows - 1) / kMeanSplitRows;
  return sizeof(double) * static_cast<std::size_t>(p.n_heads * p.head_dim) *
         static_cast<std::size_t>(splits < kMeanMaxSplits ? splits : kMeanMaxSplits);
}

cudaError_t mean_fixed_query_batch(const MeanQueryParams* params, std::int64_t n_sequences,
                                   cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    return launch_means<typename decltype(element)::type>(params, n_sequences, stream);
  });
}

cudaError_t mean_fixed_query(const MeanQueryParams& p, cudaStream_t stream) {
  return mean_fixed_query_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
