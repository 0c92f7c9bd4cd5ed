// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Products of few rows with weights in blocks: device code of kernels/product.hpp.
///
/// Why whole numbers: a multiprocessor issues 4 instructions of 32 lanes a cycle. At 4.4 TB/s an
/// H200 brings each of its 132 multiprocessors 59 codes of 4 bits in the time of 32 lanes' one
/// instruction of all four schedulers, so a code may take 2.1 of them. Widened to floats it takes
/// three (a mask, a conversion, a multiplication and addition); by dp4a 0.6 with the masks.

#include <cstdint>

#include "blocks.cuh"
#include "launch_early.cuh"
#include "product.cuh"
#include "ptx.cuh"

namespace episodic::kernels {

/// Bytes of a row's codes that are asked for before the launch before this one has ended.
inline constexpr std::int64_t kBlocksAhead = 4096;

/// The rows of activations into shared memory, of 8 bits.
template <class T>
__device__ inline void round_rows(const ProductParams& p, unsigned char* to) {
  const std::int64_t row_bytes = rounded_row_bytes(p.in);
  for (std::int64_t r = 0; r < p.n; ++r) {
    if (!p.hidden) {
      const T* const x = static_cast<const T*>(p.x) + r * p.in;
      round_row<kDecoderThreads>(p.in, to + r * row_bytes,
                                 [&](std::int64_t c) { return widen(x[c]); });
      continue;
    }
    const float* const hidden = p.hidden + r * p.in;
    float factor = 1.0f;
    if (p.maybe_norm) {
      float squares = 0.0f;
      for (std::int64_t c = threadIdx.x; c < p.in; c += kDecoderThreads)
        squares += hidden[c] * hidden[c];
      factor = rms_factor<kDecoderThreads>(squares, p.in, p.eps);
    }
    round_row<kDecoderThreads>(p.in, to + r * row_bytes, [&](std::int64_t c) {
      return p.maybe_norm ? hidden[c] * factor * p.maybe_norm[c] : hidden[c];
    });
  }
  __syncthreads();
}

/// sum[r][o] of the outputs `at`, which are of one type, with all rows.
template <int kRows, int kOut>
__device__ inline void sum_blocks(const ProductParams& p, const unsigned char* x,
                                  const std::int64_t (&at)[kOut], float (&sum)[kRows][kOut]) {
  for_block_type(find_row(p.blocks, at[0]).of.type, [&](auto type) {
    constexpr BlockType kType = decltype(type)::value;
    if constexpr (kType != BlockType::fp8) {
      BlockRow w[kOut];
      EPISODIC_UNROLL
      for (int o = 0; o < kOut; ++o) {
        const FoundRow found = find_row(p.blocks, at[o]);
        w[o] = block_row(kType, found.of, p.in, found.row);
      }
      add_units<kType, kRows, kOut>(w, x, static_cast<int>(p.n), p.in, sum);
    }
  });
}

/// A warp makes a pair of outputs at a time, which are of one type, for up to kRows rows of x.
template <int kRows>
__global__ void __launch_bounds__(kDecoderThreads, kRows == 1 ? 3 : 2)
    BlockProductKernel(const ProductArgs a) {
  EPISODIC_DYNAMIC_SHARED(x);
  const ProductParams& p = a.p;
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * kProductWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kProductWarps;
  const std::int64_t pairs = (p.out + 1) / 2;
  // Weights are nobody's results: the first of them are on their way to the second cache while the
  // launch before ends and the rows are rounded.
  if (warp < pairs) {
    const OutputPair of = outputs_of(a, warp);
    EPISODIC_UNROLL
    for (int o = 0; o < 2; ++o) {
      const FoundRow found = find_row(p.blocks, o == 0 ? of.first : of.second);
      const std::int64_t bytes = block_planes(found.of.type, p.in).codes;
      const auto* const codes =
          static_cast<const unsigned char*>(found.of.data) + found.row * bytes;
      for (std::int64_t line = 128 * (threadIdx.x % kWarpSize); line < bytes && line < kBlocksAhead;
           line += 128 * kWarpSize)
        prefetch_second(codes + line);
    }
  }
  await_launch_before();
  for_float(p.dtype, [&](auto element) { round_rows<typename decltype(element)::type>(p, x); });
  for (std::int64_t pair = warp; pair < pairs; pair += warps) {
    const OutputPair of = outputs_of(a, pair);
    const std::int64_t at[2] = {of.first, of.second};
    float sum[kRows][2] = {};
    sum_blocks<kRows, 2>(p, x, at, sum);
    for_float(p.dtype, [&](auto element) {
      finish_sums<typename decltype(element)::type, kRows, 1>(a, pair, sum);
    });
  }
}

}  // namespace episodic::kernels
