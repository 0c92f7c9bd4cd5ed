// SPDX-License-Identifier: Apache-2.0
#include "attention.hpp"

#include <algorithm>
#include <cmath>

#include "attention_args.cuh"
#include "attention_launch.hpp"
#include "batch.hpp"
#include "fields.hpp"

namespace episodic::kernels {
namespace {

/// Queries, rows and tokens of a window are counted in 32 bits on the device.
constexpr std::int64_t kCountLimit = std::int64_t{1} << 30;
/// Of a grid's second and third dimension.
constexpr std::int64_t kGridLimit = 65535;
/// Blocks that fill the device: two for each of the 132 multiprocessors of an H100 or H200, of few
/// rows as of many. A constant, so that how keys are split, and with it the last bit of a result,
/// is the same on every device that runs the same kernel.
constexpr std::int64_t kBlocks = 264;
/// A multiprocessor has one block of the wgmma kernel at a time.
constexpr std::int64_t kWgmmaBlocks = 132;
/// What a wave of its blocks takes beside its tiles, in tiles' time: the first copies and the
/// queries' rotation. Of a merge: its launch, and so many blocks whose outputs are one tile more.
constexpr std::int64_t kWaveTiles = 3, kMergeTiles = 2, kMergedBlocks = 64;
/// Tiles that a split has at least: below that, its queries and partial outputs are more bytes than
/// its keys.
constexpr std::int64_t kLeastTiles = 4;

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_count(std::int64_t x, std::int64_t least, std::int64_t most) {
  return x >= least && x <= most;
}

FieldError check_sizes(const AttentionParams& p) {
  EPISODIC_FIELD(
      p, dtype,
      p.dtype == DType::float32 || p.dtype == DType::float16 || p.dtype == DType::bfloat16);
  EPISODIC_FIELD(p, n_queries, is_count(p.n_queries, 1, kCountLimit));
  EPISODIC_FIELD(p, n_kv_heads, is_count(p.n_kv_heads, 1, kGridLimit));
  EPISODIC_FIELD(p, n_heads,
                 is_count(p.n_heads, p.n_kv_heads, kGridLimit) && p.n_heads % p.n_kv_heads == 0);
  EPISODIC_FIELD(p, head_dim, is_count(p.head_dim, 8, 256) && p.head_dim % 8 == 0);
  EPISODIC_FIELD(p, value_dim, is_count(p.value_dim, 0, 256) && p.value_dim % 8 == 0);
  EPISODIC_FIELD(p, n_local, is_count(p.n_local, 1, kCountLimit - p.n_queries));
  EPISODIC_FIELD(p, n_queries, p.n_queries * (p.n_heads / p.n_kv_heads) <= kCountLimit);
  EPISODIC_FIELD(p, max_rows, is_count(p.max_rows, 0, kCountLimit));
  EPISODIC_FIELD(p, n_lists, is_count(p.n_lists, 1, p.n_kv_heads) && p.n_kv_heads % p.n_lists == 0);
  EPISODIC_FIELD(p, max_code_rows, is_count(p.max_code_rows, 0, p.max_rows));
  EPISODIC_FIELD(p, code_dtype, is_code(p.code_dtype));
  return {};
}

/// The caller's pointers and strides; sizes are known to fit.
FieldError check_arrays(const AttentionParams& p, const AttentionPlan& plan) {
  const bool rotary = p.rotary_dim > 0;
  EPISODIC_FIELD(p, rotary_dim,
                 p.rotary_dim >= 0 && p.rotary_dim <= p.head_dim && p.rotary_dim % 16 == 0);
  EPISODIC_FIELD(p, scale, std::isfinite(p.scale));
  EPISODIC_FIELD(p, soft_cap, std::isfinite(p.soft_cap) && p.soft_cap >= 0.0f);
  EPISODIC_FIELD(p, q_row_stride,
                 p.q_row_stride >= p.n_heads * p.head_dim && p.q_row_stride % 8 == 0);
  EPISODIC_FIELD(p, ring_capacity,
                 p.ring_capacity >= plan.window && p.ring_capacity <= kCountLimit);
  EPISODIC_FIELD(p, ring_pages, valid(p.ring_pages));
  const std::int64_t piece = slots_in_a_piece(p.ring_pages, p.ring_capacity);
  EPISODIC_FIELD(p, ring_head_stride,
                 p.ring_head_stride % 8 == 0 &&
                     (p.n_kv_heads == 1 || p.ring_head_stride >= piece * p.head_dim));
  EPISODIC_FIELD(p, value_head_stride,
                 p.value_head_stride >= 0 && p.value_head_stride % 8 == 0 &&
                     (p.n_kv_heads == 1 || value_head_stride(p) >= piece * value_dim(p)));
  EPISODIC_FIELD(p, value_page_stride, p.value_page_stride % 8 == 0);
  EPISODIC_FIELD_GIVEN(p, q);
  EPISODIC_FIELD_GIVEN(p, first_position);
  EPISODIC_FIELD_GIVEN(p, local_key);
  EPISODIC_FIELD_GIVEN(p, local_value);
  EPISODIC_FIELD_GIVEN(p, out);
  EPISODIC_FIELD_GIVEN(p, workspace);
  EPISODIC_FIELD(p, workspace_bytes, p.workspace_bytes >= plan.bytes);
  EPISODIC_FIELD(p, query_cos, !rotary || p.query_cos);
  EPISODIC_FIELD(p, query_sin, !rotary || p.query_sin);
  EPISODIC_FIELD(p, fixed_cos, !rotary || p.fixed_cos);
  EPISODIC_FIELD(p, fixed_sin, !rotary || p.fixed_sin);
  EPISODIC_FIELD(p, rows, p.max_rows == 0 || p.rows);
  EPISODIC_FIELD(p, n_rows, p.max_rows == 0 || p.n_rows);
  EPISODIC_FIELD(p, row_scales, p.max_code_rows == 0 || p.row_scales);
  EPISODIC_FIELD_ALIGNED(p, q, 16);
  EPISODIC_FIELD_ALIGNED(p, local_key, 16);
  EPISODIC_FIELD_ALIGNED(p, local_value, 16);
  EPISODIC_FIELD_ALIGNED(p, out, 16);
  EPISODIC_FIELD_ALIGNED(p, rows, 16);
  EPISODIC_FIELD_ALIGNED(p, row_scales, 8);
  if (rotary) {
    EPISODIC_FIELD_ALIGNED(p, query_cos, 16);
    EPISODIC_FIELD_ALIGNED(p, query_sin, 16);
    EPISODIC_FIELD_ALIGNED(p, fixed_cos, 16);
    EPISODIC_FIELD_ALIGNED(p, fixed_sin, 16);
  }
  EPISODIC_FIELD_ALIGNED(p, workspace, kWorkspaceAlignment);
  EPISODIC_FIELD_ALIGNED(p, first_position, 8);
  EPISODIC_FIELD_ALIGNED(p, n_rows, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_sink_logits, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_lse, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_column_sums, 4);
  EPISODIC_FIELD(p, maybe_column_stats,
                 !p.maybe_column_stats || (p.maybe_column_sums && defers_column_sums(p)));
  EPISODIC_FIELD_ALIGNED(p, maybe_column_stats, 4);
  EPISODIC_FIELD_ALIGNED(p, maybe_arrived, 4);
  return {};
}

/// \param plan written
FieldError check(const AttentionParams& p, AttentionPlan& plan) {
  if (const FieldError wrong = check_sizes(p)) return wrong;
  plan_attention(p, false, plan);
  return check_arrays(p, plan);
}

/// AttentionPlan::dim.
int instance_dim(const AttentionParams& p) {
  int least = 0;
  for (const int dim : {256, 128, 96, 64})
    if (std::max(p.head_dim, value_dim(p)) <= dim && !(p.dtype == DType::float32 && dim == 96))
      least = dim;
  return least;
}

/// AttentionPlan::merge_group: all, or as many as there are groups.
std::int64_t merge_group(std::int64_t splits) {
  constexpr std::int64_t kInOneLevel = 16;
  static_assert(kBlocks <= kMostMerged * kMostMerged, "two levels are enough");
  if (splits <= kInOneLevel) return splits > 1 ? splits : 0;
  std::int64_t group = 1;
  while (group * group < splits) ++group;
  return group;
}

/// The splits with which the wgmma kernel's waves and the merge take least time, in tiles' time.
/// \param blocks of one split \param most splits, if there are more tiles
std::int64_t wgmma_splits(std::int64_t tiles, std::int64_t blocks, std::int64_t most) {
  std::int64_t best = 1, least_time = INT64_MAX;
  for (std::int64_t wanted = 1; wanted <= most; ++wanted) {
    const std::int64_t each = std::max(divide_up(tiles, wanted), kLeastTiles);
    const std::int64_t splits = divide_up(tiles, each);
    const std::int64_t waves = divide_up(splits * blocks, kWgmmaBlocks);
    const std::int64_t merge = splits > 1 ? kMergeTiles + splits * blocks / kMergedBlocks : 0;
    const std::int64_t time = waves * (each + kWaveTiles) + merge;
    if (time < least_time) best = splits, least_time = time;
  }
  return best;
}

/// Of sizes that were checked. \param wgmma whether many rows of 16 bits are for its kernel
void plan_for(const AttentionParams& p, bool wgmma, AttentionPlan& plan) {
  plan = {};
  const bool wide = p.dtype == DType::float32;
  plan.dim = instance_dim(p);
  plan.rows = p.n_queries * (p.n_heads / p.n_kv_heads);
  plan.window = p.n_local + p.n_queries - 1;
  plan.few_rows = !wide && plan.rows <= mma_tile(plan.dim, true).rows();
  const MmaTile tile = mma_tile(plan.dim, plan.few_rows);
  plan.rows_per_block = wide ? kFloatRows : tile.rows();
  const bool on_wgmma = wgmma && !wide && !plan.few_rows;
  const int keys_per_tile = wide ? kFloatKeys : on_wgmma ? wgmma_tile(plan.dim).keys : tile.keys;
  plan.row_tiles = divide_up(plan.rows, plan.rows_per_block);

  const std::int64_t tiles =
      divide_up(p.max_rows, keys_per_tile) + divide_up(plan.window, keys_per_tile);
  const std::int64_t least = plan.few_rows ? 1 : kLeastTiles;
  const std::int64_t wanted = std::max<std::int64_t>(kBlocks / (plan.row_tiles * p.n_kv_heads), 1);
  // the same number of tiles for each, so that no split is without
  plan.splits = on_wgmma ? wgmma_splits(tiles, plan.row_tiles * p.n_kv_heads, wanted)
                         : divide_up(tiles, std::max(divide_up(tiles, wanted), least));
  // such rows meet their sinks where pieces are merged (attention_mma.cuh)
  if (p.maybe_sink_logits && !wide && !plan.few_rows && !on_wgmma && plan.dim == 128)
    plan.splits = std::max<std::int64_t>(plan.splits, 2);

  const auto place = [&](std::size_t& at, std::int64_t elements, std::int64_t bytes_each) {
    at = plan.bytes;
    plan.bytes += static_cast<std::size_t>(divide_up(elements * bytes_each, kWorkspaceAlignment) *
                                           kWorkspaceAlignment);
  };
  const std::int64_t query_heads = p.n_queries * p.n_heads;
  place(plan.stats, query_heads, sizeof(float2));
  if (!wide && !plan.few_rows) place(plan.queries, query_heads * p.head_dim, 2);
  if (plan.few_rows) place(plan.scores, plan.window * query_heads, sizeof(float));
  if (plan.splits > 1) {
    place(plan.partial_stats, plan.splits * query_heads, sizeof(float2));
    place(plan.partial_out, plan.splits * query_heads * value_dim(p), sizeof(float));
  }
  if (plan.few_rows) plan.merge_group = merge_group(plan.splits);
  plan.widens = !wide && !plan.few_rows && p.max_code_rows > 0;
  if (plan.widens) {
    place(plan.wide_rows, p.n_lists * p.max_rows, sizeof(KvRow));
    place(plan.wide, p.max_code_rows * p.n_kv_heads * (p.head_dim + value_dim(p)), 2);
  }
}

}  // namespace

bool plan_attention(const AttentionParams& p, bool wgmma, AttentionPlan& plan) {
  plan = {};
  if (check_sizes(p)) return false;
  AttentionPlan other;
  plan_for(p, wgmma, plan);
  plan_for(p, !wgmma, other);
  plan.bytes = std::max(plan.bytes, other.bytes);
  return true;
}

std::size_t attention_workspace_bytes(const AttentionParams& params) {
  AttentionPlan plan;
  return plan_attention(params, false, plan) ? plan.bytes : 0;
}

bool defers_column_sums(const AttentionParams& params) {
  AttentionPlan plan;
  return params.n_queries == 1 && plan_attention(params, false, plan) && plan.few_rows;
}

std::size_t largest_attention_workspace_bytes(const AttentionParams& params) {
  std::size_t most = 0;
  AttentionPlan plan;
  for (const std::int64_t max_rows : {params.max_rows, std::int64_t{0}}) {
    AttentionParams p = params;
    p.max_rows = max_rows;
    p.max_code_rows = std::min(params.max_code_rows, max_rows);
    if (!plan_attention(p, false, plan)) return 0;
    most = std::max(most, plan.bytes);
    // Fewer queries may be split among more blocks, and then need more. Once row tiles alone fill
    // the device nothing is split, and bytes grow with the queries up to those counted above.
    for (p.n_queries = 1; p.n_queries < params.n_queries; ++p.n_queries) {
      plan_attention(p, false, plan);
      most = std::max(most, plan.bytes);
      if (!plan.few_rows && plan.row_tiles * p.n_kv_heads > kBlocks / 2) break;
    }
  }
  return most;
}

FieldError check_attention(const AttentionParams& params) {
  AttentionPlan plan;
  return check(params, plan);
}

const char* invalid_field(const AttentionParams& params) { return check_attention(params).field; }

namespace {

FieldError check(const AttentionParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, check_attention,
                     [&](const AttentionParams& p, const AttentionParams& first) -> FieldError {
                       EPISODIC_FIELD_SHARED(p, first, dtype);
                       EPISODIC_FIELD_SHARED(p, first, n_heads);
                       EPISODIC_FIELD_SHARED(p, first, n_kv_heads);
                       EPISODIC_FIELD_SHARED(p, first, head_dim);
                       EPISODIC_FIELD(p, value_dim, value_dim(p) == value_dim(first));
                       EPISODIC_FIELD(
                           p, n_kv_heads,
                           n_sequences == 1 || p.n_kv_heads <= kGridLimit / kMostInLaunch);
                       return {};
                     });
}

/// A call of checked parameters, as the kernels are given it.
struct AttentionCall {
  AttentionPlan plan;
  AttentionArgs args;
};

AttentionCall planned_call(const AttentionParams& params) {
  AttentionCall call;
  AttentionPlan& plan = call.plan;
  AttentionArgs& args = call.args;
  plan_attention(params, runs_on_wgmma(params), plan);
  args = attention_args(params);
  args.splits = static_cast<int>(plan.splits);
  auto* const workspace = static_cast<unsigned char*>(params.workspace);
  if (params.maybe_arrived) args.merge_group = static_cast<int>(plan.merge_group);
  if (params.maybe_column_stats) {
    args.maybe_scores = params.maybe_column_sums;
  } else if (params.maybe_column_sums) {
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
  if (plan.widens) {
    args.wide_rows = reinterpret_cast<KvRow*>(workspace + plan.wide_rows);
    args.wide = workspace + plan.wide;
  }
  return call;
}

/// Whether two calls of a batch can be one launch: few rows, or float32, whose splits are merged
/// alike.
bool share_launch(const AttentionCall& a, const AttentionCall& b) {
  const bool wide = a.args.p.dtype == DType::float32;
  return (wide || (a.plan.few_rows && b.plan.few_rows)) && merge_of(a.args) == merge_of(b.args);
}

cudaError_t launch_attention(const AttentionPlan& most, const Batch<AttentionArgs>& batch,
                             cudaStream_t stream) {
  static_assert(sizeof(batch) <= kMostParameterBytes);
  switch (batch.of[0].p.dtype) {
    case DType::float32:
      return launch_float_attention(most, batch, stream);
    case DType::float16:
      return launch_half_attention(most, batch, stream);
    case DType::bfloat16:
      return launch_bfloat16_attention(most, batch, stream);
    case DType::int8:
    case DType::fp8:
      break;  // not planned
  }
  return cudaErrorInvalidValue;
}

}  // namespace

const char* invalid_field(const AttentionParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t segmented_attention_batch(const AttentionParams* params, std::int64_t n_sequences,
                                      cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  for (std::int64_t first = 0; first < n_sequences; first += kMostInLaunch) {
    const std::int64_t count = std::min(kMostInLaunch, n_sequences - first);
    AttentionCall calls[kMostInLaunch];
    for (std::int64_t i = 0; i < count; ++i) calls[i] = planned_call(params[first + i]);
    bool launched[kMostInLaunch] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      if (launched[i]) continue;
      Batch<AttentionArgs> batch = batch_of_one(calls[i].args);
      AttentionPlan most = calls[i].plan;
      for (std::int64_t j = i + 1; j < count; ++j) {
        if (launched[j] || !share_launch(calls[i], calls[j])) continue;
        launched[j] = true;
        batch.of[batch.n++] = calls[j].args;
        const AttentionPlan& other = calls[j].plan;
        most.rows = std::max(most.rows, other.rows);
        most.row_tiles = std::max(most.row_tiles, other.row_tiles);
        most.splits = std::max(most.splits, other.splits);
        most.window = std::max(most.window, other.window);
      }
      if (const cudaError_t error = launch_attention(most, batch, stream)) return error;
    }
  }
  return cudaSuccess;
}

cudaError_t segmented_attention(const AttentionParams& params, cudaStream_t stream) {
  return segmented_attention_batch(&params, 1, stream);
}

}  // namespace episodic::kernels
