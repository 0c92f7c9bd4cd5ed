// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "attention.cuh"
#include "attention_launch.hpp"

namespace episodic::kernels {
namespace {

/// Queries, rows and tokens of a window are counted in 32 bits on the device.
constexpr std::int64_t kCountLimit = std::int64_t{1} << 30;
/// Of a grid's second and third dimension.
constexpr std::int64_t kGridLimit = 65535;
/// Blocks that fill the device: two for each of the 132 multiprocessors of an H100 or H200, and as
/// many of the small ones as their shared memory has room for. Constants, so that how keys are
/// split, and with it the last bit of a result, is the same on every device.
constexpr std::int64_t kBlocks = 264;
constexpr std::int64_t kSmallBlocks = 640;
/// Tiles that a split has at least: below that, its queries and partial outputs are more bytes than
/// its keys.
constexpr std::int64_t kLeastTiles = 4;
constexpr std::int64_t kLeastSmallTiles = 2;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool sizes_fit(const AttentionParams& p) {
  const auto count = [](std::int64_t x, std::int64_t least, std::int64_t most) {
    return x >= least && x <= most;
  };
  if (!count(p.n_queries, 1, kCountLimit) || !count(p.n_kv_heads, 1, kGridLimit) ||
      !count(p.n_heads, p.n_kv_heads, kGridLimit) || p.n_heads % p.n_kv_heads != 0)
    return false;
  if (!count(p.head_dim, 8, 256) || p.head_dim % 8 != 0) return false;
  if (!count(p.n_local, 1, kCountLimit) || p.n_local + p.n_queries > kCountLimit) return false;
  if (p.n_queries * (p.n_heads / p.n_kv_heads) > kCountLimit) return false;
  return count(p.max_rows, 0, kCountLimit);
}

bool is_aligned(const void* pointer, std::uintptr_t bytes) {
  return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0;
}

/// The caller's pointers and strides; sizes are known to fit.
cudaError_t check_arrays(const AttentionParams& p, const AttentionPlan& plan) {
  const bool rotary = p.rotary_dim > 0;
  if (p.rotary_dim < 0 || p.rotary_dim > p.head_dim || p.rotary_dim % 16 != 0 ||
      !std::isfinite(p.scale) || !std::isfinite(p.soft_cap) || p.soft_cap < 0.0f)
    return cudaErrorInvalidValue;
  if (p.q_row_stride < p.n_heads * p.head_dim || p.q_row_stride % 8 != 0)
    return cudaErrorInvalidValue;
  if (p.ring_capacity < plan.window || p.ring_capacity > kCountLimit ||
      p.ring_head_stride % 8 != 0 ||
      (p.n_kv_heads > 1 && p.ring_head_stride < p.ring_capacity * p.head_dim))
    return cudaErrorInvalidValue;
  if (!p.q || !p.first_position || !p.local_key || !p.local_value || !p.out || !p.workspace ||
      p.workspace_bytes < plan.bytes)
    return cudaErrorInvalidValue;
  if (rotary && (!p.query_cos || !p.query_sin || !p.fixed_cos || !p.fixed_sin))
    return cudaErrorInvalidValue;
  if (p.max_rows > 0 && (!p.rows || !p.n_rows)) return cudaErrorInvalidValue;
  for (const void* vectors : {p.q, p.local_key, p.local_value, static_cast<const void*>(p.out),
                              static_cast<const void*>(p.rows)})
    if (!is_aligned(vectors, 16)) return cudaErrorMisalignedAddress;
  if (rotary)
    for (const float* angles : {p.query_cos, p.query_sin, p.fixed_cos, p.fixed_sin})
      if (!is_aligned(angles, 16)) return cudaErrorMisalignedAddress;
  if (!is_aligned(p.workspace, 256) || !is_aligned(p.first_position, 8) ||
      !is_aligned(p.n_rows, 4) || !is_aligned(p.maybe_lse, 4) ||
      !is_aligned(p.maybe_column_sums, 4))
    return cudaErrorMisalignedAddress;
  return cudaSuccess;
}

}  // namespace

bool plan_attention(const AttentionParams& p, AttentionPlan& plan) {
  plan = {};
  const bool wide = p.dtype == DType::float32;
  if (!wide && p.dtype != DType::float16 && p.dtype != DType::bfloat16) return false;
  if (!sizes_fit(p)) return false;
  for (const int dim : {256, 128, 96, 64})
    if (p.head_dim <= dim && !(wide && dim == 96)) plan.dim = dim;
  plan.rows = p.n_queries * (p.n_heads / p.n_kv_heads);
  plan.window = p.n_local + p.n_queries - 1;
  plan.few_rows = !wide && plan.rows <= mma_tile(plan.dim, true).rows();
  const MmaTile tile = mma_tile(plan.dim, plan.few_rows);
  plan.rows_per_block = wide ? kFloatRows : tile.rows();
  const int keys_per_tile = wide ? kFloatKeys : tile.keys;
  plan.row_tiles = divide_up(plan.rows, plan.rows_per_block);

  const std::int64_t tiles =
      divide_up(p.max_rows, keys_per_tile) + divide_up(plan.window, keys_per_tile);
  const std::int64_t blocks = plan.few_rows ? kSmallBlocks : kBlocks;
  const std::int64_t least = plan.few_rows ? kLeastSmallTiles : kLeastTiles;
  const std::int64_t wanted = std::max<std::int64_t>(blocks / (plan.row_tiles * p.n_kv_heads), 1);
  // the same number of tiles for each, so that no split is without
  plan.splits = divide_up(tiles, std::max(divide_up(tiles, wanted), least));

  const auto place = [&](std::size_t& at, std::int64_t elements, std::int64_t bytes_each) {
    at = plan.bytes;
    plan.bytes += static_cast<std::size_t>(divide_up(elements * bytes_each, 256) * 256);
  };
  const std::int64_t query_heads = p.n_queries * p.n_heads;
  place(plan.stats, query_heads, sizeof(float2));
  if (!wide && !plan.few_rows) place(plan.queries, query_heads * p.head_dim, 2);
  if (plan.few_rows) place(plan.scores, plan.window * query_heads, sizeof(float));
  if (plan.splits > 1) {
    place(plan.partial_stats, plan.splits * query_heads, sizeof(float2));
    place(plan.partial_out, plan.splits * query_heads * p.head_dim, sizeof(float));
  }
  return true;
}

std::size_t attention_workspace_bytes(const AttentionParams& params) {
  AttentionPlan plan;
  return plan_attention(params, plan) ? plan.bytes : 0;
}

std::size_t largest_attention_workspace_bytes(const AttentionParams& params) {
  std::size_t most = 0;
  AttentionPlan plan;
  for (const std::int64_t max_rows : {params.max_rows, std::int64_t{0}}) {
    AttentionParams p = params;
    p.max_rows = max_rows;
    if (!plan_attention(p, plan)) return 0;
    most = std::max(most, plan.bytes);
    // Fewer queries may be split among more blocks, and then need more. Once row tiles alone fill
    // the device nothing is split, and bytes grow with the queries up to those counted above.
    for (p.n_queries = 1; p.n_queries < params.n_queries; ++p.n_queries) {
      plan_attention(p, plan);
      most = std::max(most, plan.bytes);
      if (!plan.few_rows && plan.row_tiles * p.n_kv_heads > kBlocks / 2) break;
    }
  }
  return most;
}

cudaError_t segmented_attention(const AttentionParams& params, cudaStream_t stream) {
  AttentionPlan plan;
  if (!plan_attention(params, plan)) return cudaErrorInvalidValue;
  const cudaError_t error = check_arrays(params, plan);
  if (error != cudaSuccess) return error;

  AttentionArgs args;
  args.p = params;
  const double scale = params.scale == 0.0f ? 1.0 / std::sqrt(static_cast<double>(params.head_dim))
                                            : static_cast<double>(params.scale);
  constexpr double kLog2e = 1.4426950408889634;
  args.scale = static_cast<float>(std::fabs(scale) * kLog2e);
  args.sign = scale < 0.0 ? -1.0f : 1.0f;
  if (params.soft_cap > 0.0f) {
    const double cap = static_cast<double>(params.soft_cap);
    args.cap_in = static_cast<float>(std::fabs(scale) / cap);
    args.cap_out = static_cast<float>(cap / std::fabs(scale));
    args.cap_exponent = static_cast<float>(2 * kLog2e * std::fabs(scale) / cap);
    args.cap_twice = -2.0f * args.cap_out;
  }
  args.group = static_cast<int>(params.n_heads / params.n_kv_heads);
  args.rows = static_cast<int>(plan.rows);
  args.splits = static_cast<int>(plan.splits);
  auto* const workspace = static_cast<unsigned char*>(params.workspace);
  if (params.maybe_column_sums) {
    args.maybe_stats = reinterpret_cast<float2*>(workspace + plan.stats);
    if (plan.few_rows)
      args.maybe_scores = reinterpret_cast<float*>(workspace + plan.scores);
    else if (params.dtype != DType::float32)
      args.maybe_queries = workspace + plan.queries;
  }
  if (plan.splits > 1) {
    args.partial_stats = reinterpret_cast<float2*>(workspace + plan.partial_stats);
    args.partial_out = reinterpret_cast<float*>(workspace + plan.partial_out);
  }
  switch (params.dtype) {
    case DType::float32:
      return launch_float_attention(plan, args, stream);
    case DType::float16:
      return launch_half_attention(plan, args, stream);
    case DType::bfloat16:
      return launch_bfloat16_attention(plan, args, stream);
    case DType::int8:
      break;  // not planned
  }
  return cudaErrorInvalidValue;
}

}  // namespace episodic::kernels
