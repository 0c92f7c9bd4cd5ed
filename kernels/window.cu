// SPDX-License-Identifier: Apache-2.0
#include "window.hpp"

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

bool fits(const MeanQueryParams& p) {
  return is_float(p.dtype) && p.n >= 1 && p.n_heads >= 1 && p.head_dim >= 1 &&
         rotary_fits(p.rotary_dim, p.head_dim) &&
         product_within(kMaxQueryWidth, p.n_heads, p.head_dim) &&
         p.q_row_stride >= p.n_heads * p.head_dim &&
         product_within(kMaxElements, p.n, p.q_row_stride);
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

cudaError_t append_window(const AppendParams& p, cudaStream_t stream) {
  if (!is_float(p.dtype) || p.n < 0 || p.n_kv_heads < 1 || p.head_dim < 1 || p.n_init < 0 ||
      !rotary_fits(p.rotary_dim, p.head_dim) ||
      !product_within(kMaxStepElements, p.n, p.n_kv_heads, p.head_dim) ||
      p.k_row_stride < p.n_kv_heads * p.head_dim || p.v_row_stride < p.n_kv_heads * p.head_dim ||
      p.ring_capacity < 1 || p.ring_capacity < p.n ||
      !product_within(p.ring_head_stride, p.ring_capacity, p.head_dim) ||
      !product_within(kMaxElements, p.ring_head_stride, p.n_kv_heads) ||
      !product_within(kMaxElements, p.n, p.k_row_stride) ||
      !product_within(kMaxElements, p.n, p.v_row_stride) ||
      !product_within(kMaxElements, p.n_init, p.n_kv_heads, p.head_dim))
    return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.first_position || !p.k || !p.v || !p.ring_rotated_key || !p.ring_value ||
      (p.rotary_dim > 0 && (!p.cos || !p.sin)) || (p.n_init > 0 && (!p.sink_key || !p.sink_value)))
    return cudaErrorInvalidValue;
  if (!all_aligned(static_cast<std::size_t>(size_of(p.dtype)), p.k, p.v, p.ring_key,
                   p.ring_rotated_key, p.ring_value, p.sink_key, p.sink_value) ||
      !all_aligned(sizeof(float), p.cos, p.sin) || !aligned(p.first_position, 8))
    return cudaErrorMisalignedAddress;
  return for_element(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return takes_packs(p, kPackOf<T>) ? launch_append<T, kPackOf<T>>(p, stream)
                                      : launch_append<T, 1>(p, stream);
  });
}

cudaError_t rotary_angles(const RotaryAnglesParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.n_frequencies < 0 || !product_within(kMaxElements, p.n, p.n_frequencies))
    return cudaErrorInvalidValue;
  if (p.n == 0 || p.n_frequencies == 0) return cudaSuccess;
  if (!p.first_position || !p.inverse_frequency || !p.cos || !p.sin) return cudaErrorInvalidValue;
  if (!all_aligned(sizeof(float), p.cos, p.sin) || !aligned(p.inverse_frequency, sizeof(double)) ||
      !aligned(p.first_position, 8))
    return cudaErrorMisalignedAddress;
  return launch(RotaryAnglesKernel, blocks_of_threads(p.n * p.n_frequencies), kWindowThreads, 0,
                stream, p);
}

std::size_t mean_query_workspace_bytes(const MeanQueryParams& p) {
  if (!fits(p) || p.n <= kMeanSplitRows) return 0;
  // not mean_splits(n).count, which is less for some larger n
  const std::int64_t splits = (p.n + kMeanSplitRows - 1) / kMeanSplitRows;
  return sizeof(double) * static_cast<std::size_t>(p.n_heads * p.head_dim) *
         static_cast<std::size_t>(splits < kMeanMaxSplits ? splits : kMeanMaxSplits);
}

cudaError_t mean_fixed_query(const MeanQueryParams& p, cudaStream_t stream) {
  const std::size_t needed = mean_query_workspace_bytes(p);
  if (!fits(p) || !p.q || !p.mean || (p.rotary_dim > 0 && (!p.fixed_cos || !p.fixed_sin)) ||
      p.workspace_bytes < needed || (needed > 0 && !p.workspace))
    return cudaErrorInvalidValue;
  if (!aligned(p.workspace, 16) || !aligned(p.q, static_cast<std::size_t>(size_of(p.dtype))) ||
      !all_aligned(sizeof(float), p.mean, p.fixed_cos, p.fixed_sin))
    return cudaErrorMisalignedAddress;
  return for_element(p.dtype, [&](auto element) {
    return launch_mean<typename decltype(element)::type>(p, stream);
  });
}

}  // namespace episodic::kernels
