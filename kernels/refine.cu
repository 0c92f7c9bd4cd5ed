// SPDX-License-Identifier: Apache-2.0
#include "refine.hpp"

#include "elements.cuh"
#include "fields.hpp"
#include "refine.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostTokens = 1 << 16;  // 64 tiles of 64 squared: offsets within int64
constexpr std::int64_t kMostUnits = 1 << 20;
constexpr std::int64_t kMostHalfChannels = 1 << 12;  // of a 16-bit head
/// Tiles of many timelines that are held at once: some for each multiprocessor of a large device.
constexpr std::int64_t kTilesAtOnce = 2048;

FieldError check_sizes(const RefineParams& p) {
  EPISODIC_FIELD(p, objective,
                 p.objective == RefineObjective::modularity ||
                     p.objective == RefineObjective::conductance ||
                     p.objective == RefineObjective::intra_inter);
  EPISODIC_FIELD(p, n, p.n >= 1 && p.n <= kMostTokens);
  EPISODIC_FIELD(p, max_previous, p.max_previous >= 0 && p.max_previous <= kMostTokens - p.n);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, n_layers, p.n_layers >= 1 && p.n_layers <= kMostUnits);
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1 && p.n_kv_heads <= kMostUnits / p.n_layers);
  EPISODIC_FIELD(p, head_dim,
                 p.head_dim >= 1 && (p.dtype == DType::float32 ||
                                     (p.head_dim % 8 == 0 && p.head_dim <= kMostHalfChannels)));
  EPISODIC_FIELD(p, n_timelines, p.n_timelines == 1 || p.n_timelines == p.n_layers * p.n_kv_heads);
  return {};
}

struct Layout {
  RefineWorkspace workspace;
  std::size_t bytes = 0;
};

/// Parts of the workspace at `base`, which is null where only their size is asked.
Layout layout_of(const RefineParams& p, void* base) {
  Layout out;
  RefineWorkspace& w = out.workspace;
  std::int64_t bytes = 0;
  const auto take = [&](std::int64_t size) {
    void* at = base ? static_cast<unsigned char*>(base) + bytes : nullptr;
    bytes += (size + kWorkspaceAlignment - 1) / kWorkspaceAlignment * kWorkspaceAlignment;
    return at;
  };
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  w.flagged = static_cast<std::int32_t*>(take(p.n_timelines * p.n * 4));
  w.max_tokens = p.max_previous + p.n;
  if (p.n > 1) {  // else no boundary has a choice
    const std::int64_t side = (w.max_tokens + kGraphTile - 1) / kGraphTile;
    w.n_tiles = tile_index(0, side);
    // Enough blocks to fill a large device, if there are as many units: each split costs its tiles.
    constexpr std::int64_t kBlocks = 512;
    const std::int64_t wanted = (kBlocks + w.n_tiles - 1) / w.n_tiles;
    const std::int64_t n_units = p.n_timelines > 1 ? 1 : p.n_layers * p.n_kv_heads;
    w.splits = static_cast<std::int32_t>(wanted < n_units ? wanted : n_units);
    // Room for splits * n_tiles, rounded up to what grows with n: it is for shorter steps too.
    std::int64_t most = kBlocks + w.n_tiles;
    if (n_units * w.n_tiles < most) most = n_units * w.n_tiles;
    if (2 * w.n_tiles > most) most = 2 * w.n_tiles;  // the two kinds of sums
    if (p.n_timelines > 1) {
      const std::int64_t fit = w.n_tiles < kTilesAtOnce ? kTilesAtOnce / w.n_tiles : 1;
      w.at_once = static_cast<std::int32_t>(fit < p.n_timelines ? fit : p.n_timelines);
      // The same: at_once * n_tiles may fall where n grows, this may not.
      const std::int64_t all = p.n_timelines * w.n_tiles;
      const std::int64_t held = w.n_tiles < kTilesAtOnce ? kTilesAtOnce : w.n_tiles;
      most = 2 * (all < held ? all : held);
    }
    w.tiles = static_cast<double*>(take(most * kGraphTileSize * kDouble));
    w.left = static_cast<double*>(take(p.n_timelines * w.max_tokens * kDouble));
    w.right = static_cast<double*>(take(p.n_timelines * w.max_tokens * kDouble));
  }
  out.bytes = static_cast<std::size_t>(bytes);
  return out;
}

FieldError check(const RefineParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, n_init, p.n_init >= 0);
  EPISODIC_FIELD(p, min_block, p.min_block >= 1);
  EPISODIC_FIELD(p, n_timelines, p.n_timelines >= 1);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, state);
  EPISODIC_FIELD_GIVEN(p, raw);
  EPISODIC_FIELD_GIVEN(p, flags);
  EPISODIC_FIELD(p, flag_capacity, p.flag_capacity >= p.n);
  EPISODIC_FIELD(p, n_timelines, p.n_timelines <= INT32_MAX);
  if (p.objective == RefineObjective::none) return {};
  if (const FieldError wrong = check_sizes(p)) return wrong;
  EPISODIC_FIELD_GIVEN(p, keys);
  EPISODIC_FIELD(p, key_capacity,
                 p.key_capacity >= p.max_previous + p.n && p.key_capacity <= INT32_MAX);
  EPISODIC_FIELD(p, key_row_stride, p.key_row_stride >= p.head_dim);
  EPISODIC_FIELD(p, key_head_stride, p.key_head_stride >= 0);
  EPISODIC_FIELD(p, key_pages, valid(p.key_pages));
  if (p.dtype != DType::float32) {
    if (p.key_row_stride % 8 != 0) return {"key_row_stride", cudaErrorMisalignedAddress};
    if (p.key_head_stride % 8 != 0) return {"key_head_stride", cudaErrorMisalignedAddress};
  }
  EPISODIC_FIELD_GIVEN(p, workspace);
  EPISODIC_FIELD(p, workspace_bytes, p.workspace_bytes >= layout_of(p, nullptr).bytes);
  EPISODIC_FIELD_ALIGNED(p, workspace, kWorkspaceAlignment);
  return {};
}

/// \param timelines from w.first on
cudaError_t launch_graph(const RefineParams& p, const RefineWorkspace& w, unsigned timelines,
                         cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(w.n_tiles), static_cast<unsigned>(w.splits), timelines);
  switch (p.dtype) {
    case DType::float32:
      return launch(GraphFloatKernel, grid, kFloatGraphThreads, 0, stream, p, w);
    case DType::float16:
      return launch(GraphHalfKernel<__half>, grid, kHalfGraphThreads, kHalfGraphSharedBytes, stream,
                    p, w);
    case DType::bfloat16:
      return launch(GraphHalfKernel<__nv_bfloat16>, grid, kHalfGraphThreads, kHalfGraphSharedBytes,
                    stream, p, w);
    case DType::int8:
    case DType::fp8:
      break;  // keys at hand are floats
  }
  return cudaErrorInvalidValue;
}

FieldError check(const RefineParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const RefineParams& p) { return check(p); });
}

template <std::int64_t kMost>
cudaError_t launch_choice(const Batch<RefineArgs, kMost>& batch, cudaStream_t stream) {
  const std::int64_t timelines = largest(batch, [](const RefineArgs& a) { return a.timelines; });
  const dim3 grid(static_cast<unsigned>(timelines), static_cast<unsigned>(batch.n));
  return launch(RefineKernel<kRoomOf<decltype(batch)>>, grid, kChooseThreads, 0, stream, batch);
}

/// The graph's tiles and their sums, of a step of several tokens with an objective. Each launch
/// fills a device.
cudaError_t launch_sums(const RefineParams& params, const RefineWorkspace& w, unsigned timelines,
                        cudaStream_t stream) {
  const cudaError_t error = launch_graph(params, w, timelines, stream);
  if (error != cudaSuccess) return error;
  return launch(GraphSumsKernel, dim3(static_cast<unsigned>(w.n_tiles), 1, timelines),
                kTileSumThreads, 0, stream, params, w);
}

/// Some timelines at a time: the workspace has no room for all.
cudaError_t launch_in_turn(const RefineParams& params, cudaStream_t stream) {
  RefineWorkspace w = layout_of(params, params.workspace).workspace;
  for (; w.first < params.n_timelines; w.first += w.at_once) {
    const std::int64_t left = params.n_timelines - w.first;
    const auto timelines = static_cast<unsigned>(left < w.at_once ? left : w.at_once);
    cudaError_t error = launch_sums(params, w, timelines, stream);
    if (error != cudaSuccess) return error;
    error = launch_choice(batch_of_one(RefineArgs{params, w, timelines}), stream);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

std::size_t refine_workspace_bytes(const RefineParams& params) {
  return check_sizes(params) ? 0 : layout_of(params, nullptr).bytes;
}

const char* invalid_field(const RefineParams& params) { return check(params).field; }
const char* invalid_field(const RefineParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t refine_boundaries_batch(const RefineParams* params, std::int64_t n_sequences,
                                    cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  cudaError_t error = launch_in_batches<RefineParams>(
      n_sequences,
      [&](std::int64_t i, RefineParams& args) {
        args = params[i];
        return args.n > 0 && args.objective == RefineObjective::none;
      },
      [&](const auto& batch) {
        const std::int64_t timelines =
            largest(batch, [](const RefineParams& p) { return p.n_timelines; });
        const dim3 grid(static_cast<unsigned>(timelines), static_cast<unsigned>(batch.n));
        return launch(KeepFlagsKernel<kRoomOf<decltype(batch)>>, grid, kChooseThreads, 0, stream,
                      batch);
      });
  if (error != cudaSuccess) return error;
  // Blocks choose one by one, those of all sequences beside each other, once all sums are there.
  const auto has_graph = [](const RefineParams& p) {
    return p.n > 1 && p.objective != RefineObjective::none;
  };
  for (std::int64_t i = 0; i < n_sequences; ++i) {
    if (!has_graph(params[i])) continue;
    const RefineWorkspace w = layout_of(params[i], params[i].workspace).workspace;
    error = w.at_once < params[i].n_timelines
                ? launch_in_turn(params[i], stream)
                : launch_sums(params[i], w, static_cast<unsigned>(params[i].n_timelines), stream);
    if (error != cudaSuccess) return error;
  }
  return launch_in_batches<RefineArgs>(
      n_sequences,
      [&](std::int64_t i, RefineArgs& args) {
        const RefineParams& p = params[i];
        if (p.n == 0 || p.objective == RefineObjective::none) return false;
        args = {p, layout_of(p, p.workspace).workspace, p.n_timelines};
        return !has_graph(p) || args.w.at_once >= p.n_timelines;
      },
      [&](const auto& batch) { return launch_choice(batch, stream); });
}

cudaError_t refine_boundaries(const RefineParams& params, cudaStream_t stream) {
  return refine_boundaries_batch(&params, 1, stream);
}

}  // namespace episodic::kernels
