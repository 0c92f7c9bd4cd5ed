// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Matrices of block-quantised weights in device memory: the bits of the files' blocks, each kind
/// in a plane of its own, so that a lane reads 32 weights' codes in loads of 16 aligned bytes.
///
/// A file's blocks have 17 to 210 bytes, a scale before or behind the codes: no load of more than
/// two bytes would be aligned. pack_block_rows moves the same bits into planes when weights are
/// loaded; nothing is rounded or widened. With u = in / 32 units a row, a plane has a row's
///
/// | plane | bytes a row | holds |
/// |---|---|---|
/// | codes | 16 u; 32 u for bytes | 4 bits each (below), or bytes |
/// | high | 4 u or 8 u | the fifth bits, or the fifth and sixth |
/// | scales | u, 2 u or 4 u | what a unit has of its own |
/// | base | u / 4, or 4 | what eight units share, or a row |
///
/// Codes: byte j of a unit's 16 has number j below and number j + 16 above, as Q4_0. Of MXFP4 the
/// half-words 2 i and 2 i + 1 have numbers 4 i .. 4 i + 3, and those 16 later, in order: a look-up
/// takes four nibbles side by side. High: the fifth bit of number 4 i + k is bit 8 k + i; of two
/// bits, those of numbers 4 i + k and 16 + 4 i + k are bits 8 k + 2 i of the first and of the
/// second word. Scales: the files' halves, bytes and E8M0; Q4_K and Q5_K have 16 bytes for eight
/// units: two halves, then for each a byte of both numbers' low four bits, and a nibble of their
/// high two.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "decoder.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/rules/host_device.hpp"

namespace episodic::kernels {

/// Types of GGUF by the same names. fp8: E4M3 (base/rules/fp8.hpp), and a float32 scale a row.
enum class BlockType : std::uint8_t { q4_0, q4_1, q5_0, q5_1, q8_0, q4_k, q5_k, q6_k, mxfp4, fp8 };
inline constexpr int kBlockTypes = 10;

inline constexpr std::int64_t kBlockUnit = 32;
inline constexpr std::int64_t kMostBlockIn = std::int64_t{1} << 24;

/// Numbers that a row's length is a multiple of.
EPISODIC_HOST_DEVICE constexpr std::int64_t block_multiple(BlockType type) {
  return type == BlockType::q4_k || type == BlockType::q5_k || type == BlockType::q6_k
             ? 8 * kBlockUnit
             : kBlockUnit;
}
/// Bytes of a block of so many numbers as a file has it; of fp8 of 32 codes, beside the scale.
EPISODIC_HOST_DEVICE constexpr std::int64_t stored_block_bytes(BlockType type) {
  switch (type) {
    case BlockType::q4_0:
      return 18;
    case BlockType::q4_1:
      return 20;
    case BlockType::q5_0:
      return 22;
    case BlockType::q5_1:
      return 24;
    case BlockType::q8_0:
      return 34;
    case BlockType::q4_k:
      return 144;
    case BlockType::q5_k:
      return 176;
    case BlockType::q6_k:
      return 210;
    case BlockType::mxfp4:
      return 17;
    case BlockType::fp8:
      return 32;
  }
  return 0;
}

/// Bytes of a row in each plane.
struct BlockPlanes {
  std::int64_t codes = 0, high = 0, scales = 0, base = 0;
};
/// \param in a multiple of block_multiple(type)
EPISODIC_HOST_DEVICE constexpr BlockPlanes block_planes(BlockType type, std::int64_t in) {
  const std::int64_t units = in / kBlockUnit;
  switch (type) {
    case BlockType::q4_0:
      return {16 * units, 0, 2 * units, 0};
    case BlockType::q4_1:
      return {16 * units, 0, 4 * units, 0};
    case BlockType::q5_0:
      return {16 * units, 4 * units, 2 * units, 0};
    case BlockType::q5_1:
      return {16 * units, 4 * units, 4 * units, 0};
    case BlockType::q8_0:
      return {32 * units, 0, 2 * units, 0};
    case BlockType::q4_k:
      return {16 * units, 0, 2 * units, 0};
    case BlockType::q5_k:
      return {16 * units, 4 * units, 2 * units, 0};
    case BlockType::q6_k:
      return {16 * units, 8 * units, 2 * units, units / 4};
    case BlockType::mxfp4:
      return {16 * units, 0, units, 0};
    case BlockType::fp8:
      return {32 * units, 0, 0, 4};
  }
  return {};
}

/// Planes lie behind each other: [rows] of codes, of high bits, of scales, of bases, each from a
/// multiple of 16 bytes on.
EPISODIC_HOST_DEVICE constexpr std::int64_t plane_bytes(std::int64_t row_bytes, std::int64_t rows) {
  return (row_bytes * rows + 15) / 16 * 16;
}
EPISODIC_HOST_DEVICE constexpr std::int64_t block_matrix_bytes(BlockType type, std::int64_t rows,
                                                               std::int64_t in) {
  const BlockPlanes of = block_planes(type, in);
  return plane_bytes(of.codes, rows) + plane_bytes(of.high, rows) + plane_bytes(of.scales, rows) +
         plane_bytes(of.base, rows);
}

/// A matrix [rows, in], in device memory.
struct BlockMatrix {
  BlockType type = BlockType::q8_0;
  std::int64_t rows = 0;
  const void* data = nullptr;  ///< block_matrix_bytes(type, rows, in), aligned to 16
};

inline constexpr int kMostBlockParts = 4;
/// A product's rows of weights: those of several matrices behind each other, each of its own type.
struct BlockWeights {
  int n_parts = 0;  ///< 0: there are none
  BlockMatrix part[kMostBlockParts];
};

/// Whether all rows are of one type.
inline bool of_one_type(const BlockWeights& w) {
  for (int i = 1; i < w.n_parts; ++i)
    if (w.part[i].type != w.part[0].type) return false;
  return true;
}

/// Bytes of a row of activations of 8 bits in shared memory: the codes of all units' first halves,
/// those of the second ones, a scale and both halves' sums of codes of each unit. A multiple of 16.
EPISODIC_HOST_DEVICE constexpr std::int64_t rounded_row_bytes(std::int64_t in) {
  return (in / kBlockUnit * 40 + 15) / 16 * 16;
}
/// What a block may have of such rows.
inline constexpr std::int64_t kMostRoundedShared = 96 << 10;

/// Where a host has a matrix's planes, or some rows of them.
struct BlockPlanesAt {
  void *codes = nullptr, *high = nullptr, *scales = nullptr, *base = nullptr;
};
/// Rows as a file has them into planes, on the host. \param stored [rows] of blocks, unaligned; not
/// of fp8 \param in a multiple of block_multiple(type)
void pack_block_rows(BlockType type, const void* stored, std::int64_t rows, std::int64_t in,
                     const BlockPlanesAt& to);
/// Rows of fp8: codes, and scales of their rows. \return false where a code is that of NaN
bool pack_fp8_rows(const void* codes, const float* scales, std::int64_t rows, std::int64_t in,
                   const BlockPlanesAt& to);

/// y[i, :] = the numbers of row first + i, exactly as the format defines them (products and sums in
/// float32, each rounded), rounded to dtype.
struct WidenBlocksParams {
  DType dtype = DType::bfloat16;  ///< of y: float32, float16, bfloat16
  BlockWeights from;
  std::int64_t first = 0, rows = 0, in = 0;
  void* y = nullptr;  ///< [rows, in], written
};
cudaError_t widen_blocks(const WidenBlocksParams& params, cudaStream_t stream);
/// The field of them that widen_blocks refuses, by its name; null: none. Reads no array.
const char* invalid_field(const WidenBlocksParams& params);

/// As embed_tokens, of a table [vocab, width] of blocks: params.table is null and its dtype is not
/// looked at.
cudaError_t embed_blocks(const EmbedParams& params, const BlockMatrix& table, cudaStream_t stream);
/// The field of either that embed_blocks refuses, by its name; null: none. Reads no array.
const char* invalid_field(const EmbedParams& params, const BlockMatrix& table);

}  // namespace episodic::kernels
