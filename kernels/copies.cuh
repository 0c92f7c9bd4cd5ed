// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/copies.hpp.

#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "batch.hpp"
#include "copies.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "episodic/base/rules/fp8.hpp"
#include "ring_pages.cuh"
#include "value_width.cuh"

namespace episodic::kernels {

inline constexpr int kCopyThreads = 256;
inline constexpr int kCopyWarps = kCopyThreads / kWarpSize;
// Blocks at once on a multiprocessor: as many as their registers allow without spills.
inline constexpr int kRunsBlocks = 3, kEventBlocks = 2, kEventCodesBlocks = 3;
inline constexpr std::int64_t kTileBytes = 4096;

/// Numbers the tiles of all items one after the other and gives them to the grid's warps in turn:
/// copy_tile(item, tile of the item) by a whole warp.
template <class TilesOf, class CopyTile>
__device__ inline void for_each_tile(std::int64_t n_items, TilesOf tiles_of, CopyTile copy_tile) {
  using Scan = cub::BlockScan<std::int64_t, kCopyThreads>;
  EPISODIC_SHARED(storage, typename Scan::TempStorage);
  EPISODIC_SHARED(first_tile, std::int64_t[kCopyThreads]);
  const std::int64_t n_warps = static_cast<std::int64_t>(gridDim.x) * kCopyWarps;
  std::int64_t next = static_cast<std::int64_t>(blockIdx.x) * kCopyWarps + threadIdx.x / kWarpSize;
  std::int64_t base = 0;
  for (std::int64_t group = 0; group < n_items; group += kCopyThreads) {
    const std::int64_t own = group + threadIdx.x < n_items ? tiles_of(group + threadIdx.x) : 0;
    std::int64_t before, total;
    Scan(storage).ExclusiveSum(own, before, total);
    first_tile[threadIdx.x] = base + before;
    __syncthreads();
    for (; next < base + total; next += n_warps) {
      // the last item that does not begin behind the tile; those without tiles are not the last
      int low = 0, high = kCopyThreads;
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        if (first_tile[middle] <= next)
          low = middle;
        else
          high = middle;
      }
      copy_tile(group + low, next - first_tile[low]);
    }
    base += total;
    __syncthreads();  // the tiles' numbers are used again for the next group
  }
}

/// A warp's copy of words that are aligned to their size on both sides; all loads of a round are on
/// their way before its first store.
template <class Word>
__device__ inline void copy_words(unsigned char* to, const unsigned char* from, int words) {
  constexpr int kFullRound = 8, kLastRounds = 4;
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const auto* source = reinterpret_cast<const Word*>(from) + lane;
  auto* target = reinterpret_cast<Word*>(to) + lane;
  int left = words - lane;
  for (; left > (kFullRound - 1) * kWarpSize; left -= kFullRound * kWarpSize) {
    Word word[kFullRound];
    EPISODIC_UNROLL
    for (int j = 0; j < kFullRound; ++j) word[j] = __ldcs(source + j * kWarpSize);
    EPISODIC_UNROLL
    for (int j = 0; j < kFullRound; ++j) target[j * kWarpSize] = word[j];
    source += kFullRound * kWarpSize;
    target += kFullRound * kWarpSize;
  }
  for (; left > 0; left -= kLastRounds * kWarpSize) {
    Word word[kLastRounds];
    EPISODIC_UNROLL
    for (int j = 0; j < kLastRounds; ++j)
      if (left > j * kWarpSize) word[j] = __ldcs(source + j * kWarpSize);
    EPISODIC_UNROLL
    for (int j = 0; j < kLastRounds; ++j)
      if (left > j * kWarpSize) target[j * kWarpSize] = word[j];
    source += kLastRounds * kWarpSize;
    target += kLastRounds * kWarpSize;
  }
}

/// A warp's copy of any bytes: 16 at a time from the first aligned address of the destination on.
__device__ inline void copy_bytes(unsigned char* to, const unsigned char* from, int bytes) {
  constexpr int kWord = 16;
  const auto misaligned = static_cast<int>(reinterpret_cast<std::uintptr_t>(to) % kWord);
  int head = (kWord - misaligned) % kWord;
  if (head > bytes) head = bytes;
  const int words = (bytes - head) / kWord, tail = (bytes - head) % kWord;
  // half the lanes for the bytes before, half for those behind
  const auto lane = static_cast<int>(threadIdx.x % kWarpSize);
  const bool before = lane < kWord;
  if (before ? lane < head : lane - kWord < tail) {
    const int at = before ? lane : bytes - tail + lane - kWord;
    to[at] = from[at];
  }
  to += head;
  from += head;
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  if (address % kWord == 0)
    copy_words<uint4>(to, from, words);
  else if (address % 4 == 0)
    copy_words<unsigned>(to, from, words * 4);
  else
    copy_words<unsigned char>(to, from, words * kWord);
}

__device__ inline std::int64_t count_within(const std::int32_t* count, std::int64_t limit) {
  const std::int64_t n = *count;
  return n < limit ? n : limit;
}

__device__ inline bool aligned_to(const void* p, unsigned bytes) {
  return reinterpret_cast<std::uintptr_t>(p) % bytes == 0;
}

/// Rows of the grid are sequences.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kCopyThreads, kRunsBlocks)
    CopyRunsKernel(KernelArgument<Batch<CopyRunsParams, kMost>> batch) {
  const CopyRunsParams p = batch.of[blockIdx.y];
  const auto tiles_of = [&](std::int64_t i) {
    const std::int64_t bytes = p.runs[i].bytes;
    return bytes > 0 ? (bytes + kTileBytes - 1) / kTileBytes : std::int64_t{0};
  };
  for_each_tile(count_within(p.count, p.max_runs), tiles_of,
                [&](std::int64_t i, std::int64_t tile) {
                  const CopyRun run = p.runs[i];
                  const std::int64_t offset = tile * kTileBytes, left = run.bytes - offset;
                  copy_bytes(static_cast<unsigned char*>(run.to) + offset,
                             static_cast<const unsigned char*>(run.from) + offset,
                             static_cast<int>(left < kTileBytes ? left : kTileBytes));
                });
}

/// A kv head's keys or values in blocks and rings. In a block the sides lie one after the other,
/// the keys of every head and then the values of each.
struct BlockSide {
  bool is_key;
  std::int64_t head, row;  // row: elements

  /// Elements from the block's first one to the side's. \param tokens of the event
  __device__ std::int64_t in_block(const EventBlockParams& p, std::int64_t tokens) const {
    return tokens * (is_key ? head * row : p.n_kv_heads * p.head_dim + head * row);
  }
  __device__ std::int64_t in_ring(const EventBlockParams& p) const {
    return head * (is_key ? p.ring_head_stride : p.value_head_stride);
  }
  __device__ const void* ring(const EventBlockLayer& layer) const {
    return is_key ? layer.ring_key : layer.ring_value;
  }
  __device__ RingPages pages(const EventBlockParams& p) const {
    return is_key ? p.ring_pages : value_pages(p);
  }
};
/// Of sides 0 to 2 G - 1.
__device__ inline BlockSide side_of(const EventBlockParams& p, std::int64_t side) {
  const bool is_key = side < p.n_kv_heads;
  return {is_key, is_key ? side : side - p.n_kv_heads, is_key ? p.head_dim : p.value_dim};
}

/// Items are the events of a layer, a row of the grid; its z is sequences. A tile is some tokens of
/// one head's keys or values; where they wrap around the ring, or go on in another page, it is
/// copied in pieces.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kCopyThreads, kEventBlocks)
    EventToBlockKernel(KernelArgument<Batch<EventBlockParams, kMost>> batch,
                       std::int64_t element_bytes) {
  const EventBlockParams& p = batch.of[blockIdx.z];
  const auto rows_of_tile = [&](std::int64_t row) {
    const std::int64_t bytes = row * element_bytes;
    return bytes < kTileBytes ? kTileBytes / bytes : std::int64_t{1};
  };
  const std::int64_t key_rows = rows_of_tile(p.head_dim), value_rows = rows_of_tile(p.value_dim);
  const auto tiles_of_head = [&](std::int64_t tokens, std::int64_t tile_rows) {
    return tokens > 0 ? (tokens + tile_rows - 1) / tile_rows : std::int64_t{0};
  };
  for (std::int64_t l = blockIdx.y; l < p.n_layers; l += gridDim.y) {
    const EventBlockLayer layer = p.layers[l];
    const ClosedEvents events = p.events.of(l);
    void* const* const blocks = p.block + l * p.events.max_count;
    const auto tiles_of = [&](std::int64_t i) {
      const std::int64_t tokens = events.end[i] - events.start[i];
      return blocks[i] ? p.n_kv_heads *
                             (tiles_of_head(tokens, key_rows) + tiles_of_head(tokens, value_rows))
                       : std::int64_t{0};
    };
    const std::int64_t n_events = count_within(events.count, events.max_count);
    for_each_tile(n_events, tiles_of, [&](std::int64_t i, std::int64_t tile) {
      const std::int64_t start = events.start[i], tokens = events.end[i] - start;
      const std::int64_t of_keys = p.n_kv_heads * tiles_of_head(tokens, key_rows);
      const bool is_key = tile < of_keys;
      const std::int64_t tile_rows = is_key ? key_rows : value_rows;
      const std::int64_t per_head = tiles_of_head(tokens, tile_rows);
      const std::int64_t of_side = is_key ? tile : tile - of_keys, head = of_side / per_head;
      const BlockSide side = side_of(p, is_key ? head : p.n_kv_heads + head);
      std::int64_t row = of_side % per_head * tile_rows;
      const std::int64_t end = row + tile_rows < tokens ? row + tile_rows : tokens;
      const std::int64_t row_bytes = side.row * element_bytes;
      const auto* const ring =
          static_cast<const unsigned char*>(side.ring(layer)) + side.in_ring(p) * element_bytes;
      auto* const block =
          static_cast<unsigned char*>(blocks[i]) + side.in_block(p, tokens) * element_bytes;
      const RingPages pages = side.pages(p);
      while (row < end) {
        const std::int64_t slot = (start + row) % p.ring_capacity;
        const std::int64_t piece = slots_to_end(pages, slot, p.ring_capacity);
        const std::int64_t rows = end - row < piece ? end - row : piece;
        copy_bytes(block + row * row_bytes, ring + ring_row(pages, slot, side.row) * element_bytes,
                   static_cast<int>(rows * row_bytes));
        row += rows;
      }
    });
  }
}

/// One head's keys or values of an event in a ring: element i of [tokens, row] where it lies. There
/// are less than 2^31 of them, as far rows ask too (KvRow::head_stride).
template <class T>
struct HeadOfEvent {
  const T* ring;
  RingPages pages;
  std::int64_t first_slot, capacity;
  unsigned row, count;

  __device__ const T* at(unsigned i) const {
    std::int64_t slot = first_slot + i / row;
    if (slot >= capacity) slot -= capacity;
    return ring + ring_row(pages, slot, std::int64_t{row}) + i % row;
  }
};

/// Of this thread's elements, kWide at a time, which do not reach over a row. \return the bits of
/// the largest magnitude; 0x7f800000 or more if one is not finite
template <int kWide, class T>
__device__ inline unsigned largest_magnitude(const HeadOfEvent<T>& from) {
  unsigned largest = 0;
  for (unsigned i = kWide * threadIdx.x; i < from.count; i += kWide * kCopyThreads) {
    const auto x = load_pack<kWide>(from.at(i));
    EPISODIC_UNROLL
    for (int e = 0; e < kWide; ++e) {
      const unsigned size = __float_as_uint(widen(x.at[e])) & 0x7fffffffu;  // in order of size
      largest = size > largest ? size : largest;
    }
  }
  return largest;
}

/// x * inverse as a code of int8, or of fp8.
__device__ inline std::uint8_t code_of(float x, float inverse, bool fp8) {
  return fp8 ? rules::to_fp8(x * inverse)
             : static_cast<std::uint8_t>(static_cast<int>(rintf(x * inverse)));
}

template <int kWide, class T>
__device__ inline void write_codes(const HeadOfEvent<T>& from, float inverse, bool fp8,
                                   std::uint8_t* to) {
  for (unsigned i = kWide * threadIdx.x; i < from.count; i += kWide * kCopyThreads) {
    const auto x = load_pack<kWide>(from.at(i));
    Pack<std::uint8_t, kWide> codes;
    EPISODIC_UNROLL
    for (int e = 0; e < kWide; ++e) codes.at[e] = code_of(widen(x.at[e]), inverse, fp8);
    store_pack(to + i, codes);
  }
}

/// A block of threads for one head's keys or values of an event, a row of the grid for a layer, its
/// z for sequences.
/// \param wide_rows rows are multiples of 8 elements, and heads of a ring so far apart
template <class T, std::int64_t kMost>
__global__ void __launch_bounds__(kCopyThreads, kEventCodesBlocks)
    EventToCodesKernel(KernelArgument<Batch<EventBlockParams, kMost>> batch, bool wide_rows) {
  const EventBlockParams& p = batch.of[blockIdx.z];
  constexpr int kWide = 8;
  using Reduce = cub::BlockReduce<unsigned, kCopyThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(largest, unsigned);
  const std::int64_t sides = 2 * p.n_kv_heads;
  for (std::int64_t l = blockIdx.y; l < p.n_layers; l += gridDim.y) {
    const EventBlockLayer layer = p.layers[l];
    const ClosedEvents events = p.events.of(l);
    const std::int64_t n_events = count_within(events.count, events.max_count);
    for (std::int64_t item = blockIdx.x; item < n_events * sides; item += gridDim.x) {
      const std::int64_t event = item / sides;
      const BlockSide side = side_of(p, item % sides);
      auto* const block = static_cast<std::uint8_t*>(p.block[l * p.events.max_count + event]);
      if (!block) continue;
      const std::int64_t start = events.start[event], tokens = events.end[event] - start;
      const auto count = static_cast<unsigned>(tokens * side.row);
      const HeadOfEvent<T> from{static_cast<const T*>(side.ring(layer)) + side.in_ring(p),
                                side.pages(p),
                                start % p.ring_capacity,
                                p.ring_capacity,
                                static_cast<unsigned>(side.row),
                                count};
      std::uint8_t* const to = block + side.in_block(p, tokens);
      const bool wide = wide_rows && aligned_to(from.ring, 16) && aligned_to(to, kWide);
      const unsigned all = Reduce(storage).Reduce(
          wide ? largest_magnitude<kWide>(from) : largest_magnitude<1>(from), Largest{});
      if (threadIdx.x == 0) largest = all;
      __syncthreads();
      const bool sound = largest < 0x7f800000u;
      const bool fp8 = p.block_dtype == DType::fp8;
      const float most = sound ? __uint_as_float(largest) : 0.0f;
      const rules::Fp8Scale power = rules::fp8_scale(most);
      float scale = fp8 ? power.scale : most / 127.0f;
      if (scale < 1.17549435e-38f) scale = 0.0f;  // its inverse might not be finite
      const float inverse = fp8 ? power.inverse : scale > 0.0f ? 1.0f / scale : 0.0f;
      if (threadIdx.x == 0) {
        layer.maybe_scales[(*events.first_id + event) * sides + item % sides] = scale;
        if (!sound) *p.not_finite = 1;
      }
      if (scale == 0.0f) {
        for (unsigned i = threadIdx.x; i < count; i += kCopyThreads) to[i] = 0;
      } else if (wide) {
        write_codes<kWide>(from, inverse, fp8, to);
      } else {
        write_codes<1>(from, inverse, fp8, to);
      }
      __syncthreads();  // storage and the largest serve the next head
    }
  }
}

}  // namespace episodic::kernels
