// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Segmented attention of float32, without tensor cores: tiles in shared memory, products by FMA.
/// Rows, tiles, masks and splits are those of attention_mma.cuh.

#include "attention.cuh"
#include "elements.cuh"
#include "ptx.cuh"

namespace episodic::kernels {

/// A block's 128 threads are 8 groups of 16: thread (group, member) has rows group + 8 r of the
/// left tile and rows member, member + 16 of the right tile, 32 rows both.
inline constexpr int kFloatGroups = 8;
inline constexpr int kFloatMembers = kFloatThreads / kFloatGroups;
inline constexpr int kFloatLeft = kFloatRows / kFloatGroups;
inline constexpr int kFloatRight = kFloatKeys / kFloatMembers;
static_assert(kFloatKeys == kWarpSize, "one warp finds out which keys are codes");

/// score[r][k] = left row group + 8 r times right row member + 16 k.
template <int kDim>
__device__ inline void float_scores(const float* left, const float* right, int group, int member,
                                    float (&score)[kFloatLeft][kFloatRight]) {
  constexpr int kStride = shared_stride(kDim, 4);
  EPISODIC_UNROLL
  for (int r = 0; r < kFloatLeft; ++r) {
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k) score[r][k] = 0.0f;
  }
  for (int c = 0; c < kDim; c += 4) {
    float4 of_right[kFloatRight];
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k)
      of_right[k] =
          *reinterpret_cast<const float4*>(right + (member + kFloatMembers * k) * kStride + c);
    EPISODIC_UNROLL
    for (int r = 0; r < kFloatLeft; ++r) {
      const float4 of_left =
          *reinterpret_cast<const float4*>(left + (group + kFloatGroups * r) * kStride + c);
      EPISODIC_UNROLL
      for (int k = 0; k < kFloatRight; ++k) {
        score[r][k] = fmaf(of_left.x, of_right[k].x, score[r][k]);
        score[r][k] = fmaf(of_left.y, of_right[k].y, score[r][k]);
        score[r][k] = fmaf(of_left.z, of_right[k].z, score[r][k]);
        score[r][k] = fmaf(of_left.w, of_right[k].w, score[r][k]);
      }
    }
  }
}

/// Four elements into shared memory: a copy that is waited for, or zeros. A row that is not there
/// hands over no address at all: a copy of no bytes would still need an aligned one.
__device__ inline void copy_four_or_zeros(float* to, const float* from, bool valid) {
  if (valid)
    copy_async_16(to, from);
  else
    *reinterpret_cast<float4*>(to) = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
}

/// What a soft cap makes of them.
__device__ inline void cap_float_scores(const AttentionArgs& a,
                                        float (&score)[kFloatLeft][kFloatRight]) {
  if (a.cap_in == 0.0f) return;
  EPISODIC_UNROLL
  for (int r = 0; r < kFloatLeft; ++r) {
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k) score[r][k] = a.cap_out * tanhf(a.cap_in * score[r][k]);
  }
}

/// A tile of queries into shared memory: row r is head `of(r).y` of query `of(r).x`, zeros where
/// that is negative.
template <int kDim, class RowOf>
__device__ void turn_float_queries(const AttentionArgs& a, float* to, bool local, RowOf of) {
  constexpr int kStride = shared_stride(kDim, 4), kChunks = kDim / 8;
  const int chunks = static_cast<int>(a.p.head_dim / 8);
  for (int piece = static_cast<int>(threadIdx.x); piece < kFloatRows * kChunks;
       piece += kFloatThreads) {
    const int r = piece / kChunks, chunk = piece % kChunks;
    const int2 row = of(r);
    Chunk<float> q = {};
    if (row.x >= 0 && chunk < chunks) q = rotated_query<float>(a, row.x, row.y, chunk, local);
    *reinterpret_cast<Chunk<float>*>(to + r * kStride + 8 * chunk) = q;
  }
}

/// Blocks x: row tiles, y: splits, z: kv heads of each sequence, as MmaAttentionKernel.
template <int kDim>
__global__ void __launch_bounds__(kFloatThreads, 3)
    FloatAttentionKernel(KernelArgument<Batch<AttentionArgs>> batch) {
  const AttentionArgs& a = sequence_of(batch);
  constexpr int kStride = shared_stride(kDim, 4), kPieces = kDim / 4;
  constexpr int kChannels = kDim / kFloatMembers;  // of a thread: member, member + 16, ..
  EPISODIC_DYNAMIC_SHARED(bytes);
  float* const queries = reinterpret_cast<float*>(bytes);
  float* const keys = queries + kFloatRows * kStride;
  float* const values = keys + kFloatKeys * kStride;
  KvRow* const table = reinterpret_cast<KvRow*>(values + kFloatKeys * kStride);

  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kFloatMembers, member = thread % kFloatMembers;
  const int head = kv_head_of(a), split = static_cast<int>(blockIdx.y);
  const int d = static_cast<int>(p.head_dim), value_dim = static_cast<int>(p.value_dim);
  const int block_row = static_cast<int>(blockIdx.x) * kFloatRows;
  if (block_row >= a.rows || split >= a.splits) return;  // of a longer sequence
  const int block_last = min(block_row + kFloatRows, a.rows) - 1;
  EPISODIC_SHARED(span, KeySpan);  // not in registers: the outputs need them
  EPISODIC_SHARED(scales, float2[kFloatKeys]);
  EPISODIC_SHARED(coded, unsigned);  // keys of the tile that are codes, a bit each
  if (thread == 0)
    span = key_span<float>(p, head, block_row / a.group, block_last / a.group, kFloatKeys);
  __syncthreads();
  const int tiles = span.far_tiles + tiles_of(span.local_count, kFloatKeys);
  const int tiles_per_split = tiles_of(tiles, a.splits);
  const int from = min(split * tiles_per_split, tiles);
  const int to = min(from + tiles_per_split, tiles);

  int query[kFloatLeft];
  float out[kFloatLeft][kChannels] = {};
  float max[kFloatLeft], sum[kFloatLeft];
  EPISODIC_UNROLL
  for (int r = 0; r < kFloatLeft; ++r) {
    query[r] = (block_row + group + kFloatGroups * r) / a.group;
    max[r] = -INFINITY;
    sum[r] = 0.0f;
  }

  for (int tile = from; tile < to; ++tile) {
    const bool far = tile < span.far_tiles;
    const int first = (far ? tile : tile - span.far_tiles) * kFloatKeys;
    const int count = (far ? span.far_count : span.local_count) - first;
    __syncthreads();  // nobody reads the tile before
    if (tile == from || tile == span.far_tiles)
      turn_float_queries<kDim>(a, queries, !far, [&](int r) {
        const int row = block_row + r;
        return row < a.rows ? int2{row / a.group, head * a.group + row % a.group} : int2{-1, 0};
      });
    if (far) {
      if (thread < kFloatKeys) {
        table[thread] = thread < count ? span.far[first + thread] : KvRow{};
        const float* const of_row = scales_at(span, first + thread);
        scales[thread] = head_scales(span, of_row);
        const unsigned all = __ballot_sync(kFullMask, of_row != nullptr);
        if (thread == 0) coded = all;
      }
      __syncthreads();
    }
    for (int piece = thread; piece < kFloatKeys * kPieces; piece += kFloatThreads) {
      const int key = piece / kPieces, channel = piece % kPieces * 4;
      const bool has_key = key < count && channel < d,
                 has_value = key < count && channel < value_dim;
      const float *from_key = nullptr, *from_value = nullptr;
      if (key < count && far) {
        const std::int64_t at = std::int64_t{table[key].head_stride} * span.far_head + channel;
        const std::int64_t value_at =
            value_place(p, table[key].head_stride, span.far_head) + channel;
        if ((coded >> key & 1) != 0) {
          const auto widen_at = [&](const void* codes, std::int64_t first, bool has, float scale,
                                    float* to) {
            Pack<std::uint8_t, 4> four = {};  // codes of 0
            if (has) four = load_pack<4>(static_cast<const std::uint8_t*>(codes) + first);
            const auto wide = [&](int e) {
              return widened<float>(four.at[e], scale, codes_are_fp8(p));
            };
            *reinterpret_cast<float4*>(to + key * kStride + channel) =
                make_float4(wide(0), wide(1), wide(2), wide(3));
          };
          widen_at(table[key].key, at, has_key, scales[key].x, keys);
          widen_at(table[key].value, value_at, has_value, scales[key].y, values);
          continue;
        }
        if (has_key) from_key = static_cast<const float*>(table[key].key) + at;
        if (has_value) from_value = static_cast<const float*>(table[key].value) + value_at;
      } else if (key < count) {
        if (has_key)
          from_key =
              static_cast<const float*>(span.ring_keys) + span.local_row(p, first + key) + channel;
        if (has_value)
          from_value = static_cast<const float*>(span.ring_values) +
                       span.local_value_row(p, first + key) + channel;
      }
      copy_four_or_zeros(keys + key * kStride + channel, from_key, has_key);
      copy_four_or_zeros(values + key * kStride + channel, from_value, has_value);
    }
    commit_copies();
    wait_copies<0>();
    __syncthreads();

    float score[kFloatLeft][kFloatRight];
    float_scores<kDim>(queries, keys, group, member, score);
    cap_float_scores(a, score);
    float weight[kFloatRight];
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k) {
      const int key = member + kFloatMembers * k;
      int begin = kNobody;
      weight[k] = 1.0f;
      if (key < count && far) {
        begin = first_query_of_far(table[key].token, p.n_local, span.first_position);
        weight[k] = table[key].value_weight;
      } else if (key < count) {
        begin = span.local_begin + first + key;
      }
      const unsigned length = far ? kForever : static_cast<unsigned>(p.n_local);
      EPISODIC_UNROLL
      for (int r = 0; r < kFloatLeft; ++r)
        if (!sees(query[r], begin, length)) score[r][k] = -INFINITY;
    }
    EPISODIC_UNROLL
    for (int r = 0; r < kFloatLeft; ++r) {
      float largest = -INFINITY;
      EPISODIC_UNROLL
      for (int k = 0; k < kFloatRight; ++k) largest = fmaxf(largest, score[r][k]);
      EPISODIC_UNROLL
      for (int lanes = 1; lanes < kFloatMembers; lanes *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, lanes));
      const float before = max[r], now = fmaxf(before, largest * a.scale);
      const float safe = now == -INFINITY ? 0.0f : now;  // no key yet: exp2(-inf - 0), not NaN
      const float factor = exp2f(before - safe);
      max[r] = now;
      float of_tile = 0.0f;
      EPISODIC_UNROLL
      for (int k = 0; k < kFloatRight; ++k) {
        score[r][k] = exp2f(fmaf(score[r][k], a.scale, -safe));
        of_tile += score[r][k];
        score[r][k] *= weight[k];
      }
      sum[r] = sum[r] * factor + of_tile;
      EPISODIC_UNROLL
      for (int j = 0; j < kChannels; ++j) out[r][j] *= factor;
    }
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k) {
      for (int m = 0; m < kFloatMembers; ++m) {
        const float* const value = values + (m + kFloatMembers * k) * kStride + member;
        float probability[kFloatLeft];
        EPISODIC_UNROLL
        for (int r = 0; r < kFloatLeft; ++r)
          probability[r] = __shfl_sync(kFullMask, score[r][k],
                                       thread % kWarpSize / kFloatMembers * kFloatMembers + m);
        EPISODIC_UNROLL
        for (int j = 0; j < kChannels; ++j) {
          const float v = value[kFloatMembers * j];
          EPISODIC_UNROLL
          for (int r = 0; r < kFloatLeft; ++r) out[r][j] = fmaf(probability[r], v, out[r][j]);
        }
      }
    }
  }

  EPISODIC_UNROLL
  for (int r = 0; r < kFloatLeft; ++r) {
    float total = sum[r];
    EPISODIC_UNROLL
    for (int lanes = 1; lanes < kFloatMembers; lanes *= 2)
      total += __shfl_xor_sync(kFullMask, total, lanes);
    const int row = block_row + group + kFloatGroups * r;
    if (row >= a.rows) continue;
    const int i = query[r], h = head * a.group + row % a.group;
    const bool last_pass = a.splits == 1;
    const std::int64_t at = (std::int64_t{head} * a.splits + split) * a.rows + row;
    const RowTotal of_row = row_total(a, h, max[r], total);
    if (member == 0 && last_pass) write_stats(a, i, h, of_row.max, of_row.sum);
    if (member == 0 && !last_pass) a.partial_stats[at] = make_float2(max[r], total);
    float* const to_row = last_pass ? static_cast<float*>(p.out) + (i * p.n_heads + h) * p.value_dim
                                    : a.partial_out + at * p.value_dim;
    const float inverse = last_pass ? of_row.factor : 1.0f;
    EPISODIC_UNROLL
    for (int j = 0; j < kChannels; ++j)
      if (member + kFloatMembers * j < value_dim)
        to_row[member + kFloatMembers * j] = out[r][j] * inverse;
  }
}

/// Blocks x: tiles of 32 local keys, y: query heads, as MmaColumnSumsKernel, z: sequences.
template <int kDim>
__global__ void __launch_bounds__(kFloatThreads)
    FloatColumnSumsKernel(KernelArgument<Batch<AttentionArgs>> batch) {
  const AttentionArgs& a = batch.of[blockIdx.z];
  if (!a.maybe_stats) return;  // it wants none
  constexpr int kStride = shared_stride(kDim, 4), kPieces = kDim / 4;
  constexpr int kKeys = kFloatRows, kQueries = kFloatKeys;
  EPISODIC_DYNAMIC_SHARED(bytes);
  float* const keys = reinterpret_cast<float*>(bytes);
  float* const queries = keys + kKeys * kStride;

  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x);
  const int group = thread / kFloatMembers, member = thread % kFloatMembers;
  const int h = static_cast<int>(blockIdx.y), g = h / a.group;
  const int d = static_cast<int>(p.head_dim), n = static_cast<int>(p.n_queries);
  const int n_local = static_cast<int>(p.n_local);
  const KeySpan span = key_span<float>(p, g, 0, n - 1, kKeys);
  const int block_key = static_cast<int>(blockIdx.x) * kKeys;
  if (block_key >= span.local_count) return;
  const int keys_left = span.local_count - block_key;
  const int block_begin = span.local_begin + block_key;  // the first query that sees the first key
  const int from = block_begin < 0 ? 0 : block_begin;
  const int to = min(n, block_begin + min(kKeys, keys_left) - 1 + n_local);

  for (int piece = thread; piece < kKeys * kPieces; piece += kFloatThreads) {
    const int key = piece / kPieces, channel = piece % kPieces * 4;
    const bool valid = key < keys_left && channel < d;
    const std::int64_t at = valid ? span.local_row(p, block_key + key) + channel : 0;
    copy_four_or_zeros(keys + key * kStride + channel,
                       static_cast<const float*>(span.ring_keys) + at, valid);
  }
  commit_copies();
  wait_copies<0>();
  float sum[kFloatLeft] = {};
  for (int first = from; first < to; first += kQueries) {
    __syncthreads();  // nobody reads the tile before
    turn_float_queries<kDim>(a, queries, true, [&](int r) {
      return first + r < to ? int2{first + r, h} : int2{-1, 0};
    });
    __syncthreads();
    float score[kFloatLeft][kFloatRight];
    float_scores<kDim>(keys, queries, group, member, score);
    cap_float_scores(a, score);
    EPISODIC_UNROLL
    for (int k = 0; k < kFloatRight; ++k) {
      const int i = first + member + kFloatMembers * k;
      const float2 stats = i < to ? a.maybe_stats[h * p.n_queries + i] : make_float2(0.0f, 0.0f);
      EPISODIC_UNROLL
      for (int r = 0; r < kFloatLeft; ++r) {
        const int begin = block_begin + group + kFloatGroups * r;
        if (i < to && sees(i, begin, static_cast<unsigned>(n_local)))
          sum[r] += exp2f(fmaf(score[r][k], a.scale, -stats.x)) * stats.y;
      }
    }
  }
  EPISODIC_UNROLL
  for (int r = 0; r < kFloatLeft; ++r) {
    float total = sum[r];
    EPISODIC_UNROLL
    for (int lanes = 1; lanes < kFloatMembers; lanes *= 2)
      total += __shfl_xor_sync(kFullMask, total, lanes);
    const int key = group + kFloatGroups * r;
    if (member == 0 && key < keys_left)
      p.maybe_column_sums[(block_key + key) * p.n_heads + h] = total;
  }
}

}  // namespace episodic::kernels
