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

#include "transpose16.inc"
#include "vector_avx512.inc"

constexpr int kRows = 14;  // 28 sums, 2 weights and a number of x: 31 registers
constexpr int kVectors = 2;
constexpr int64_t kDepth = 512;  // a panel of 64 KB, in the second cache

static inline void pack_vector(int64_t rows, int64_t depth, const float* w, int64_t w_stride,
                               float* panel) {
  for (int64_t c = 0; c < depth; c += 16) {
    const int here = static_cast<int>(depth - c < 16 ? depth - c : 16);
    __m512i columns[16];
    for (int i = 0; i < 16; ++i)
      columns[i] = _mm512_castps_si512(i < rows ? load_part(w + i * w_stride + c, here) : zero());
    transpose(columns);
    for (int i = 0; i < here; ++i)
      store(panel + (c + i) * kWidth * kVectors, _mm512_castsi512_ps(columns[i]));
  }
}

#include "sgemm.inc"
}  // namespace

void sgemm_avx512(int64_t n, int64_t out, int64_t in, const float* x, int64_t x_stride,
                  const float* w, int64_t w_stride, float beta, float* y, int64_t y_stride) {
  sgemm(n, out, in, x, x_stride, w, w_stride, beta, y, y_stride);
}

}  // namespace episodic::cpu
