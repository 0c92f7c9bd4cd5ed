// SPDX-License-Identifier: Apache-2.0
// No other includes: see weights_float.inc.
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

#include "episodic/cpu/impl/vector_portable.inc"
constexpr int kRows = 4;  // 8 sums, 2 weights and a number of x: 11 of 16 registers
constexpr int kVectors = 2;
constexpr int64_t kDepth = 256;

static inline void pack_vector(int64_t rows, int64_t depth, const float* w, int64_t w_stride,
                               float* panel) {
  for (int64_t i = 0; i < kWidth; ++i)
    for (int64_t c = 0; c < depth; ++c)
      panel[c * kWidth * kVectors + i] = i < rows ? w[i * w_stride + c] : 0.0f;
}

#include "sgemm.inc"
}  // namespace

void sgemm_portable(int64_t n, int64_t out, int64_t in, const float* x, int64_t x_stride,
                    const float* w, int64_t w_stride, float beta, float* y, int64_t y_stride) {
  sgemm(n, out, in, x, x_stride, w, w_stride, beta, y, y_stride);
}

}  // namespace episodic::cpu
