// SPDX-License-Identifier: Apache-2.0
// Integer products with AVX-512 VNNI. No other includes: see weights_integer.inc.
#include <immintrin.h>

#include <cstdint>

#include "episodic/cpu/kernels.hpp"
#include "weights_loops.hpp"

namespace episodic::cpu {
namespace {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

#include "vector_avx512.inc"

#include "weights_table.inc"

using Codes = __m512i;
using Sum = int32_t;
constexpr int kStep = 64, kSummed = 4;
constexpr int kTileRows = 2;   // times 4 rows of weights, two sums each: 16 vectors
constexpr int kPanelRows = 8;  // 8 vectors of weights, 8 of sums, and room for what comes between
template <class Unit>
constexpr bool has_panels = true;

#include "transpose16.inc"
static inline void transpose_words(Codes (&rows)[kWidth]) { transpose(rows); }

// Sums over n vectors of four codes each, as floats. x: 4 * n codes of activations.
template <int n, int>
static inline V quads(const Codes* w, const uint8_t* x) {
  __m512i sum = _mm512_setzero_si512();
#pragma GCC unroll 8
  for (int q = 0; q < n; ++q) {
    int32_t four;
    __builtin_memcpy(&four, x + 4 * q, 4);
    sum = _mm512_dpbusd_epi32(sum, w[q], _mm512_set1_epi32(four));
  }
  return _mm512_cvtepi32_ps(sum);
}

static inline __m512i load64(const uint8_t* p) { return _mm512_loadu_si512(p); }
static inline __m256i load32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline __m128i load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline float half_at(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return _cvtsh_ss(h);
}

// Sums of four neighbouring products as floats.
template <class Unit>
static inline V products(Codes w, const uint8_t* x, const uint8_t* sums) {
  const __m512i start = Unit::kShift < 0
                            ? _mm512_setzero_si512()
                            : _mm512_slli_epi32(load64(sums), Unit::kShift < 0 ? 0 : Unit::kShift);
  return _mm512_cvtepi32_ps(_mm512_dpbusd_epi32(start, w, load64(x)));
}

// Two neighbouring blocks whose scales are `words` words of 16 bits apart: eight lanes of each.
// Reads 32 bytes.
template <int words>
static inline V pair_scale(const uint8_t* first) {
  const __m256i at = _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, words, words, words, words, words,
                                       words, words, words);
  return _mm512_cvtph_ps(_mm256_permutexvar_epi16(at, load32(first)));
}

// Four bits each: low halves of 16 bytes, then high ones, of two blocks.
static inline __m512i pair_nibbles(const uint8_t* a, const uint8_t* b) {
  const __m512i both =
      _mm512_mask_broadcast_i64x2(_mm512_broadcast_i64x2(load16(a)), 0xf0, load16(b));
  const __m512i shift = _mm512_setr_epi64(0, 0, 4, 4, 0, 0, 4, 4);
  return _mm512_and_si512(_mm512_srlv_epi64(both, shift), _mm512_set1_epi8(15));
}

static inline __mmask64 pair_bits(const uint8_t* a, const uint8_t* b) {
  uint32_t low, high;
  __builtin_memcpy(&low, a, 4);
  __builtin_memcpy(&high, b, 4);
  return static_cast<uint64_t>(high) << 32 | low;
}

struct UnitQ8_0 {
  static constexpr int kElements = 128, kBytes = 136, kSteps = 2, kShift = 7, kLeast = 0;
  const uint8_t* w;
  explicit UnitQ8_0(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    const __m512i signed_codes = _mm512_inserti64x4(_mm512_castsi256_si512(load32(w + 68 * s + 2)),
                                                    load32(w + 68 * s + 36), 1);
    return _mm512_xor_si512(signed_codes, _mm512_set1_epi8(-128));
  }
  template <int s>
  V scale() const {
    const __m512i at = _mm512_castsi256_si512(
        _mm256_setr_epi16(0, 0, 0, 0, 0, 0, 0, 0, 17, 17, 17, 17, 17, 17, 17, 17));
    return _mm512_cvtph_ps(
        _mm512_castsi512_si256(_mm512_permutexvar_epi16(at, load64(w + 68 * s))));
  }
};

struct UnitQ4_0 {
  static constexpr int kElements = 128, kBytes = 72, kSteps = 2, kShift = 3, kLeast = 0;
  const uint8_t* w;
  explicit UnitQ4_0(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return pair_nibbles(w + 36 * s + 2, w + 36 * s + 20);
  }
  template <int s>
  V scale() const {
    return pair_scale<9>(w + 36 * s);
  }
};

struct UnitIq4Nl : UnitQ4_0 {
  static constexpr int kShift = 7;
  using UnitQ4_0::UnitQ4_0;
  template <int s>
  Codes codes() const {
    const __m128i values = _mm_xor_si128(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kNonLinear4)), _mm_set1_epi8(-128));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), UnitQ4_0::codes<s>());
  }
};

// Codes are twice the numbers plus 16, scales half of theirs.
struct UnitMxfp4 {
  static constexpr int kElements = 128, kBytes = 68, kSteps = 2, kShift = 4, kLeast = 0;
  const uint8_t* w;
  explicit UnitMxfp4(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    const __m128i values = _mm_add_epi8(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTwiceFp4)), _mm_set1_epi8(16));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values),
                               pair_nibbles(w + 34 * s + 1, w + 34 * s + 18));
  }
  template <int s>
  V scale() const {
    return _mm512_mask_broadcastss_ps(set1(kHalfScales.of[w[34 * s]]), 0xff00,
                                      _mm_load_ss(kHalfScales.of + w[34 * s + 17]));
  }
};

// Four blocks' minima, each half_bytes after its block's begin, as what is subtracted.
template <int block>
static inline V four_minima(const uint8_t* w) {
  uint64_t all = 0;
  for (int i = 0; i < 4; ++i) {
    uint16_t h;
    __builtin_memcpy(&h, w + i * block + 2, 2);
    all |= static_cast<uint64_t>(h) << 16 * i;
  }
  const __m128 minima = _mm_cvtph_ps(_mm_cvtsi64_si128(static_cast<int64_t>(all)));
  return _mm512_zextps128_ps512(_mm_xor_ps(minima, _mm_set1_ps(-0.0f)));
}

struct UnitQ4_1 {
  static constexpr int kElements = 128, kBytes = 80, kSteps = 2, kShift = -1, kLeast = 4;
  const uint8_t* w;
  explicit UnitQ4_1(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return pair_nibbles(w + 40 * s + 4, w + 40 * s + 24);
  }
  template <int s>
  V scale() const {
    return pair_scale<10>(w + 40 * s);
  }
  V least() const { return four_minima<20>(w); }
};

struct UnitQ5_0 {
  static constexpr int kElements = 128, kBytes = 88, kSteps = 2, kShift = 4, kLeast = 0;
  const uint8_t* w;
  explicit UnitQ5_0(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    const uint8_t* p = w + 44 * s;
    const __m512i low = pair_nibbles(p + 6, p + 28);
    return _mm512_mask_add_epi8(low, pair_bits(p + 2, p + 24), low, _mm512_set1_epi8(16));
  }
  template <int s>
  V scale() const {
    return pair_scale<11>(w + 44 * s);
  }
};

struct UnitQ5_1 {
  static constexpr int kElements = 128, kBytes = 96, kSteps = 2, kShift = -1, kLeast = 4;
  const uint8_t* w;
  explicit UnitQ5_1(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    const uint8_t* p = w + 48 * s;
    const __m512i low = pair_nibbles(p + 8, p + 32);
    return _mm512_mask_add_epi8(low, pair_bits(p + 4, p + 28), low, _mm512_set1_epi8(16));
  }
  template <int s>
  V scale() const {
    return pair_scale<12>(w + 48 * s);
  }
  V least() const { return four_minima<24>(w); }
};

// -- blocks of 256
// ---------------------------------------------------------------------------------

// 32 bytes twice, the halves shifted right by a and b.
static inline __m512i shifted_twice(__m256i x, int a, int b) {
  const __m512i shift = _mm512_setr_epi64(a, a, a, a, b, b, b, b);
  return _mm512_srlv_epi64(_mm512_broadcast_i64x4(x), shift);
}
static inline __m512i bits(__m512i x, int mask) {
  return _mm512_and_si512(x, _mm512_set1_epi8(static_cast<char>(mask)));
}
// lanes of scale number s * 2, then s * 2 + 1
template <int s>
static inline V of_32(V scales) {
  const __m512i at = _mm512_setr_epi32(2 * s, 2 * s, 2 * s, 2 * s, 2 * s, 2 * s, 2 * s, 2 * s,
                                       2 * s + 1, 2 * s + 1, 2 * s + 1, 2 * s + 1, 2 * s + 1,
                                       2 * s + 1, 2 * s + 1, 2 * s + 1);
  return _mm512_permutexvar_ps(at, scales);
}
// four lanes each of scales 4 * s .. 4 * s + 3
template <int s>
static inline V of_16(V scales) {
  constexpr int a = 4 * s;
  const __m512i at = _mm512_setr_epi32(a, a, a, a, a + 1, a + 1, a + 1, a + 1, a + 2, a + 2, a + 2,
                                       a + 2, a + 3, a + 3, a + 3, a + 3);
  return _mm512_permutexvar_ps(at, scales);
}

// Scales and minima of Q4_K and Q5_K, times their factors, in the low eight lanes.
struct SixBitScales {
  V scale, least;
  explicit SixBitScales(const uint8_t* block) {
    uint32_t a, b, c;
    __builtin_memcpy(&a, block + 4, 4);
    __builtin_memcpy(&b, block + 8, 4);
    __builtin_memcpy(&c, block + 12, 4);
    const __m128i six =
        _mm_setr_epi32(static_cast<int>(a & 0x3f3f3f3fu),
                       static_cast<int>((c & 0x0f0f0f0fu) | (a >> 6 & 0x03030303u) << 4),
                       static_cast<int>(b & 0x3f3f3f3fu),
                       static_cast<int>((c >> 4 & 0x0f0f0f0fu) | (b >> 6 & 0x03030303u) << 4));
    const V all = _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(six));
    scale = mul(all, set1(half_at(block)));
    least = mul(_mm512_shuffle_f32x4(all, all, 0xee), set1(half_at(block + 2)));
  }
};

#include "weights_iq4_xs.inc"

struct UnitIq4Xs {
  static constexpr int kElements = 256, kBytes = 136, kSteps = 4, kShift = 7, kLeast = 0;
  const uint8_t* w;
  V scales;
  explicit UnitIq4Xs(const uint8_t* unit)
      : w(unit), scales(_mm512_castps256_ps512(scales_of_iq4_xs(unit))) {}
  template <int s>
  Codes codes() const {
    const __m128i values = _mm_xor_si128(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kNonLinear4)), _mm_set1_epi8(-128));
    const uint8_t* p = w + 8 + 32 * s;
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), pair_nibbles(p, p + 16));
  }
  template <int s>
  V scale() const {
    return of_32<s>(scales);
  }
};

struct UnitQ4K {
  static constexpr int kElements = 256, kBytes = 144, kSteps = 4, kShift = -1, kLeast = 8;
  const uint8_t* w;
  SixBitScales six;
  explicit UnitQ4K(const uint8_t* unit) : w(unit), six(unit) {}
  template <int s>
  Codes codes() const {
    return bits(shifted_twice(load32(w + 16 + 32 * s), 0, 4), 15);
  }
  template <int s>
  V scale() const {
    return of_32<s>(six.scale);
  }
  V least() const { return six.least; }
};

struct UnitQ5K {
  static constexpr int kElements = 256, kBytes = 176, kSteps = 4, kShift = -1, kLeast = 8;
  const uint8_t* w;
  SixBitScales six;
  explicit UnitQ5K(const uint8_t* unit) : w(unit), six(unit) {}
  template <int s>
  Codes codes() const {
    const __m512i low = bits(shifted_twice(load32(w + 48 + 32 * s), 0, 4), 15);
    const __m512i fifth = bits(shifted_twice(load32(w + 16), 2 * s, 2 * s + 1), 1);
    return _mm512_or_si512(low, _mm512_slli_epi16(fifth, 4));
  }
  template <int s>
  V scale() const {
    return of_32<s>(six.scale);
  }
  V least() const { return six.least; }
};

struct UnitQ6K {
  static constexpr int kElements = 256, kBytes = 210, kSteps = 4, kShift = 5, kLeast = 0;
  const uint8_t* w;
  V scales;
  explicit UnitQ6K(const uint8_t* unit)
      : w(unit),
        scales(mul(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load16(unit + 192))),
                   set1(half_at(unit + 208)))) {}
  template <int s>
  Codes codes() const {
    const __m512i low = _mm512_srli_epi16(load64(w + s / 2 * 64), s % 2 * 4);
    const __m512i high = shifted_twice(load32(w + 128 + s / 2 * 32), s % 2 * 4, s % 2 * 4 + 2);
    return _mm512_or_si512(bits(low, 15), _mm512_slli_epi16(bits(high, 3), 4));
  }
  template <int s>
  V scale() const {
    return of_16<s>(scales);
  }
};

struct UnitQ3K {
  static constexpr int kElements = 256, kBytes = 110, kSteps = 4, kShift = 2, kLeast = 0;
  const uint8_t* w;
  V scales;
  explicit UnitQ3K(const uint8_t* unit) : w(unit) {
    uint32_t a, b, c;
    __builtin_memcpy(&a, unit + 96, 4);
    __builtin_memcpy(&b, unit + 100, 4);
    __builtin_memcpy(&c, unit + 104, 4);
    const __m128i six =
        _mm_setr_epi32(static_cast<int>((a & 0x0f0f0f0fu) | (c & 0x03030303u) << 4),
                       static_cast<int>((b & 0x0f0f0f0fu) | (c >> 2 & 0x03030303u) << 4),
                       static_cast<int>((a >> 4 & 0x0f0f0f0fu) | (c >> 4 & 0x03030303u) << 4),
                       static_cast<int>((b >> 4 & 0x0f0f0f0fu) | (c >> 6 & 0x03030303u) << 4));
    const __m512i centred = _mm512_sub_epi32(_mm512_cvtepu8_epi32(six), _mm512_set1_epi32(32));
    scales = mul(_mm512_cvtepi32_ps(centred), set1(half_at(unit + 108)));
  }
  template <int s>
  Codes codes() const {
    const __m512i low =
        bits(shifted_twice(load32(w + 32 + s / 2 * 32), s % 2 * 4, s % 2 * 4 + 2), 3);
    const __m512i third = bits(shifted_twice(load32(w), 2 * s, 2 * s + 1), 1);
    return _mm512_or_si512(low, _mm512_slli_epi16(third, 2));
  }
  template <int s>
  V scale() const {
    return of_16<s>(scales);
  }
};

// -- several rows of activations
// ---------------------------------------------------------------------------------

// A step has at most four scales, of four neighbouring lanes each. Tiles have those lanes four
// apart: then a scale for each lane is sixteen bytes, repeated, which a load does by itself.
// Applied twice, the order is what it was.
constexpr bool kReorders = true;
template <class Unit>
constexpr int step_scales = 4;
static inline __m512i tile_order() {
  return _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
}
static inline Codes reordered(Codes x) { return _mm512_permutexvar_epi32(tile_order(), x); }
static inline V reordered(V x) { return _mm512_permutexvar_ps(tile_order(), x); }
static inline void store_scales(float* p, V lanes) {
  _mm_storeu_ps(p, _mm512_castps512_ps128(reordered(lanes)));
}
static inline V repeated_scales(const float* p) { return _mm512_broadcast_f32x4(_mm_loadu_ps(p)); }
// Scales of eight blocks of activations, each for half a step: those of four steps.
static inline V load_scales(const float* blocks) {
  const __m512i twice = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
  return _mm512_permutexvar_ps(twice, _mm512_castps256_ps512(_mm256_loadu_ps(blocks)));
}

// Codes are unsigned: see weights_integer_avx2.cpp.
template <class Unit>
constexpr bool has_signs = false;
template <class Unit>
static inline Codes magnitudes(Codes w) {
  return w;
}
template <class Unit>
static inline V tile_products(Codes w, Codes, const uint8_t* x, const uint8_t* sums) {
  return products<Unit>(w, x, sums);
}

#include "weights_integer.inc"
}  // namespace

extern const IntegerLoops integer_loops_vnni;
constinit const IntegerLoops integer_loops_vnni = loops("vnni");

}  // namespace episodic::cpu
