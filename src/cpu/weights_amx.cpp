// SPDX-License-Identifier: Apache-2.0
// Products of many rows by AMX: tiles of 16 rows x 32 bfloat16 numbers, sums in float32. Floor: a
// product of two tiles takes 16 cycles, four of them share four loads.
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "weights_loops.hpp"

namespace episodic::cpu {
namespace {

using std::int64_t;
using std::uint16_t;

constexpr int64_t kRows = MatrixLoops::kRows, kDepth = MatrixLoops::kDepth;
constexpr int64_t kTile = kRows * kDepth;  // elements

/// What the processor is told of the eight tiles: all of 16 rows of 64 bytes.
struct alignas(64) TileConfig {
  std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
  std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static_assert(sizeof(TileConfig) == 64);

const TileConfig kConfig;

#include "transpose16.inc"

/// Bits of the first min(count, 32) elements, and of none if count < 0.
inline __mmask32 first(int64_t count) {
  return count >= 32 ? ~__mmask32{0} : count <= 0 ? 0 : (__mmask32{1} << count) - 1;
}

void round_rows(int64_t n, int64_t in, const float* x, int64_t x_stride, uint16_t* tiles) {
  for (int64_t r = 0; r < n; ++r, x += x_stride) {
    uint16_t* to = tiles + r / kRows * kRows * MatrixLoops::depth(in) + r % kRows * kDepth;
    for (int64_t c = 0; c < in; c += kDepth, to += kTile) {
      const auto low = static_cast<__mmask16>(first(in - c));
      const auto high = static_cast<__mmask16>(first(in - c - 16));
      const __m512bh pair = _mm512_cvtne2ps_pbh(_mm512_maskz_loadu_ps(high, x + c + 16),
                                                _mm512_maskz_loadu_ps(low, x + c));
      _mm512_store_si512(to, reinterpret_cast<const __m512i&>(pair));
    }
  }
  for (int64_t r = n; r % kRows != 0; ++r) {
    uint16_t* to = tiles + r / kRows * kRows * MatrixLoops::depth(in) + r % kRows * kDepth;
    for (int64_t c = 0; c < in; c += kDepth, to += kTile)
      _mm512_store_si512(to, _mm512_setzero_si512());
  }
}

void pack(int64_t outs, int64_t in, const uint16_t* w, int64_t w_stride, uint16_t* tiles) {
  for (int64_t o = 0; o < outs; o += kRows)
    for (int64_t c = 0; c < in; c += kDepth, tiles += kTile) {
      __m512i r[16];
      const __mmask32 cols = first(in - c);
      for (int64_t i = 0; i < 16; ++i)
        r[i] = o + i < outs ? _mm512_maskz_loadu_epi16(cols, w + (o + i) * w_stride + c)
                            : _mm512_setzero_si512();
      transpose(r);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(tiles + i * kDepth, r[i]);
    }
}

/// Sums of one tile, where they lie or by way of a whole tile at the edges.
struct Sums {
  float* y;
  int64_t stride, rows, cols;
  bool whole() const { return rows >= kRows && cols >= kRows; }
};

void get_edge(const Sums& s, float* tile) {
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t c = 0; c < kRows; ++c)
      tile[r * kRows + c] = r < s.rows && c < s.cols ? s.y[r * s.stride + c] : 0.0f;
}
void put_edge(const Sums& s, const float* tile) {
  for (int64_t r = 0; r < s.rows && r < kRows; ++r)
    for (int64_t c = 0; c < s.cols && c < kRows; ++c) s.y[r * s.stride + c] = tile[r * kRows + c];
}

// Numbers of tiles are part of the instructions, hence macros.
#define EPISODIC_BEGIN(number, sums)                                                   \
  if (!p.add) {                                                                        \
    _tile_zero(number);                                                                \
  } else if ((sums).whole()) {                                                         \
    _tile_loadd(number, (sums).y, (sums).stride* static_cast<int64_t>(sizeof(float))); \
  } else {                                                                             \
    get_edge(sums, edge);                                                              \
    _tile_loadd(number, edge, 64);                                                     \
  }
#define EPISODIC_END(number, sums)                                                      \
  if ((sums).whole()) {                                                                 \
    _tile_stored(number, (sums).y, (sums).stride* static_cast<int64_t>(sizeof(float))); \
  } else {                                                                              \
    _tile_stored(number, edge, 64);                                                     \
    put_edge(sums, edge);                                                               \
  }

void multiply(const MatrixProduct& p) {
  _tile_loadconfig(&kConfig);
  alignas(64) float edge[kRows * kRows];
  const int64_t steps = MatrixLoops::depth(p.in) / kDepth;
  const int64_t w_tiles = steps * kTile;
  for (int64_t row = 0; row < p.n; row += 2 * kRows) {
    const bool two_rows = row + kRows < p.n;
    const uint16_t* x0 = p.x + row / kRows * p.x_stride;
    const uint16_t* x1 = two_rows ? x0 + p.x_stride : x0;
    for (int64_t out = 0; out < p.out; out += 2 * kRows) {
      const bool two_outs = out + kRows < p.out;
      const uint16_t* w0 = p.w + out / kRows * w_tiles;
      const uint16_t* w1 = two_outs ? w0 + w_tiles : w0;
      float* y = p.y + row * p.y_stride + out;
      const Sums s00{y, p.y_stride, p.n - row, p.out - out};
      const Sums s01{y + kRows, p.y_stride, s00.rows, s00.cols - kRows};
      const Sums s10{y + kRows * p.y_stride, p.y_stride, s00.rows - kRows, s00.cols};
      const Sums s11{y + kRows * p.y_stride + kRows, p.y_stride, s10.rows, s01.cols};
      EPISODIC_BEGIN(0, s00)
      if (two_outs) {
        EPISODIC_BEGIN(1, s01)
      }
      if (two_rows) {
        EPISODIC_BEGIN(2, s10)
      }
      if (two_rows && two_outs) {
        EPISODIC_BEGIN(3, s11)
      }
      for (int64_t k = 0; k < steps; ++k) {
        _tile_loadd(4, x0 + k * kTile, 64);
        _tile_loadd(6, w0 + k * kTile, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, w1 + k * kTile, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, x1 + k * kTile, 64);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      EPISODIC_END(0, s00)
      if (two_outs) {
        EPISODIC_END(1, s01)
      }
      if (two_rows) {
        EPISODIC_END(2, s10)
      }
      if (two_rows && two_outs) {
        EPISODIC_END(3, s11)
      }
    }
  }
  _tile_release();
}

#undef EPISODIC_BEGIN
#undef EPISODIC_END

/// The processor has the units, and the system lets this process use their registers.
bool usable() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kBf16 = 1u << 22, kTiles = 1u << 24;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kBf16) == 0 || (d & kTiles) == 0)
    return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & (1u << 5)) == 0)
    return false;  // AVX512-BF16
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

const MatrixLoops kLoops{round_rows, pack, multiply};

}  // namespace

const MatrixLoops* matrix_loops_amx() {
  static const bool can = usable();
  return can ? &kLoops : nullptr;
}

}  // namespace episodic::cpu
