// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/refine.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "batch.hpp"
#include "device.cuh"
#include "episodic/base/rules/refinement.hpp"
#include "ptx.cuh"
#include "refine.hpp"
#include "ring_pages.cuh"

namespace episodic::kernels {

inline constexpr int kGraphTile = 64;  // tokens
inline constexpr int kGraphTileSize = kGraphTile * kGraphTile;

/// Where the workspace's parts lie. Tile (I, J), I <= J, of a split is its tile_index-th run of
/// kGraphTileSize doubles. The sums replace splits 0 and 1.
struct RefineWorkspace {
  double* tiles = nullptr;          // [at_once, max(splits, 2), n_tiles, 64, 64]
  double* left = nullptr;           // [n_timelines, max_tokens] per split of a window: half A(S, S)
  double* right = nullptr;          // [n_timelines, max_tokens] half of A(R, R)
  std::int32_t* flagged = nullptr;  // [n_timelines, n]
  std::int64_t n_tiles = 0, max_tokens = 0;
  std::int32_t splits = 0;
  std::int32_t at_once = 1;  // timelines whose tiles there is room for
  std::int32_t first = 0;    // of the timelines of a launch

  __host__ __device__ std::int64_t tiles_of_timeline() const {
    return (splits < 2 ? 2 : splits) * n_tiles * kGraphTileSize;
  }
};

__device__ inline const std::uint8_t* raw_of(const RefineParams& p, std::int64_t timeline) {
  return p.shared_raw ? p.raw : p.raw + timeline * p.n;
}

/// J-major, so that a shorter range of tokens uses the first tiles.
__host__ __device__ inline std::int64_t tile_index(std::int64_t row, std::int64_t column) {
  return column * (column + 1) / 2 + row;
}

/// The tokens at hand, [start, end).
struct TokensAtHand {
  std::int64_t start, end;
  bool cut;  // there were more than the workspace is for
};
__device__ inline TokensAtHand tokens_at_hand(const RefineParams& p, std::int64_t timeline,
                                              std::int64_t max_tokens) {
  const TimelineState& state = p.state[timeline];
  TokensAtHand t;
  t.end = state.tokens + p.n;
  t.start = state.last_in_previous >= 0 ? state.last_in_previous : state.tokens;
  if (t.start < p.n_init) t.start = p.n_init;
  t.cut = t.end - t.start > max_tokens;
  if (t.cut) t.start = t.end - max_tokens;
  return t;
}

/// Whether any boundary of the step has more than one place to go: no flag before the step's second
/// token has, since none leaves the step. Every thread of the block must come here.
__device__ inline bool has_choice(const RefineParams& p, std::int64_t timeline) {
  const std::uint8_t* const raw = raw_of(p, timeline);
  int any = 0;
  for (std::int64_t i = 1 + threadIdx.x; i < p.n; i += blockDim.x) any |= raw[i];
  return __syncthreads_or(any) != 0;
}

/// A block's part of its timeline's graph.
struct GraphTile {
  std::int64_t timeline;
  std::int64_t row, column;  // in tiles
  std::int64_t units, end;   // of (layer, head): [units, end)
  double* out;               // [64, 64]
};
__device__ inline GraphTile graph_tile(const RefineParams& p, const RefineWorkspace& w) {
  GraphTile t;
  const auto x = static_cast<std::int64_t>(blockIdx.x);
  t.column = static_cast<std::int64_t>((sqrt(8.0 * static_cast<double>(x) + 1.0) - 1.0) / 2.0);
  while (t.column * (t.column + 1) / 2 > x) --t.column;
  while ((t.column + 1) * (t.column + 2) / 2 <= x) ++t.column;
  t.row = x - t.column * (t.column + 1) / 2;
  const std::int64_t n_units = p.n_layers * p.n_kv_heads;
  t.timeline = w.first + static_cast<std::int64_t>(blockIdx.z);
  t.units = p.n_timelines > 1 ? t.timeline : blockIdx.y * n_units / w.splits;
  t.end = p.n_timelines > 1 ? t.timeline + 1 : (blockIdx.y + 1) * n_units / w.splits;
  t.out =
      w.tiles + blockIdx.z * w.tiles_of_timeline() + (blockIdx.y * w.n_tiles + x) * kGraphTileSize;
  return t;
}

template <class Key>
__device__ const Key* head_keys(const RefineParams& p, std::int64_t unit) {
  return static_cast<const Key*>(p.keys[unit / p.n_kv_heads]) +
         unit % p.n_kv_heads * p.key_head_stride;
}

// -- 16-bit keys: tensor cores --

inline constexpr int kHalfGraphThreads = 128;  // 2 x 2 warps of 32 x 32
inline constexpr int kHalfGraphChannels = 64;  // of a stage
/// An odd number of 16-byte units: the 8 rows of a matrix lie in different banks.
inline constexpr int kHalfGraphPitch = kHalfGraphChannels + 8;
inline constexpr int kHalfGraphStage =
    2 * kGraphTile * kHalfGraphPitch;  // elements: rows', columns' keys
inline constexpr std::size_t kHalfGraphSharedBytes = 2 * kHalfGraphStage * 2;

/// One block per tile, split of (layer, head) and timeline; two stages, so that copies run under
/// products.
template <class Half>
__global__ void __launch_bounds__(kHalfGraphThreads, 3)
    GraphHalfKernel(RefineParams p, RefineWorkspace w) {
  EPISODIC_DYNAMIC_SHARED(shared_bytes);
  Half* const shared = reinterpret_cast<Half*>(shared_bytes);
  const GraphTile tile = graph_tile(p, w);
  const TokensAtHand tokens = tokens_at_hand(p, tile.timeline, w.max_tokens);
  if (tokens.start + tile.column * kGraphTile >= tokens.end || !has_choice(p, tile.timeline))
    return;

  // This thread copies the same 8 channels of rows tid / 8, + 16, + 32, + 48 of both operands.
  constexpr int kPack = 8;
  constexpr int kPacks = kHalfGraphChannels / kPack;
  constexpr int kRows = kGraphTile * kPacks / kHalfGraphThreads;
  const int pack = static_cast<int>(threadIdx.x) % kPacks;
  int slot[2][kRows];  // of the token in the rings; -1 beyond the tokens
  EPISODIC_UNROLL
  for (int side = 0; side < 2; ++side) EPISODIC_UNROLL
  for (int i = 0; i < kRows; ++i) {
    const std::int64_t t = tokens.start + (side ? tile.column : tile.row) * kGraphTile +
                           threadIdx.x / kPacks + i * (kHalfGraphThreads / kPacks);
    slot[side][i] = t < tokens.end ? static_cast<int>(t % p.key_capacity) : -1;
  }
  // counted in 32 bits, for the registers' sake
  const int head_dim = static_cast<int>(p.head_dim);
  const int stages_per_unit = (head_dim + kHalfGraphChannels - 1) / kHalfGraphChannels;
  const int n_stages = static_cast<int>(tile.end - tile.units) * stages_per_unit;
  const auto copy = [&](int stage) {
    const Half* keys = head_keys<Half>(p, tile.units + stage / stages_per_unit);
    const int channel = stage % stages_per_unit * kHalfGraphChannels + pack * kPack;
    Half* to = shared + stage % 2 * kHalfGraphStage + threadIdx.x / kPacks * kHalfGraphPitch +
               pack * kPack;
    EPISODIC_UNROLL
    for (int side = 0; side < 2; ++side) EPISODIC_UNROLL
    for (int i = 0; i < kRows; ++i) {
      const bool valid = channel < head_dim && slot[side][i] >= 0;
      copy_async_16(
          to + (side * kGraphTile + i * (kHalfGraphThreads / kPacks)) * kHalfGraphPitch,
          valid ? keys + ring_row<std::int64_t>(p.key_pages, slot[side][i], p.key_row_stride) +
                      channel
                : keys,
          valid);
    }
  };

  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warp_row = warp / 2 * 32, warp_column = warp % 2 * 32;
  double total[2][4][4] = {};
  float part[2][4][4] = {};  // of one head
  copy(0);
  commit_copies();
  for (int stage = 0; stage < n_stages; ++stage) {
    if (stage + 1 < n_stages) copy(stage + 1);
    commit_copies();
    wait_copies<1>();
    __syncthreads();
    const Half* rows = shared + stage % 2 * kHalfGraphStage;
    const Half* columns = rows + kGraphTile * kHalfGraphPitch;
    const int left = head_dim - stage % stages_per_unit * kHalfGraphChannels;
    const int channels = left < kHalfGraphChannels ? left : kHalfGraphChannels;
    for (int k = 0; k < channels; k += 16) {
      std::uint32_t a[2][4], b[2][4];
      EPISODIC_UNROLL
      for (int i = 0; i < 2; ++i) {
        load_matrices_x4(
            a[i], rows + (warp_row + 16 * i + lane % 16) * kHalfGraphPitch + k + lane / 16 * 8);
        // two tiles of 8 columns: channels 0..7 and 8..15 of each
        load_matrices_x4(
            b[i], columns + (warp_column + 16 * i + lane / 16 * 8 + lane % 8) * kHalfGraphPitch +
                      k + lane / 8 % 2 * 8);
      }
      EPISODIC_UNROLL
      for (int i = 0; i < 2; ++i) EPISODIC_UNROLL
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t pair[2] = {b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]};
        mma_m16n8k16<Half>(part[i][j], a[i], pair);
      }
    }
    if (left <= kHalfGraphChannels) {  // the head is complete
      EPISODIC_UNROLL
      for (int i = 0; i < 2; ++i) EPISODIC_UNROLL
      for (int j = 0; j < 4; ++j) EPISODIC_UNROLL
      for (int c = 0; c < 4; ++c) {
        total[i][j][c] += static_cast<double>(part[i][j][c]);
        part[i][j][c] = 0.0f;
      }
    }
    __syncthreads();  // before the stage is filled again
  }
  EPISODIC_UNROLL
  for (int i = 0; i < 2; ++i) EPISODIC_UNROLL
  for (int j = 0; j < 4; ++j) EPISODIC_UNROLL
  for (int c = 0; c < 4; ++c)
    tile.out[(warp_row + 16 * i + lane / 4 + c / 2 * 8) * kGraphTile + warp_column + 8 * j +
             lane % 4 * 2 + c % 2] = total[i][j][c];
}

// -- float32 keys: float64 products --

inline constexpr int kFloatGraphThreads = 256;
inline constexpr int kFloatGraphChannels = 16;  // of a stage
inline constexpr int kFloatGraphPitch = kGraphTile + 2;

/// As above; thread (y, x) of 16 x 16 has rows y + 16 i and columns x + 16 j.
__global__ void __launch_bounds__(kFloatGraphThreads)
    GraphFloatKernel(RefineParams p, RefineWorkspace w) {
  EPISODIC_SHARED(keys,
                  double[2][kFloatGraphChannels][kFloatGraphPitch]);  // of the rows, of the columns
  const GraphTile tile = graph_tile(p, w);
  const TokensAtHand tokens = tokens_at_hand(p, tile.timeline, w.max_tokens);
  if (tokens.start + tile.column * kGraphTile >= tokens.end || !has_choice(p, tile.timeline))
    return;

  // This thread loads 4 channels of one token of each side.
  constexpr int kOwn = 4;
  const int token = static_cast<int>(threadIdx.x) / kOwn;
  const int channel = static_cast<int>(threadIdx.x) % kOwn * kOwn;
  std::int64_t offset[2];
  EPISODIC_UNROLL
  for (int side = 0; side < 2; ++side) {
    const std::int64_t t = tokens.start + (side ? tile.column : tile.row) * kGraphTile + token;
    offset[side] =
        t < tokens.end ? ring_row(p.key_pages, t % p.key_capacity, p.key_row_stride) : -1;
  }
  const std::int64_t stages_per_unit = (p.head_dim + kFloatGraphChannels - 1) / kFloatGraphChannels;
  const std::int64_t n_stages = (tile.end - tile.units) * stages_per_unit;
  float next[2][kOwn];
  const auto load = [&](std::int64_t stage) {
    const float* head = head_keys<float>(p, tile.units + stage / stages_per_unit);
    const std::int64_t c = stage % stages_per_unit * kFloatGraphChannels + channel;
    EPISODIC_UNROLL
    for (int side = 0; side < 2; ++side) EPISODIC_UNROLL
    for (int i = 0; i < kOwn; ++i)
      next[side][i] = offset[side] >= 0 && c + i < p.head_dim ? head[offset[side] + c + i] : 0.0f;
  };

  const int y = static_cast<int>(threadIdx.x) / 16, x = static_cast<int>(threadIdx.x) % 16;
  double total[4][4] = {};
  load(0);
  for (std::int64_t stage = 0; stage < n_stages; ++stage) {
    EPISODIC_UNROLL
    for (int side = 0; side < 2; ++side) EPISODIC_UNROLL
    for (int i = 0; i < kOwn; ++i)
      keys[side][channel + i][token] = static_cast<double>(next[side][i]);
    __syncthreads();
    if (stage + 1 < n_stages) load(stage + 1);
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatGraphChannels; ++k) {
      double a[4], b[4];
      EPISODIC_UNROLL
      for (int i = 0; i < 4; ++i) {
        a[i] = keys[0][k][y + 16 * i];
        b[i] = keys[1][k][x + 16 * i];
      }
      EPISODIC_UNROLL
      for (int i = 0; i < 4; ++i) EPISODIC_UNROLL
      for (int j = 0; j < 4; ++j) total[i][j] = fma(a[i], b[j], total[i][j]);
    }
    __syncthreads();
  }
  EPISODIC_UNROLL
  for (int i = 0; i < 4; ++i) EPISODIC_UNROLL
  for (int j = 0; j < 4; ++j) tile.out[(y + 16 * i) * kGraphTile + x + 16 * j] = total[i][j];
}

// -- sums within a tile --

inline constexpr int kTileSumThreads = 2 * kGraphTile;

/// Adds the splits of a tile in order, halves the diagonal, drops what is below it, and leaves
///  - in split 0 the sums down each column from a row to the tile's last, at [row][column],
///  - in split 1 the sums along each row from the tile's first column to one, at [column][row].
/// With the diagonal halved, half of A(S, S) is the sum of its upper triangle.
__global__ void __launch_bounds__(kTileSumThreads)
    GraphSumsKernel(RefineParams p, RefineWorkspace w) {
  EPISODIC_SHARED(graph, double[kGraphTile][kGraphTile + 1]);
  const GraphTile tile = graph_tile(p, w);
  const TokensAtHand tokens = tokens_at_hand(p, tile.timeline, w.max_tokens);
  if (tokens.start + tile.column * kGraphTile >= tokens.end || !has_choice(p, tile.timeline))
    return;
  const std::int64_t split_stride = w.n_tiles * kGraphTileSize;
  for (int i = static_cast<int>(threadIdx.x); i < kGraphTileSize; i += kTileSumThreads) {
    const int row = i / kGraphTile, column = i % kGraphTile;
    double sum = 0.0;
    for (std::int32_t split = 0; split < w.splits; ++split)
      sum += tile.out[split * split_stride + i];
    if (tile.row == tile.column && row >= column) sum = row == column ? 0.5 * sum : 0.0;
    graph[row][column] = sum;
  }
  __syncthreads();
  const int own = static_cast<int>(threadIdx.x) % kGraphTile;
  double sum = 0.0;
  if (threadIdx.x < kGraphTile) {
    for (int row = kGraphTile - 1; row >= 0; --row) {
      sum += graph[row][own];
      tile.out[row * kGraphTile + own] = sum;
    }
  } else {
    for (int column = 0; column < kGraphTile; ++column) {
      sum += graph[own][column];
      tile.out[split_stride + column * kGraphTile + own] = sum;
    }
  }
}

/// Sums of the graph's upper triangle with half its diagonal; tokens count from the first at hand.
class GraphSums {
 public:
  __device__ explicit GraphSums(const RefineWorkspace& w)
      : down_(w.tiles), along_(w.tiles + w.n_tiles * kGraphTileSize) {}

  /// Over rows [row, column] of a column.
  __device__ double down(std::int64_t row, std::int64_t column) const {
    const std::int64_t last = column / kGraphTile;
    std::int64_t tile = row / kGraphTile;
    const std::int64_t c = column % kGraphTile;
    double sum = at(down_, tile, last, row % kGraphTile, c);
    while (++tile <= last) sum += at(down_, tile, last, 0, c);
    return sum;
  }

  /// Over columns [row, column] of a row.
  __device__ double along(std::int64_t row, std::int64_t column) const {
    const std::int64_t last = column / kGraphTile;
    const std::int64_t first = row / kGraphTile, r = row % kGraphTile;
    double sum = 0.0;
    for (std::int64_t tile = first; tile < last; ++tile)
      sum += at(along_, first, tile, kGraphTile - 1, r);
    return sum + at(along_, first, last, column % kGraphTile, r);
  }

 private:
  __device__ static double at(const double* sums, std::int64_t row, std::int64_t column,
                              std::int64_t i, std::int64_t j) {
    return sums[tile_index(row, column) * kGraphTileSize + i * kGraphTile + j];
  }
  const double* down_;
  const double* along_;
};

// -- the choice --

inline constexpr int kChooseThreads = 256;

__device__ inline rules::Objective rule_of(RefineObjective objective) {
  return objective == RefineObjective::modularity    ? rules::Objective::modularity
         : objective == RefineObjective::conductance ? rules::Objective::conductance
                                                     : rules::Objective::intra_inter;
}

/// Lies in shared memory, which nothing initialises.
struct BestScore {
  double value, slack;
  std::int64_t split;
};
/// The larger value, of equal ones the earlier split.
struct BetterScore {
  __device__ BestScore operator()(const BestScore& a, const BestScore& b) const {
    return b.value > a.value || (b.value == a.value && b.split < a.split) ? b : a;
  }
};
struct Later {
  __device__ std::int64_t operator()(std::int64_t a, std::int64_t b) const { return b > a ? b : a; }
};
struct SumPair {
  double left = 0.0, right = 0.0;
  __host__ __device__ friend SumPair operator+(const SumPair& a, const SumPair& b) {
    SumPair sum;
    sum.left = a.left + b.left;
    sum.right = a.right + b.right;
    return sum;
  }
};

using ChooseScan = cub::BlockScan<SumPair, kChooseThreads>;
using ChooseCount = cub::BlockScan<std::int32_t, kChooseThreads>;
using ChooseBest = cub::BlockReduce<BestScore, kChooseThreads>;
using ChooseLatest = cub::BlockReduce<std::int64_t, kChooseThreads>;
struct ChooseStorage {
  typename ChooseScan::TempStorage scan;
  typename ChooseCount::TempStorage count;
  typename ChooseBest::TempStorage best;
  typename ChooseLatest::TempStorage latest;
};

/// Best split t in [from, to] of the window [start, end) into [start, t) and [t, end); of those
/// that differ by rounding alone the latest. Tokens count from the first at hand. All threads of
/// the block come here and get the result.
__device__ inline std::int64_t best_split(const RefineParams& p, const RefineWorkspace& w,
                                          std::int64_t start, std::int64_t end, std::int64_t from,
                                          std::int64_t to, ChooseStorage& storage) {
  EPISODIC_SHARED(best, BestScore);
  EPISODIC_SHARED(latest, std::int64_t);
  const GraphSums sums(w);
  const std::int64_t size = end - start;
  SumPair carry;
  for (std::int64_t at = 0; at < size; at += kChooseThreads) {
    const std::int64_t i = at + threadIdx.x;
    SumPair own, before, all;
    if (i < size) {
      own.left = sums.down(start, start + i);
      own.right = sums.along(end - 1 - i, end - 1);
    }
    ChooseScan(storage.scan).ExclusiveSum(own, before, all);
    if (i < size) {
      w.left[i] = carry.left + before.left;     // of the split start + i
      w.right[i] = carry.right + before.right;  // of the split end - i
    }
    carry = carry + all;
    __syncthreads();  // the storage is used again
  }
  const double total = carry.left;
  const auto score = [&](std::int64_t t) {
    const double ss = w.left[t - start], rr = w.right[end - t];  // half of A(S, S), of A(R, R)
    return rules::split_score(rule_of(p.objective), {2.0 * ss, 2.0 * rr, total - ss - rr},
                              t - start, end - t);
  };

  BestScore own{-INFINITY, 0.0, to};
  for (std::int64_t t = from + threadIdx.x; t <= to; t += kChooseThreads) {
    const rules::SplitScore s = score(t);
    if (s.value > own.value) own = {s.value, s.slack, t};
  }
  own = ChooseBest(storage.best).Reduce(own, BetterScore{});
  if (threadIdx.x == 0) best = own;
  __syncthreads();
  // An objective that is not a number never wins; if all are, the boundary stays.
  std::int64_t last = -1;
  for (std::int64_t t = from + threadIdx.x; t <= to; t += kChooseThreads)
    if (rules::ties_with(score(t), {best.value, best.slack})) last = t;
  last = ChooseLatest(storage.latest).Reduce(last, Later{});
  if (threadIdx.x == 0) latest = last >= 0 ? last : to;
  __syncthreads();
  return latest;
}

/// A call, and where its workspace's parts lie.
struct RefineArgs {
  RefineParams p;
  RefineWorkspace w;
  std::int64_t timelines = 0;  ///< of the launch
};

/// One block per timeline, the grid's y for sequences: the step's flags from left to right.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kChooseThreads)
    RefineKernel(KernelArgument<Batch<RefineArgs, kMost>> batch) {
  EPISODIC_SHARED(storage, ChooseStorage);
  const RefineParams& p = batch.of[blockIdx.y].p;
  const RefineWorkspace& all = batch.of[blockIdx.y].w;
  if (blockIdx.x >= batch.of[blockIdx.y].timelines) return;
  const std::int64_t timeline = all.first + static_cast<std::int64_t>(blockIdx.x);
  RefineWorkspace w = all;  // of this timeline
  if (p.n > 1) {            // else there are none
    w.tiles += blockIdx.x * all.tiles_of_timeline();
    w.left += timeline * all.max_tokens;
    w.right += timeline * all.max_tokens;
  }
  w.flagged += timeline * p.n;
  TimelineState& state = p.state[timeline];
  const std::uint8_t* const raw = raw_of(p, timeline);
  std::uint8_t* const flags = p.flags + timeline * p.flag_capacity;
  const TokensAtHand tokens = tokens_at_hand(p, timeline, w.max_tokens);
  const std::int64_t first = state.tokens;
  std::int64_t last = state.last_boundary, last_in_step = -1;
  std::int32_t n_flagged = 0;
  for (std::int64_t at = 0; at < p.n; at += kChooseThreads) {
    const std::int64_t i = at + threadIdx.x;
    const std::int32_t own = i < p.n && raw[i] ? 1 : 0;
    std::int32_t before, all;
    ChooseCount(storage.count).ExclusiveSum(own, before, all);
    if (own) w.flagged[n_flagged + before] = static_cast<std::int32_t>(i);
    if (i < p.n) flags[(first + i) % p.flag_capacity] = 0;
    n_flagged += all;
    __syncthreads();  // the storage is used again; at last: flags and state have been read
  }
  for (std::int32_t j = 0; j < n_flagged; ++j) {
    const std::int64_t b = first + w.flagged[j];
    const std::int64_t a = last >= 0 ? last : p.n_init;
    if (b - a < p.min_block) continue;
    std::int64_t moved = b;
    if (b - a > p.min_block) {
      const rules::BoundaryWindow window =
          rules::boundary_window(a, b, tokens.start, tokens.end, first, p.min_block);
      if (window.from < b)
        moved =
            tokens.start + best_split(p, w, window.start - tokens.start, window.end - tokens.start,
                                      window.from - tokens.start, b - tokens.start, storage);
    }
    if (threadIdx.x == 0) flags[moved % p.flag_capacity] = 1;
    last = last_in_step = moved;
  }
  if (threadIdx.x == 0) {
    state.last_boundary = last;
    state.last_in_previous = last_in_step;
    if (tokens.cut) state.errors |= kStepsTooLong;
  }
}

/// Without an objective: one block per timeline, the grid's y for sequences, copies its flags.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kChooseThreads, 4)
    KeepFlagsKernel(KernelArgument<Batch<RefineParams, kMost>> batch) {
  EPISODIC_SHARED(storage, typename ChooseLatest::TempStorage);
  const RefineParams& p = batch.of[blockIdx.y];
  if (blockIdx.x >= p.n_timelines) return;
  TimelineState& state = p.state[blockIdx.x];
  const std::int64_t first = state.tokens;
  const std::uint8_t* raw = raw_of(p, blockIdx.x);
  std::uint8_t* flags = p.flags + blockIdx.x * p.flag_capacity;
  std::int64_t last = -1;
  for (std::int64_t i = threadIdx.x; i < p.n; i += kChooseThreads) {
    flags[(first + i) % p.flag_capacity] = raw[i];
    if (raw[i]) last = first + i;
  }
  last = ChooseLatest(storage).Reduce(last, Later{});
  if (threadIdx.x == 0) {
    if (last >= 0) state.last_boundary = last;
    state.last_in_previous = last;
  }
}

}  // namespace episodic::kernels
