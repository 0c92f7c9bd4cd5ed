// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/blocks.hpp: what a unit of 32 weights of each type is, and its product
/// with 32 activations of 8 bits.

#include <cmath>
#include <cstdint>
#include <cstring>

#include "blocks.hpp"
#include "device.cuh"
#include "elements.cuh"
#include "episodic/base/rules/fp8.hpp"

namespace episodic::kernels {

using Words = Pack<std::uint32_t, 4>;

/// What the types differ in.
template <BlockType kType>
struct BlockForm {
  static constexpr bool kSuper = block_multiple(kType) > kBlockUnit;
  static constexpr bool kBytes = kType == BlockType::q8_0 || kType == BlockType::fp8;
  static constexpr int kHigh =
      kType == BlockType::q6_k ? 2
      : kType == BlockType::q5_0 || kType == BlockType::q5_1 || kType == BlockType::q5_k
          ? 1
          : 0;  // words of a unit
  static constexpr bool kTwoScales = kType == BlockType::q6_k;
  static constexpr bool kLeast = kType == BlockType::q4_1 || kType == BlockType::q5_1 ||
                                 kType == BlockType::q4_k || kType == BlockType::q5_k;
  /// Of codes that stand for code - kOffset.
  static constexpr int kOffset = kType == BlockType::q4_0   ? 8
                                 : kType == BlockType::q5_0 ? 16
                                 : kType == BlockType::q6_k ? 32
                                                            : 0;
};

/// Where a row of a matrix has its planes.
struct BlockRow {
  const unsigned char *codes, *high, *scales, *base;
};
__device__ inline BlockRow block_row(BlockType type, const BlockMatrix& of, std::int64_t in,
                                     std::int64_t row) {
  const BlockPlanes planes = block_planes(type, in);
  const auto* at = static_cast<const unsigned char*>(of.data);
  BlockRow to;
  to.codes = at + row * planes.codes;
  at += plane_bytes(planes.codes, of.rows);
  to.high = at + row * planes.high;
  at += plane_bytes(planes.high, of.rows);
  to.scales = at + row * planes.scales;
  at += plane_bytes(planes.scales, of.rows);
  to.base = at + row * planes.base;
  return to;
}

__device__ inline float half_of_bits(std::uint32_t bits) {
  const auto low = static_cast<std::uint16_t>(bits);
  __half h;
  memcpy(&h, &low, sizeof(h));
  return __half2float(h);
}

/// Half of what a scale of MXFP4 stands for, as its numbers are doubled: 2^(e - 128); 255: NaN.
__device__ inline float half_e8m0(std::uint32_t e) {
  return __uint_as_float(e == 255 ? 0x7fc00000u : e > 1 ? (e - 1) << 23 : 0x00200000u << e);
}

/// Twice the numbers of four codes of 4-bit floats, a signed byte each, of the low half of `codes`.
__device__ inline std::uint32_t twice_fp4(std::uint32_t codes) {
  const std::uint32_t size = codes & 0x7777u;
  const std::uint32_t above = __byte_perm(0x03020100u, 0x0c080604u, size);
  const std::uint32_t below = __byte_perm(0xfdfeff00u, 0xf4f8fafcu, size);
  return __byte_perm(above, below, 0x3210u | (codes & 0x8888u) >> 1);
}

/// A number's scale and what is taken off: scale * code - least. Two scales: of each half.
struct UnitNumbers {
  float scale = 0.0f, second = 0.0f, least = 0.0f;
};

/// 32 weights of a row, as they are read.
template <BlockType kType>
struct BlockUnit {
  using Form = BlockForm<kType>;
  Words codes[Form::kBytes ? 2 : 1];
  std::uint32_t high[Form::kHigh > 0 ? Form::kHigh : 1];
  Words shared;         // of eight units
  std::uint32_t scale;  // of its own
  std::uint32_t base;

  __device__ void load(const BlockRow& row, int unit) {
    const auto* at = reinterpret_cast<const std::uint32_t*>(row.codes);
    if constexpr (Form::kBytes) {
      codes[0] = load_pack<4>(at + 8 * unit);
      codes[1] = load_pack<4>(at + 8 * unit + 4);
    } else {
      codes[0] = load_pack<4>(at + 4 * unit);
    }
    if constexpr (Form::kHigh > 0) {
      const auto* bits = reinterpret_cast<const std::uint32_t*>(row.high);
      EPISODIC_UNROLL
      for (int i = 0; i < Form::kHigh; ++i) high[i] = bits[Form::kHigh * unit + i];
    }
    if constexpr (kType == BlockType::q4_k || kType == BlockType::q5_k) {
      shared = load_pack<4>(reinterpret_cast<const std::uint32_t*>(row.scales) + unit / 8 * 4);
    } else if constexpr (kType == BlockType::q4_1 || kType == BlockType::q5_1) {
      scale = reinterpret_cast<const std::uint32_t*>(row.scales)[unit];
    } else if constexpr (kType == BlockType::mxfp4) {
      scale = row.scales[unit];
    } else if constexpr (kType != BlockType::fp8) {
      scale = reinterpret_cast<const std::uint16_t*>(row.scales)[unit];
    }
    if constexpr (kType == BlockType::q6_k)
      base = reinterpret_cast<const std::uint16_t*>(row.base)[unit / 8];
    if constexpr (kType == BlockType::fp8) base = *reinterpret_cast<const std::uint32_t*>(row.base);
  }

  /// Numbers 4 i .. 4 i + 3, a byte each; not less kOffset. \param i below 8, a constant
  __device__ std::uint32_t word(int i) const {
    const int j = i & 3;
    if constexpr (Form::kBytes) {
      return codes[i < 4 ? 0 : 1].at[j];
    } else if constexpr (kType == BlockType::mxfp4) {
      return twice_fp4(i < 4 ? codes[0].at[j] : codes[0].at[j] >> 16);
    } else {
      std::uint32_t all = (i < 4 ? codes[0].at[j] : codes[0].at[j] >> 4) & 0x0f0f0f0fu;
      if constexpr (Form::kHigh == 1)
        all |= (i < 4 ? high[0] << (4 - j) : high[0] >> j) & 0x10101010u;
      if constexpr (Form::kHigh == 2) {
        const std::uint32_t bits = high[i < 4 ? 0 : 1];
        all |= (j < 3 ? bits << (j < 2 ? 4 - 2 * j : 0) : bits >> 2) & 0x30303030u;
      }
      return all;
    }
  }

  /// Scales of both halves of Q6_K, whole numbers.
  __device__ int whole_scale(int half) const {
    return static_cast<std::int8_t>(scale >> (8 * half) & 255u);
  }

  /// \param unit the one that was read
  __device__ UnitNumbers numbers(int unit) const {
    if constexpr (kType == BlockType::q4_k || kType == BlockType::q5_k) {
      const int of = unit % 8;
      const std::uint32_t low = (of < 4 ? shared.at[1] : shared.at[2]) >> (8 * (of & 3));
      const std::uint32_t top = shared.at[3] >> (4 * of);
      const std::uint32_t scales = (low & 15u) | (top & 3u) << 4;
      const std::uint32_t leasts = (low >> 4 & 15u) | (top >> 2 & 3u) << 4;
      return {__fmul_rn(half_of_bits(shared.at[0]), static_cast<float>(scales)), 0.0f,
              __fmul_rn(half_of_bits(shared.at[0] >> 16), static_cast<float>(leasts))};
    } else if constexpr (kType == BlockType::q4_1 || kType == BlockType::q5_1) {
      return {half_of_bits(scale), 0.0f, -half_of_bits(scale >> 16)};
    } else if constexpr (kType == BlockType::mxfp4) {
      return {half_e8m0(scale), 0.0f, 0.0f};
    } else if constexpr (kType == BlockType::q6_k) {
      const float d = half_of_bits(base);
      return {__fmul_rn(d, static_cast<float>(whole_scale(0))),
              __fmul_rn(d, static_cast<float>(whole_scale(1))), 0.0f};
    } else if constexpr (kType == BlockType::fp8) {
      return {__uint_as_float(base), 0.0f, 0.0f};
    } else {
      return {half_of_bits(scale), 0.0f, 0.0f};
    }
  }

  /// What number 4 i + j is. \param word word(i) \param i, j constants
  __device__ float number(const UnitNumbers& of, std::uint32_t word, int i, int j) const {
    const float scale_of = Form::kTwoScales && i >= 4 ? of.second : of.scale;
    if constexpr (kType == BlockType::fp8) {
      return __fmul_rn(rules::from_fp8(static_cast<std::uint8_t>(word >> (8 * j))), scale_of);
    } else {
      const int code = static_cast<std::int8_t>(word >> (8 * j) & 255u) - Form::kOffset;
      const float x = __fmul_rn(scale_of, static_cast<float>(code));
      return Form::kLeast ? __fadd_rn(x, -of.least) : x;
    }
  }
};

/// f(Same type) with a type's constant. Types that no integer product has are not asked for.
template <BlockType kType>
struct OfBlockType {
  static constexpr BlockType value = kType;
};
template <class F>
__device__ inline void for_block_type(BlockType type, F&& f) {
  switch (type) {
    case BlockType::q4_0:
      return f(OfBlockType<BlockType::q4_0>{});
    case BlockType::q4_1:
      return f(OfBlockType<BlockType::q4_1>{});
    case BlockType::q5_0:
      return f(OfBlockType<BlockType::q5_0>{});
    case BlockType::q5_1:
      return f(OfBlockType<BlockType::q5_1>{});
    case BlockType::q8_0:
      return f(OfBlockType<BlockType::q8_0>{});
    case BlockType::q4_k:
      return f(OfBlockType<BlockType::q4_k>{});
    case BlockType::q5_k:
      return f(OfBlockType<BlockType::q5_k>{});
    case BlockType::q6_k:
      return f(OfBlockType<BlockType::q6_k>{});
    case BlockType::mxfp4:
      return f(OfBlockType<BlockType::mxfp4>{});
    case BlockType::fp8:
      return f(OfBlockType<BlockType::fp8>{});
  }
}

// -- activations of 8 bits --------------------------------------------------------------------

/// Rounds a row as the host does (src/cpu/weights_integer.inc): for each 32 numbers the largest
/// magnitude becomes 127, ties go to even. NaN and infinity make the scale no finite number. By all
/// threads of a block of kThreads; ends without a barrier.
/// \param to in shared memory, rounded_row_bytes(in) \param value (c): number c of the row
template <int kThreads, class F>
__device__ inline void round_row(std::int64_t in, unsigned char* to, const F& value) {
  constexpr std::int64_t kWarps = kThreads / kWarpSize;
  const std::int64_t units = in / kBlockUnit;
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize, part = lane % 8;
  auto* const scales = reinterpret_cast<float*>(to + 32 * units);
  auto* const sums = reinterpret_cast<std::uint32_t*>(to + 36 * units);
  for (std::int64_t at = threadIdx.x / kWarpSize * 4; at < units; at += 4 * kWarps) {
    const std::int64_t unit = at + lane / 8;
    const bool is_there = unit < units;
    float x[4];
    std::uint32_t largest = 0;  // as bits, of which those of a NaN are the largest
    EPISODIC_UNROLL
    for (int j = 0; j < 4; ++j) {
      x[j] = is_there ? value(unit * kBlockUnit + 4 * part + j) : 0.0f;
      const std::uint32_t bits = __float_as_uint(x[j]) & 0x7fffffffu;
      largest = bits > largest ? bits : largest;
    }
    EPISODIC_UNROLL
    for (int lanes = 1; lanes < 8; lanes *= 2) {
      const std::uint32_t other = __shfl_xor_sync(kFullMask, largest, lanes);
      largest = other > largest ? other : largest;
    }
    const float magnitude = __uint_as_float(largest);
    const bool usable = magnitude >= 1e-30f && magnitude <= 3.4e38f;
    const float inverse = usable ? 127.0f / magnitude : 0.0f;
    std::uint32_t word = 0;
    int sum = 0;
    EPISODIC_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int code = usable ? __float2int_rn(x[j] * inverse) : 0;
      sum += code;
      word |= static_cast<std::uint32_t>(code & 255) << (8 * j);
    }
    sum += __shfl_xor_sync(kFullMask, sum, 1);
    sum += __shfl_xor_sync(kFullMask, sum, 2);
    const int second = __shfl_xor_sync(kFullMask, sum, 4);
    if (!is_there) continue;
    *reinterpret_cast<std::uint32_t*>(to + (part < 4 ? 0 : 16 * units) + 16 * unit +
                                      4 * (part % 4)) = word;
    if (part != 0) continue;
    // of a unit without a finite scale the sum must not be a number
    scales[unit] = usable || !(magnitude < 1.0f) ? magnitude / 127.0f : 0.0f;
    sums[unit] = (static_cast<std::uint32_t>(sum) & 0xffffu) | static_cast<std::uint32_t>(second)
                                                                   << 16;
  }
}

/// A unit of a rounded row.
struct RoundedUnit {
  Words first, second;
  float scale;
  int sum, second_sum;

  __device__ RoundedUnit(const unsigned char* row, int units, int unit)
      : first(load_pack<4>(reinterpret_cast<const std::uint32_t*>(row) + 4 * unit)),
        second(load_pack<4>(reinterpret_cast<const std::uint32_t*>(row) + 4 * (units + unit))),
        scale(reinterpret_cast<const float*>(row + 32 * units)[unit]) {
    const auto sums = reinterpret_cast<const std::uint32_t*>(row + 36 * units)[unit];
    sum = static_cast<std::int16_t>(sums & 0xffffu);
    second_sum = static_cast<std::int16_t>(sums >> 16);
  }
};

/// sum + the product of 32 weights with 32 activations: whole numbers, then both scales.
template <BlockType kType>
__device__ inline float add_unit(const BlockUnit<kType>& w, const UnitNumbers& numbers,
                                 const RoundedUnit& x, float sum) {
  using Form = BlockForm<kType>;
  int dot = 0, second = 0;
  EPISODIC_UNROLL
  for (int i = 0; i < 4; ++i) {
    dot = __dp4a(static_cast<int>(w.word(i)), static_cast<int>(x.first.at[i]), dot);
    second = __dp4a(static_cast<int>(w.word(i + 4)), static_cast<int>(x.second.at[i]), second);
  }
  if constexpr (Form::kTwoScales) {
    dot = w.whole_scale(0) * (dot - Form::kOffset * x.sum) +
          w.whole_scale(1) * (second - Form::kOffset * x.second_sum);
    return fmaf(__fmul_rn(half_of_bits(w.base), static_cast<float>(dot)), x.scale, sum);
  } else {
    const int all = x.sum + x.second_sum;
    dot += second - Form::kOffset * all;
    float part = __fmul_rn(numbers.scale, static_cast<float>(dot));
    if constexpr (Form::kLeast) part = fmaf(-numbers.least, static_cast<float>(all), part);
    return fmaf(part, x.scale, sum);
  }
}

/// sum[r][o] += the lane's units of weights o with row r of n. The same order for every kRows,
/// kOut. \param rows rounded, rounded_row_bytes(in) apart
template <BlockType kType, int kRows, int kOut>
__device__ inline void add_units(const BlockRow (&w)[kOut], const unsigned char* rows, int n,
                                 std::int64_t in, float (&sum)[kRows][kOut]) {
  // kMostBlockIn and the room for rounded rows keep all of these small
  const auto units = static_cast<int>(in / kBlockUnit);
  const auto row_bytes = static_cast<int>(rounded_row_bytes(in));
  EPISODIC_UNROLL_BY(kRows == 1 ? 2 : 1)
  for (auto unit = static_cast<int>(threadIdx.x % kWarpSize); unit < units; unit += kWarpSize) {
    BlockUnit<kType> of[kOut];
    EPISODIC_UNROLL
    for (int o = 0; o < kOut; ++o) of[o].load(w[o], unit);
    UnitNumbers numbers[kOut];
    EPISODIC_UNROLL
    for (int o = 0; o < kOut; ++o) numbers[o] = of[o].numbers(unit);
    EPISODIC_UNROLL
    for (int r = 0; r < kRows; ++r) {
      // beyond the last row: the last one once more, and not written
      const RoundedUnit x(rows + (r < n ? r : n - 1) * row_bytes, units, unit);
      EPISODIC_UNROLL
      for (int o = 0; o < kOut; ++o) sum[r][o] = add_unit<kType>(of[o], numbers[o], x, sum[r][o]);
    }
  }
}

// -- rows as numbers --------------------------------------------------------------------------

/// A row of weights by its number among all parts' rows.
struct FoundRow {
  BlockMatrix of;
  std::int64_t row;
};
__device__ inline FoundRow find_row(const BlockWeights& w, std::int64_t row) {
  int part = 0;
  while (part + 1 < w.n_parts && row >= w.part[part].rows) row -= w.part[part++].rows;
  return {w.part[part], row};
}

/// f(column, four numbers) with numbers 4 i .. 4 i + 3 and 16 + 4 i .. of a unit. \param i below 4
template <class F>
__device__ inline void numbers_of_unit(const FoundRow& from, std::int64_t in, int unit, int i,
                                       const F& f) {
  for_block_type(from.of.type, [&](auto type) {
    constexpr BlockType kType = decltype(type)::value;
    BlockUnit<kType> of;
    of.load(block_row(kType, from.of, in, from.row), unit);
    const UnitNumbers numbers = of.numbers(unit);
    EPISODIC_UNROLL
    for (int k = 0; k < 8; ++k) {  // the words have constant places
      if (k % 4 != i) continue;
      const std::uint32_t word = of.word(k);
      Pack<float, 4> four;
      EPISODIC_UNROLL
      for (int j = 0; j < 4; ++j) four.at[j] = of.number(numbers, word, k, j);
      f(unit * kBlockUnit + 4 * k, four);
    }
  });
}

}  // namespace episodic::kernels
