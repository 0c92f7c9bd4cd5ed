// SPDX-License-Identifier: Apache-2.0
// Float32 products of many rows with AVX-512, for processors on which the BLAS does not use it
// (sgemm.hpp). Compiled with its flags: no other includes than these.
#include <immintrin.h>

#include <cstdint>

#include "sgemm.hpp"

namespace episodic::cpu {
namespace {

using std::int64_t;

#include "transpose16.inc"

constexpr int kVectors = 2, kOut = 16 * kVectors;  // outputs of a panel; divides every task's
constexpr int kRows = 14;  // of x at a time: 28 sums, 2 weights and a number of x: 31 registers

__mmask16 first(int64_t n) {
  return n >= 16 ? static_cast<__mmask16>(0xffff) : static_cast<__mmask16>((1u << n) - 1);
}

/// panel[c][o] = w[o][c], zero beyond `out`.
void pack(int64_t out, int64_t depth, const float* w, int64_t w_stride, float* panel) {
  for (int v = 0; v < kVectors; ++v) {
    const int64_t first_row = 16 * v;
    for (int64_t c = 0; c < depth; c += 16) {
      const __mmask16 columns = first(depth - c);
      __m512i rows[16];
      for (int i = 0; i < 16; ++i)
        rows[i] = first_row + i < out ? _mm512_castps_si512(_mm512_maskz_loadu_ps(
                                            columns, w + (first_row + i) * w_stride + c))
                                      : _mm512_setzero_si512();
      transpose(rows);
      const int64_t here = depth - c < 16 ? depth - c : 16;
      for (int64_t i = 0; i < here; ++i)
        _mm512_store_ps(panel + (c + i) * kOut + first_row, _mm512_castsi512_ps(rows[i]));
    }
  }
}

/// R rows of x with a panel: each sum is one chain of fused products in the order of the columns.
template <int R>
void multiply_rows(const float* panel, int64_t depth, int64_t out, const float* x, int64_t x_stride,
                   float beta, float* y, int64_t y_stride) {
  __m512 sum[R][kVectors];
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_setzero_ps();
  for (int64_t c = 0; c < depth; ++c) {
    __m512 w[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) w[v] = _mm512_load_ps(panel + c * kOut + 16 * v);
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(x[r * x_stride + c]);
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = _mm512_fmadd_ps(a, w[v], sum[r][v]);
    }
  }
#pragma GCC unroll 14
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if (out <= 16 * v) continue;
      const __mmask16 outputs = first(out - 16 * v);
      float* to = y + r * y_stride + 16 * v;
      __m512 all = sum[r][v];
      if (beta != 0)  // y may hold anything, NaN too, where it does not count
        all = _mm512_fmadd_ps(_mm512_set1_ps(beta), _mm512_maskz_loadu_ps(outputs, to), all);
      _mm512_mask_storeu_ps(to, outputs, all);
    }
}

using Rows = void (*)(const float*, int64_t, int64_t, const float*, int64_t, float, float*,
                      int64_t);
constexpr Rows kMultiply[kRows + 1] = {
    nullptr,           multiply_rows<1>,  multiply_rows<2>,  multiply_rows<3>,  multiply_rows<4>,
    multiply_rows<5>,  multiply_rows<6>,  multiply_rows<7>,  multiply_rows<8>,  multiply_rows<9>,
    multiply_rows<10>, multiply_rows<11>, multiply_rows<12>, multiply_rows<13>, multiply_rows<14>};

}  // namespace

void sgemm_avx512(int64_t n, int64_t out, int64_t in, const float* x, int64_t x_stride,
                  const float* w, int64_t w_stride, float beta, float* y, int64_t y_stride) {
  constexpr int64_t kDepth = 512;
  alignas(64) static thread_local float panel[kDepth * kOut];  // 64 KB, in the second cache
  for (int64_t o = 0; o < out; o += kOut) {
    const int64_t outputs = out - o < kOut ? out - o : kOut;
    for (int64_t c = 0; c == 0 || c < in; c += kDepth) {
      const int64_t depth = in - c < kDepth ? in - c : kDepth;
      pack(outputs, depth, w + o * w_stride + c, w_stride, panel);
      const float scale = c == 0 ? beta : 1.0f;
      for (int64_t r = 0; r < n; r += kRows) {
        const int64_t rows = n - r < kRows ? n - r : kRows;
        kMultiply[rows](panel, depth, outputs, x + r * x_stride + c, x_stride, scale,
                        y + r * y_stride + o, y_stride);
      }
    }
  }
}

}  // namespace episodic::cpu
