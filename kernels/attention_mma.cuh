// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Segmented attention of 16-bit elements on the tensor cores. A row is one (query, head of the
/// group), so that the query heads of a group share each key that is read.

#include <cstring>

#include "attention.cuh"
#include "launch_early.cuh"
#include "ptx.cuh"

namespace episodic::kernels {

/// Two floats as neighbouring elements of a fragment.
template <class Half>
__device__ inline std::uint32_t pack(float low, float high);
template <>
__device__ inline std::uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}
template <>
__device__ inline std::uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  memcpy(&bits, &pair, sizeof(bits));
  return bits;
}

/// Fragments of 16 x 16 elements at `tile`, rows `stride` apart. Of a product's left side: as it
/// lies. Right side from rows that are its columns (queries times keys): [0], [1] for columns 0..7,
/// [2], [3] for 8..15. Right side from rows that are its rows (probabilities times values): the
/// same.
template <class Half>
__device__ inline void load_left(std::uint32_t (&out)[4], const Half* tile, int stride, int lane) {
  load_matrices_x4(out, tile + lane % 16 * stride + lane / 16 * 8);
}
template <class Half>
__device__ inline void load_right_of_columns(std::uint32_t (&out)[4], const Half* tile, int stride,
                                             int lane) {
  load_matrices_x4(out, tile + (lane / 16 * 8 + lane % 8) * stride + lane / 8 % 2 * 8);
}
template <class Half>
__device__ inline void load_right_of_rows(std::uint32_t (&out)[4], const Half* tile, int stride,
                                          int lane) {
  load_matrices_x4_transposed(out, tile + lane % 16 * stride + lane / 16 * 8);
}

/// c += left * right for the 16 columns that `right` holds.
template <class Half>
__device__ inline void multiply(float (&low)[4], float (&high)[4], const std::uint32_t (&left)[4],
                                const std::uint32_t (&right)[4]) {
  const std::uint32_t of_low[2] = {right[0], right[1]}, of_high[2] = {right[2], right[3]};
  mma_m16n8k16<Half>(low, left, of_low);
  mma_m16n8k16<Half>(high, left, of_high);
}

/// cap_out * tanh(cap_in * score) as cap_out (1 - 2 / (1 + e^2x)). Each operation has one operand
/// of the parameters and none that stays in a register: the callers have none to spare.
__device__ inline float capped(const AttentionArgs& a, float score) {
  const float share = reciprocal_fast(1.0f + exp2_fast(a.cap_exponent * score));
  return __fadd_rn(__fmul_rn(share, a.cap_twice), a.cap_out);
}

/// f(row, channel) for all pieces of 8 channels of a tile that are this thread's, kUnrolled rows at
/// a time.
template <int kRows, int kChunks, int kThreads, int kUnrolled = kRows, class F>
__device__ inline void for_pieces(F&& f) {
  constexpr int kLanes = kChunks & -kChunks;  // for each row: the largest power of 2 that divides
  static_assert(kRows * kLanes % kThreads == 0, "all threads copy alike");
  const int row = static_cast<int>(threadIdx.x) / kLanes;
  const int channel = static_cast<int>(threadIdx.x) % kLanes * 8;
  EPISODIC_UNROLL_BY(kUnrolled)
  for (int r = 0; r < kRows; r += kThreads / kLanes) {
    EPISODIC_UNROLL
    for (int c = 0; c < kChunks; c += kLanes) f(row + r, channel + 8 * c);
  }
}

/// The end of a block of few rows: what its warps have of their keys is merged, in their order,
/// into the split's output, or the rows' where there is one split. \param out, max, sum of the
/// thread's rows lane / 4 and 8 below \param bytes shared memory that the tiles had
template <class Half, int kDim>
__device__ inline void end_few_rows(const AttentionArgs& a, int head, int split,
                                    const float (&out)[kDim / 8][4], const float (&max)[2],
                                    const float (&sum)[2], unsigned char* bytes) {
  constexpr MmaTile kTile = mma_tile(kDim, true);
  constexpr int kWarps = kTile.key_warps, kRows = kTile.rows(), kStride = few_rows_stride(kDim);
  static_assert(kRows == 16 && kTile.warps == kWarps, "all warps have the same rows");
  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int warp = thread / kWarpSize, width = static_cast<int>(p.value_dim);
  auto* const maxima = reinterpret_cast<float*>(bytes);  // [kWarps][kRows]
  float* const sums = maxima + kWarps * kRows;           // the same
  float* const outs = sums + kWarps * kRows;             // [kWarps][kRows][kStride]
  __syncthreads();                                       // the tiles have been read
  EPISODIC_UNROLL
  for (int half = 0; half < 2; ++half) {
    float total = sum[half];
    total += __shfl_xor_sync(kFullMask, total, 1);
    total += __shfl_xor_sync(kFullMask, total, 2);
    const int row = warp * kRows + 8 * half + lane / 4;
    if (lane % 4 == 0) {
      maxima[row] = max[half];
      sums[row] = total;
    }
    EPISODIC_UNROLL
    for (int j = 0; j < kDim / 8; ++j)
      *reinterpret_cast<float2*>(outs + row * kStride + 8 * j + lane % 4 * 2) =
          make_float2(out[j][2 * half], out[j][2 * half + 1]);
  }
  __syncthreads();
  for (int at = 4 * thread; at < a.rows * width; at += 4 * kTile.warps * kWarpSize) {
    const int row = at / width, c = at % width;
    float largest = -INFINITY;
    EPISODIC_UNROLL
    for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, maxima[w * kRows + row]);
    const float safe = largest == -INFINITY ? 0.0f : largest;
    float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    float of_row = 0.0f;
    EPISODIC_UNROLL
    for (int w = 0; w < kWarps; ++w) {
      const float weight = exp2_fast(maxima[w * kRows + row] - safe);
      const float4 x = *reinterpret_cast<const float4*>(outs + (w * kRows + row) * kStride + c);
      of_row += weight * sums[w * kRows + row];
      total.x += weight * x.x, total.y += weight * x.y;
      total.z += weight * x.z, total.w += weight * x.w;
    }
    if (a.splits > 1) {
      const std::int64_t to = (std::int64_t{head} * a.splits + split) * a.rows + row;
      if (c == 0) a.partial_stats[to] = make_float2(largest, of_row);
      *reinterpret_cast<float4*>(a.partial_out + to * width + c) = total;
      continue;
    }
    const int i = row / a.group, h = head * a.group + row % a.group;
    const RowTotal ended = row_total(a, h, largest, of_row);
    if (c == 0) write_stats(a, i, h, ended.max, ended.sum);
    Half* const to = static_cast<Half*>(p.out) + (std::int64_t{i} * p.n_heads + h) * width + c;
    *reinterpret_cast<uint2*>(to) =
        uint2{pack<Half>(total.x * ended.factor, total.y * ended.factor),
              pack<Half>(total.z * ended.factor, total.w * ended.factor)};
  }
  if (a.merge_group > 0)
    merge_when_last<Half>(a, head, split, reinterpret_cast<float*>(bytes),
                          static_cast<int>(mma_shared_bytes(kDim, kTile) / sizeof(float)));
}

/// Sequences of one launch: several where each has few rows.
template <bool kFewRows>
using MmaBatch = Batch<AttentionArgs, kFewRows ? kMostInLaunch : 1>;

/// Blocks x: row tiles, y: splits, z: kv heads of each sequence. For each tile of keys, copied two
/// ahead of use:
/// scores = Q K^T, mask where a key is not seen by all of the warp's queries, online softmax in
/// base 2, out += P V. The queries are rotated anew between far and local tiles. Of few rows a warp
/// does so with its own keys of each tile, and the warps' outputs are merged at the end.
///
/// Codes (few rows alone; else they were widened before) are copied into the second half of each
/// piece's 16 bytes, and widened there, by the thread that copied them, once they are there.
///
/// Multiplications: 4 d per row and key. Bytes: 4 d per key, read once for each row tile, so of
/// n H / G rows and k keys: 4 d k ceil(rows / tile) G, mostly from L2.
template <class Half, int kDim, bool kFewRows>
__global__ void __launch_bounds__(kWarpSize* mma_tile(kDim, kFewRows).warps)
    MmaAttentionKernel(KernelArgument<MmaBatch<kFewRows>> batch) {
  if constexpr (kFewRows) await_launch_before();
  const AttentionArgs& a = sequence_of(batch);
  constexpr MmaTile kTile = mma_tile(kDim, kFewRows);
  constexpr int kThreads = kWarpSize * kTile.warps, kRowTiles = kTile.row_tiles;
  constexpr int kKeys = kTile.keys, kStride = shared_stride(kDim, 2), kChunks = kDim / 8;
  constexpr int kWarpKeys = kTile.warp_keys();
  constexpr int kElements = kKeys * kStride;  // of one stage
  EPISODIC_DYNAMIC_SHARED(bytes);
  Half* const queries = reinterpret_cast<Half*>(bytes);      // [rows][kStride]
  Half* const keys = queries + kTile.rows() * kStride;       // [stages][kKeys][kStride]
  Half* const values = keys + kAttentionStages * kElements;  // the same
  KvRow* const table =                                       // [tables][kKeys]
      reinterpret_cast<KvRow*>(values + kAttentionStages * kElements);

  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int head = kv_head_of(a), split = static_cast<int>(blockIdx.y);
  const int chunks = static_cast<int>(p.head_dim / 8);
  const int value_chunks = static_cast<int>(p.value_dim / 8);
  const int block_row = static_cast<int>(blockIdx.x) * kTile.rows();
  if (kFewRows && split >= a.splits) return;  // of a longer sequence
  const int block_last = min(block_row + kTile.rows(), a.rows) - 1;
  // In shared memory, as outputs and scores leave few registers.
  EPISODIC_SHARED(span, KeySpan);
  EPISODIC_SHARED(queries_of_warp,
                  int2[kTile.warps]);  // first and last; none: it only helps to copy
  EPISODIC_SHARED(to, int);
  if (thread == 0) span = key_span<Half>(p, head, block_row / a.group, block_last / a.group, kKeys);
  __syncthreads();
  const int tiles = span.far_tiles + tiles_of(span.local_count, kKeys);
  const int tiles_per_split = tiles_of(tiles, a.splits);
  const int from = min(split * tiles_per_split, tiles);
  if (thread == 0) to = min(from + tiles_per_split, tiles);

  const int warp_row = block_row + thread / kWarpSize / kTile.key_warps * 16 * kRowTiles;
  const int warp_key = thread / kWarpSize % kTile.key_warps * kWarpKeys;  // of a tile, the first
  if (lane == 0)
    queries_of_warp[thread / kWarpSize] =
        warp_row >= a.rows
            ? int2{1, 0}
            : int2{warp_row / a.group, min(warp_row + 16 * kRowTiles - 1, block_last) / a.group};
  __syncthreads();
  const auto query_of = [&](int m, int half) {  // of this thread's rows
    return (warp_row + 16 * m + 8 * half + lane / 4) / a.group;
  };
  float out[kRowTiles][kDim / 8][4] = {};
  float max[kRowTiles][2], sum[kRowTiles][2];
  EPISODIC_UNROLL
  for (int m = 0; m < kRowTiles; ++m) {
    EPISODIC_UNROLL
    for (int half = 0; half < 2; ++half) {
      max[m][half] = -INFINITY;
      sum[m][half] = 0.0f;
    }
  }

  // What lies beyond the list repeats its last row, so that no address needs a branch; it is copied
  // as zeros and seen by nobody.
  // Rows of a window in pages are listed here, as its look-ups beside the copies would spill.
  const auto copy_table = [&](int tile) {
    if (tile >= to) return;
    KvRow* const to_table = table + tile % kAttentionTables * kKeys;
    if (tile >= span.far_tiles) {
      if (!p.ring_pages.table) return;
      for (int key = thread; key < kKeys; key += kThreads) {
        const int i = min((tile - span.far_tiles) * kKeys + key, span.local_count - 1);
        KvRow row;
        row.key = static_cast<const Half*>(span.ring_keys) + span.local_row(p, i);
        row.value = static_cast<const Half*>(span.ring_values) + span.local_value_row(p, i);
        to_table[key] = row;  // of this head alone: a stride of zero
      }
      return;
    }
    for (int piece = thread; piece < 2 * kKeys; piece += kThreads) {
      const KvRow* const row = span.far + min(tile * kKeys + piece / 2, span.far_count - 1);
      copy_async_16(reinterpret_cast<char*>(to_table + piece / 2) + piece % 2 * 16,
                    reinterpret_cast<const char*>(row) + piece % 2 * 16);
    }
  };
  // Of few rows, a tile's keys have a thread each: where the scales of its key of the tile after
  // the next are. Those of this tile and the next lie in shared memory, below 0: no codes.
  EPISODIC_SHARED(scales, float2[2][kFewRows ? kKeys : 1]);
  const float* scales_after = nullptr;
  const auto has_codes = [&](int tile) {  // some key may be of codes
    return kFewRows && span.far_scales && tile < span.far_tiles;
  };
  const auto find_scales = [&](int tile) {
    if (has_codes(tile))
      scales_after = thread < kKeys ? scales_at(span, tile * kKeys + thread) : nullptr;
  };
  const auto take_scales = [&](int tile) {
    if (!has_codes(tile)) return;
    if (thread < kKeys)
      scales[tile % 2][thread] =
          scales_after ? head_scales(span, scales_after) : make_float2(-1.0f, -1.0f);
    __syncthreads();
  };
  const auto copy_tile = [&](int tile) {
    Half* const to_keys = keys + tile % kAttentionStages * kElements;
    const bool far = tile < span.far_tiles;
    const int first = (far ? tile : tile - span.far_tiles) * kKeys;
    const int count = (far ? span.far_count : span.local_count) - first;
    const auto copy = [&](int key, int channel, const Half* from_key, const Half* from_value) {
      const bool valid = key < count;
      Half* const to_key = to_keys + key * kStride + channel;
      copy_async_16(to_key, from_key, valid && channel < p.head_dim);
      copy_async_16(to_key + kAttentionStages * kElements, from_value,
                    valid && channel < p.value_dim);
    };
    if (far || p.ring_pages.table) {
      const KvRow* const rows = table + tile % kAttentionTables * kKeys;
      // Not all at once: of many rows the addresses would take registers that there are not, and of
      // few rows a warp runs through its code but a few times, so that reading the code is what
      // costs.
      for_pieces<kKeys, kChunks, kThreads, 4>([&](int key, int channel) {
        const KvRow& row = rows[key];
        const std::int64_t at = std::int64_t{row.head_stride} * span.far_head + channel;
        const std::int64_t value_at = value_place(p, row.head_stride, span.far_head) + channel;
        if constexpr (kFewRows) {
          // Zeros then: codes are not aligned as what is not read must be too.
          const auto* const aligned = static_cast<const Half*>(p.local_key);
          const bool codes = has_codes(tile);
          if (codes && scales[tile % 2][key].x >= 0.0f) {
            Half* const to_key = to_keys + key * kStride + channel;
            const auto copy_codes = [&](Half* to, const void* codes, std::int64_t first,
                                        bool valid) {
              if (valid)
                copy_async_8(to + 4, static_cast<const std::uint8_t*>(codes) + first);
              else
                copy_async_16(to, aligned, false);
            };
            copy_codes(to_key, row.key, at, channel < p.head_dim);
            copy_codes(to_key + kAttentionStages * kElements, row.value, value_at,
                       channel < p.value_dim);
            return;
          }
          if (codes && key >= count) return copy(key, channel, aligned, aligned);
        }
        copy(key, channel, static_cast<const Half*>(row.key) + at,
             static_cast<const Half*>(row.value) + value_at);
      });
    } else {
      const auto d = static_cast<unsigned>(p.head_dim), e = static_cast<unsigned>(p.value_dim),
                 capacity = static_cast<unsigned>(p.ring_capacity);
      const Half* const ring_keys = static_cast<const Half*>(span.ring_keys);
      const Half* const ring_values = static_cast<const Half*>(span.ring_values);
      for_pieces<kKeys, kChunks, kThreads, kFewRows ? 4 : kKeys>([&](int key, int channel) {
        unsigned slot = static_cast<unsigned>(span.local_slot + first + key);
        slot = min(slot, slot - capacity);  // below the capacity, the difference wraps around
        copy(key, channel, ring_keys + (std::uint64_t{slot} * d + static_cast<unsigned>(channel)),
             ring_values + (std::uint64_t{slot} * e + static_cast<unsigned>(channel)));
      });
    }
  };
  // The keys that are codes, of a tile that has arrived.
  const auto widen_tile = [&](int tile) {
    Half* const tile_keys = keys + tile % kAttentionStages * kElements;
    for_pieces<kKeys, kChunks, kThreads, 4>([&](int key, int channel) {
      const float2 of_key = scales[tile % 2][key];
      if (of_key.x < 0.0f) return;
      const auto widen_piece = [&](Half* piece, float scale) {
        const CodeChunk codes = *reinterpret_cast<const CodeChunk*>(piece + 4);
        *reinterpret_cast<Chunk<Half>*>(piece) = widened<Half>(codes, scale, codes_are_fp8(p));
      };
      Half* const piece = tile_keys + key * kStride + channel;
      if (channel < p.head_dim) widen_piece(piece, of_key.x);
      if (channel < p.value_dim) widen_piece(piece + kAttentionStages * kElements, of_key.y);
    });
    __syncthreads();
  };
  const auto rotate_queries = [&](bool local) {
    for (int piece = thread; piece < kTile.rows() * kChunks; piece += kThreads) {
      const int r = piece / kChunks, chunk = piece % kChunks, row = block_row + r;
      Chunk<Half> q;
      EPISODIC_UNROLL
      for (int e = 0; e < 8; ++e) q.at[e] = narrow<Half>(0.0f);
      if (row < a.rows && chunk < chunks) {
        const int i = row / a.group, h = head * a.group + row % a.group;
        q = rotated_query<Half>(a, i, h, chunk, local);
        if (local && a.maybe_queries) {
          Half* const kept =
              static_cast<Half*>(a.maybe_queries) + (i * p.n_heads + h) * p.head_dim + 8 * chunk;
          *reinterpret_cast<Chunk<Half>*>(kept) = q;
        }
      }
      *reinterpret_cast<Chunk<Half>*>(queries + r * kStride + 8 * chunk) = q;
    }
  };

  if (from < to) {
    copy_table(from);
    copy_table(from + 1);
    commit_copies();
    wait_copies<0>();
    __syncthreads();
    find_scales(from);
    take_scales(from);
    find_scales(from + 1);
    copy_tile(from);
    commit_copies();
  }
  for (int tile = from; tile < to; ++tile) {
    wait_copies<0>();
    __syncthreads();  // this tile is there for all, and nobody reads the one before
    if (tile + 1 < to) {
      take_scales(tile + 1);
      find_scales(tile + 2);
      copy_tile(tile + 1);
      copy_table(tile + 2);
      commit_copies();
    }
    if constexpr (kFewRows) {
      if (has_codes(tile)) widen_tile(tile);
    }
    const bool far = tile < span.far_tiles;
    if (tile == from || tile == span.far_tiles) {
      rotate_queries(!far);
      __syncthreads();
    }
    const int first_query = queries_of_warp[thread / kWarpSize].x;
    const int last_query = queries_of_warp[thread / kWarpSize].y;
    if (first_query > last_query) continue;

    // Of this warp's keys.
    const int first = (far ? tile : tile - span.far_tiles) * kKeys + warp_key;
    const int count = (far ? span.far_count : span.local_count) - first;
    const KvRow* const rows = table + tile % kAttentionTables * kKeys + warp_key;
    const unsigned length = far ? kForever : static_cast<unsigned>(p.n_local);
    const auto begin_of = [&](int key) {  // the first query that sees it
      return key >= count ? kNobody
             : far        ? first_query_of_far(rows[key].token, p.n_local, span.first_position)
                          : span.local_begin + first + key;
    };
    const auto weight_of = [&](int key) {
      return far && key < count ? rows[key].value_weight : 1.0f;
    };
    bool seen = false, hidden = false, weighted = false;
    EPISODIC_UNROLL
    for (int k = 0; k < kWarpKeys; k += kWarpSize) {
      if (lane + k >= kWarpKeys) break;
      const int begin = begin_of(lane + k);
      const bool of_first = sees(first_query, begin, length);
      seen = seen || of_first || (begin > first_query && begin <= last_query);
      hidden = hidden || !of_first || !sees(last_query, begin, length);
      weighted = weighted || weight_of(lane + k) != 1.0f;
    }
    if (!__any_sync(kFullMask, seen)) continue;
    hidden = __any_sync(kFullMask, hidden);
    weighted = __any_sync(kFullMask, weighted);

    float score[kRowTiles][kWarpKeys / 8][4] = {};
    const Half* const tile_keys = keys + tile % kAttentionStages * kElements + warp_key * kStride;
    const Half* const warp_queries = queries + (warp_row - block_row) * kStride;
    // not unrolled in full: loads moved further ahead would cost registers that there are not
    EPISODIC_UNROLL_BY(2)
    for (int c = 0; c < kDim; c += 16) {
      std::uint32_t left[kRowTiles][4], right[4];
      EPISODIC_UNROLL
      for (int m = 0; m < kRowTiles; ++m)
        load_left(left[m], warp_queries + 16 * m * kStride + c, kStride, lane);
      EPISODIC_UNROLL
      for (int k = 0; k < kWarpKeys; k += 16) {
        load_right_of_columns(right, tile_keys + k * kStride + c, kStride, lane);
        EPISODIC_UNROLL
        for (int m = 0; m < kRowTiles; ++m)
          multiply<Half>(score[m][k / 8], score[m][k / 8 + 1], left[m], right);
      }
    }
    if (a.cap_in != 0.0f) {
      EPISODIC_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        EPISODIC_UNROLL
        for (int j = 0; j < kWarpKeys / 8; ++j) {
          EPISODIC_UNROLL
          for (int e = 0; e < 4; ++e) score[m][j][e] = capped(a, score[m][j][e]);
        }
      }
    }
    if (hidden) {
      int query[kRowTiles][2];
      EPISODIC_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        query[m][0] = query_of(m, 0);
        query[m][1] = query_of(m, 1);
      }
      EPISODIC_UNROLL
      for (int j = 0; j < kWarpKeys / 8; ++j) {
        EPISODIC_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int begin = begin_of(8 * j + lane % 4 * 2 + e);
          EPISODIC_UNROLL
          for (int m = 0; m < kRowTiles; ++m) {
            if (!sees(query[m][0], begin, length)) score[m][j][e] = -INFINITY;
            if (!sees(query[m][1], begin, length)) score[m][j][2 + e] = -INFINITY;
          }
        }
      }
    }
    if constexpr (kFewRows) {
      // One row tile: its local keys are the whole window.
      if (a.maybe_scores && !far) {
        EPISODIC_UNROLL
        for (int j = 0; j < kWarpKeys / 8; ++j) {
          EPISODIC_UNROLL
          for (int e = 0; e < 4; ++e) {
            const int key = 8 * j + lane % 4 * 2 + e % 2, row = warp_row + 8 * (e / 2) + lane / 4;
            if (key >= count || row >= a.rows) continue;
            const int h = head * a.group + row % a.group;
            a.maybe_scores[((first + key) * p.n_heads + h) * p.n_queries + query_of(0, e / 2)] =
                score[0][j][e];
          }
        }
      }
    }

    EPISODIC_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      float factor[2];
      bool grown = false;
      EPISODIC_UNROLL
      for (int half = 0; half < 2; ++half) {
        float largest = -INFINITY;
        EPISODIC_UNROLL
        for (int j = 0; j < kWarpKeys / 8; ++j)
          largest = fmaxf(largest, fmaxf(score[m][j][2 * half], score[m][j][2 * half + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
        const float before = max[m][half], now = fmaxf(before, largest * a.scale);
        const float safe = now == -INFINITY ? 0.0f : now;  // no key yet: exp2(-inf - 0), not NaN
        factor[half] = exp2_fast(before - safe);
        max[m][half] = now;
        grown = grown || now != before;
        float of_tile = 0.0f;
        EPISODIC_UNROLL
        for (int j = 0; j < kWarpKeys / 8; ++j) {
          EPISODIC_UNROLL
          for (int e = 2 * half; e < 2 * half + 2; ++e) {
            score[m][j][e] = exp2_fast(fmaf(score[m][j][e], a.scale, -safe));
            of_tile += score[m][j][e];
          }
        }
        sum[m][half] = sum[m][half] * factor[half] + of_tile;
      }
      // most tiles raise no maximum: all factors are 1
      if (__any_sync(kFullMask, grown)) {
        EPISODIC_UNROLL
        for (int j = 0; j < kDim / 8; ++j) {
          EPISODIC_UNROLL
          for (int e = 0; e < 4; ++e) out[m][j][e] *= factor[e / 2];
        }
      }
    }
    if (weighted) {
      EPISODIC_UNROLL
      for (int j = 0; j < kWarpKeys / 8; ++j) {
        EPISODIC_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float of_key = weight_of(8 * j + lane % 4 * 2 + e);
          EPISODIC_UNROLL
          for (int m = 0; m < kRowTiles; ++m) {
            score[m][j][e] *= of_key;
            score[m][j][2 + e] *= of_key;
          }
        }
      }
    }

    const Half* const tile_values =
        values + tile % kAttentionStages * kElements + warp_key * kStride;
    EPISODIC_UNROLL
    for (int k = 0; k < kWarpKeys; k += 16) {
      std::uint32_t left[kRowTiles][4], right[4];
      EPISODIC_UNROLL
      for (int m = 0; m < kRowTiles; ++m) {
        const auto& low = score[m][k / 8];
        const auto& high = score[m][k / 8 + 1];
        left[m][0] = pack<Half>(low[0], low[1]);
        left[m][1] = pack<Half>(low[2], low[3]);
        left[m][2] = pack<Half>(high[0], high[1]);
        left[m][3] = pack<Half>(high[2], high[3]);
      }
      EPISODIC_UNROLL
      for (int c = 0; c < kDim; c += 16) {
        load_right_of_rows(right, tile_values + k * kStride + c, kStride, lane);
        EPISODIC_UNROLL
        for (int m = 0; m < kRowTiles; ++m)
          multiply<Half>(out[m][c / 8], out[m][c / 8 + 1], left[m], right);
      }
    }
  }

  if constexpr (kFewRows) {
    end_few_rows<Half, kDim>(a, head, split, out[0], max[0], sum[0], bytes);
  } else {
    EPISODIC_UNROLL
    for (int m = 0; m < kRowTiles; ++m) {
      EPISODIC_UNROLL
      for (int half = 0; half < 2; ++half) {
        float total = sum[m][half];
        total += __shfl_xor_sync(kFullMask, total, 1);
        total += __shfl_xor_sync(kFullMask, total, 2);
        const int row = warp_row + 16 * m + 8 * half + lane / 4;
        if (row >= a.rows) continue;
        const int i = query_of(m, half), h = head * a.group + row % a.group;
        const int first_channel = lane % 4 * 2;
        if (a.splits > 1) {
          const std::int64_t at = (std::int64_t{head} * a.splits + split) * a.rows + row;
          if (lane % 4 == 0) a.partial_stats[at] = make_float2(max[m][half], total);
          float* const to_row = a.partial_out + at * p.value_dim + first_channel;
          EPISODIC_UNROLL
          for (int j = 0; j < kDim / 8; ++j)
            if (j < value_chunks)
              *reinterpret_cast<float2*>(to_row + 8 * j) =
                  make_float2(out[m][j][2 * half], out[m][j][2 * half + 1]);
          continue;
        }
        // many rows of 128 have no registers left here: with sinks they are split (attention.cu)
        const RowTotal of_row = kDim != 128 ? row_total(a, h, max[m][half], total)
                                            : RowTotal{max[m][half], total, inverse_sum(total)};
        if (lane % 4 == 0) write_stats(a, i, h, of_row.max, of_row.sum);
        const float inverse = of_row.factor;
        Half* const to_row =
            static_cast<Half*>(p.out) + (i * p.n_heads + h) * p.value_dim + first_channel;
        EPISODIC_UNROLL
        for (int j = 0; j < kDim / 8; ++j)
          if (j < value_chunks)
            *reinterpret_cast<std::uint32_t*>(to_row + 8 * j) =
                pack<Half>(out[m][j][2 * half] * inverse, out[m][j][2 * half + 1] * inverse);
      }
    }
  }
}

/// Column sums of many rows. Blocks x: tiles of local keys, y: query heads. A warp holds its keys
/// as left sides in registers and adds exp2(score - max) / sum over all queries that see them, tile
/// after tile. Multiplications: 2 d per query and local key.
template <class Half, int kDim>
__global__ void __launch_bounds__(kWarpSize* column_tile(kDim).warps)
    MmaColumnSumsKernel(const AttentionArgs a) {
  constexpr ColumnTile kTile = column_tile(kDim);
  constexpr int kThreads = kWarpSize * kTile.warps, kKeyTiles = kTile.key_tiles;
  constexpr int kQueries = kTile.queries, kStride = shared_stride(kDim, 2), kChunks = kDim / 8;
  constexpr int kQueriesPerLane = kQueries / kWarpSize;
  EPISODIC_DYNAMIC_SHARED(bytes);
  Half* const keys = reinterpret_cast<Half*>(bytes);    // [keys][kStride]
  Half* const queries = keys + kTile.keys() * kStride;  // [stages][kQueries][kStride]

  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int h = static_cast<int>(blockIdx.y), g = h / a.group;
  const int chunks = static_cast<int>(p.head_dim / 8), n = static_cast<int>(p.n_queries);
  const int n_local = static_cast<int>(p.n_local);
  const KeySpan span = key_span<Half>(p, g, 0, n - 1, kTile.keys());
  const int block_key = static_cast<int>(blockIdx.x) * kTile.keys();
  if (block_key >= span.local_count) return;
  const int keys_left = span.local_count - block_key;
  const int block_begin = span.local_begin + block_key;  // the first query that sees the first key
  const int from = block_begin < 0 ? 0 : block_begin;
  const int to = min(n, block_begin + min(kTile.keys(), keys_left) - 1 + n_local);

  const auto copy_queries = [&](int first) {
    Half* const stage = queries + (first - from) / kQueries % kAttentionStages * kQueries * kStride;
    for_pieces<kQueries, kChunks, kThreads>([&](int r, int channel) {
      const bool valid = first + r < to && channel < p.head_dim;
      const std::int64_t at = valid ? ((first + r) * p.n_heads + h) * p.head_dim + channel : 0;
      copy_async_16(stage + r * kStride + channel, static_cast<const Half*>(a.maybe_queries) + at,
                    valid);
    });
    commit_copies();
  };
  for (int piece = thread; piece < kTile.keys() * kChunks; piece += kThreads) {
    const int key = piece / kChunks, chunk = piece % kChunks;
    const bool valid = key < keys_left && chunk < chunks;
    const std::int64_t at = valid ? span.local_row(p, block_key + key) + 8 * chunk : 0;
    copy_async_16(keys + key * kStride + 8 * chunk, static_cast<const Half*>(span.ring_keys) + at,
                  valid);
  }
  commit_copies();
  copy_queries(from);
  wait_copies<1>();
  __syncthreads();
  const int warp_key = thread / kWarpSize * 16 * kKeyTiles;
  std::uint32_t left[kKeyTiles][kDim / 16][4];
  EPISODIC_UNROLL
  for (int m = 0; m < kKeyTiles; ++m) {
    EPISODIC_UNROLL
    for (int c = 0; c < kDim / 16; ++c)
      load_left(left[m][c], keys + (warp_key + 16 * m) * kStride + 16 * c, kStride, lane);
  }
  const int warp_begin = block_begin + warp_key;
  float sum[kKeyTiles][2] = {};

  for (int first = from; first < to; first += kQueries) {
    float exponents[kQueriesPerLane];  // of queries `lane`, `lane` + 32 of the tile
    EPISODIC_UNROLL
    for (int k = 0; k < kQueriesPerLane; ++k) {
      const int i = first + lane + kWarpSize * k;
      exponents[k] = share_exponent(i < to ? a.maybe_stats[h * p.n_queries + i] : float2{});
    }
    wait_copies<0>();
    __syncthreads();  // this tile is there for all, and nobody reads the one before
    if (first + kQueries < to) copy_queries(first + kQueries);
    const Half* const tile =
        queries + (first - from) / kQueries % kAttentionStages * kQueries * kStride;
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
    if (a.cap_in != 0.0f) {
      EPISODIC_UNROLL
      for (int m = 0; m < kKeyTiles; ++m) {
        EPISODIC_UNROLL
        for (int j = 0; j < kQueries / 8; ++j) {
          EPISODIC_UNROLL
          for (int e = 0; e < 4; ++e) score[m][j][e] = capped(a, score[m][j][e]);
        }
      }
    }
    // The last key has the latest window, the first key the earliest.
    const unsigned length = static_cast<unsigned>(n_local);
    const bool hidden = !sees(first, warp_begin + 16 * kKeyTiles - 1, length) ||
                        !sees(first + kQueries - 1, warp_begin, length);
    const auto add_shares = [&](auto hides) {
      EPISODIC_UNROLL
      for (int j = 0; j < kQueries / 8; ++j) {
        EPISODIC_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int column = 8 * j + lane % 4 * 2 + e;
          const float exponent = __shfl_sync(kFullMask, exponents[j / 4], column % kWarpSize);
          EPISODIC_UNROLL
          for (int m = 0; m < kKeyTiles; ++m) {
            EPISODIC_UNROLL
            for (int half = 0; half < 2; ++half) {
              float x = exp2_fast(fmaf(score[m][j][2 * half + e], a.scale, -exponent));
              if constexpr (decltype(hides)::value) {
                const int key_begin = warp_begin + 16 * m + 8 * half + lane / 4;
                if (!sees(first + column, key_begin, length)) x = 0.0f;
              }
              sum[m][half] += x;
            }
          }
        }
      }
    };
    if (hidden)  // the same in all lanes
      add_shares(std::true_type{});
    else
      add_shares(std::false_type{});
  }
  EPISODIC_UNROLL
  for (int m = 0; m < kKeyTiles; ++m) {
    EPISODIC_UNROLL
    for (int half = 0; half < 2; ++half) {
      float total = sum[m][half];
      total += __shfl_xor_sync(kFullMask, total, 1);
      total += __shfl_xor_sync(kFullMask, total, 2);
      const int key = warp_key + 16 * m + 8 * half + lane / 4;
      if (lane % 4 == 0 && key < keys_left)
        p.maybe_column_sums[(block_key + key) * p.n_heads + h] = total;
    }
  }
}

/// Column sums of few rows, from the scores that the first pass wrote. Blocks x: scores, y:
/// sequences.
template <class Half>  // one instance for each source that launches it
__global__ void __launch_bounds__(256)
    ScoresToColumnSumsKernel(KernelArgument<Batch<AttentionArgs>> batch) {
  const AttentionArgs& a = batch.of[blockIdx.y];
  if (!a.maybe_stats) return;  // it wants none, or later
  const std::int64_t n = a.p.n_queries, count = local_keys(a.p) * a.p.n_heads;
  for (std::int64_t at = std::int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < count;
       at += std::int64_t{gridDim.x} * blockDim.x) {
    const float2* const stats = a.maybe_stats + at % a.p.n_heads * n;
    float sum = 0.0f;
    for (std::int64_t i = 0; i < n; ++i)
      sum += column_share(a.maybe_scores[at * n + i], {a.scale, stats[i].x, stats[i].y});
    a.p.maybe_column_sums[at] = sum;
  }
}

}  // namespace episodic::kernels
