// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code that all kernels of kernels/attention.hpp share: which keys a block reads, which
/// queries see them, rotary embedding of queries, and the merge of splits.

#include <climits>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "attention_plan.hpp"
#include "batch.hpp"
#include "device.cuh"
#include "episodic/base/rules/fp8.hpp"
#include "last_arrival.cuh"
#include "ptx.cuh"
#include "ring_pages.cuh"
#include "value_width.cuh"

namespace episodic::kernels {

/// What the kernels get: the caller's parameters and what the launcher made of them.
struct AttentionArgs {
  AttentionParams p;
  float scale = 0.0f;  ///< |scale| * log2(e): softmax in base 2
  float sign = 1.0f;   ///< of the scale, goes to the queries
  /// Scores s become cap_out * tanh(cap_in * s) before they are scaled; cap_in = 0: they stay.
  float cap_in = 0.0f, cap_out = 0.0f;
  float cap_exponent = 0.0f;  ///< 2 log2(e) cap_in
  float cap_twice = 0.0f;     ///< -2 cap_out
  int group = 0;              ///< H / G
  int rows = 0;               ///< n * H / G
  int splits = 0;
  int merge_group = 0;            ///< splits that a block merges; 0: the merge is another launch
  float2* maybe_stats = nullptr;  ///< [H, n] max (base 2) and 1 / sum; null without column sums
  void* maybe_queries = nullptr;  ///< [n, H, d], null unless a second pass reads them
  /// [window, H, n] raw scores of local keys, -inf if not seen. Column sums that are deferred: they
  /// take the sums' place.
  float* maybe_scores = nullptr;
  KvRow* wide_rows = nullptr;       ///< [n_lists, max_rows], null unless codes are widened before
  void* wide = nullptr;             ///< [n_lists, max_code_rows, G / n_lists, d + e] then
  float2* partial_stats = nullptr;  ///< [G, splits, rows] max and sum
  float* partial_out = nullptr;     ///< [G, splits, rows, e] before division by the sum
};

/// Where values of a head begin, in elements behind those of the first.
__device__ inline std::int64_t value_place(const AttentionParams& p, int head_stride, int head) {
  if (p.value_dim == p.head_dim) return std::int64_t{head_stride} * head;
  return std::int64_t{head_stride / static_cast<int>(p.head_dim)} * p.value_dim * head;
}

/// Of a grid whose z is the kv heads of one sequence after the other: the block's sequence.
template <std::int64_t kMost>
__device__ inline const AttentionArgs& sequence_of(const Batch<AttentionArgs, kMost>& batch) {
  if constexpr (kMost == 1) return batch.of[0];
  return batch.of[blockIdx.z / static_cast<unsigned>(batch.of[0].p.n_kv_heads)];
}
__device__ inline int kv_head_of(const AttentionArgs& a) {
  return static_cast<int>(blockIdx.z % static_cast<unsigned>(a.p.n_kv_heads));
}

/// Query `query` sees a key iff begin <= query < begin + span; span <= INT_MAX, 0 <= query < 2^30.
__device__ inline bool sees(int query, int begin, unsigned span) {
  return static_cast<unsigned>(query - begin) < span;
}
inline constexpr int kNobody = INT_MAX;  ///< `begin` of a key that no query sees
inline constexpr unsigned kForever = INT_MAX;

/// The first query that sees a far key, from queries at first_position on.
__device__ inline int first_query_of_far(std::int64_t token, std::int64_t n_local,
                                         std::int64_t first_position) {
  const std::int64_t query = token + n_local - first_position;
  return query < 0 ? 0 : query > kNobody ? kNobody : static_cast<int>(query);
}

__device__ inline int tiles_of(int count, int tile) { return (count + tile - 1) / tile; }

/// The keys that a block's queries read: all far rows of the list, then the local tokens that one
/// of the queries sees; both cut into tiles.
struct KeySpan {
  const KvRow* far;
  const float* const* far_scales;       ///< of its rows; null: none is of codes
  const void *ring_keys, *ring_values;  ///< the head's rings
  std::int64_t first_position;
  int far_count, far_tiles;
  int far_head, far_heads;  ///< the head's number among those of its list, and how many those are
  int local_count;
  int local_slot;   ///< of the first local token in the ring
  int local_begin;  ///< the first query that sees it, may be negative

  /// Elements from the head's ring of keys to the row of local key `i` < local_count.
  __device__ std::int64_t local_row(const AttentionParams& p, int i) const {
    return ring_row(p.ring_pages, local_slot_of(p, i), static_cast<unsigned>(p.head_dim));
  }
  /// The same of values.
  __device__ std::int64_t local_value_row(const AttentionParams& p, int i) const {
    return ring_row(value_pages(p), local_slot_of(p, i), static_cast<unsigned>(p.value_dim));
  }
  __device__ unsigned local_slot_of(const AttentionParams& p, int i) const {
    const auto capacity = static_cast<unsigned>(p.ring_capacity);
    const unsigned slot = static_cast<unsigned>(local_slot + i);
    return min(slot, slot - capacity);  // below the capacity, the difference wraps around
  }
};

/// Of queries first_query..last_query and kv head `head`, whose elements are T.
template <class T>
__device__ KeySpan key_span(const AttentionParams& p, int head, int first_query, int last_query,
                            int key_tile) {
  KeySpan span = {};
  span.ring_keys = static_cast<const T*>(p.local_key) + head * p.ring_head_stride;
  span.ring_values = static_cast<const T*>(p.local_value) + head * p.value_head_stride;
  span.first_position = *p.first_position;
  if (p.max_rows > 0) {
    const int heads = static_cast<int>(p.n_kv_heads / p.n_lists);  // of a list
    const int list = head / heads;
    span.far_head = head % heads;
    span.far_heads = heads;
    const int count = p.n_rows[list];
    span.far = p.rows + list * p.max_rows;
    if (p.max_code_rows > 0) span.far_scales = p.row_scales + list * p.max_rows;
    span.far_count = count < 0 ? 0 : count > p.max_rows ? static_cast<int>(p.max_rows) : count;
    span.far_tiles = tiles_of(span.far_count, key_tile);
  }
  const std::int64_t after_window = span.first_position + first_query + 1 - p.n_local;
  const std::int64_t token = after_window < 0 ? 0 : after_window;
  span.local_count = static_cast<int>(span.first_position + last_query + 1 - token);
  span.local_slot = static_cast<int>(token % p.ring_capacity);
  span.local_begin = static_cast<int>(token - span.first_position);
  return span;
}

/// Where the scales of far row `row` are; null: it is of no codes, or there is no such row.
__device__ inline const float* scales_at(const KeySpan& span, int row) {
  return span.far_scales && row < span.far_count ? span.far_scales[row] : nullptr;
}
/// Those of the head's keys and values. \param scales of scales_at
__device__ inline float2 head_scales(const KeySpan& span, const float* scales) {
  return scales ? make_float2(scales[span.far_head], scales[span.far_heads + span.far_head])
                : make_float2(0.0f, 0.0f);
}

/// Eight neighbouring elements: 16 bytes, or 32 of float32.
template <class T>
struct alignas(16) Chunk {
  T at[8];
};
struct alignas(8) CodeChunk {
  std::uint8_t at[8];
};

/// What a code stands for, of int8 or of fp8, as T. An fp8 is rounded up to a power of two that may
/// be beyond the largest float16.
template <class T>
__device__ inline T widened(std::uint8_t code, float scale, bool fp8) {
  if (!fp8) return narrow<T>(static_cast<float>(static_cast<std::int8_t>(code)) * scale);
  const float x = rules::from_fp8(code) * scale;
  if constexpr (std::is_same_v<T, __half>) return narrow<T>(fminf(fmaxf(x, -65504.0f), 65504.0f));
  return narrow<T>(x);
}
template <class T>
__device__ inline Chunk<T> widened(const CodeChunk& codes, float scale, bool fp8) {
  Chunk<T> out;
  EPISODIC_UNROLL
  for (int e = 0; e < 8; ++e) out.at[e] = widened<T>(codes.at[e], scale, fp8);
  return out;
}
__device__ inline bool codes_are_fp8(const AttentionParams& p) {
  return p.code_dtype == DType::fp8;
}

inline constexpr int kWidenWarps = 8;

/// Rows of codes as rows of T in the workspace, and the list of all rows with these in their place.
/// Blocks x: rows, a warp each, y: lists. Reads 2 d bytes a row and head and writes 4 d, once a
/// call: the kernels of many rows would widen each row again for every tile of queries.
template <class T>
__global__ void __launch_bounds__(kWarpSize* kWidenWarps) WidenRowsKernel(const AttentionArgs a) {
  const AttentionParams& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const std::int64_t list = blockIdx.y, heads = p.n_kv_heads / p.n_lists, d = p.head_dim;
  const int key_chunks = static_cast<int>(d / 8), value_chunks = static_cast<int>(p.value_dim / 8);
  const int key_pieces = static_cast<int>(heads) * key_chunks;
  const int pieces = key_pieces + static_cast<int>(heads) * value_chunks;
  const std::int64_t given = p.n_rows[list], count = given < p.max_rows ? given : p.max_rows;
  for (std::int64_t r = std::int64_t{blockIdx.x} * kWidenWarps + warp; r < count;
       r += std::int64_t{gridDim.x} * kWidenWarps) {
    KvRow row = p.rows[list * p.max_rows + r];
    const float* const scales = p.row_scales[list * p.max_rows + r];
    const std::int64_t place = count - 1 - r;  // they are the last ones
    if (scales && place < p.max_code_rows) {
      T* const to =
          static_cast<T*>(a.wide) + (list * p.max_code_rows + place) * heads * (d + p.value_dim);
      for (int piece = lane; piece < pieces; piece += kWarpSize) {
        const bool is_key = piece < key_pieces;
        const int of_side = is_key ? piece : piece - key_pieces;
        const int chunks = is_key ? key_chunks : value_chunks;
        const int head = of_side / chunks, chunk = of_side % chunks;
        const auto* const from = static_cast<const std::uint8_t*>(is_key ? row.key : row.value) +
                                 (is_key ? std::int64_t{row.head_stride} * head
                                         : value_place(p, row.head_stride, head)) +
                                 8 * chunk;
        *reinterpret_cast<Chunk<T>*>(to + 8 * piece) =
            widened<T>(*reinterpret_cast<const CodeChunk*>(from),
                       scales[is_key ? head : heads + head], codes_are_fp8(p));
      }
      row.key = to;
      row.value = to + heads * d;
      row.head_stride = static_cast<std::int32_t>(d);
    }
    if (lane == 0) a.wide_rows[list * p.max_rows + r] = row;
  }
}

/// Channels 8 * chunk .. + 7 of query `i` of head `h`, rotated by its own position or by the fixed
/// angle, times the scale's sign.
template <class T>
__device__ Chunk<T> rotated_query(const AttentionArgs& a, int i, int h, int chunk, bool local) {
  const AttentionParams& p = a.p;
  const T* q = static_cast<const T*>(p.q) + i * p.q_row_stride + h * p.head_dim;
  const int rotary = static_cast<int>(p.rotary_dim), half = rotary / 2, first = 8 * chunk;
  const Chunk<T> own = *reinterpret_cast<const Chunk<T>*>(q + first);
  Chunk<T> out;
  if (first >= rotary) {
    EPISODIC_UNROLL
    for (int e = 0; e < 8; ++e) out.at[e] = narrow<T>(a.sign * widen(own.at[e]));
    return out;
  }
  if (p.interleaved) {  // a pair lies within the chunk, and four angles with it
    const std::int64_t angle = (local ? std::int64_t{i} * half : 0) + first / 2;
    const float4 cosine =
        *reinterpret_cast<const float4*>((local ? p.query_cos : p.fixed_cos) + angle);
    const float4 sine =
        *reinterpret_cast<const float4*>((local ? p.query_sin : p.fixed_sin) + angle);
    const float cosines[4] = {cosine.x, cosine.y, cosine.z, cosine.w};
    const float sines[4] = {sine.x, sine.y, sine.z, sine.w};
    EPISODIC_UNROLL
    for (int e = 0; e < 8; ++e)
      out.at[e] =
          narrow<T>(fmaf(a.sign * widen(own.at[e]), cosines[e / 2],
                         (e % 2 == 0 ? -a.sign : a.sign) * widen(own.at[e ^ 1]) * sines[e / 2]));
    return out;
  }
  const bool low = first < half;
  const Chunk<T> other =
      *reinterpret_cast<const Chunk<T>*>(q + (low ? first + half : first - half));
  const std::int64_t angle = (local ? std::int64_t{i} * half : 0) + (low ? first : first - half);
  const Chunk<float> cosine =
      *reinterpret_cast<const Chunk<float>*>((local ? p.query_cos : p.fixed_cos) + angle);
  const Chunk<float> sine =
      *reinterpret_cast<const Chunk<float>*>((local ? p.query_sin : p.fixed_sin) + angle);
  const float other_sign = low ? -a.sign : a.sign;
  // Spelled out, for a compiler may contract it or not: near a tie that is another 16-bit query.
  EPISODIC_UNROLL
  for (int e = 0; e < 8; ++e)
    out.at[e] = narrow<T>(fmaf(a.sign * widen(own.at[e]), cosine.at[e],
                               other_sign * widen(other.at[e]) * sine.at[e]));
  return out;
}

/// What the softmax of a row comes to: its factor 1 / sum, 0 for the empty set.
__device__ inline float inverse_sum(float sum) { return sum == 0.0f ? 0.0f : 1.0f / sum; }

/// x of AttentionArgs::maybe_stats: a query's share in a key is 2^(scaled score - x). Infinite
/// where it sees no key: its shares are 0.
__device__ inline float share_exponent(float2 stats) { return stats.x - log2f(stats.y); }

/// The softmax of a row once all its keys are in it.
struct RowTotal {
  float max, sum;  ///< base 2, of all that takes part
  float factor;    ///< of the row's output, which is that of keys of the maximum before
};

/// The sink of head h, base 2; without one -infinity, which adds nothing.
__device__ inline float sink_of(const AttentionArgs& a, int h) {
  constexpr float kLog2e = 1.44269504088896341f;
  return a.p.maybe_sink_logits ? a.p.maybe_sink_logits[h] * kLog2e : -INFINITY;
}

/// Of head h, whose keys have maximum `max` (base 2) and sum `sum`: with the head's sink. A row
/// meets it here, once, wherever its splits were merged.
__device__ inline RowTotal row_total(const AttentionArgs& a, int h, float max, float sum) {
  const float sink = sink_of(a, h);
  float of_keys = 1.0f;
  if (sink != -INFINITY) {
    const float both = fmaxf(max, sink);
    of_keys = exp2f(max - both);
    sum = sum * of_keys + exp2f(sink - both);  // at least 1, unless it is NaN
    max = both;
  }
  return {max, sum, of_keys * inverse_sum(sum)};
}

/// Writes what later passes and the caller want of row (query i, head h), of maximum `max` (base 2)
/// and sum `sum`.
__device__ inline void write_stats(const AttentionArgs& a, int i, int h, float max, float sum) {
  constexpr float kLog2 = 0.693147180559945309f;
  if (a.p.maybe_lse) a.p.maybe_lse[i * a.p.n_heads + h] = (max + log2f(sum)) * kLog2;
  if (a.maybe_stats)
    a.maybe_stats[h * a.p.n_queries + i] =
        make_float2(max == -INFINITY ? 0.0f : max, inverse_sum(sum));
  if (a.p.maybe_column_stats)  // of one query
    a.p.maybe_column_stats[h] = {a.scale, max == -INFINITY ? 0.0f : max, inverse_sum(sum)};
}

inline constexpr int kMergeWarps = 8;

/// How a call's splits are merged, if by a launch of its own.
enum class AttentionMerge : std::uint8_t { no_launch, warp_a_row, block_a_row };
inline AttentionMerge merge_of(const AttentionArgs& a) {
  if (a.splits == 1 || a.merge_group > 0) return AttentionMerge::no_launch;
  // a warp takes as many splits in turn as hide each other's latency; beyond that, more warps
  return a.splits <= kMergeWarps ? AttentionMerge::warp_a_row : AttentionMerge::block_a_row;
}

/// Maximum (base 2) and sum of row r of kv head g from its splits, by one warp, in an order that
/// depends on their number alone.
__device__ inline float2 merged_stats(const AttentionArgs& a, std::int64_t g, std::int64_t r) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t base = g * a.splits * a.rows + r;  // of split 0
  float max = -INFINITY;
  for (int s = lane; s < a.splits; s += kWarpSize)
    max = fmaxf(max, a.partial_stats[base + std::int64_t{s} * a.rows].x);
  max = warp_reduce(max, Largest{});
  const float safe = max == -INFINITY ? 0.0f : max;
  float sum = 0.0f;
  for (int s = lane; s < a.splits; s += kWarpSize) {
    const float2 state = a.partial_stats[base + std::int64_t{s} * a.rows];
    sum += state.y * exp2f(state.x - safe);
  }
  return make_float2(max, warp_reduce(sum, Sum{}));
}

/// Local tokens that one of the n queries sees.
__device__ inline std::int64_t local_keys(const AttentionParams& p) {
  const std::int64_t first = *p.first_position, after_window = first + 1 - p.n_local;
  return first + p.n_queries - (after_window < 0 ? 0 : after_window);
}

/// Merges `count` <= kMostMerged splits of kv head `head`: `first`, first + step, ..., in their
/// order: into split `first`, or, where these are all there is, into the rows' outputs. Each warp
/// of the block takes some of the rows. \param shared [room] floats that nobody uses, for each warp
/// at least count * (e + 2), aligned to 16 bytes
template <class T>
__device__ inline void merge_splits(const AttentionArgs& a, int head, int first, int step,
                                    int count, bool all, float* shared, int room) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int warps = static_cast<int>(blockDim.x) / kWarpSize;
  const int rows_each = (a.rows + warps - 1) / warps;
  const int begin = warp * rows_each, end = min(begin + rows_each, a.rows);
  room = room / warps / 4 * 4;
  shared += warp * room;
  const int d = static_cast<int>(a.p.value_dim);
  const std::int64_t base = (std::int64_t{head} * a.splits + first) * a.rows;  // row 0 of `first`
  const std::int64_t stride = std::int64_t{step} * a.rows;
  const int at_once = min(rows_each, room / (count * (d + 2))), of_split = at_once * d;
  auto* const stats = reinterpret_cast<float2*>(shared + count * of_split);  // [count][at_once]
  for (int r = begin; r < end; ++r) {
    const int in_room = (r - begin) % at_once,
              place = in_room * d;  // in a split's part of the room
    if (in_room == 0) {             // as many rows as there is room for, on their way together
      __syncwarp();                 // those before have been read
      const int rows = min(at_once, end - r);
      for (int s = 0; s < count; ++s)
        for (int at = 4 * lane; at < rows * d; at += 4 * kWarpSize)
          copy_async_16(shared + s * of_split + at,
                        a.partial_out + (base + s * stride + r) * d + at);
      if (lane < count)
        for (int i = 0; i < rows; ++i)
          copy_async_8(stats + lane * at_once + i, a.partial_stats + base + lane * stride + r + i);
      commit_copies();
      wait_copies<0>();
      __syncwarp();
    }
    const float2 own =
        lane < count ? stats[lane * at_once + in_room] : make_float2(-INFINITY, 0.0f);
    const float max = warp_reduce(own.x, Largest{});
    const float weight = exp2f(own.x - (max == -INFINITY ? 0.0f : max));
    const float sum = warp_reduce(own.y * weight, Sum{});
    const int i = r / a.group, h = head * a.group + r % a.group;
    const RowTotal total_of_row = row_total(a, h, max, sum);
    const float factor = total_of_row.factor;
    for (int channel = 0; channel < d; channel += 4 * kWarpSize) {
      const int c = channel + 4 * lane;
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int s = 0; s < count; ++s) {
        const float factor_of_split = __shfl_sync(kFullMask, weight, s);
        if (c >= d) continue;
        const float4 x = *reinterpret_cast<const float4*>(shared + s * of_split + place + c);
        total.x += factor_of_split * x.x, total.y += factor_of_split * x.y;
        total.z += factor_of_split * x.z, total.w += factor_of_split * x.w;
      }
      if (c >= d) continue;
      if (all) {
        T* const out = static_cast<T*>(a.p.out) + (i * a.p.n_heads + h) * d + c;
        out[0] = narrow<T>(total.x * factor), out[1] = narrow<T>(total.y * factor);
        out[2] = narrow<T>(total.z * factor), out[3] = narrow<T>(total.w * factor);
      } else {
        *reinterpret_cast<float4*>(a.partial_out + (base + r) * d + c) = total;
      }
    }
    __syncwarp();  // all have read the statistics
    if (lane == 0 && all) write_stats(a, i, h, total_of_row.max, total_of_row.sum);
    if (lane == 0 && !all) a.partial_stats[base + r] = make_float2(max, sum);
  }
}

/// The end of a block of few rows, whose split is written: the last of a group of
/// splits to be done merges the group, the last of a head's groups these. All threads call it.
/// \param shared [room] floats that nobody uses any more
template <class T>
__device__ inline void merge_when_last(const AttentionArgs& a, int head, int split, float* shared,
                                       int room) {
  const int groups = (a.splits + a.merge_group - 1) / a.merge_group;
  const int group = split / a.merge_group, first = group * a.merge_group;
  const int count = min(a.merge_group, a.splits - first);
  std::uint32_t* const arrived = a.p.maybe_arrived + head * kAttentionCounters;
  if (!is_last_arrival(arrived + group, static_cast<unsigned>(count))) return;
  merge_splits<T>(a, head, first, 1, count, groups == 1, shared, room);
  if (groups == 1) return;
  if (!is_last_arrival(arrived + kMostMerged, static_cast<unsigned>(groups))) return;
  merge_splits<T>(a, head, 0, a.merge_group, groups, true, shared, room);
}

/// One output row from its splits, in an order that depends on their number alone. A row has
/// kWarpsPerRow warps (1 or all of the block), each of which adds every kWarpsPerRow-th split.
/// Blocks x: rows, y: sequences.
template <class T, int kWarpsPerRow>
__global__ void __launch_bounds__(kWarpSize* kMergeWarps)
    MergeSplitsKernel(KernelArgument<Batch<AttentionArgs>> batch) {
  const AttentionArgs& a = batch.of[blockIdx.y];
  constexpr int kRowsPerBlock = kMergeWarps / kWarpsPerRow;
  constexpr int kChannels = 4 * kWarpSize;  // of a warp at once
  EPISODIC_SHARED(sums, float4[kMergeWarps][kWarpSize]);
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int part = warp % kWarpsPerRow;
  const std::int64_t rows = std::int64_t{a.rows} * a.p.n_kv_heads;
  const std::int64_t d = a.p.value_dim;
  for (std::int64_t first = std::int64_t{blockIdx.x} * kRowsPerBlock; first < rows;
       first += std::int64_t{gridDim.x} * kRowsPerBlock) {
    const std::int64_t row = first + warp / kWarpsPerRow;
    if (row >= rows) continue;  // only with a warp for each row: no barrier is missed
    const std::int64_t g = row / a.rows, r = row % a.rows;
    const std::int64_t base = g * a.splits * a.rows + r;  // of split 0
    const float2 stats = merged_stats(a, g, r);
    const float safe = stats.x == -INFINITY ? 0.0f : stats.x;
    const int i = static_cast<int>(r / a.group);
    const int h = static_cast<int>(g * a.group + r % a.group);
    const RowTotal total_of_row = row_total(a, h, stats.x, stats.y);
    const float factor = total_of_row.factor;
    if (part == 0 && lane == 0) write_stats(a, i, h, total_of_row.max, total_of_row.sum);
    for (int channel = 0; channel < d; channel += kChannels) {
      const int c = channel + 4 * lane;
      float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      for (int s = part; s < a.splits; s += kWarpsPerRow) {
        const std::int64_t at = base + std::int64_t{s} * a.rows;
        const float weight = exp2f(a.partial_stats[at].x - safe);
        if (c < d) {
          const float4 x = *reinterpret_cast<const float4*>(a.partial_out + at * d + c);
          total.x += weight * x.x, total.y += weight * x.y;
          total.z += weight * x.z, total.w += weight * x.w;
        }
      }
      if constexpr (kWarpsPerRow > 1) {
        sums[warp][lane] = total;
        __syncthreads();
        if (part == 0) {
          for (int w = 1; w < kWarpsPerRow; ++w) {
            const float4 x = sums[w][lane];
            total.x += x.x, total.y += x.y, total.z += x.z, total.w += x.w;
          }
        }
        __syncthreads();  // the sums are written again
      }
      if (part == 0 && c < d) {
        T* out = static_cast<T*>(a.p.out) + (i * a.p.n_heads + h) * d + c;
        out[0] = narrow<T>(total.x * factor), out[1] = narrow<T>(total.y * factor);
        out[2] = narrow<T>(total.z * factor), out[3] = narrow<T>(total.w * factor);
      }
    }
  }
}

}  // namespace episodic::kernels
