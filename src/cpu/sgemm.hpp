// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Own float32 products of many rows, one for each instruction set:
///
///     y[i * y_stride + o] = beta * y + sum_c x[i * x_stride + c] * w[o * w_stride + c]
///
/// for i < n, o < out, on the calling thread. Each packs some rows of w by some hundred columns at
/// a time for all rows of x. The sum of an output is one chain in the order of the columns: its
/// bits depend on its row of x, its row of w and beta * y alone, not on n, `out` or the strides.

#include <cstdint>

namespace episodic::cpu {

using Sgemm = void (*)(std::int64_t n, std::int64_t out, std::int64_t in, const float* x,
                       std::int64_t x_stride, const float* w, std::int64_t w_stride, float beta,
                       float* y, std::int64_t y_stride);

void sgemm_portable(std::int64_t n, std::int64_t out, std::int64_t in, const float* x,
                    std::int64_t x_stride, const float* w, std::int64_t w_stride, float beta,
                    float* y, std::int64_t y_stride);
/// Needs AVX2 and FMA. In a build for x86 only, like the next one.
void sgemm_avx2(std::int64_t n, std::int64_t out, std::int64_t in, const float* x,
                std::int64_t x_stride, const float* w, std::int64_t w_stride, float beta, float* y,
                std::int64_t y_stride);
/// Needs AVX-512 (F, DQ, BW, VL).
void sgemm_avx512(std::int64_t n, std::int64_t out, std::int64_t in, const float* x,
                  std::int64_t x_stride, const float* w, std::int64_t w_stride, float beta,
                  float* y, std::int64_t y_stride);

}  // namespace episodic::cpu
