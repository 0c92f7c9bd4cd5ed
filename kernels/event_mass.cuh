// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/event_mass.hpp.

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "attention_float.cuh"
#include "attention_mma.cuh"
#include "batch.hpp"
#include "event_mass.hpp"

namespace episodic::kernels {

inline constexpr int kEventMassThreads = 256;
inline constexpr int kReceiveThreads = 256;

/// Sequences of a launch: as many as a kernel's parameters have room for.
inline constexpr std::int64_t kMostMassesInLaunch = 6;

/// Of EventMassParams, beside attention.
struct EventMassArgs {
  AttentionArgs a;
  const EventRange* events = nullptr;
  std::int64_t table_stride = 0;
  const DeviceEventId* recalled = nullptr;
  const std::int32_t* n_recalled = nullptr;
  std::int64_t list_capacity = 0;
  double* mass = nullptr;
  float* row_mass = nullptr;  ///< [G, max_rows], of rows of events: the first one at 0
};
/// Kernels copy what they need of it: by reference ptxas spills registers.
using EventMassBatch = Batch<EventMassArgs, kMostMassesInLaunch>;

/// The same tiles of keys and of queries as column sums have.
EPISODIC_HOST_DEVICE constexpr std::size_t row_mass_shared_bytes(int dim) {
  return float_column_shared_bytes(dim);
}
EPISODIC_HOST_DEVICE constexpr std::size_t mma_row_mass_shared_bytes(int dim) {
  return column_shared_bytes(dim, column_tile(dim));
}

inline constexpr float kLog2OfE = 1.44269504088896341f;

/// The events of a list.
struct ListedEvents {
  const DeviceEventId* ids;
  const EventRange* events;
  int count;

  __device__ int length(int k) const {
    const EventRange e = events[ids[k]];
    return static_cast<int>(e.end - e.start);
  }
};

__device__ inline ListedEvents listed_events(const EventMassArgs& args, std::int64_t list) {
  const std::int64_t count = args.n_recalled[3 * list];
  return {args.recalled + list * args.list_capacity, args.events + list * args.table_stride,
          static_cast<int>(count < args.list_capacity ? count : args.list_capacity)};
}

/// Rows of a list's events: the last ones.
struct EventRows {
  const KvRow* rows;
  const float* const* scales;  ///< of the rows, as AttentionParams::row_scales; may be null
  int count;
  bool fp8;  ///< rows of codes are

  /// Eight elements of a row's key, widened where they are codes. \param head of the list's
  template <class T>
  __device__ Chunk<T> key_chunk(int r, int head, int chunk) const {
    const KvRow row = rows[r];
    const std::int64_t at = std::int64_t{row.head_stride} * head + 8 * chunk;
    if (const float* const of_row = scales ? scales[r] : nullptr)
      return widened<T>(
          *reinterpret_cast<const CodeChunk*>(static_cast<const std::uint8_t*>(row.key) + at),
          of_row[head], fp8);
    return *reinterpret_cast<const Chunk<T>*>(static_cast<const T*>(row.key) + at);
  }
};

/// By a block of kThreads, for all its threads.
template <int kThreads>
__device__ inline EventRows event_rows(const EventMassArgs& args, std::int64_t list) {
  EPISODIC_SHARED(of_warp, int[kThreads / kWarpSize]);
  EPISODIC_SHARED(found, EventRows);
  const ListedEvents events = listed_events(args, list);
  int own = 0;
  for (int k = static_cast<int>(threadIdx.x); k < events.count; k += kThreads)
    own += events.length(k);
  own = warp_reduce(own, Sum{});
  if (threadIdx.x % kWarpSize == 0) of_warp[threadIdx.x / kWarpSize] = own;
  __syncthreads();
  if (threadIdx.x == 0) {
    int tokens = 0;
    for (const int n : of_warp) tokens += n;
    const AttentionParams& a = args.a.p;
    const std::int64_t n_rows = a.n_rows[list];
    const int rows = static_cast<int>(n_rows < a.max_rows ? n_rows : a.max_rows);
    // Fewer rows than tokens: some had no room, as far_rows said.
    const int first = rows > tokens ? rows - tokens : 0;
    const std::int64_t at = list * a.max_rows + first;
    found = {a.rows + at, a.row_scales ? a.row_scales + at : nullptr, rows - first,
             codes_are_fp8(a)};
  }
  __syncthreads();
  return found;
}

/// What rows of events received from the query heads of a kv head. Blocks x: tiles of 32 rows, y:
/// kv heads, z: sequences. Tiles and products are those of FloatColumnSumsKernel, but that a tile's
/// queries are of all heads of the group, at the fixed position.
template <class T, int kDim, std::int64_t kMost>
__global__ void __launch_bounds__(kFloatThreads)
    RowMassKernel(KernelArgument<Batch<EventMassArgs, kMost>> batch) {
  const EventMassArgs args = batch.of[blockIdx.z];
  constexpr int kStride = shared_stride(kDim, 4), kChunks = kDim / 8;
  EPISODIC_DYNAMIC_SHARED(bytes);
  float* const keys = reinterpret_cast<float*>(bytes);
  float* const queries = keys + kFloatRows * kStride;
  EPISODIC_SHARED(begin, int[kFloatRows]);  // the first query that sees a row
  const AttentionArgs& a = args.a;
  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kFloatMembers, member = thread % kFloatMembers;
  const int head = static_cast<int>(blockIdx.y);
  const int of_list = static_cast<int>(p.n_kv_heads / p.n_lists);
  const EventRows rows = event_rows<kFloatThreads>(args, head / of_list);
  const int first_row = static_cast<int>(blockIdx.x) * kFloatRows;
  if (first_row >= rows.count) return;
  const int rows_left = rows.count - first_row;
  const int chunks = static_cast<int>(p.head_dim / 8);

  const auto keep = [&](float* tile, int row, int chunk, const Chunk<T>& from) {
    Chunk<float> wide;
    EPISODIC_UNROLL
    for (int e = 0; e < 8; ++e) wide.at[e] = widen(from.at[e]);
    *reinterpret_cast<Chunk<float>*>(tile + row * kStride + 8 * chunk) = wide;
  };
  Chunk<T> zeros;
  EPISODIC_UNROLL
  for (int e = 0; e < 8; ++e) zeros.at[e] = narrow<T>(0.0f);
  for (int piece = thread; piece < kFloatRows * kChunks; piece += kFloatThreads) {
    const int key = piece / kChunks, chunk = piece % kChunks;
    if (key < rows_left && chunk < chunks) {
      keep(keys, key, chunk, rows.key_chunk<T>(first_row + key, head % of_list, chunk));
    } else {
      keep(keys, key, chunk, zeros);
    }
  }
  if (thread < kFloatRows)
    begin[thread] = thread < rows_left ? first_query_of_far(rows.rows[first_row + thread].token,
                                                            p.n_local, *p.first_position)
                                       : kNobody;

  float sum[kFloatLeft] = {};
  for (int first = 0; first < a.rows; first += kFloatKeys) {
    __syncthreads();  // nobody reads the tile before
    for (int piece = thread; piece < kFloatKeys * kChunks; piece += kFloatThreads) {
      const int r = first + piece / kChunks, chunk = piece % kChunks;
      const bool valid = r < a.rows && chunk < chunks;
      keep(queries, r - first, chunk,
           valid ? rotated_query<T>(a, r / a.group, head * a.group + r % a.group, chunk, false)
                 : zeros);
    }
    __syncthreads();
    float score[kFloatLeft][kFloatRight];
    float_scores<kDim>(keys, queries, group, member, score);
    cap_float_scores(a, score);
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k) {
      const int r = first + member + kFloatMembers * k;
      if (r >= a.rows) continue;
      const int i = r / a.group;
      const float lse =
          p.maybe_lse[i * p.n_heads + head * a.group + r % a.group] * kLog2OfE;  // base 2
      EPISODIC_UNROLL
      for (int j = 0; j < kFloatLeft; ++j)
        if (sees(i, begin[group + kFloatGroups * j], kForever))
          sum[j] += exp2f(fmaf(score[j][k], a.scale, -lse));
    }
  }
  EPISODIC_UNROLL
  for (int j = 0; j < kFloatLeft; ++j) {
    float total = sum[j];
    EPISODIC_UNROLL
    for (int lanes = 1; lanes < kFloatMembers; lanes *= 2)
      total += __shfl_xor_sync(kFullMask, total, lanes);
    const int key = group + kFloatGroups * j;
    if (member == 0 && key < rows_left) args.row_mass[head * p.max_rows + first_row + key] = total;
  }
}

/// The same on the tensor cores, for many rows of 16-bit elements. A warp holds its keys as left
/// sides in registers, as in MmaColumnSumsKernel, and adds exp2(score - lse) over all queries that
/// see them, tile after tile; a tile is rotated while the one before is multiplied.
template <class Half, int kDim>
__global__ void __launch_bounds__(kWarpSize* column_tile(kDim).warps)
    MmaRowMassKernel(const EventMassArgs args) {
  constexpr ColumnTile kTile = column_tile(kDim);
  constexpr int kThreads = kWarpSize * kTile.warps, kKeyTiles = kTile.key_tiles;
  constexpr int kQueries = kTile.queries, kStride = shared_stride(kDim, 2), kChunks = kDim / 8;
  EPISODIC_DYNAMIC_SHARED(bytes);
  Half* const keys = reinterpret_cast<Half*>(bytes);             // [keys][kStride]
  Half* const queries = keys + kTile.keys() * kStride;           // [stages][kQueries][kStride]
  EPISODIC_SHARED(log_sums, float[kAttentionStages][kQueries]);  // base 2
  const AttentionArgs& a = args.a;
  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int head = static_cast<int>(blockIdx.y);
  const int of_list = static_cast<int>(p.n_kv_heads / p.n_lists);
  const EventRows rows = event_rows<kThreads>(args, head / of_list);
  const int first_row = static_cast<int>(blockIdx.x) * kTile.keys();
  if (first_row >= rows.count) return;
  const int rows_left = rows.count - first_row;
  const int chunks = static_cast<int>(p.head_dim / 8);
  Chunk<Half> zeros;
  EPISODIC_UNROLL
  for (int e = 0; e < 8; ++e) zeros.at[e] = narrow<Half>(0.0f);

  const auto rotate_queries = [&](int first, int stage) {
    Half* const tile = queries + stage * kQueries * kStride;
    for (int piece = thread; piece < kQueries * kChunks; piece += kThreads) {
      const int r = first + piece / kChunks, chunk = piece % kChunks;
      const bool valid = r < a.rows && chunk < chunks;
      *reinterpret_cast<Chunk<Half>*>(tile + (r - first) * kStride + 8 * chunk) =
          valid ? rotated_query<Half>(a, r / a.group, head * a.group + r % a.group, chunk, false)
                : zeros;
    }
    for (int k = thread; k < kQueries; k += kThreads) {
      const int r = first + k;
      log_sums[stage][k] =
          r < a.rows
              ? p.maybe_lse[r / a.group * p.n_heads + head * a.group + r % a.group] * kLog2OfE
              : INFINITY;  // a probability of 0
    }
  };
  for (int piece = thread; piece < kTile.keys() * kChunks; piece += kThreads) {
    const int key = piece / kChunks, chunk = piece % kChunks;
    *reinterpret_cast<Chunk<Half>*>(keys + key * kStride + 8 * chunk) =
        key < rows_left && chunk < chunks
            ? rows.key_chunk<Half>(first_row + key, head % of_list, chunk)
            : zeros;
  }
  rotate_queries(0, 0);
  __syncthreads();
  const int warp_key = thread / kWarpSize * 16 * kKeyTiles;
  std::uint32_t left[kKeyTiles][kDim / 16][4];
  int begin[kKeyTiles][2];  // the first query that sees a key of this thread's
  float sum[kKeyTiles][2] = {};
  EPISODIC_UNROLL
  for (int m = 0; m < kKeyTiles; ++m) {
    EPISODIC_UNROLL
    for (int c = 0; c < kDim / 16; ++c)
      load_left(left[m][c], keys + (warp_key + 16 * m) * kStride + 16 * c, kStride, lane);
    EPISODIC_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int key = warp_key + 16 * m + 8 * half + lane / 4;
      begin[m][half] = key < rows_left ? first_query_of_far(rows.rows[first_row + key].token,
                                                            p.n_local, *p.first_position)
                                       : kNobody;
    }
  }

  for (int first = 0, stage = 0; first < a.rows; first += kQueries, stage = 1 - stage) {
    if (first + kQueries < a.rows) rotate_queries(first + kQueries, 1 - stage);
    const Half* const tile = queries + stage * kQueries * kStride;
    float score[kKeyTiles][kQueries / 8][4] = {};
    EPISODIC_UNROLL
    for (int c = 0; c < kDim / 16; ++c) {
      EPISODIC_UNROLL
      for (int k = 0; k < kQueries; k += 16) {
        std::uint32_t right[4];
        load_right_of_columns(right, tile + k * kStride + 16 * c, kStride, lane);
        EPISODIC_UNROLL
        for (int m = 0; m < kKeyTiles; ++m)
          multiply<Half>(score[m][k / 8], score[m][k / 8 + 1], left[m][c], right);
      }
    }
    EPISODIC_UNROLL
    for (int j = 0; j < kQueries / 8; ++j) {
      EPISODIC_UNROLL
      for (int e = 0; e < 2; ++e) {
        const int column = 8 * j + lane % 4 * 2 + e, query = (first + column) / a.group;
        const float lse = log_sums[stage][column];
        EPISODIC_UNROLL
        for (int m = 0; m < kKeyTiles; ++m) {
          EPISODIC_UNROLL
          for (int half = 0; half < 2; ++half) {
            const float s =
                a.cap_in == 0.0f ? score[m][j][2 * half + e] : capped(a, score[m][j][2 * half + e]);
            const float x = exp2_fast(fmaf(s, a.scale, -lse));
            if (sees(query, begin[m][half], kForever)) sum[m][half] += x;
          }
        }
      }
    }
    __syncthreads();  // the next tile is there for all, and nobody reads this one
  }
  EPISODIC_UNROLL
  for (int m = 0; m < kKeyTiles; ++m) {
    EPISODIC_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = sum[m][half];
      total += __shfl_xor_sync(kFullMask, total, 1);
      total += __shfl_xor_sync(kFullMask, total, 2);
      const int key = warp_key + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && key < rows_left)
        args.row_mass[head * p.max_rows + first_row + key] = total;
    }
  }
}

/// One block a list, y: sequences: a warp adds up the rows of an event, over the list's heads.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kEventMassThreads)
    EventMassKernel(KernelArgument<Batch<EventMassArgs, kMost>> batch) {
  const EventMassArgs args = batch.of[blockIdx.y];
  using Scan = cub::BlockScan<int, kEventMassThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  EPISODIC_SHARED(first_row, int[kEventMassThreads + 1]);  // of the events of a round
  const AttentionParams& p = args.a.p;
  const std::int64_t list = blockIdx.x;
  const std::int64_t heads = p.n_kv_heads / p.n_lists;
  const float* const row_mass = args.row_mass + list * heads * p.max_rows;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const ListedEvents events = listed_events(args, list);
  const int n_rows = event_rows<kEventMassThreads>(args, list).count;
  int rows = 0;  // of the rounds before
  for (int round = 0; round < events.count; round += kEventMassThreads) {
    const int left = events.count - round;
    const int in_round = left < kEventMassThreads ? left : kEventMassThreads;
    int before, total;
    Scan(storage).ExclusiveSum(thread < in_round ? events.length(round + thread) : 0, before,
                               total);
    first_row[thread] = rows + before;
    if (thread == 0) first_row[in_round] = rows + total;
    __syncthreads();
    for (int k = thread / kWarpSize; k < in_round; k += kEventMassThreads / kWarpSize) {
      const int begin = first_row[k];
      const int end = first_row[k + 1] < n_rows ? first_row[k + 1] : n_rows;
      double sum = 0.0;
      for (std::int64_t h = 0; h < heads; ++h)
        for (int row = begin + lane; row < end; row += kWarpSize)
          sum += static_cast<double>(row_mass[h * p.max_rows + row]);
      sum = warp_reduce(sum, Sum{});
      if (lane == 0) args.mass[list * args.list_capacity + round + k] = sum;
    }
    rows += total;
    __syncthreads();  // first_row and the storage are used again
  }
}

/// One block a sequence. An event is once in a list: its threads add to different ones.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kReceiveThreads)
    ReceiveMassesKernel(KernelArgument<Batch<ReceiveParams, kMost>> batch) {
  const ReceiveParams& p = batch.of[blockIdx.x];
  for (std::int64_t l = 0; l < p.n_layers; ++l)
    for (std::int64_t list = 0; list < p.n_lists; ++list) {
      const LayerMasses layer = p.layers[l];
      const std::int64_t first = list * p.list_capacity;
      const std::int64_t listed = layer.n_recalled[3 * list];
      const std::int64_t count = listed < p.list_capacity ? listed : p.list_capacity;
      for (std::int64_t k = threadIdx.x; k < count; k += kReceiveThreads)
        p.received[layer.recalled[first + k]] += layer.mass[first + k];
      __syncthreads();  // the next list may have the same events
    }
}

}  // namespace episodic::kernels
