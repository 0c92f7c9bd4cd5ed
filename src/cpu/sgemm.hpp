// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Own float32 products of many rows, for the one case in which the BLAS is half as fast as the
/// machine: MKL, which torch brings, uses AVX-512 on Intel's processors alone. An `Sgemm`
/// (episodic/cpu/weights.hpp); in a build for x86 only.

#include <cstdint>

namespace episodic::cpu {

/// Needs AVX-512 (F, DQ, BW, VL). Packs 32 rows of w by 512 columns at a time for all rows of x, so
/// it wants tens of rows. Sums do not depend on how many rows or outputs are asked for together.
void sgemm_avx512(std::int64_t n, std::int64_t out, std::int64_t in, const float* x,
                  std::int64_t x_stride, const float* w, std::int64_t w_stride, float beta,
                  float* y, std::int64_t y_stride);

}  // namespace episodic::cpu
