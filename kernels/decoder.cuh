// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/decoder.hpp. All of it is bound by bytes, and small beside the products.

#include <cstdint>
#include <cub/block/block_reduce.cuh>

#include "decoder.hpp"
#include "device.cuh"
#include "elements.cuh"

namespace episodic::kernels {

inline constexpr int kDecoderThreads = 256;
inline constexpr int kQkvThreads = 128;

template <class T>
__global__ void __launch_bounds__(kDecoderThreads) EmbedKernel(EmbedParams p) {
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const std::int64_t id = p.ids[i];
    const bool known = id >= 0 && id < p.vocab;
    const T* row = static_cast<const T*>(p.table) + (known ? id : 0) * p.width;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
      p.hidden[i * p.width + c] = known ? p.multiplier * widen(row[c]) : NAN;
  }
}

/// 1 / sqrt(mean + eps) of the sum of squares that the block's threads hold parts of. All threads
/// get it, and may call this again at once.
template <int kThreads>
__device__ inline float rms_factor(float squares, std::int64_t count, float eps) {
  using Reduce = cub::BlockReduce<float, kThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(factor, float);
  const float sum = Reduce(storage).Sum(squares);
  if (threadIdx.x == 0) factor = 1.0f / sqrtf(sum / static_cast<float>(count) + eps);
  __syncthreads();
  const float own = factor;
  __syncthreads();  // factor and storage are written again
  return own;
}

/// The sum of what the block's threads hold. All threads get it, and may call this again at once.
template <int kThreads>
__device__ inline float block_sum(float part) {
  using Reduce = cub::BlockReduce<float, kThreads>;
  EPISODIC_SHARED(storage, typename Reduce::TempStorage);
  EPISODIC_SHARED(total, float);
  const float sum = Reduce(storage).Sum(part);
  if (threadIdx.x == 0) total = sum;
  __syncthreads();
  const float own = total;
  __syncthreads();  // total and storage are written again
  return own;
}

/// The LayerNorm of a row, which the block's threads each hold their channels of in `hidden`.
template <class T>
__device__ inline void layer_norm_row(const AddNormParams& p, const float* hidden, T* y) {
  float sum = 0.0f;
  for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads) sum += hidden[c];
  const float mean = block_sum<kDecoderThreads>(sum) / static_cast<float>(p.width);
  float squares = 0.0f;
  for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
    squares += (hidden[c] - mean) * (hidden[c] - mean);
  const float factor = rms_factor<kDecoderThreads>(squares, p.width, p.eps);
  for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
    y[c] = narrow<T>((hidden[c] - mean) * factor * p.maybe_norm[c] +
                     (p.maybe_norm_bias ? p.maybe_norm_bias[c] : 0.0f));
}

/// One block a row. A thread meets the same channels in every pass, so that none needs a barrier.
template <class T>
__global__ void __launch_bounds__(kDecoderThreads) AddNormKernel(AddNormParams p) {
  const bool adds = p.maybe_added || p.maybe_bias;
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    float* hidden = p.hidden + i * p.width;
    const float* added = p.maybe_added ? p.maybe_added + i * p.width : nullptr;
    const auto added_at = [&](std::int64_t c) {
      return (added ? added[c] : 0.0f) + (p.maybe_bias ? p.maybe_bias[c] : 0.0f);
    };
    float times = p.multiplier;
    if (p.maybe_norm_of_added) {
      float squares = 0.0f;
      for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads) {
        const float x = added_at(c);
        squares += x * x;
      }
      times *= rms_factor<kDecoderThreads>(squares, p.width, p.eps);
    }
    float squares = 0.0f;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads) {
      float x = hidden[c];
      if (adds) {
        x += times * added_at(c) * (p.maybe_norm_of_added ? p.maybe_norm_of_added[c] : 1.0f);
        hidden[c] = x;
      }
      squares += x * x;
    }
    T* y = static_cast<T*>(p.y) + i * p.width;
    if (p.layer_norm && p.maybe_norm) {
      layer_norm_row(p, hidden, y);
      continue;
    }
    const float factor = p.maybe_norm ? rms_factor<kDecoderThreads>(squares, p.width, p.eps) : 1.0f;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
      y[c] = narrow<T>(p.maybe_norm ? hidden[c] * factor * p.maybe_norm[c] : hidden[c]);
  }
}

/// Channels of a thread's pack in AddNormRowKernel.
inline constexpr int kRowPack = 4;

/// What AddNormKernel does, of rows whose channels lie in the block's registers: up to kPacks packs
/// a thread, of arrays aligned to 16 bytes. A row is read once, 16 bytes at a time.
template <class T, int kPacks>
__global__ void __launch_bounds__(kDecoderThreads) AddNormRowKernel(AddNormParams p) {
  using Floats = Pack<float, kRowPack>;
  const auto width = static_cast<int>(p.width);
  // f(number, first channel) of each of the thread's packs
  const auto for_packs = [&](auto&& f) {
    EPISODIC_UNROLL
    for (int k = 0; k < kPacks; ++k) {
      const int c = kRowPack * (k * kDecoderThreads + static_cast<int>(threadIdx.x));
      if (c < width) f(k, c);
    }
  };
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    float* const hidden = p.hidden + i * p.width;
    const float* const added = p.maybe_added ? p.maybe_added + i * p.width : nullptr;
    Floats x[kPacks];
    for_packs([&](int k, int c) { x[k] = load_pack<kRowPack>(hidden + c); });
    if (added || p.maybe_bias) {
      Floats more[kPacks];
      float squares = 0.0f;
      for_packs([&](int k, int c) {
        more[k] = added ? load_pack<kRowPack>(added + c) : Floats{};
        if (p.maybe_bias) {
          const Floats bias = load_pack<kRowPack>(p.maybe_bias + c);
          EPISODIC_UNROLL
          for (int e = 0; e < kRowPack; ++e) more[k].at[e] += bias.at[e];
        }
        EPISODIC_UNROLL
        for (int e = 0; e < kRowPack; ++e) squares += more[k].at[e] * more[k].at[e];
      });
      float times = p.multiplier;
      if (p.maybe_norm_of_added) times *= rms_factor<kDecoderThreads>(squares, p.width, p.eps);
      for_packs([&](int k, int c) {
        Floats norm = {{1.0f, 1.0f, 1.0f, 1.0f}};
        if (p.maybe_norm_of_added) norm = load_pack<kRowPack>(p.maybe_norm_of_added + c);
        EPISODIC_UNROLL
        for (int e = 0; e < kRowPack; ++e) x[k].at[e] += times * more[k].at[e] * norm.at[e];
        store_pack<kRowPack>(hidden + c, x[k]);
      });
    }
    float mean = 0.0f, factor = 1.0f;
    if (p.maybe_norm) {
      if (p.layer_norm) {
        float sum = 0.0f;
        for_packs([&](int k, int) {
          EPISODIC_UNROLL
          for (int e = 0; e < kRowPack; ++e) sum += x[k].at[e];
        });
        mean = block_sum<kDecoderThreads>(sum) / static_cast<float>(p.width);
      }
      float squares = 0.0f;
      for_packs([&](int k, int) {
        EPISODIC_UNROLL
        for (int e = 0; e < kRowPack; ++e) squares += (x[k].at[e] - mean) * (x[k].at[e] - mean);
      });
      factor = rms_factor<kDecoderThreads>(squares, p.width, p.eps);
    }
    T* const y = static_cast<T*>(p.y) + i * p.width;
    for_packs([&](int k, int c) {
      if (p.maybe_norm) {
        const Floats norm = load_pack<kRowPack>(p.maybe_norm + c);
        const Floats bias =
            p.maybe_norm_bias ? load_pack<kRowPack>(p.maybe_norm_bias + c) : Floats{};
        EPISODIC_UNROLL
        for (int e = 0; e < kRowPack; ++e)
          x[k].at[e] = (x[k].at[e] - mean) * factor * norm.at[e] + bias.at[e];
      }
      Pack<T, kRowPack> out;
      EPISODIC_UNROLL
      for (int e = 0; e < kRowPack; ++e) out.at[e] = narrow<T>(x[k].at[e]);
      store_pack<kRowPack>(y + c, out);
    });
  }
}

/// One block for each head of a row, or with whole_rows for its queries, its keys and its values.
template <class T>
__global__ void __launch_bounds__(kQkvThreads) FinishQkvKernel(FinishQkvParams p, int parts) {
  const std::int64_t d = p.head_dim, of_queries = p.n_heads * d, of_keys = p.n_kv_heads * d;
  const std::int64_t width = of_queries + 2 * of_keys;
  for (std::int64_t at = blockIdx.x; at < p.n * parts; at += gridDim.x) {
    const std::int64_t part = at % parts;
    std::int64_t first = part * d, count = d;
    if (p.whole_rows) {
      first = part == 0 ? 0 : of_queries + (part - 1) * of_keys;
      count = part == 0 ? of_queries : of_keys;
    }
    const bool is_query = first < of_queries, is_key = !is_query && first < of_queries + of_keys;
    const float* norm = is_query ? p.maybe_q_norm : is_key ? p.maybe_k_norm : nullptr;
    const float* bias = p.maybe_bias ? p.maybe_bias + first : nullptr;
    T* x = static_cast<T*>(p.qkv) + at / parts * width + first;
    const auto value = [&](std::int64_t c) { return widen(x[c]) + (bias ? bias[c] : 0.0f); };
    float factor = 1.0f;
    if (norm) {
      float squares = 0.0f;
      for (std::int64_t c = threadIdx.x; c < count; c += kQkvThreads)
        squares += value(c) * value(c);
      const std::int64_t channels = p.normed_channels > 0 ? count / d * p.normed_channels : count;
      factor = rms_factor<kQkvThreads>(squares, channels, p.eps);
    }
    for (std::int64_t c = threadIdx.x; c < count; c += kQkvThreads)
      x[c] = narrow<T>(norm ? value(c) * factor * norm[c] : value(c));
  }
}

template <class T>
__global__ void __launch_bounds__(kDecoderThreads) ScaleQueriesKernel(ScaleQueriesParams p) {
  const std::int64_t first = *p.position;
  for (std::int64_t i = blockIdx.x; i < p.n; i += gridDim.x) {
    const std::int64_t at = first + i < p.last_position ? first + i : p.last_position;
    const float factor = 1.0f + p.beta * log1pf(static_cast<float>(at / p.original));
    T* q = static_cast<T*>(p.q) + i * p.row_stride;
    for (std::int64_t c = threadIdx.x; c < p.width; c += kDecoderThreads)
      q[c] = narrow<T>(widen(q[c]) * factor);
  }
}

/// Both are x / (1 + e^-u): SiLU with u = x, GELU's 0.5 x (1 + tanh(u / 2)) with
/// u = 2 sqrt(2 / pi) (x + 0.044715 x^3). The quick division, to 2 ulp as the exponential: the
/// exact one is a call, around which registers are spilled. By more than 2^126 it gives 0, as is
/// right here.
__device__ inline float activated(GateActivation activation, float x) {
  constexpr float kTwice = 1.59576912160573f;  // 2 sqrt(2 / pi)
  const float u = activation == GateActivation::silu ? x : kTwice * (x + 0.044715f * x * x * x);
  return __fdividef(x, 1.0f + __expf(-u));
}

/// Blocks y: rows; x: their channels. A grid of two dimensions, for a thread that divides its
/// number by the width spills. \tparam kPack channels of a thread, side by side; the width is a
/// multiple
template <class T, int kPack>
__global__ void __launch_bounds__(kDecoderThreads) GateKernel(GateParams p) {
  const std::int64_t packs = p.width / kPack;
  for (std::int64_t row = blockIdx.y; row < p.n; row += gridDim.y) {
    const T* const gates_of_row = static_cast<const T*>(p.gate_up) + row * 2 * p.width;
    T* const y = static_cast<T*>(p.y) + row * p.width;
    for (std::int64_t pack = blockIdx.x * kDecoderThreads + threadIdx.x; pack < packs;
         pack += gridDim.x * kDecoderThreads) {
      const std::int64_t c = pack * kPack;
      const T* const gate = gates_of_row + c;
      const Pack<T, kPack> gates = load_pack<kPack>(gate), ups = load_pack<kPack>(gate + p.width);
      Pack<T, kPack> out;
      EPISODIC_UNROLL
      for (int e = 0; e < kPack; ++e) {
        float g = widen(gates.at[e]), up = widen(ups.at[e]);
        if (p.maybe_bias) {
          g += p.maybe_bias[c + e];
          up += p.maybe_bias[p.width + c + e];
        }
        out.at[e] = narrow<T>(activated(p.activation, g) * up);
      }
      store_pack<kPack>(y + c, out);
    }
  }
}

/// Blocks y: rows; x: their channels.
template <class T>
__global__ void __launch_bounds__(kDecoderThreads) GateRowsKernel(GateRowsParams p) {
  for (std::int64_t row = blockIdx.y; row < p.n; row += gridDim.y) {
    const T* const gate = static_cast<const T*>(p.gate) + row * p.width;
    T* const x = static_cast<T*>(p.x) + row * p.width;
    for (std::int64_t c = blockIdx.x * kDecoderThreads + threadIdx.x; c < p.width;
         c += gridDim.x * kDecoderThreads) {
      const float g = widen(gate[c]) + (p.maybe_bias ? p.maybe_bias[c] : 0.0f);
      x[c] = narrow<T>(__fdividef(widen(x[c]), 1.0f + __expf(-g)));
    }
  }
}

/// Of a network without a gate.
__device__ inline float activated_alone(const GateParams& p, float x) {
  if (p.activation == GateActivation::relu_squared) return x < 0.0f ? 0.0f : x * x;  // NaN stays
  if (p.activation != GateActivation::xielu) return activated(p.activation, x);
  const float curved = x > 0.0f
                           ? p.xielu.positive * x * x
                           : p.xielu.negative * (expm1f(x > p.xielu.eps ? p.xielu.eps : x) - x);
  return curved + p.xielu.beta * x;
}

/// As GateKernel, of rows that hold no gates.
template <class T>
__global__ void __launch_bounds__(kDecoderThreads) ActivationKernel(GateParams p) {
  for (std::int64_t row = blockIdx.y; row < p.n; row += gridDim.y) {
    const T* const x = static_cast<const T*>(p.gate_up) + row * p.width;
    T* const y = static_cast<T*>(p.y) + row * p.width;
    for (std::int64_t c = blockIdx.x * kDecoderThreads + threadIdx.x; c < p.width;
         c += gridDim.x * kDecoderThreads)
      y[c] = narrow<T>(activated_alone(p, widen(x[c]) + (p.maybe_bias ? p.maybe_bias[c] : 0.0f)));
  }
}

}  // namespace episodic::kernels
