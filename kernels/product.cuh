// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/product.hpp: one kernel, whose warps read four rows of the weights each.

#include <cstdint>
#include <cstring>

#include "blocks.cuh"
#include "decoder.cuh"
#include "device.cuh"
#include "elements.cuh"
#include "launch_early.cuh"
#include "product.hpp"
#include "ring_pages.cuh"
#include "rotation.cuh"

namespace episodic::kernels {

inline constexpr int kProductWarps = kDecoderThreads / kWarpSize;
/// Pairs of outputs that a warp makes at a time: they share its loads of x. Of products of few
/// outputs one, read twice as far ahead: more warps have as many loads on their way.
inline constexpr int kProductPairs = 2;
/// Of the rows that are made of the residual stream.
inline constexpr std::size_t kMostProductShared = 64 << 10;
/// A warp for each where all of them run at once: on the 132 multiprocessors of an H100 or H200,
/// three blocks each.
inline constexpr std::int64_t kFewPairs = 132 * 3 * kProductWarps;

/// What is done with a product. Each takes outputs in pairs.
enum class ProductUse : std::uint8_t { store, narrow, add, gate, heads };

struct ProductArgs {
  ProductParams p;
  ProductUse use = ProductUse::store;
  float* rows[kMostProductRows] = {};  ///< store, and add: the rows of its sum
  float multiplier = 1.0f;             ///< add
  GateActivation activation = GateActivation::silu;
  void* y = nullptr;  ///< narrow, gate
  HeadsParams heads;
};

struct OutputPair {
  std::int64_t first, second;
};

/// Of the product's outputs: those of queries and keys, which stand before the values.
__device__ inline std::int64_t query_key_width(const HeadsParams& heads) {
  return (heads.n_heads + heads.n_kv_heads) * heads.head_dim;
}

/// Outputs that belong together: neighbours; gate and up; channels of a head that rotate together.
/// \param pair below ceil(out / 2); of an odd number the last one's second is its first
__device__ inline OutputPair outputs_of(const ProductArgs& a, std::int64_t pair) {
  if (a.use == ProductUse::gate) return {pair, a.p.out / 2 + pair};
  const OutputPair neighbours{2 * pair, 2 * pair + 1 < a.p.out ? 2 * pair + 1 : 2 * pair};
  if (a.use != ProductUse::heads || a.heads.interleaved) return neighbours;
  if (neighbours.first >= query_key_width(a.heads)) return neighbours;
  const std::int64_t in_head = pair % (a.heads.head_dim / 2), half = a.heads.rotary_dim / 2;
  if (in_head >= half) return neighbours;
  const std::int64_t first = pair / (a.heads.head_dim / 2) * a.heads.head_dim + in_head;
  return {first, first + half};
}

/// Two neighbouring channels of a value, into the sequence's window and sinks.
template <class T>
__device__ inline void finish_value(const HeadsParams& heads, const HeadTarget& to,
                                    std::int64_t channel, T first, T second) {
  const std::int64_t e = heads.value_dim, g = channel / e, c = channel % e, position = *to.position;
  RingPages pages = to.ring_pages;
  pages.page_stride = to.value_page_stride;
  const auto store = [&](void* array, std::int64_t row) {
    static_cast<T*>(array)[row + c] = first;
    static_cast<T*>(array)[row + c + 1] = second;
  };
  if (position < to.n_init) store(to.sink_value, (g * to.n_init + position) * e);
  store(to.ring_value,
        g * to.value_head_stride + ring_row<std::int64_t>(pages, position % to.ring_capacity, e));
}

/// Writes two channels of one head of row r, which rotate together if they rotate at all.
/// \param heads with what 0 stands for in its place
template <class T>
__device__ inline void finish_heads(const HeadsParams& heads, int r, std::int64_t pair,
                                    OutputPair at, float x, float y) {
  const HeadTarget& to = heads.row[r];
  Pack<T, 1> first, second;
  first.at[0] = narrow<T>(x);
  second.at[0] = narrow<T>(y);
  const std::int64_t in_values = at.first - query_key_width(heads);
  if (in_values >= 0) return finish_value<T>(heads, to, in_values, first.at[0], second.at[0]);
  const std::int64_t d = heads.head_dim, head = at.first / d, in_head = pair % (d / 2);
  const bool rotates = in_head < heads.rotary_dim / 2;
  if (head < heads.n_heads) {
    T* const q = static_cast<T*>(heads.q) + r * heads.q_row_stride;
    q[at.first] = first.at[0];
    q[at.second] = second.at[0];
    if (!to.maybe_mean) return;
    const double u = wide(first.at[0]), v = wide(second.at[0]);
    const double cos = rotates ? static_cast<double>(to.fixed_cos[in_head]) : 1.0;
    const double sin = rotates ? static_cast<double>(to.fixed_sin[in_head]) : 0.0;
    to.maybe_mean[at.first] = static_cast<float>(rotates ? u * cos - v * sin : u);
    to.maybe_mean[at.second] = static_cast<float>(rotates ? v * cos + u * sin : v);
    return;
  }
  const std::int64_t g = head - heads.n_heads, position = *to.position;
  const std::int64_t c1 = at.first - head * d, c2 = at.second - head * d;
  const std::int64_t in_ring =
      g * to.ring_head_stride +
      ring_row<std::int64_t>(to.ring_pages, position % to.ring_capacity, d);
  const auto store = [&](void* array, std::int64_t row, const Pack<T, 1>& u, const Pack<T, 1>& v) {
    static_cast<T*>(array)[row + c1] = u.at[0];
    static_cast<T*>(array)[row + c2] = v.at[0];
  };
  if (position < to.n_init) store(to.sink_key, (g * to.n_init + position) * d, first, second);
  if (to.maybe_ring_key) store(to.maybe_ring_key, in_ring, first, second);
  Pack<T, 1> rotated1 = first, rotated2 = second;
  if (rotates)
    rotate<T, 1>(first, second, load_pack<1>(to.cos + in_head), load_pack<1>(to.sin + in_head),
                 rotated1, rotated2);
  store(to.ring_rotated_key, in_ring, rotated1, rotated2);
}

/// Row r's two outputs, biases added.
template <class T>
__device__ inline void finish_pair(const ProductArgs& a, int r, std::int64_t pair, OutputPair at,
                                   float x, float y) {
  switch (a.use) {
    case ProductUse::store:
      a.rows[r][at.first] = x;
      a.rows[r][at.second] = y;
      break;
    case ProductUse::narrow:
      static_cast<T*>(a.y)[r * a.p.out + at.first] = narrow<T>(x);
      static_cast<T*>(a.y)[r * a.p.out + at.second] = narrow<T>(y);
      break;
    case ProductUse::add:
      a.rows[r][at.first] = fmaf(a.multiplier, x, a.rows[r][at.first]);
      if (at.second != at.first) a.rows[r][at.second] = fmaf(a.multiplier, y, a.rows[r][at.second]);
      break;
    case ProductUse::gate:
      static_cast<T*>(a.y)[r * (a.p.out / 2) + pair] = narrow<T>(activated(a.activation, x) * y);
      break;
    case ProductUse::heads:
      finish_heads<T>(a.heads, r, pair, at, x, y);
      break;
  }
}

/// norm(hidden) of all rows into shared memory, as AddNormKernel makes it.
template <class T>
__device__ inline void make_rows(const ProductParams& p, T* x) {
  for (std::int64_t r = 0; r < p.n; ++r) {
    const float* const hidden = p.hidden + r * p.in;
    float factor = 1.0f;
    if (p.maybe_norm) {
      float squares = 0.0f;
      for (std::int64_t c = threadIdx.x; c < p.in; c += kDecoderThreads)
        squares += hidden[c] * hidden[c];
      factor = rms_factor<kDecoderThreads>(squares, p.in, p.eps);
    }
    for (std::int64_t c = threadIdx.x; c < p.in; c += kDecoderThreads)
      x[r * p.in + c] = narrow<T>(p.maybe_norm ? hidden[c] * factor * p.maybe_norm[c] : hidden[c]);
  }
  __syncthreads();
}

/// What a warp does with kPairs pairs of outputs of kRows rows, of which its lanes hold parts.
template <class T, int kRows, int kPairs>
__device__ inline void finish_sums(const ProductArgs& a, std::int64_t first_pair,
                                   const float (&sum)[kRows][2 * kPairs]) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  // Lane r * kPairs + i finishes pair i of row r.
  float own[2] = {0.0f, 0.0f};
  EPISODIC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    EPISODIC_UNROLL
    for (int o = 0; o < 2 * kPairs; ++o) {
      const float total = warp_reduce(sum[r][o], Sum{});
      if (lane == r * kPairs + o / 2) own[o % 2] = total;
    }
  }
  const int row = lane / kPairs;
  const std::int64_t pair = first_pair + lane % kPairs;
  if (row >= a.p.n || pair >= (a.p.out + 1) / 2) return;
  const OutputPair at = outputs_of(a, pair);
  if (a.p.maybe_bias) {
    own[0] += a.p.maybe_bias[at.first];
    own[1] += a.p.maybe_bias[at.second];
  }
  finish_pair<T>(a, row, pair, at, own[0], own[1]);
}

/// Of a load of 16 bytes: weights of the activations' type, or E4M3 with a scale a row.
template <class T, bool kFp8>
struct WeightPack {
  static constexpr int kElements = kPackOf<T>;
  Pack<T, kElements> of;
  __device__ void load(const unsigned char* from) {
    of = load_pack<kElements>(reinterpret_cast<const T*>(from));
  }
  __device__ float at(int i) const { return widen(of.at[i]); }
};
template <class T>
struct WeightPack<T, true> {
  static constexpr int kElements = 16;
  Pack<__half, kElements> of;  // 2^-8 of each
  __device__ void load(const unsigned char* from) {
    const Words words = load_pack<4>(reinterpret_cast<const std::uint32_t*>(from));
    EPISODIC_UNROLL
    for (int i = 0; i < 8; ++i) {  // two codes: sign, and exponent and mantissa a bit lower
      const std::uint32_t two = __byte_perm(words.at[i / 2], 0, i % 2 ? 0x3424u : 0x1404u);
      const std::uint32_t halves = (two & 0x80008000u) | ((two & 0x7f007f00u) >> 1);
      memcpy(&of.at[2 * i], &halves, sizeof(halves));
    }
  }
  __device__ float at(int i) const { return widen(of.at[i]); }
};

/// A warp makes kPairs pairs of outputs at a time, for up to kRows rows of x.
template <class T, int kRows, int kPairs, bool kFp8>
__global__ void __launch_bounds__(kDecoderThreads, kRows == 1 ? 3
                                                   : kFp8     ? 1
                                                          : 2) ProductKernel(const ProductArgs a) {
  await_launch_before();
  using Weights = WeightPack<T, kFp8>;
  constexpr int kPack = kPackOf<T>;
  EPISODIC_DYNAMIC_SHARED(bytes);
  const ProductParams& p = a.p;
  const T* x = static_cast<const T*>(p.x);
  if (p.hidden) {
    make_rows(p, reinterpret_cast<T*>(bytes));
    x = reinterpret_cast<const T*>(bytes);
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const std::int64_t warp =
      static_cast<std::int64_t>(blockIdx.x) * kProductWarps + threadIdx.x / kWarpSize;
  const std::int64_t warps = static_cast<std::int64_t>(gridDim.x) * kProductWarps;
  const std::int64_t pairs = (p.out + 1) / 2, packs = p.in / Weights::kElements;
  for (std::int64_t first_pair = warp * kPairs; first_pair < pairs; first_pair += warps * kPairs) {
    // Beyond the last pair or row: the last one once more, and not written.
    const unsigned char* weights[2 * kPairs];
    float scale[2 * kPairs];
    EPISODIC_UNROLL
    for (int i = 0; i < kPairs; ++i) {
      const OutputPair at = outputs_of(a, first_pair + i < pairs ? first_pair + i : pairs - 1);
      EPISODIC_UNROLL
      for (int o = 0; o < 2; ++o) {
        const std::int64_t row = o == 0 ? at.first : at.second;
        if constexpr (kFp8) {
          const FoundRow found = find_row(p.blocks, row);
          const BlockRow planes = block_row(BlockType::fp8, found.of, p.in, found.row);
          weights[2 * i + o] = planes.codes;
          scale[2 * i + o] = 256.0f * *reinterpret_cast<const float*>(planes.base);
        } else {
          weights[2 * i + o] =
              static_cast<const unsigned char*>(p.weight) + row * p.in * std::int64_t{sizeof(T)};
        }
      }
    }
    float sum[kRows][2 * kPairs] = {};
    EPISODIC_UNROLL_BY(2 * kProductPairs / kPairs)
    for (std::int64_t i = lane; i < packs; i += kWarpSize) {
      Weights w[2 * kPairs];
      EPISODIC_UNROLL
      for (int o = 0; o < 2 * kPairs; ++o) w[o].load(weights[o] + i * 16);
      EPISODIC_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const std::int64_t row = r < p.n ? r : p.n - 1;
        EPISODIC_UNROLL
        for (int first = 0; first < Weights::kElements; first += kPack) {
          const Pack<T, kPack> of_row =
              load_pack<kPack>(x + row * p.in + i * Weights::kElements + first);
          EPISODIC_UNROLL
          for (int j = 0; j < kPack; ++j) {
            EPISODIC_UNROLL
            for (int o = 0; o < 2 * kPairs; ++o)
              sum[r][o] = fmaf(w[o].at(first + j), widen(of_row.at[j]), sum[r][o]);
          }
        }
      }
    }
    if constexpr (kFp8) {
      EPISODIC_UNROLL
      for (int r = 0; r < kRows; ++r) {
        EPISODIC_UNROLL
        for (int o = 0; o < 2 * kPairs; ++o) sum[r][o] *= scale[o];
      }
    }
    finish_sums<T, kRows, kPairs>(a, first_pair, sum);
  }
}

}  // namespace episodic::kernels
