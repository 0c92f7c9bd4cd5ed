// SPDX-License-Identifier: Apache-2.0
// No other includes: see weights_float.inc.
#include <immintrin.h>

#include <cstdint>
#include <utility>

#include "episodic/cpu/kernels.hpp"
#include "sgemm.hpp"

namespace episodic::cpu {
namespace {
using std::int32_t;
using std::int64_t;
using std::int8_t;
using std::uint16_t;
using std::uint32_t;
using std::uint8_t;

#include "vector_avx2.inc"
constexpr int kRows = 6;  // 12 sums, 2 weights and a number of x: 15 registers
constexpr int kVectors = 2;
constexpr int64_t kDepth = 256;  // a panel of 16 KB, in the first cache beside rows of x

/// Rows of an 8 x 8 matrix become columns.
static inline void transpose(V (&r)[8]) {
  V t[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps(r[i], r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps(r[i], r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    r[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    r[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    r[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    r[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x20);
    t[i + 4] = _mm256_permute2f128_ps(r[i], r[i + 4], 0x31);
  }
  for (int i = 0; i < 8; ++i) r[i] = t[i];
}

static inline void pack_vector(int64_t rows, int64_t depth, const float* w, int64_t w_stride,
                               float* panel) {
  for (int64_t c = 0; c < depth; c += 8) {
    const int here = static_cast<int>(depth - c < 8 ? depth - c : 8);
    V columns[8];
    for (int i = 0; i < 8; ++i)
      columns[i] = i >= rows  ? zero()
                   : here < 8 ? load_part(w + i * w_stride + c, here)
                              : load(w + i * w_stride + c);
    transpose(columns);
    for (int i = 0; i < here; ++i) store(panel + (c + i) * kWidth * kVectors, columns[i]);
  }
}

#include "sgemm.inc"
}  // namespace

void sgemm_avx2(int64_t n, int64_t out, int64_t in, const float* x, int64_t x_stride,
                const float* w, int64_t w_stride, float beta, float* y, int64_t y_stride) {
  sgemm(n, out, in, x, x_stride, w, w_stride, beta, y, y_stride);
}

}  // namespace episodic::cpu
