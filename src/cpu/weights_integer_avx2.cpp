// SPDX-License-Identifier: Apache-2.0
// Integer products with AVX2. No other includes: see weights_integer.inc.
#include <immintrin.h>

#include <cstdint>

#include "episodic/cpu/kernels.hpp"
#include "weights_loops.hpp"

namespace episodic::cpu {
namespace {
using std::int16_t;
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

#include "vector_avx2.inc"

#include "weights_table.inc"

using Codes = __m256i;
using Sum = int16_t;
constexpr int kStep = 32, kSummed = 2;
constexpr int kTileRows = 1;
constexpr int kSigned = -2;  // as a shift: codes are signed bytes
constexpr int kPanelRows = 4;
// Signed codes would need an instruction more for each product: panels of floats are as fast.
template <class Unit>
constexpr bool has_panels = Unit::kShift != kSigned;

// Rows of an 8 x 8 matrix of 32-bit numbers become columns.
static inline void transpose_words(Codes (&r)[kWidth]) {
  Codes t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
  }
  Codes u[8];
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
    u[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
    u[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
    u[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x20);
    r[i + 4] = _mm256_permute2x128_si256(u[i], u[i + 4], 0x31);
  }
}

static inline __m256i load32(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
static inline __m128i load16(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}
static inline uint16_t half_at(const uint8_t* p) {
  uint16_t h;
  __builtin_memcpy(&h, p, 2);
  return h;
}

// Sums of four neighbouring products as floats. Pairs of products fit 16 bits: a code times an
// activation is at most 63 * 127 for unsigned codes, 128 * 127 for signed ones.
template <class Unit>
static inline V products(Codes w, const uint8_t* x, const uint8_t* sums) {
  __m256i pairs;
  if constexpr (Unit::kShift == kSigned) {
    pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(load32(x), w));
  } else {
    pairs = _mm256_maddubs_epi16(w, load32(x));
    if constexpr (Unit::kShift >= 0)
      pairs = _mm256_add_epi16(pairs, _mm256_slli_epi16(load32(sums), Unit::kShift));
  }
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Sums over n vectors of four codes each, as floats. Pairs of products are summed in 16 bits as
// long as they fit: M is the largest code. x: 4 * n codes of activations.
template <int n, int M>
static inline V quads(const Codes* w, const uint8_t* x) {
  constexpr int kFit = 32767 / (2 * M * 127), kTogether = kFit < n ? kFit : n;
  static_assert(kTogether > 0 && n % kTogether == 0);
  __m256i sum = _mm256_setzero_si256();
#pragma GCC unroll 8
  for (int q = 0; q < n; q += kTogether) {
    __m256i pairs = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (int i = q; i < q + kTogether; ++i) {
      int32_t four;
      __builtin_memcpy(&four, x + 4 * i, 4);
      pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[i], _mm256_set1_epi32(four)));
    }
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  return _mm256_cvtepi32_ps(sum);
}

static inline V block_scale(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(half_at(p))));
}

// Four bits each: low halves of 16 bytes, then high ones.
static inline __m256i nibbles(const uint8_t* p) {
  const __m128i x = load16(p);
  return _mm256_and_si256(_mm256_set_m128i(_mm_srli_epi16(x, 4), x), _mm256_set1_epi8(15));
}

// 16 in each byte whose bit of the 32 is set
static inline __m256i fifth_bits(const uint8_t* p) {
  int32_t bits;
  __builtin_memcpy(&bits, p, 4);
  const __m256i spread = _mm256_shuffle_epi8(
      _mm256_set1_epi32(bits),
      _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303));
  const __m256i own = _mm256_set1_epi64x(static_cast<int64_t>(0x8040201008040201u));
  const __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(spread, own), own);
  return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

struct UnitQ8_0 {
  static constexpr int kElements = 64, kBytes = 68, kSteps = 2, kShift = kSigned, kLeast = 0;
  const uint8_t* w;
  explicit UnitQ8_0(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return load32(w + 34 * s + 2);
  }
  template <int s>
  V scale() const {
    return block_scale(w + 34 * s);
  }
};

struct UnitQ4_0 {
  static constexpr int kElements = 64, kBytes = 36, kSteps = 2, kShift = 3, kLeast = 0;
  const uint8_t* w;
  explicit UnitQ4_0(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return nibbles(w + 18 * s + 2);
  }
  template <int s>
  V scale() const {
    return block_scale(w + 18 * s);
  }
};

struct UnitIq4Nl : UnitQ4_0 {
  static constexpr int kShift = kSigned;
  using UnitQ4_0::UnitQ4_0;
  template <int s>
  Codes codes() const {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kNonLinear4));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), UnitQ4_0::codes<s>());
  }
};

// Codes are twice the numbers plus 16, scales half of theirs.
struct UnitMxfp4 {
  static constexpr int kElements = 64, kBytes = 34, kSteps = 2, kShift = 4, kLeast = 0;
  const uint8_t* w;
  explicit UnitMxfp4(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    const __m128i values = _mm_add_epi8(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kTwiceFp4)), _mm_set1_epi8(16));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles(w + 17 * s + 1));
  }
  template <int s>
  V scale() const {
    return set1(kHalfScales.of[w[17 * s]]);
  }
};

template <int block>
static inline V two_minima(const uint8_t* w) {
  const int both = half_at(w + 2) | half_at(w + block + 2) << 16;
  return sub(zero(), _mm256_cvtph_ps(_mm_cvtsi32_si128(both)));
}

struct UnitQ4_1 {
  static constexpr int kElements = 64, kBytes = 40, kSteps = 2, kShift = -1, kLeast = 2;
  const uint8_t* w;
  explicit UnitQ4_1(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return nibbles(w + 20 * s + 4);
  }
  template <int s>
  V scale() const {
    return block_scale(w + 20 * s);
  }
  V least() const { return two_minima<20>(w); }
};

struct UnitQ5_0 {
  static constexpr int kElements = 64, kBytes = 44, kSteps = 2, kShift = 4, kLeast = 0;
  const uint8_t* w;
  explicit UnitQ5_0(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return _mm256_or_si256(nibbles(w + 22 * s + 6), fifth_bits(w + 22 * s + 2));
  }
  template <int s>
  V scale() const {
    return block_scale(w + 22 * s);
  }
};

struct UnitQ5_1 {
  static constexpr int kElements = 64, kBytes = 48, kSteps = 2, kShift = -1, kLeast = 2;
  const uint8_t* w;
  explicit UnitQ5_1(const uint8_t* unit) : w(unit) {}
  template <int s>
  Codes codes() const {
    return _mm256_or_si256(nibbles(w + 24 * s + 8), fifth_bits(w + 24 * s + 4));
  }
  template <int s>
  V scale() const {
    return block_scale(w + 24 * s);
  }
  V least() const { return two_minima<24>(w); }
};

// -- blocks of 256
// ---------------------------------------------------------------------------------

template <int shift>
static inline __m256i bits(__m256i x, int mask) {
  return _mm256_and_si256(_mm256_srli_epi16(x, shift), _mm256_set1_epi8(static_cast<char>(mask)));
}

struct SixBitScales {
  V scale, lowest;
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
    scale = mul(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(six)), block_scale(block));
    lowest = mul(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(six, 8))),
                 block_scale(block + 2));
  }
  template <int s>
  V of() const {
    return _mm256_permutevar8x32_ps(scale, _mm256_set1_epi32(s));
  }
};

#include "weights_iq4_xs.inc"

struct UnitIq4Xs {
  static constexpr int kElements = 256, kBytes = 136, kSteps = 8, kShift = kSigned, kLeast = 0;
  const uint8_t* w;
  V scales;
  explicit UnitIq4Xs(const uint8_t* unit) : w(unit), scales(scales_of_iq4_xs(unit)) {}
  template <int s>
  Codes codes() const {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(kNonLinear4));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), nibbles(w + 8 + 16 * s));
  }
  template <int s>
  V scale() const {
    return _mm256_permutevar8x32_ps(scales, _mm256_set1_epi32(s));
  }
};

struct UnitQ4K {
  static constexpr int kElements = 256, kBytes = 144, kSteps = 8, kShift = -1, kLeast = 8;
  const uint8_t* w;
  SixBitScales six;
  explicit UnitQ4K(const uint8_t* unit) : w(unit), six(unit) {}
  template <int s>
  Codes codes() const {
    return bits<s % 2 * 4>(load32(w + 16 + s / 2 * 32), 15);
  }
  template <int s>
  V scale() const {
    return six.of<s>();
  }
  V least() const { return six.lowest; }
};

struct UnitQ5K {
  static constexpr int kElements = 256, kBytes = 176, kSteps = 8, kShift = -1, kLeast = 8;
  const uint8_t* w;
  SixBitScales six;
  explicit UnitQ5K(const uint8_t* unit) : w(unit), six(unit) {}
  template <int s>
  Codes codes() const {
    const __m256i low = bits<s % 2 * 4>(load32(w + 48 + s / 2 * 32), 15);
    return _mm256_or_si256(low, _mm256_slli_epi16(bits<s>(load32(w + 16), 1), 4));
  }
  template <int s>
  V scale() const {
    return six.of<s>();
  }
  V least() const { return six.lowest; }
};

// Sixteen scales of 16 elements each: four lanes of number 2 * s and four of 2 * s + 1.
struct ScalesOf16 {
  V low, high;
  template <int s>
  V of() const {
    constexpr int a = s % 4 * 2;
    return _mm256_permutevar8x32_ps(s < 4 ? low : high,
                                    _mm256_setr_epi32(a, a, a, a, a + 1, a + 1, a + 1, a + 1));
  }
};

struct UnitQ6K {
  static constexpr int kElements = 256, kBytes = 210, kSteps = 8, kShift = 5, kLeast = 0;
  const uint8_t* w;
  ScalesOf16 scales;
  explicit UnitQ6K(const uint8_t* unit) : w(unit) {
    const __m128i codes = load16(unit + 192);
    const V d = block_scale(unit + 208);
    scales.low = mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(codes)), d);
    scales.high = mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(codes, 8))), d);
  }
  template <int s>
  Codes codes() const {
    const __m256i low = bits<s % 4 / 2 * 4>(load32(w + s / 4 * 64 + s % 2 * 32), 15);
    const __m256i high = bits<s % 4 * 2>(load32(w + 128 + s / 4 * 32), 3);
    return _mm256_or_si256(low, _mm256_slli_epi16(high, 4));
  }
  template <int s>
  V scale() const {
    return scales.of<s>();
  }
};

struct UnitQ3K {
  static constexpr int kElements = 256, kBytes = 110, kSteps = 8, kShift = 2, kLeast = 0;
  const uint8_t* w;
  ScalesOf16 scales;
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
    const __m128i centred = _mm_sub_epi8(six, _mm_set1_epi8(32));
    const V d = block_scale(unit + 108);
    scales.low = mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(centred)), d);
    scales.high = mul(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(centred, 8))), d);
  }
  template <int s>
  Codes codes() const {
    const __m256i low = bits<s % 4 * 2>(load32(w + 32 + s / 4 * 32), 3);
    return _mm256_or_si256(low, _mm256_slli_epi16(bits<s>(load32(w), 1), 2));
  }
  template <int s>
  V scale() const {
    return scales.of<s>();
  }
};

// -- several rows of activations
// ---------------------------------------------------------------------------------

// A step's lanes have one scale. Those that have two keep them as lanes. The order stays.
constexpr bool kReorders = false;
template <class Unit>
constexpr int step_scales = 1;
template <>
constexpr int step_scales<UnitQ6K> = 0;
template <>
constexpr int step_scales<UnitQ3K> = 0;
static inline Codes reordered(Codes x) { return x; }
static inline V reordered(V x) { return x; }
static inline void store_scales(float* p, V lanes) { *p = _mm256_cvtss_f32(lanes); }
static inline V repeated_scales(const float* p) { return set1(*p); }
static inline V load_scales(const float* blocks) { return load(blocks); }

// products() of codes whose magnitudes are known.
template <class Unit>
constexpr bool has_signs = Unit::kShift == kSigned;
template <class Unit>
static inline Codes magnitudes(Codes w) {
  return has_signs<Unit> ? _mm256_abs_epi8(w) : w;
}
template <class Unit>
static inline V tile_products(Codes w, Codes signs, const uint8_t* x, const uint8_t* sums) {
  if constexpr (!has_signs<Unit>) return products<Unit>(w, x, sums);
  const __m256i pairs = _mm256_maddubs_epi16(w, _mm256_sign_epi8(load32(x), signs));
  return _mm256_cvtepi32_ps(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

#include "weights_integer.inc"
}  // namespace

extern const IntegerLoops integer_loops_avx2;
constinit const IntegerLoops integer_loops_avx2 = loops("avx2");

}  // namespace episodic::cpu
