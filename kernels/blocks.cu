// SPDX-License-Identifier: Apache-2.0
#include "blocks.hpp"

#include <cstring>

#include "block_rows.cuh"
#include "fields.hpp"

namespace episodic::kernels {
namespace {

using Byte = unsigned char;

/// Number i of a unit of 4 bits as Q4_0 has them: below for the first 16, above for the others.
int nibble(const Byte* codes, int i) { return i < 16 ? codes[i] & 15 : codes[i - 16] >> 4; }

void put_nibbles(const int (&code)[32], Byte* to) {
  for (int j = 0; j < 16; ++j) to[j] = static_cast<Byte>((code[j] & 15) | (code[j + 16] & 15) << 4);
}

void put_word(std::uint32_t word, Byte* to) { std::memcpy(to, &word, sizeof(word)); }

/// The fifth bits: that of number 4 i + k is bit 8 k + i.
void put_fifths(const int (&code)[32], Byte* to) {
  std::uint32_t word = 0;
  for (int c = 0; c < 32; ++c)
    word |= static_cast<std::uint32_t>(code[c] >> 4 & 1) << (8 * (c % 4) + c / 4);
  put_word(word, to);
}

/// The fifth and sixth bits: those of numbers 4 i + k of a half are bits 8 k + 2 i of its word.
void put_sixths(const int (&code)[32], Byte* to) {
  std::uint32_t word[2] = {};
  for (int c = 0; c < 32; ++c)
    word[c / 16] |= static_cast<std::uint32_t>(code[c] >> 4 & 3)
                    << (8 * (c % 4) + 2 * (c % 16 / 4));
  put_word(word[0], to);
  put_word(word[1], to + 4);
}

/// Where one block goes: of a type with blocks of 32 a unit, else eight.
struct To {
  Byte *codes, *high, *scales, *base;
};

void pack_small(BlockType type, const Byte* b, const To& to) {
  const bool two = type == BlockType::q4_1 || type == BlockType::q5_1;
  const int scale_bytes = type == BlockType::mxfp4 ? 1 : two ? 4 : 2;
  std::memcpy(to.scales, b, static_cast<std::size_t>(scale_bytes));
  b += scale_bytes;
  if (type == BlockType::q8_0) {
    std::memcpy(to.codes, b, 32);
    return;
  }
  if (type == BlockType::mxfp4) {
    for (int i = 0; i < 4; ++i) {
      std::uint32_t word = 0;
      for (int k = 0; k < 8; ++k)
        word |= static_cast<std::uint32_t>(nibble(b, 4 * i + k % 4 + (k < 4 ? 0 : 16))) << (4 * k);
      put_word(word, to.codes + 4 * i);
    }
    return;
  }
  if (type == BlockType::q5_0 || type == BlockType::q5_1) {
    std::uint32_t bits;
    std::memcpy(&bits, b, sizeof(bits));
    int code[32];
    for (int c = 0; c < 32; ++c) code[c] = static_cast<int>(bits >> c & 1) << 4;
    put_fifths(code, to.high);
    b += 4;
  }
  std::memcpy(to.codes, b, 16);
}

/// Q4_K and Q5_K: two halves, eight scales and minima of 6 bits (of the first four in bytes 0 to 3
/// and 4 to 7, of the others four bits in bytes 8 to 11 and two on top of the first ones), fifth
/// bits, and codes of two units in 32 bytes.
void pack_k(BlockType type, const Byte* b, const To& to) {
  const Byte *six = b + 4, *fifths = b + 16, *codes = b + (type == BlockType::q5_k ? 48 : 16);
  std::memcpy(to.scales, b, 4);
  std::uint32_t top = 0;
  for (int s = 0; s < 8; ++s) {
    const int scale = s < 4 ? six[s] & 63 : (six[s + 4] & 15) | (six[s - 4] >> 6) << 4;
    const int least = s < 4 ? six[s + 4] & 63 : six[s + 4] >> 4 | (six[s] >> 6) << 4;
    to.scales[4 + s] = static_cast<Byte>((scale & 15) | (least & 15) << 4);
    top |= static_cast<std::uint32_t>(scale >> 4 | (least >> 4) << 2) << (4 * s);
    int code[32];
    for (int c = 0; c < 32; ++c) {
      code[c] = codes[s / 2 * 32 + c] >> (s % 2 * 4) & 15;
      if (type == BlockType::q5_k) code[c] |= (fifths[c] >> s & 1) << 4;
    }
    put_nibbles(code, to.codes + 16 * s);
    if (type == BlockType::q5_k) put_fifths(code, to.high + 4 * s);
  }
  put_word(top, to.scales + 12);
}

/// Of each half of 128: 64 bytes of low bits, numbers 0 to 63 below and 64 to 127 above; 32 bytes
/// of two bits of numbers 32 apart. Behind both 16 scales of 16 numbers, and a half.
void pack_q6_k(const Byte* b, const To& to) {
  for (int s = 0; s < 8; ++s) {
    const Byte *low = b + s / 4 * 64 + s % 2 * 32, *high = b + 128 + s / 4 * 32;
    int code[32];
    for (int c = 0; c < 32; ++c)
      code[c] = (low[c] >> (s % 4 / 2 * 4) & 15) | (high[c] >> (s % 4 * 2) & 3) << 4;
    put_nibbles(code, to.codes + 16 * s);
    put_sixths(code, to.high + 8 * s);
  }
  std::memcpy(to.scales, b + 192, 16);
  std::memcpy(to.base, b + 208, 2);
}

FieldError check(const WidenBlocksParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, from, p.from.n_parts >= 1 && p.from.n_parts <= kMostBlockParts);
  EPISODIC_FIELD(p, in, p.in >= 1 && p.in <= kMostBlockIn);
  std::int64_t all = 0;
  for (int i = 0; i < p.from.n_parts; ++i) {
    const BlockMatrix& part = p.from.part[i];
    EPISODIC_FIELD(p, in, p.in % block_multiple(part.type) == 0);
    EPISODIC_FIELD(p, from,
                   part.rows >= 1 && part.data && product_within(kMaxElements, part.rows, p.in));
    if (!aligned(part.data, 16)) return {"from", cudaErrorMisalignedAddress};
    all += part.rows;
  }
  EPISODIC_FIELD(p, first, p.first >= 0 && p.first <= all);
  EPISODIC_FIELD(p, rows, p.rows >= 0 && p.rows <= all - p.first);
  if (p.rows == 0) return {};
  EPISODIC_FIELD_GIVEN(p, y);
  EPISODIC_FIELD_ALIGNED(p, y, 16);
  return {};
}

FieldError check(const EmbedParams& p, const BlockMatrix& table) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(
      p, width,
      p.width >= 1 && p.width <= kMostBlockIn && p.width % block_multiple(table.type) == 0);
  EPISODIC_FIELD(p, vocab, p.vocab >= 1 && p.vocab <= table.rows);
  EPISODIC_FIELD(p, table, !p.table);
  if (p.n == 0) return {};
  if (!table.data) return {"data", cudaErrorInvalidValue};
  if (!aligned(table.data, 16)) return {"data", cudaErrorMisalignedAddress};
  EPISODIC_FIELD_GIVEN(p, ids);
  EPISODIC_FIELD_GIVEN(p, hidden);
  return {};
}

}  // namespace

void pack_block_rows(BlockType type, const void* stored, std::int64_t rows, std::int64_t in,
                     const BlockPlanesAt& at) {
  const auto* b = static_cast<const Byte*>(stored);
  const std::int64_t blocks = in / block_multiple(type);
  const BlockPlanes row = block_planes(type, in);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < blocks; ++i, b += stored_block_bytes(type)) {
      const auto place = [&](void* plane, std::int64_t row_bytes) {
        return plane ? static_cast<Byte*>(plane) + r * row_bytes + i * row_bytes / blocks : nullptr;
      };
      const To to{place(at.codes, row.codes), place(at.high, row.high),
                  place(at.scales, row.scales), place(at.base, row.base)};
      if (type == BlockType::q4_k || type == BlockType::q5_k)
        pack_k(type, b, to);
      else if (type == BlockType::q6_k)
        pack_q6_k(b, to);
      else
        pack_small(type, b, to);
    }
  }
}

bool pack_fp8_rows(const void* codes, const float* scales, std::int64_t rows, std::int64_t in,
                   const BlockPlanesAt& at) {
  const auto* b = static_cast<const Byte*>(codes);
  for (std::int64_t i = 0; i < rows * in; ++i)
    if ((b[i] & 127) == 127) return false;
  std::memcpy(at.codes, codes, static_cast<std::size_t>(rows * in));
  std::memcpy(at.base, scales, static_cast<std::size_t>(rows) * sizeof(float));
  return true;
}

const char* invalid_field(const WidenBlocksParams& params) { return check(params).field; }
const char* invalid_field(const EmbedParams& params, const BlockMatrix& table) {
  return check(params, table).field;
}

cudaError_t widen_blocks(const WidenBlocksParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.rows == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    return launch(WidenBlocksKernel<typename decltype(element)::type>,
                  blocks_for((p.rows * (p.in / 8) + kBlockRowThreads - 1) / kBlockRowThreads),
                  kBlockRowThreads, 0, stream, p);
  });
}

cudaError_t embed_blocks(const EmbedParams& p, const BlockMatrix& table, cudaStream_t stream) {
  if (const FieldError wrong = check(p, table)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return launch(EmbedBlocksKernel, blocks_for(p.n), kBlockRowThreads, 0, stream, p, table);
}

}  // namespace episodic::kernels
