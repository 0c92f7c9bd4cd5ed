// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/copies.hpp.

#include <cstdint>
#include <cub/block/block_scan.cuh>

#include "copies.hpp"
#include "device.cuh"

namespace episodic::kernels {

inline constexpr int kCopyThreads = 256;
inline constexpr int kCopyWarps = kCopyThreads / kWarpSize;
// Blocks at once on a multiprocessor: as many as their registers allow without spills.
inline constexpr int kRunsBlocks = 3, kEventBlocks = 2;
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

__global__ void __launch_bounds__(kCopyThreads, kRunsBlocks) CopyRunsKernel(CopyRunsParams p) {
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

/// Items are the events of a layer, a row of the grid. A tile is some tokens of one head's keys or
/// values; where they wrap around the ring it is copied in two pieces.
__global__ void __launch_bounds__(kCopyThreads, kEventBlocks)
    EventToBlockKernel(EventBlockParams p, std::int64_t element_bytes) {
  const std::int64_t row_bytes = p.head_dim * element_bytes;
  const std::int64_t tile_rows = row_bytes < kTileBytes ? kTileBytes / row_bytes : 1;
  const auto tiles_of_head = [&](std::int64_t tokens) {
    return tokens > 0 ? (tokens + tile_rows - 1) / tile_rows : std::int64_t{0};
  };
  for (std::int64_t l = blockIdx.y; l < p.n_layers; l += gridDim.y) {
    const EventBlockLayer layer = p.layers[l];
    const ClosedEvents events = p.events.of(l);
    void* const* const blocks = p.block + l * p.events.max_count;
    const auto tiles_of = [&](std::int64_t i) {
      return blocks[i] ? 2 * p.n_kv_heads * tiles_of_head(events.end[i] - events.start[i])
                       : std::int64_t{0};
    };
    const std::int64_t n_events = count_within(events.count, events.max_count);
    for_each_tile(n_events, tiles_of, [&](std::int64_t i, std::int64_t tile) {
      const std::int64_t start = events.start[i], tokens = events.end[i] - start;
      const std::int64_t per_head = tiles_of_head(tokens), head = tile / per_head;
      std::int64_t row = tile % per_head * tile_rows;
      const std::int64_t end = row + tile_rows < tokens ? row + tile_rows : tokens;
      const bool is_key = head < p.n_kv_heads;
      const auto* ring =
          static_cast<const unsigned char*>(is_key ? layer.ring_key : layer.ring_value) +
          (is_key ? head : head - p.n_kv_heads) * p.ring_head_stride * element_bytes;
      auto* const block = static_cast<unsigned char*>(blocks[i]) + head * tokens * row_bytes;
      while (row < end) {
        const std::int64_t slot = (start + row) % p.ring_capacity;
        const std::int64_t until_wrap = p.ring_capacity - slot;
        const std::int64_t rows = end - row < until_wrap ? end - row : until_wrap;
        copy_bytes(block + row * row_bytes, ring + slot * row_bytes,
                   static_cast<int>(rows * row_bytes));
        row += rows;
      }
    });
  }
}

}  // namespace episodic::kernels
