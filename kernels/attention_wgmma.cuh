// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Segmented attention of 16-bit elements and many rows on compute capability 9.0: one warpgroup
/// copies tiles of keys and values into a ring in shared memory, the others multiply them (wgmma).
/// Rows, masks, splits and rounding are those of attention_mma.cuh.

#if !defined(EPISODIC_EMULATED_CUDA)

#include "attention_mma.cuh"
#include "wgmma.cuh"

namespace episodic::kernels {

/// Chunks of queries that a thread rotates at once, so that their loads are on their way together.
inline constexpr int kRotatedAtOnce = 4;

/// What a tile's keys are to the queries.
struct alignas(8) KeyMark {
  int begin;     ///< the first query that sees it
  float weight;  ///< of its value
};
static_assert(sizeof(KeyMark) == kWgmmaMarkBytes, "the plan counts them");

/// Where a block's shared memory holds what, from a multiple of 1024 bytes on.
template <class Half, int kDim>
struct WgmmaMemory {
  static constexpr WgmmaTile kTile = wgmma_tile(kDim);
  static constexpr int kBlocks = kDim / 64;  // of 64 channels
  Half queries[kTile.warpgroups][kBlocks][64 * 64];
  Half keys[kTile.stages][kBlocks][kTile.keys * 64];
  Half values[kTile.stages][kBlocks][kTile.keys * 64];
  KeyMark marks[kTile.stages][kTile.keys];
  std::uint64_t full_keys[kTile.stages], empty_keys[kTile.stages];  // and of the marks
  std::uint64_t full_values[kTile.stages], empty_values[kTile.stages];
  std::uint64_t turns[2];  // of the two warpgroups that multiply
};

/// Of a tile: whether it is far, its first key in its part of the span, and how many there are.
struct TilePlace {
  bool far;
  int first, count;
};
__device__ inline TilePlace tile_place(const KeySpan& span, int tile, int keys) {
  const bool far = tile < span.far_tiles;
  const int first = (far ? tile : tile - span.far_tiles) * keys;
  return {far, first, (far ? span.far_count : span.local_count) - first};
}

__device__ inline const void* from_lane(const void* p, int lane) {
  return reinterpret_cast<const void*>(
      __shfl_sync(kFullMask, reinterpret_cast<unsigned long long>(p), lane));
}

/// The copying warpgroup's work: tiles from .. to - 1 into the ring. A lane finds out where one key
/// of the tile lies, one tile ahead; 8 lanes then copy a key's 128 bytes side by side.
///
/// Marks are plain stores and loads, and one lane of a warp arrives for all 32. Both ways that is
/// in order by the memory model of PTX: what the other lanes did is before __syncwarp, that before
/// the lane's arrival (release), that before the other side's wait (acquire, by each of its
/// threads). So a mark is written (full_keys) before it is read, and read (empty_keys) before the
/// tile two or three turns later writes it anew (docs/kernels.md).
template <class Half, int kDim>
__device__ inline void copy_tiles(const AttentionArgs& a, const KeySpan& span,
                                  WgmmaMemory<Half, kDim>& memory, int from, int to) {
  constexpr WgmmaTile kTile = wgmma_tile(kDim);
  constexpr int kKeysOfWarp = kTile.keys / 4;
  const AttentionParams& p = a.p;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int first_key = static_cast<int>(threadIdx.x) % kWarpgroupSize / kWarpSize * kKeysOfWarp;
  const int dim = static_cast<int>(p.head_dim);
  struct Source {
    const Half *key, *value;
    KeyMark mark;
  };
  const auto source_of = [&](int tile) {
    const TilePlace place = tile_place(span, tile, kTile.keys);
    const int key = first_key + lane % kKeysOfWarp;
    const bool valid = key < place.count;
    const int i = place.first + min(key, place.count - 1);  // so that no address needs a branch
    Source source;
    if (place.far) {
      const KvRow row = span.far[i];
      const std::int64_t at = std::int64_t{row.head_stride} * span.far_head;
      source.key = static_cast<const Half*>(row.key) + at;
      source.value = static_cast<const Half*>(row.value) + at;
      source.mark = {first_query_of_far(row.token, p.n_local, span.first_position),
                     row.value_weight};
    } else {
      const std::int64_t at = span.local_row(p, i);
      source.key = static_cast<const Half*>(span.ring_keys) + at;
      source.value = static_cast<const Half*>(span.ring_values) + at;
      source.mark = {span.local_begin + i, 1.0f};
    }
    if (!valid) source.mark = {kNobody, 1.0f};
    return source;
  };
  Source next = source_of(from);
  for (int tile = from; tile < to; ++tile) {
    const Source source = next;
    if (tile + 1 < to) next = source_of(tile + 1);
    const int turn = tile - from, stage = turn % kTile.stages;
    const int parity = (turn / kTile.stages + 1) % 2;  // of the turn before in this stage
    if (turn >= kTile.stages) wait_for(&memory.empty_keys[stage], parity);
    if constexpr (kKeysOfWarp == kWarpSize) {
      memory.marks[stage][first_key + lane] = source.mark;
    } else {  // two lanes know each key: half a mark each, so that no lane of the warp stands aside
      static_assert(2 * kKeysOfWarp == kWarpSize && sizeof(KeyMark) == 2 * sizeof(unsigned));
      auto* const halves = reinterpret_cast<unsigned*>(&memory.marks[stage][first_key]);
      halves[2 * (lane % kKeysOfWarp) + lane / kKeysOfWarp] =
          lane < kKeysOfWarp ? static_cast<unsigned>(source.mark.begin)
                             : __float_as_uint(source.mark.weight);
    }
    // what nobody sees is copied as zeros
    const unsigned seen = __ballot_sync(kFullMask, source.mark.begin != kNobody);
    const auto copy_rows = [&](const Half* rows, auto& to) {
      EPISODIC_UNROLL
      for (int k = 0; k < kKeysOfWarp; k += 4) {
        const int of_warp = k + lane / 8;
        const auto* const row = static_cast<const Half*>(from_lane(rows, of_warp));
        const bool valid = (seen >> of_warp & 1) != 0;
        const int place = chunk_place(first_key + of_warp, lane % 8);
        EPISODIC_UNROLL
        for (int c = 0; c < kDim / 64; ++c) {
          const int channel = 64 * c + lane % 8 * 8;
          copy_async_16(reinterpret_cast<char*>(to[c]) + place, row + channel,
                        valid && channel < dim);
        }
      }
    };
    copy_rows(source.key, memory.keys[stage]);
    arrive_after_copies(&memory.full_keys[stage]);
    __syncwarp();
    if (lane == 0) arrive(&memory.full_keys[stage]);  // the marks are there
    if (turn >= kTile.stages) wait_for(&memory.empty_values[stage], parity);
    copy_rows(source.value, memory.values[stage]);
    arrive_after_copies(&memory.full_values[stage]);
  }
  wait_copies<0>();
}

/// One multiplying warpgroup's work: 64 rows from `first_row` on. The products of a tile's keys are
/// begun together with those of the values of the tile before, which run on beside the softmax
/// between the two. Where two warpgroups multiply they take turns to begin products, so that one
/// makes exponentials while the other's products run.
template <class Half, int kDim>
__device__ inline void attend_tiles(const AttentionArgs& a, const KeySpan& span,
                                    WgmmaMemory<Half, kDim>& memory, int warpgroup, int first_row,
                                    int last_row, int head, int split, int from, int to) {
  constexpr WgmmaTile kTile = wgmma_tile(kDim);
  constexpr int kKeys = kTile.keys, kStages = kTile.stages, kWarpgroups = kTile.warpgroups;
  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x) % kWarpgroupSize, lane = thread % kWarpSize;
  const int chunks = static_cast<int>(p.head_dim / 8);
  const int own_row = first_row + thread / kWarpSize * 16 + lane / 4;  // and 8 below
  const bool has_rows = first_row <= last_row;
  const int first_query = first_row / a.group, last_query = last_row / a.group;
  const int query[2] = {own_row / a.group, (own_row + 8) / a.group};
  const int columns = lane % 4 * 2;  // of each 8, and the next
  float out[kDim / 2], max[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f};
  EPISODIC_UNROLL
  for (int i = 0; i < kDim / 2; ++i) out[i] = 0.0f;
  std::uint32_t left[kKeys / 16][4];  // probabilities of the tile whose values are still to come
  int pending = -1;                   // its turn; -1: there is none

  const auto stage_of = [&](int turn) { return turn % kStages; };
  const auto wait_full = [&](std::uint64_t* barriers, int turn) {
    wait_for(barriers + stage_of(turn), turn / kStages % 2);
  };
  const auto release = [&](std::uint64_t* barriers, int turn) {  // read by all lanes
    __syncwarp();
    if (lane == 0) arrive(barriers + stage_of(turn));
  };
  const auto take_turn = [&](int turn) {
    if constexpr (kWarpgroups == 2) {
      if (warpgroup == 1 || turn > 0)
        wait_for(&memory.turns[warpgroup], (warpgroup == 1 ? turn : turn - 1) % 2);
    }
  };
  const auto give_turn = [&] {
    if constexpr (kWarpgroups == 2) {
      __syncwarp();
      if (lane == 0) arrive(&memory.turns[1 - warpgroup]);
    }
  };
  const auto begin_values = [&] {  // of the pending tile
    EPISODIC_UNROLL
    for (int k = 0; k < kKeys / 16; ++k)
      Products<Half, kDim>::of_rows(
          out, left[k],
          moved_by(matrix_at(memory.values[stage_of(pending)][0], 1024, kKeys * 128), k * 2048));
    commit_products();
  };
  const auto end_values = [&] {
    wait_products<0>();
    hold(out);
    release(memory.empty_values, pending);
    pending = -1;
  };
  const auto multiply_pending = [&] {  // by itself
    if (pending < 0) return;
    wait_full(memory.full_values, pending);
    publish_to_products();
    hold(out);
    begin_products();
    begin_values();
    end_values();
  };

  const auto rotate_queries = [&](bool local) {
    sync_threads<kWarpgroupSize>(1 + warpgroup);  // the products before have read the old ones
    EPISODIC_UNROLL_BY(kRotatedAtOnce)
    for (int piece = thread; piece < 64 * (kDim / 8); piece += kWarpgroupSize) {
      const int r = piece / (kDim / 8), chunk = piece % (kDim / 8), row = first_row + r;
      Chunk<Half> q;
      EPISODIC_UNROLL
      for (int e = 0; e < 8; ++e) q.at[e] = narrow<Half>(0.0f);
      if (row <= last_row && chunk < chunks) {
        const int i = row / a.group, h = head * a.group + row % a.group;
        q = rotated_query<Half>(a, i, h, chunk, local);
        if (local && a.maybe_queries) {
          Half* const kept =
              static_cast<Half*>(a.maybe_queries) + (i * p.n_heads + h) * p.head_dim + 8 * chunk;
          *reinterpret_cast<Chunk<Half>*>(kept) = q;
        }
      }
      char* const block = reinterpret_cast<char*>(memory.queries[warpgroup][chunk / 8]);
      *reinterpret_cast<Chunk<Half>*>(block + chunk_place(r, chunk % 8)) = q;
    }
    publish_to_products();
    sync_threads<kWarpgroupSize>(1 + warpgroup);
  };

  // Of the tile that was looked at: whether some row does not see some key, or a value has a weight
  // of its own.
  bool hidden = false, weighted = false;
  // Waits for the tile's keys. \return whether a row sees one of them; all warps of the warpgroup
  // alike
  const auto look_at = [&](int tile) {
    const bool far = tile < span.far_tiles;
    if (has_rows && (tile == from || tile == span.far_tiles)) rotate_queries(!far);
    wait_full(memory.full_keys, tile - from);
    const KeyMark* const marks = memory.marks[stage_of(tile - from)];
    const unsigned length = far ? kForever : static_cast<unsigned>(p.n_local);
    bool seen = false;
    hidden = weighted = false;
    if (has_rows) {
      EPISODIC_UNROLL
      for (int k = 0; k < kKeys; k += kWarpSize) {
        const KeyMark mark = marks[lane + k];
        const bool of_first = sees(first_query, mark.begin, length);
        seen = seen || of_first || (mark.begin > first_query && mark.begin <= last_query);
        hidden = hidden || !of_first || !sees(last_query, mark.begin, length);
        weighted = weighted || mark.weight != 1.0f;
      }
      seen = __any_sync(kFullMask, seen);
      hidden = __any_sync(kFullMask, hidden);
      weighted = __any_sync(kFullMask, weighted);
    }
    return seen;
  };
  const auto pass_by = [&](int tile) {
    const int turn = tile - from;
    take_turn(turn);
    give_turn();
    release(memory.empty_keys, turn);
    wait_full(memory.full_values, turn);  // no copy is on its way to what is given back
    release(memory.empty_values, turn);
  };
  // Of the tile that was looked at. \param follows whether a tile is pending, known when compiled:
  // products in a branch of their own would be waited for one by one
  const auto multiply_tile = [&](int tile, auto follows) {
    constexpr bool kFollows = decltype(follows)::value;
    const int turn = tile - from, stage = stage_of(turn);
    const KeyMark* const marks = memory.marks[stage];
    const unsigned length = tile < span.far_tiles ? kForever : static_cast<unsigned>(p.n_local);
    if constexpr (kFollows) wait_full(memory.full_values, pending);
    take_turn(turn);
    publish_to_products();
    float score[kKeys / 2];
    EPISODIC_UNROLL
    for (int i = 0; i < kKeys / 2; ++i) score[i] = 0.0f;
    hold(score);
    hold(out);
    begin_products();
    EPISODIC_UNROLL
    for (int c = 0; c < kDim / 16; ++c)
      Products<Half, kKeys>::of_columns(
          score, moved_by(matrix_at(memory.queries[warpgroup][c / 4], 1024), c % 4 * 32),
          moved_by(matrix_at(memory.keys[stage][c / 4], 1024), c % 4 * 32), c > 0);
    commit_products();
    if constexpr (kFollows) begin_values();
    give_turn();
    wait_products<kFollows ? 1 : 0>();
    hold(score);
    const bool needs_marks = hidden || weighted;
    if (!needs_marks) release(memory.empty_keys, turn);
    if (a.cap_in != 0.0f) {
      EPISODIC_UNROLL
      for (int i = 0; i < kKeys / 2; ++i) score[i] = capped(a, score[i]);
    }
    if (hidden) {
      EPISODIC_UNROLL
      for (int j = 0; j < kKeys / 8; ++j) {
        EPISODIC_UNROLL
        for (int e = 0; e < 2; ++e) {
          const int begin = marks[8 * j + columns + e].begin;
          if (!sees(query[0], begin, length)) score[4 * j + e] = -INFINITY;
          if (!sees(query[1], begin, length)) score[4 * j + 2 + e] = -INFINITY;
        }
      }
    }
    float factor[2];
    bool grown = false;
    EPISODIC_UNROLL
    for (int half = 0; half < 2; ++half) {
      float largest = -INFINITY;
      EPISODIC_UNROLL
      for (int j = 0; j < kKeys / 8; ++j)
        largest = fmaxf(largest, fmaxf(score[4 * j + 2 * half], score[4 * j + 2 * half + 1]));
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 1));
      largest = fmaxf(largest, __shfl_xor_sync(kFullMask, largest, 2));
      const float before = max[half], now = fmaxf(before, largest * a.scale);
      const float safe = now == -INFINITY ? 0.0f : now;  // no key yet: exp2(-inf - 0), not NaN
      factor[half] = exp2_fast(before - safe);
      max[half] = now;
      grown = grown || now != before;
      float of_tile = 0.0f;
      EPISODIC_UNROLL
      for (int j = 0; j < kKeys / 8; ++j) {
        EPISODIC_UNROLL
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          score[4 * j + e] = exp2_fast(fmaf(score[4 * j + e], a.scale, -safe));
          of_tile += score[4 * j + e];
        }
      }
      sum[half] = sum[half] * factor[half] + of_tile;
    }
    if constexpr (kFollows) end_values();
    // most tiles raise no maximum: all factors are 1
    if (__any_sync(kFullMask, grown)) {
      EPISODIC_UNROLL
      for (int i = 0; i < kDim / 2; ++i) out[i] *= factor[i / 2 % 2];
    }
    if (weighted) {
      EPISODIC_UNROLL
      for (int j = 0; j < kKeys / 8; ++j) {
        EPISODIC_UNROLL
        for (int e = 0; e < 2; ++e) {
          const float of_key = marks[8 * j + columns + e].weight;
          score[4 * j + e] *= of_key;
          score[4 * j + 2 + e] *= of_key;
        }
      }
    }
    EPISODIC_UNROLL
    for (int k = 0; k < kKeys / 16; ++k) {
      EPISODIC_UNROLL
      for (int f = 0; f < 4; ++f)
        left[k][f] = pack<Half>(score[8 * k + 2 * f], score[8 * k + 2 * f + 1]);
    }
    if (needs_marks) release(memory.empty_keys, turn);
    pending = turn;
  };

  for (int tile = from; tile < to; ++tile) {
    bool seen = look_at(tile);
    if (seen) {
      multiply_tile(tile, std::false_type{});
      for (++tile; tile < to; ++tile) {
        seen = look_at(tile);
        if (!seen) break;
        multiply_tile(tile, std::true_type{});
      }
      multiply_pending();
    }
    if (!seen) pass_by(tile);
  }

  EPISODIC_UNROLL
  for (int half = 0; half < 2; ++half) {
    float total = sum[half];
    total += __shfl_xor_sync(kFullMask, total, 1);
    total += __shfl_xor_sync(kFullMask, total, 2);
    const int row = own_row + 8 * half;
    if (row > last_row) continue;
    const int i = query[half], h = head * a.group + row % a.group;
    if (a.splits > 1) {
      const std::int64_t at = (std::int64_t{head} * a.splits + split) * a.rows + row;
      if (lane % 4 == 0) a.partial_stats[at] = make_float2(max[half], total);
      float* const to_row = a.partial_out + at * p.head_dim + columns;
      EPISODIC_UNROLL
      for (int j = 0; j < kDim / 8; ++j)
        if (j < chunks)
          *reinterpret_cast<float2*>(to_row + 8 * j) =
              make_float2(out[4 * j + 2 * half], out[4 * j + 2 * half + 1]);
      continue;
    }
    const RowTotal of_row = row_total(a, h, max[half], total);
    if (lane % 4 == 0) write_stats(a, i, h, of_row.max, of_row.sum);
    const float inverse = of_row.factor;
    Half* const to_row = static_cast<Half*>(p.out) + (i * p.n_heads + h) * p.head_dim + columns;
    EPISODIC_UNROLL
    for (int j = 0; j < kDim / 8; ++j)
      if (j < chunks)
        *reinterpret_cast<std::uint32_t*>(to_row + 8 * j) =
            pack<Half>(out[4 * j + 2 * half] * inverse, out[4 * j + 2 * half + 1] * inverse);
  }
}

/// Blocks x: row tiles, y: splits, z: kv heads, as MmaAttentionKernel.
///
/// Multiplications and bytes as there; docs/kernels.md has the arithmetic of the tiles.
template <class Half, int kDim>
__global__ void __launch_bounds__(wgmma_tile(kDim).threads(), 1)
    WgmmaAttentionKernel(const AttentionArgs a) {
  constexpr WgmmaTile kTile = wgmma_tile(kDim);
  using Memory = WgmmaMemory<Half, kDim>;
  static_assert(sizeof(Memory) + kWgmmaAlignment <= wgmma_shared_bytes(kDim), "the plan's count");
  EPISODIC_DYNAMIC_SHARED(bytes);
  Memory& memory = *reinterpret_cast<Memory*>(bytes + (0u - shared_address(bytes)) %
                                                          static_cast<unsigned>(kWgmmaAlignment));
  EPISODIC_SHARED(span, KeySpan);
  const int thread = static_cast<int>(threadIdx.x);
  // the same in all lanes, and known to be
  const int warpgroup = __shfl_sync(kFullMask, thread / kWarpgroupSize, 0);
  const int head = static_cast<int>(blockIdx.z), split = static_cast<int>(blockIdx.y);
  const int block_row = static_cast<int>(blockIdx.x) * kTile.rows();
  const int block_last = min(block_row + kTile.rows(), a.rows) - 1;
  if (thread == 0) {
    span = key_span<Half>(a.p, head, block_row / a.group, block_last / a.group, kTile.keys);
    for (int stage = 0; stage < kTile.stages; ++stage) {
      init_barrier(&memory.full_keys[stage],
                   kWarpgroupSize + 4);  // copies of threads, marks of warps
      init_barrier(&memory.full_values[stage], kWarpgroupSize);
      init_barrier(&memory.empty_keys[stage], 4 * kTile.warpgroups);
      init_barrier(&memory.empty_values[stage], 4 * kTile.warpgroups);
    }
    for (std::uint64_t& turn : memory.turns) init_barrier(&turn, 4);
  }
  __syncthreads();
  const int tiles = span.far_tiles + tiles_of(span.local_count, kTile.keys);
  const int tiles_per_split = tiles_of(tiles, a.splits);
  const int from = min(split * tiles_per_split, tiles), to = min(from + tiles_per_split, tiles);
  if (warpgroup == kTile.warpgroups) {
    if constexpr (kTile.copying_registers > 0) give_registers<kTile.copying_registers>();
    if (from < to) copy_tiles<Half, kDim>(a, span, memory, from, to);
  } else {
    if constexpr (kTile.copying_registers > 0) take_registers<kTile.multiplying_registers>();
    const int first_row = block_row + 64 * warpgroup;
    attend_tiles<Half, kDim>(a, span, memory, warpgroup, first_row, min(first_row + 63, block_last),
                             head, split, from, to);
  }
}

template <class Half, int kDim>
struct WgmmaColumnMemory {
  static constexpr WgmmaColumnTile kTile = wgmma_column_tile(kDim);
  Half keys[kTile.warpgroups][kDim / 64][64 * 64];
  Half queries[kAttentionStages][kDim / 64][kTile.queries * 64];
  float exponents[kAttentionStages][kTile.queries];  // max + log2(sum); infinite: no such query
};

/// Column sums of many rows, as MmaColumnSumsKernel: blocks x: tiles of local keys, y: query heads.
/// Rows of the products are keys, columns queries.
template <class Half, int kDim>
__global__ void __launch_bounds__(wgmma_column_tile(kDim).threads(), 2)
    WgmmaColumnSumsKernel(const AttentionArgs a) {
  constexpr WgmmaColumnTile kTile = wgmma_column_tile(kDim);
  constexpr int kThreads = kTile.threads(), kQueries = kTile.queries, kChunks = kDim / 8;
  using Memory = WgmmaColumnMemory<Half, kDim>;
  static_assert(sizeof(Memory) + kWgmmaAlignment <= wgmma_column_shared_bytes(kDim),
                "the plan's count");
  EPISODIC_DYNAMIC_SHARED(bytes);
  Memory& memory = *reinterpret_cast<Memory*>(bytes + (0u - shared_address(bytes)) %
                                                          static_cast<unsigned>(kWgmmaAlignment));
  const AttentionParams& p = a.p;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const int warpgroup = __shfl_sync(kFullMask, thread / kWarpgroupSize, 0);
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

  // A thread copies the same chunk of every kRowsAtOnce-th query.
  constexpr int kRowsAtOnce = kThreads / kChunks;
  static_assert(kThreads % kChunks == 0 && kQueries % kRowsAtOnce == 0, "all threads copy alike");
  const int own_chunk = thread % kChunks, own_row = thread / kChunks;
  const auto* const all_queries = static_cast<const Half*>(a.maybe_queries);
  const std::int64_t query_stride = p.n_heads * p.head_dim;
  const Half* const own_queries = all_queries + (own_row * p.n_heads + h) * p.head_dim +
                                  (own_chunk < chunks ? 8 * own_chunk : 0);
  const auto copy_queries = [&](int first) {
    const int stage = (first - from) / kQueries % kAttentionStages;
    char* const block = reinterpret_cast<char*>(memory.queries[stage][own_chunk / 8]);
    const Half* const source = own_queries + first * query_stride;
    EPISODIC_UNROLL
    for (int k = 0; k < kQueries / kRowsAtOnce; ++k) {
      const int r = own_row + k * kRowsAtOnce;
      const bool valid = first + r < to && own_chunk < chunks;
      copy_async_16(block + chunk_place(r, own_chunk % 8),
                    valid ? source + k * kRowsAtOnce * query_stride : all_queries, valid);
    }
    commit_copies();
  };
  // The share of a query is 2^(score - max - log2(sum)): one exponent a score. Loaded before the
  // products of the tile before, and kept behind them.
  const auto stats_of = [&](int first) {
    const int i = first + thread;
    return thread < kQueries && i < to ? a.maybe_stats[h * p.n_queries + i]
                                       : make_float2(0.0f, 0.0f);
  };
  const auto keep_exponent = [&](int first, float2 stats) {
    const int stage = (first - from) / kQueries % kAttentionStages;
    if (thread < kQueries) memory.exponents[stage][thread] = share_exponent(stats);
  };
  for (int piece = thread; piece < kTile.keys() * kChunks; piece += kThreads) {
    const int key = piece / kChunks, chunk = piece % kChunks;
    const bool valid = key < keys_left && chunk < chunks;
    const std::int64_t at = valid ? span.local_row(p, block_key + key) + 8 * chunk : 0;
    copy_async_16(reinterpret_cast<char*>(memory.keys[key / 64][chunk / 8]) +
                      chunk_place(key % 64, chunk % 8),
                  static_cast<const Half*>(span.ring_keys) + at, valid);
  }
  copy_queries(from);
  keep_exponent(from, stats_of(from));
  const int warp_key = thread / kWarpSize * 16, warp_begin = block_begin + warp_key;
  float sum[2] = {0.0f, 0.0f};

  for (int first = from; first < to; first += kQueries) {
    wait_copies<0>();
    publish_to_products();
    __syncthreads();  // this tile is there for all, and nobody reads the one before
    float2 next_stats = make_float2(0.0f, 0.0f);
    if (first + kQueries < to) {
      copy_queries(first + kQueries);
      next_stats = stats_of(first + kQueries);
    }
    const int stage = (first - from) / kQueries % kAttentionStages;
    float score[kQueries / 2];
    EPISODIC_UNROLL
    for (int i = 0; i < kQueries / 2; ++i) score[i] = 0.0f;
    hold(score);
    begin_products();
    EPISODIC_UNROLL
    for (int c = 0; c < kDim / 16; ++c)
      Products<Half, kQueries>::of_columns(
          score, moved_by(matrix_at(memory.keys[warpgroup][c / 4], 1024), c % 4 * 32),
          moved_by(matrix_at(memory.queries[stage][c / 4], 1024), c % 4 * 32), c > 0);
    end_products();
    hold(score);
    if (a.cap_in != 0.0f) {
      EPISODIC_UNROLL
      for (int i = 0; i < kQueries / 2; ++i) score[i] = capped(a, score[i]);
    }
    // The last key has the latest window, the first key the earliest.
    const unsigned length = static_cast<unsigned>(n_local);
    const bool hidden =
        !sees(first, warp_begin + 15, length) || !sees(first + kQueries - 1, warp_begin, length);
    const float* const exponents = memory.exponents[stage] + lane % 4 * 2;
    const auto add_shares = [&](auto hides) {
      EPISODIC_UNROLL
      for (int j = 0; j < kQueries / 8; ++j) {
        const float2 exponent = *reinterpret_cast<const float2*>(exponents + 8 * j);
        EPISODIC_UNROLL
        for (int i = 0; i < 4; ++i) {
          const int e = i % 2, half = i / 2;
          float x = exp2_fast(fmaf(score[4 * j + i], a.scale, e == 0 ? -exponent.x : -exponent.y));
          if constexpr (decltype(hides)::value) {
            const int query = first + 8 * j + lane % 4 * 2 + e;
            if (!sees(query, warp_begin + 8 * half + lane / 4, length)) x = 0.0f;
          }
          sum[half] += x;
        }
      }
    };
    if (hidden)
      add_shares(std::true_type{});
    else
      add_shares(std::false_type{});
    if (first + kQueries < to) keep_exponent(first + kQueries, next_stats);
  }
  EPISODIC_UNROLL
  for (int half = 0; half < 2; ++half) {
    float total = sum[half];
    total += __shfl_xor_sync(kFullMask, total, 1);
    total += __shfl_xor_sync(kFullMask, total, 2);
    const int key = warp_key + 8 * half + lane / 4;
    if (lane % 4 == 0 && key < keys_left)
      p.maybe_column_sums[(block_key + key) * p.n_heads + h] = total;
  }
}

}  // namespace episodic::kernels

#endif
