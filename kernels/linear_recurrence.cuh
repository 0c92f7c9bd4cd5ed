// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/linear_recurrence.hpp. Rows of the grids are sequences.

#include <cstdint>

#include "batch.hpp"
#include "decoder.cuh"
#include "device.cuh"
#include "elements.cuh"
#include "linear_recurrence.hpp"

namespace episodic::kernels {

inline constexpr int kRecurrenceThreads = 256;
inline constexpr int kRecurrenceNormThreads = kQkvThreads;
/// Threads of a column, each with every kRecurrenceSlices-th row of the matrix.
inline constexpr int kRecurrenceSlices = kRecurrenceThreads / static_cast<int>(kRecurrentColumns);

/// Dynamic shared memory of RecurrenceKernel: a query and a key.
constexpr std::size_t recurrence_shared_bytes(std::int64_t key_dim) {
  return 2 * static_cast<std::size_t>(key_dim) * sizeof(float);
}

/// By the quick division, as `activated` (decoder.cuh).
__device__ inline float recurrent_sigmoid_times(float gate, float x) {
  return __fdividef(x, 1.0f + __expf(-gate));
}

/// What the recurrence reads of each token: channels behind the convolution, decays and weights.
template <class T, std::int64_t kMost>
__global__ void __launch_bounds__(kRecurrenceThreads)
    RecurrenceInputsKernel(KernelArgument<Batch<LinearRecurrenceParams, kMost>> batch) {
  const LinearRecurrenceParams& p = batch.of[blockIdx.y];
  const auto values = static_cast<unsigned>(p.heads * p.value_dim);
  const unsigned channels = static_cast<unsigned>(2 * p.key_heads * p.key_dim) + values;
  const auto row_size = static_cast<unsigned>(recurrent_row(p));
  const auto heads = static_cast<unsigned>(p.heads), n = static_cast<unsigned>(p.n);
  const unsigned begin = blockIdx.x * kRecurrenceThreads + threadIdx.x;
  const unsigned stride = gridDim.x * kRecurrenceThreads;
  const std::int64_t first = *p.first_position;
  const auto row = [&](unsigned token, unsigned at) {
    const float x = widen(static_cast<const T*>(p.rows)[token * row_size + at]);
    return p.maybe_rows_bias ? x + p.maybe_rows_bias[at] : x;
  };
  for (unsigned item = begin; item < n * channels; item += stride) {
    const unsigned c = item % channels, i = item / channels;
    float sum = p.maybe_bias ? p.maybe_bias[c] : 0.0f, own = 0.0f;
    for (std::int64_t k = 0; k < p.taps; ++k) {
      const std::int64_t token = i - p.taps + 1 + k, position = first + token;
      float u = 0.0f;
      if (token >= 0)
        u = row(static_cast<unsigned>(token), c);
      else if (position >= 0)
        u = p.ring[position % p.ring_capacity * channels + c];
      sum += p.tap[c * p.taps + k] * u;
      own = u;
    }
    p.ring[(first + i) % p.ring_capacity * channels + c] = own;
    p.inputs[item] = recurrent_sigmoid_times(sum, sum);
  }
  for (unsigned item = begin; item < n * heads; item += stride) {
    const unsigned h = item % heads, i = item / heads, step = channels + values + h;
    const float x = row(i, step) + p.step_bias[h];
    float time = x > 20.0f ? x : log1pf(expf(x));
    if (!p.delta) time = fminf(fmaxf(time, p.least_step), p.most_step);
    float* const weights = p.weights + i * 2 * heads;
    weights[h] = expf(-expf(p.log_rate[h]) * time);
    weights[heads + h] = p.delta ? recurrent_sigmoid_times(row(i, step + heads), 1.0f) : time;
  }
}

/// A block: kRecurrentColumns columns of a head's matrix through all tokens. A thread has every
/// kRecurrenceSlices-th row of one column, and reads back what it wrote itself.
template <std::int64_t kMost>
__global__ void __launch_bounds__(kRecurrenceThreads)
    RecurrenceKernel(KernelArgument<Batch<LinearRecurrenceParams, kMost>> batch) {
  EPISODIC_DYNAMIC_SHARED(shared);
  EPISODIC_SHARED(partial, float[kRecurrenceSlices][kRecurrentColumns]);
  EPISODIC_SHARED(factor, float[2]);
  const LinearRecurrenceParams& p = batch.of[blockIdx.y];
  float* const q = reinterpret_cast<float*>(shared);
  float* const k = q + p.key_dim;
  const auto column = static_cast<int>(threadIdx.x) % static_cast<int>(kRecurrentColumns);
  const auto slice = static_cast<int>(threadIdx.x) / static_cast<int>(kRecurrentColumns);
  const std::int64_t pieces = recurrent_pieces(p.value_dim), parts = p.heads * pieces;
  const std::int64_t keys = p.key_heads * p.key_dim, values = p.heads * p.value_dim;
  const std::int64_t channels = 2 * keys + values;
  const std::int64_t first_query = p.delta ? 0 : values + keys, first_key = p.delta ? keys : values;
  const std::int64_t first_value = p.delta ? 2 * keys : 0;
  const std::int64_t first = *p.first_position;
  for (std::int64_t part = blockIdx.x; part < parts; part += gridDim.x) {
    const std::int64_t h = part / pieces, c = part % pieces * kRecurrentColumns + column;
    const bool live = c < p.value_dim;
    const std::int64_t key_head = p.tiled ? h % p.key_heads : h / (p.heads / p.key_heads);
    const int from = first == 0                     ? -1
                     : p.tag[part] == first         ? 0
                     : p.tag[parts + part] == first ? 1
                                                    : 2;
    const int to = from == 0 ? 1 : 0;
    const std::int64_t matrix = p.key_dim * p.value_dim;
    const auto place = [&](int slot) { return p.matrix + (slot * p.heads + h) * matrix + c; };
    const float* source = from == 0 || from == 1 ? place(from) : nullptr;
    float* const target = place(to);
    const float missing = from == 2 ? nanf("") : 0.0f;
    const auto sum_of_slices = [&](float own) {
      partial[slice][column] = own;
      __syncthreads();
      float sum = 0.0f;
      EPISODIC_UNROLL
      for (int s = 0; s < kRecurrenceSlices; ++s) sum += partial[s][column];
      __syncthreads();  // it is written again
      return sum;
    };
    for (std::int64_t t = 0; t < p.n; ++t) {
      const float* const row = p.inputs + t * channels;
      for (std::int64_t i = threadIdx.x; i < p.key_dim; i += kRecurrenceThreads) {
        q[i] = row[first_query + key_head * p.key_dim + i];
        k[i] = row[first_key + key_head * p.key_dim + i];
      }
      __syncthreads();
      if (p.delta && slice < 2) {  // of length 1, queries 1 / sqrt(key_dim) of that
        const float* const x = slice == 0 ? q : k;
        float squares = 0.0f;
        for (std::int64_t i = column; i < p.key_dim; i += kWarpSize) squares += x[i] * x[i];
        squares = warp_reduce(squares, Sum());
        if (column == 0) {
          const float scale = 1.0f / sqrtf(squares + 1e-6f);
          factor[slice] = slice == 0 ? scale / sqrtf(static_cast<float>(p.key_dim)) : scale;
        }
      }
      __syncthreads();
      const float of_query = p.delta ? factor[0] : 1.0f, of_key = p.delta ? factor[1] : 1.0f;
      const float decay = p.weights[t * 2 * p.heads + h];
      const float write = p.weights[t * 2 * p.heads + p.heads + h];
      const float value = live ? row[first_value + h * p.value_dim + c] : 0.0f;
      const auto before = [&](std::int64_t i) {
        return source ? source[i * p.value_dim] : missing;
      };
      float said = 0.0f;
      if (p.delta) {
        if (live)
          for (std::int64_t i = slice; i < p.key_dim; i += kRecurrenceSlices)
            said += k[i] * of_key * before(i);
        said = sum_of_slices(said);
      }
      const float added = write * (value - decay * said);
      float y = 0.0f;
      if (live)
        for (std::int64_t i = slice; i < p.key_dim; i += kRecurrenceSlices) {
          const float now = decay * before(i) + k[i] * of_key * added;
          target[i * p.value_dim] = now;
          y += q[i] * of_query * now;
        }
      y = sum_of_slices(y);  // and nobody reads this token's query and key any more
      if (live && slice == 0)
        p.y[t * values + h * p.value_dim + c] = y + (p.maybe_skip ? p.maybe_skip[h] * value : 0.0f);
      source = target;
    }
    if (threadIdx.x == 0) {
      p.tag[to * parts + part] = first + p.n;
      if (from < 0) p.tag[(1 - to) * parts + part] = -1;
    }
  }
}

/// A block: the norm of a head's values, or of those of one key head.
template <class T, std::int64_t kMost>
__global__ void __launch_bounds__(kRecurrenceNormThreads)
    RecurrenceNormKernel(KernelArgument<Batch<LinearRecurrenceParams, kMost>> batch) {
  const LinearRecurrenceParams& p = batch.of[blockIdx.y];
  const std::int64_t values = p.heads * p.value_dim;
  const std::int64_t width = p.delta ? p.value_dim : values / p.key_heads;
  const std::int64_t groups = values / width, row_size = recurrent_row(p);
  const std::int64_t channels = 2 * p.key_heads * p.key_dim + values;
  for (std::int64_t part = blockIdx.x; part < p.n * groups; part += gridDim.x) {
    const std::int64_t i = part / groups, first = part % groups * width;
    const float* const y = p.y + i * values + first;
    const T* const row = static_cast<const T*>(p.rows) + i * row_size + channels + first;
    const float* const bias = p.maybe_rows_bias ? p.maybe_rows_bias + channels + first : nullptr;
    const float* const norm = p.norm + (p.delta ? 0 : first);
    const auto gate = [&](std::int64_t c) {
      const float z = widen(row[c]) + (bias ? bias[c] : 0.0f);
      return recurrent_sigmoid_times(z, z);
    };
    float squares = 0.0f;
    for (std::int64_t c = threadIdx.x; c < width; c += kRecurrenceNormThreads) {
      const float x = p.delta ? y[c] : y[c] * gate(c);
      squares += x * x;
    }
    const float scale = rms_factor<kRecurrenceNormThreads>(squares, width, p.eps);
    T* const out = static_cast<T*>(p.out) + i * values + first;
    for (std::int64_t c = threadIdx.x; c < width; c += kRecurrenceNormThreads)
      out[c] = narrow<T>(y[c] * gate(c) * scale * norm[c]);
  }
}

}  // namespace episodic::kernels
