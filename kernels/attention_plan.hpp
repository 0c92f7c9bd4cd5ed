// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// How a call of kernels/attention.hpp is cut into blocks, and where its workspace lies: decided on
/// the host from sizes alone, so that bits depend neither on the machine nor on what the device
/// holds (but that a device of compute capability 9.0 has a kernel of its own for many rows).

#include <cstddef>
#include <cstdint>

#include "attention.hpp"
#include "limits.hpp"
#include "online_softmax.hpp"

namespace episodic::kernels {

/// Keys are copied while those of the tile before are multiplied.
inline constexpr int kAttentionStages = 2;
/// Rows of the far list are on their way one tile longer than what they point to.
inline constexpr int kAttentionTables = 3;

/// Shape of one block of the tensor-core kernel. A row is one (query, head of the group).
struct MmaTile {
  int warps = 0;
  int row_tiles = 0;  ///< of 16 rows, for each warp
  int keys = 0;       ///< of one tile
  int key_warps = 1;  ///< warps that share the same rows, and divide a tile's keys
  EPISODIC_HOST_DEVICE constexpr int rows() const { return 16 * (warps / key_warps) * row_tiles; }
  EPISODIC_HOST_DEVICE constexpr int warp_keys() const { return keys / key_warps; }
};

/// Few rows (decode): all warps have the same rows and 16 keys of a tile each, so that copies,
/// their addresses, products and exponentials of a tile are four streams of instructions. Many:
/// each key fragment read from shared memory meets 32 rows, except where the outputs of 32 would
/// not fit in the registers. Tiles of heads of 256 are short, so that a block fits into the shared
/// memory of every device, and two into that of an A100.
EPISODIC_HOST_DEVICE constexpr MmaTile mma_tile(int dim, bool few_rows) {
  if (few_rows) return dim <= 128 ? MmaTile{4, 1, 64, 4} : MmaTile{2, 1, 32, 2};
  return dim <= 96 ? MmaTile{4, 2, 64} : dim <= 128 ? MmaTile{4, 2, 48} : MmaTile{4, 1, 16};
}

/// Shape of one block of the wgmma kernel (compute capability 9.0): warpgroups that multiply, 64
/// rows each, and one that copies. Registers of their threads; 0: as many as the launch bounds
/// leave.
struct WgmmaTile {
  int warpgroups = 0;
  int keys = 0;    ///< of one tile
  int stages = 0;  ///< tiles in shared memory
  int multiplying_registers = 0, copying_registers = 0;
  EPISODIC_HOST_DEVICE constexpr int rows() const { return 64 * warpgroups; }
  EPISODIC_HOST_DEVICE constexpr int threads() const { return 128 * (warpgroups + 1); }
};

/// As many rows as mma_tile has, so that one plan serves both kernels. Tiles of 128 keys: a product
/// of 64 x 128 reads less shared memory for each multiplication than one of 64 x 64, whose 128
/// bytes a cycle are all that there is. Outputs of heads of 256 are 128 registers by themselves.
EPISODIC_HOST_DEVICE constexpr WgmmaTile wgmma_tile(int dim) {
  return dim <= 64    ? WgmmaTile{2, 128, 3, 224, 56}
         : dim <= 128 ? WgmmaTile{2, 128, 2, 224, 56}
                      : WgmmaTile{1, 64, 2, 0, 0};
}

/// Bytes of a key's mark beside it (attention_wgmma.cuh), and where its matrices must begin.
inline constexpr std::size_t kWgmmaMarkBytes = 8, kWgmmaAlignment = 1024;
EPISODIC_HOST_DEVICE constexpr std::size_t wgmma_shared_bytes(int dim) {
  const WgmmaTile tile = wgmma_tile(dim);
  const auto keys = static_cast<std::size_t>(tile.stages * tile.keys);
  const std::size_t of_row = static_cast<std::size_t>(dim) * 2;
  return kWgmmaAlignment + static_cast<std::size_t>(tile.rows()) * of_row +
         keys * (2 * of_row + kWgmmaMarkBytes) +
         (4 * static_cast<std::size_t>(tile.stages) + 2) * sizeof(std::uint64_t);
}

/// One block of the wgmma kernel for column sums: a warpgroup has 64 keys. Two blocks share a
/// multiprocessor, so that one multiplies while the other adds.
struct WgmmaColumnTile {
  int warpgroups = 0;
  int queries = 0;  ///< of one tile
  EPISODIC_HOST_DEVICE constexpr int keys() const { return 64 * warpgroups; }
  EPISODIC_HOST_DEVICE constexpr int threads() const { return 128 * warpgroups; }
};
EPISODIC_HOST_DEVICE constexpr WgmmaColumnTile wgmma_column_tile(int dim) {
  return dim <= 128 ? WgmmaColumnTile{2, 128} : WgmmaColumnTile{1, 64};
}
EPISODIC_HOST_DEVICE constexpr std::size_t wgmma_column_shared_bytes(int dim) {
  const WgmmaColumnTile tile = wgmma_column_tile(dim);
  const auto queries = static_cast<std::size_t>(kAttentionStages * tile.queries);
  return kWgmmaAlignment +
         (static_cast<std::size_t>(tile.keys()) + queries) * static_cast<std::size_t>(dim) * 2 +
         queries * 4;
}

/// One block of the tensor-core kernel for column sums: row tiles are of keys.
struct ColumnTile {
  int warps = 0;
  int key_tiles = 0;  ///< of 16 keys, for each warp
  int queries = 0;    ///< of one tile
  EPISODIC_HOST_DEVICE constexpr int keys() const { return 16 * warps * key_tiles; }
};
EPISODIC_HOST_DEVICE constexpr ColumnTile column_tile(int dim) {
  return dim <= 128 ? ColumnTile{4, 2, 64} : ColumnTile{4, 1, 32};
}

/// Elements between rows in shared memory: 16 bytes more than the row, so that the 8 rows of a
/// matrix lie in different banks.
EPISODIC_HOST_DEVICE constexpr int shared_stride(int dim, int element_bytes) {
  return dim + 16 / element_bytes;
}

EPISODIC_HOST_DEVICE constexpr std::size_t mma_shared_bytes(int dim, MmaTile tile) {
  return static_cast<std::size_t>(tile.rows() + 2 * kAttentionStages * tile.keys) *
             static_cast<std::size_t>(shared_stride(dim, 2)) * 2 +
         static_cast<std::size_t>(kAttentionTables * tile.keys) * sizeof(KvRow);
}
/// Floats between the outputs of two rows where the warps of few rows leave them: 8 more than the
/// row, so that the 8 rows that a warp writes at once lie in different banks.
EPISODIC_HOST_DEVICE constexpr int few_rows_stride(int dim) { return dim + 8; }
/// What the warps leave takes the place of keys and values.
EPISODIC_HOST_DEVICE constexpr bool warps_fit(int dim) {
  const MmaTile tile = mma_tile(dim, true);
  return mma_shared_bytes(dim, tile) >=
         static_cast<std::size_t>(tile.key_warps * tile.rows() * (few_rows_stride(dim) + 2)) *
             sizeof(float);
}
static_assert(warps_fit(64) && warps_fit(96) && warps_fit(128) && warps_fit(256));
EPISODIC_HOST_DEVICE constexpr std::size_t column_shared_bytes(int dim, ColumnTile tile) {
  return static_cast<std::size_t>(tile.keys() + kAttentionStages * tile.queries) *
         static_cast<std::size_t>(shared_stride(dim, 2)) * 2;
}

/// The float32 kernels: 8 groups of 16 threads, a thread has 4 rows and 2 keys of a tile.
inline constexpr int kFloatThreads = 128;
inline constexpr int kFloatRows = 32;
inline constexpr int kFloatKeys = 32;
EPISODIC_HOST_DEVICE constexpr std::size_t float_shared_bytes(int dim) {
  return static_cast<std::size_t>(kFloatRows + 2 * kFloatKeys) *
             static_cast<std::size_t>(shared_stride(dim, 4)) * 4 +
         kFloatKeys * sizeof(KvRow);
}
EPISODIC_HOST_DEVICE constexpr std::size_t float_column_shared_bytes(int dim) {
  return static_cast<std::size_t>(kFloatRows + kFloatKeys) *
         static_cast<std::size_t>(shared_stride(dim, 4)) * 4;
}

/// Of all attention kernels for heads of `dim`, and of what they have of static memory at most.
EPISODIC_HOST_DEVICE constexpr bool attention_fits_every_device(int dim) {
  constexpr std::size_t kStatic = 512;
  const std::size_t most = kSharedOfEveryDevice - kStatic;
  return mma_shared_bytes(dim, mma_tile(dim, true)) <= most &&
         mma_shared_bytes(dim, mma_tile(dim, false)) <= most &&
         column_shared_bytes(dim, column_tile(dim)) <= most && float_shared_bytes(dim) <= most &&
         float_column_shared_bytes(dim) <= most;
}
static_assert(attention_fits_every_device(64) && attention_fits_every_device(96) &&
              attention_fits_every_device(128) && attention_fits_every_device(256));

static_assert(wgmma_shared_bytes(64) + 1024 <= kSharedOfHopper &&
              wgmma_shared_bytes(128) + 1024 <= kSharedOfHopper &&
              wgmma_shared_bytes(256) + 1024 <= kSharedOfHopper);
static_assert(2 * (wgmma_column_shared_bytes(128) + 1024) <= kSharedOfHopper + 1024 &&
              2 * (wgmma_column_shared_bytes(256) + 1024) <= kSharedOfHopper + 1024);

/// Splits that one warp merges at most: a lane holds the statistics of one.
inline constexpr int kMostMerged = 32;
static_assert(kAttentionCounters == kMostMerged + 1, "a counter a group, and one for the groups");

/// Each warp that merges splits in a block of few rows has room for a row of each.
EPISODIC_HOST_DEVICE constexpr bool merge_fits(int dim) {
  const MmaTile tile = mma_tile(dim, true);
  return mma_shared_bytes(dim, tile) / static_cast<std::size_t>(tile.warps) >=
         static_cast<std::size_t>(kMostMerged * (dim + 2) + 4) * sizeof(float);
}
static_assert(merge_fits(64) && merge_fits(96) && merge_fits(128) && merge_fits(256));

struct AttentionPlan {
  int dim = 0;            ///< the larger of d and e rounded up to the next instance
  bool few_rows = false;  ///< 16-bit: the kernel for at most 16 rows
  int rows_per_block = 0;
  std::int64_t rows = 0;  ///< n * H / G
  std::int64_t row_tiles = 0;
  std::int64_t splits = 0;  ///< blocks that share the keys of one row tile; 1: nothing to merge
  std::int64_t window = 0;  ///< local tokens, at most: n_local + n - 1
  /// Splits that a block of few rows merges, and as many groups of them at most; 0: nothing to
  /// merge.
  std::int64_t merge_group = 0;

  // Bytes from the workspace's start, all multiples of 256.
  std::size_t stats = 0;          ///< float2 [H, n]: max and 1 / sum, for the column sums
  std::size_t queries = 0;        ///< [n, H, d] rotated by own position (16 bits, many rows)
  std::size_t scores = 0;         ///< float [window, H, n] (16 bits, few rows)
  std::size_t partial_stats = 0;  ///< float2 [G, splits, rows]: max and sum
  std::size_t partial_out = 0;    ///< float [G, splits, rows, e]
  bool widens = false;            ///< rows of codes are widened in a launch before (16 bits, many)
  std::size_t wide_rows = 0;      ///< then: KvRow [n_lists, max_rows]
  std::size_t wide = 0;           ///< [n_lists, max_code_rows, G / n_lists, d + e] of 16 bits
  std::size_t bytes = 0;
};

/// \param wgmma whether many rows of 16 bits are for the wgmma kernel, whose tiles of keys are of
/// another length; the workspace is enough for either
/// \return false for sizes that segmented_attention refuses. Reads no pointer.
bool plan_attention(const AttentionParams& params, bool wgmma, AttentionPlan& plan);

}  // namespace episodic::kernels
