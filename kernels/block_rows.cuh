// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Rows of blocks as numbers: kernels of kernels/blocks.hpp. Bound by bytes.

#include <cmath>
#include <cstdint>

#include "blocks.cuh"

namespace episodic::kernels {

inline constexpr int kBlockRowThreads = 256;

/// A thread makes eight numbers of a unit.
template <class T>
__global__ void __launch_bounds__(kBlockRowThreads) WidenBlocksKernel(WidenBlocksParams p) {
  const std::int64_t parts = p.in / 8, count = p.rows * parts;
  for (std::int64_t at = std::int64_t{blockIdx.x} * kBlockRowThreads + threadIdx.x; at < count;
       at += std::int64_t{gridDim.x} * kBlockRowThreads) {
    const std::int64_t row = at / parts, part = at % parts;
    T* const to = static_cast<T*>(p.y) + row * p.in;
    numbers_of_unit(find_row(p.from, p.first + row), p.in, static_cast<int>(part / 4),
                    static_cast<int>(part % 4), [&](std::int64_t c, const Pack<float, 4>& four) {
                      Pack<T, 4> narrowed;
                      EPISODIC_UNROLL
                      for (int j = 0; j < 4; ++j) narrowed.at[j] = narrow<T>(four.at[j]);
                      store_pack(to + c, narrowed);
                    });
  }
}

/// A block takes a token.
__global__ void __launch_bounds__(kBlockRowThreads)
    EmbedBlocksKernel(EmbedParams p, BlockMatrix table) {
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const std::int64_t id = p.ids[i];
    const bool known = id >= 0 && id < p.vocab;
    float* const to = p.hidden + i * p.width;
    for (std::int64_t part = threadIdx.x; part < p.width / 8; part += kBlockRowThreads)
      numbers_of_unit({table, known ? id : 0}, p.width, static_cast<int>(part / 4),
                      static_cast<int>(part % 4), [&](std::int64_t c, const Pack<float, 4>& four) {
                        EPISODIC_UNROLL
                        for (int j = 0; j < 4; ++j)
                          to[c + j] = known ? p.multiplier * four.at[j] : NAN;
                      });
  }
}

}  // namespace episodic::kernels
