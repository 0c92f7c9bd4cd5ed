// SPDX-License-Identifier: Apache-2.0
#include "refine.hpp"

#include "refine.cuh"

namespace episodic::kernels {
namespace {

constexpr std::int64_t kMostTokens = 1 << 16;  // 64 tiles of 64 squared: offsets within int64
constexpr std::int64_t kMostUnits = 1 << 20;
constexpr std::int64_t kMostHalfChannels = 1 << 12;  // of a 16-bit head
constexpr std::int64_t kAlignment = 256;

bool is_float(DType dtype) {
  return dtype == DType::float32 || dtype == DType::float16 || dtype == DType::bfloat16;
}

bool sizes_fit(const RefineParams& p) {
  if (p.objective != RefineObjective::modularity && p.objective != RefineObjective::conductance &&
      p.objective != RefineObjective::intra_inter)
    return false;
  if (p.n < 1 || p.max_previous < 0 || p.n > kMostTokens || p.max_previous > kMostTokens - p.n)
    return false;
  if (!is_float(p.dtype) || p.n_layers < 1 || p.n_kv_heads < 1 || p.head_dim < 1) return false;
  if (p.n_layers > kMostUnits || p.n_kv_heads > kMostUnits / p.n_layers) return false;
  return p.dtype == DType::float32 || (p.head_dim % 8 == 0 && p.head_dim <= kMostHalfChannels);
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
    bytes += (size + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  };
  constexpr auto kDouble = static_cast<std::int64_t>(sizeof(double));
  w.flagged = static_cast<std::int32_t*>(take(p.n * 4));
  w.max_tokens = p.max_previous + p.n;
  if (p.n > 1) {  // else no boundary has a choice
    const std::int64_t side = (w.max_tokens + kGraphTile - 1) / kGraphTile;
    w.n_tiles = tile_index(0, side);
    // Enough blocks to fill a large device, if there are as many units: each split costs its tiles.
    constexpr std::int64_t kBlocks = 512;
    const std::int64_t wanted = (kBlocks + w.n_tiles - 1) / w.n_tiles;
    const std::int64_t n_units = p.n_layers * p.n_kv_heads;
    w.splits = static_cast<std::int32_t>(wanted < n_units ? wanted : n_units);
    // Room for splits * n_tiles, rounded up to what grows with n: it is for shorter steps too.
    std::int64_t most = kBlocks + w.n_tiles;
    if (n_units * w.n_tiles < most) most = n_units * w.n_tiles;
    if (2 * w.n_tiles > most) most = 2 * w.n_tiles;  // the two kinds of sums
    w.tiles = static_cast<double*>(take(most * kGraphTileSize * kDouble));
    w.left = static_cast<double*>(take(w.max_tokens * kDouble));
    w.right = static_cast<double*>(take(w.max_tokens * kDouble));
  }
  out.bytes = static_cast<std::size_t>(bytes);
  return out;
}

bool aligned(const void* p, std::uintptr_t to) {
  return reinterpret_cast<std::uintptr_t>(p) % to == 0;
}

cudaError_t launch_graph(const RefineParams& p, const RefineWorkspace& w, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(w.n_tiles), static_cast<unsigned>(w.splits));
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
      break;  // keys at hand are floats
  }
  return cudaErrorInvalidValue;
}

}  // namespace

std::size_t refine_workspace_bytes(const RefineParams& params) {
  return sizes_fit(params) ? layout_of(params, nullptr).bytes : 0;
}

cudaError_t refine_boundaries(const RefineParams& params, cudaStream_t stream) {
  const bool graph = params.objective != RefineObjective::none;
  if (params.n < 0 || params.n_init < 0 || params.min_block < 1 || params.n_timelines < 1)
    return cudaErrorInvalidValue;
  if (params.n == 0) return cudaSuccess;
  if (!params.state || !params.raw || !params.flags || params.flag_capacity < params.n)
    return cudaErrorInvalidValue;
  if (!graph) {
    if (params.n_timelines > INT32_MAX) return cudaErrorInvalidValue;
    return launch(KeepFlagsKernel, static_cast<unsigned>(params.n_timelines), kChooseThreads, 0,
                  stream, params);
  }

  if (!sizes_fit(params) || params.n_timelines != 1 || !params.keys) return cudaErrorInvalidValue;
  if (params.key_capacity < params.max_previous + params.n || params.key_capacity > INT32_MAX ||
      params.key_row_stride < params.head_dim || params.key_head_stride < 0)
    return cudaErrorInvalidValue;
  if (params.dtype != DType::float32 &&
      (params.key_row_stride % 8 != 0 || params.key_head_stride % 8 != 0))
    return cudaErrorMisalignedAddress;
  const Layout layout = layout_of(params, params.workspace);
  if (!params.workspace || params.workspace_bytes < layout.bytes) return cudaErrorInvalidValue;
  if (!aligned(params.workspace, kAlignment)) return cudaErrorMisalignedAddress;
  const RefineWorkspace& w = layout.workspace;
  if (params.n > 1) {
    cudaError_t error = launch_graph(params, w, stream);
    if (error != cudaSuccess) return error;
    error = launch(GraphSumsKernel, static_cast<unsigned>(w.n_tiles), kTileSumThreads, 0, stream,
                   params, w);
    if (error != cudaSuccess) return error;
  }
  return launch(RefineKernel, 1, kChooseThreads, 0, stream, params, w);
}

}  // namespace episodic::kernels
