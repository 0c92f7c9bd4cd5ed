// SPDX-License-Identifier: Apache-2.0
#include "linear_recurrence.hpp"

#include <algorithm>
#include <cmath>

#include "base/clones.hpp"
#include "elementwise.hpp"
#include "episodic/base/parallel.hpp"

namespace episodic {
namespace {

/// Of a head's matrix, computed at once: with all its rows they fit the first cache.
constexpr std::int64_t kMatrixColumns = 32;

float sigmoid_of(float x) { return 1.0f / (1.0f + std::exp(-x)); }

void multiply_by(const float* z, std::int64_t n, float* x) {
#pragma omp simd
  for (std::int64_t c = 0; c < n; ++c) x[c] *= z[c];
}

/// log(1 + e^x), as PyTorch has it: above 20 it is x.
float softplus(float x) { return x > 20.0f ? x : std::log1p(std::exp(x)); }

/// f(t) of every token, in pieces that are worth a thread.
template <class F>
void over_recurrent_tokens(std::int64_t n, std::int64_t width, F&& f) {
  const std::int64_t piece = std::max<std::int64_t>(1, 16384 / width);
  parallel_for((n + piece - 1) / piece, [&](std::int64_t p) {
    for (std::int64_t t = p * piece; t < std::min(n, (p + 1) * piece); ++t) f(t);
  });
}

/// The convolution of all rows where they lie, from the last token to the first: a token reads its
/// own row and earlier ones.
void convolve_rows(const LinearRecurrence& of, std::int64_t n, float* rows, const float* before,
                   float* after) {
  constexpr std::int64_t kChannels = 512;
  const std::int64_t width = of.spec.channels(), taps = of.spec.taps;
  parallel_for((width + kChannels - 1) / kChannels, [&](std::int64_t block) {
    const std::int64_t first = block * kChannels, count = std::min(kChannels, width - first);
    // of token t; those before the first have negative numbers
    const auto row = [&](std::int64_t t) {
      return (t < 0 ? before + (t + taps - 1) * width : rows + t * width) + first;
    };
    for (std::int64_t i = 0; i + 1 < taps; ++i)
      std::copy_n(row(n - taps + 1 + i), count, after + i * width + first);
    float sum[kChannels];
    for (std::int64_t t = n - 1; t >= 0; --t) {
      if (of.bias.empty())
        std::fill_n(sum, count, 0.0f);
      else
        std::copy_n(of.bias.data() + first, count, sum);
      for (std::int64_t i = 0; i < taps; ++i) {
        const float* const tap = of.tap.data() + i * width + first;
        const float* const x = row(t - taps + 1 + i);
#pragma omp simd
        for (std::int64_t c = 0; c < count; ++c) sum[c] += tap[c] * x[c];
      }
      silu(sum, count);
      std::copy_n(sum, count, rows + t * width + first);
    }
  });
}

/// Queries and keys of a delta rule have length 1, and queries 1 / sqrt(key_dim) of that.
void normalise(const RecurrenceSpec& s, float* row) {
  const auto of_length_one = [&](float* x, float factor) {
    double squares = 0;
    for (std::int64_t i = 0; i < s.key_dim; ++i) squares += static_cast<double>(x[i]) * x[i];
    const auto scale = static_cast<float>(factor / std::sqrt(squares + 1e-6));
    for (std::int64_t i = 0; i < s.key_dim; ++i) x[i] *= scale;
  };
  const float shorter = 1.0f / std::sqrt(static_cast<float>(s.key_dim));
  for (std::int64_t h = 0; h < s.key_heads; ++h) {
    of_length_one(row + s.first_query() + h * s.key_dim, shorter);
    of_length_one(row + s.first_key() + h * s.key_dim, 1.0f);
  }
}

/// A token's decays in place of its steps, and the weights by which it writes.
void weigh(const LinearRecurrence& of, float* step, float* write) {
  const RecurrenceSpec& s = of.spec;
  for (std::size_t h = 0; h < of.rate.size(); ++h) {
    float time = softplus(step[h] + of.step_bias[h]);
    if (s.delta())
      write[h] = sigmoid_of(write[h]);
    else
      write[h] = time =
          std::clamp(time, static_cast<float>(s.least_step), static_cast<float>(s.most_step));
    step[h] = std::exp(of.rate[h] * time);
  }
}

/// Numbers that one token's step of a matrix reads.
struct HeadToken {
  const float *q, *k, *v;
  float decay, write, skip;
};

/// Columns [0, width) of a head's matrix, rows `stride` apart, through one token that adds to them.
EPISODIC_CLONES void step_columns(const HeadToken& of, const float* added, std::int64_t key_dim,
                                  std::int64_t stride, std::int64_t width, const float* from,
                                  float* to, float* y) {
  float sum[kMatrixColumns] = {};
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float *const row = from + i * stride, k = of.k[i], q = of.q[i];
    float* const next = to + i * stride;
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) {
      const float s = of.decay * row[c] + k * added[c];
      next[c] = s;
      sum[c] += q * s;
    }
  }
  for (std::int64_t c = 0; c < width; ++c) y[c] = sum[c] + of.skip * of.v[c];
}

/// What they say of a token's key.
EPISODIC_CLONES void recall_columns(const float* k, std::int64_t key_dim, std::int64_t stride,
                                    std::int64_t width, const float* from, float* said) {
  float sum[kMatrixColumns] = {};
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float *const row = from + i * stride, by = k[i];
#pragma omp simd
    for (std::int64_t c = 0; c < width; ++c) sum[c] += by * row[c];
  }
  std::copy_n(sum, width, said);
}

/// One token's step of them.
void step_matrix(bool delta, const HeadToken& of, std::int64_t key_dim, std::int64_t stride,
                 std::int64_t width, const float* from, float* to, float* y) {
  float added[kMatrixColumns] = {};
  if (delta) recall_columns(of.k, key_dim, stride, width, from, added);
  for (std::int64_t c = 0; c < width; ++c) added[c] = of.write * (of.v[c] - of.decay * added[c]);
  step_columns(of, added, key_dim, stride, width, from, to, y);
}

/// Every head's matrix through all tokens, some columns at a time: they do not meet.
void run_matrices(const LinearRecurrence& of, std::int64_t n, const RecurrenceRows& rows,
                  const float* before, float* after) {
  const RecurrenceSpec& s = of.spec;
  const std::int64_t pieces = (s.value_dim + kMatrixColumns - 1) / kMatrixColumns;
  parallel_for(s.heads * pieces, [&](std::int64_t part) {
    const std::int64_t h = part / pieces, column = part % pieces * kMatrixColumns;
    const std::int64_t width = std::min(kMatrixColumns, s.value_dim - column);
    const std::int64_t at = h * s.key_dim * s.value_dim + column;
    const std::int64_t key = s.key_head(h) * s.key_dim, value = h * s.value_dim + column;
    for (std::int64_t t = 0; t < n; ++t) {
      const float* const row = rows.in + t * s.channels();
      const HeadToken token{row + s.first_query() + key,
                            row + s.first_key() + key,
                            row + s.first_value() + value,
                            rows.step[t * s.heads + h],
                            rows.write[t * s.heads + h],
                            of.skip.empty() ? 0.0f : of.skip[static_cast<std::size_t>(h)]};
      const float* const from = (t == 0 ? before : after) + at;
      float* const y = rows.out + t * s.values() + value;
      step_matrix(s.delta(), token, s.key_dim, s.value_dim, width, from, after + at, y);
    }
  });
}

/// y = norm(y) * weight * silu(gate) of each head, or norm(y * silu(gate)) * weight of each group.
void gate_and_norm(const LinearRecurrence& of, float* gate, float* y) {
  const RecurrenceSpec& s = of.spec;
  const std::int64_t width = s.norm_width();
  silu(gate, s.values());
  for (std::int64_t first = 0; first < s.values(); first += width) {
    const float* const weight = of.norm.data() + (s.delta() ? 0 : first);
    float *const x = y + first, *const z = gate + first;
    if (s.delta()) {
      rms_norm(x, weight, of.eps, 1, width, x);
      multiply_by(z, width, x);
    } else {
      multiply_by(z, width, x);
      rms_norm(x, weight, of.eps, 1, width, x);
    }
  }
}

}  // namespace

void linear_recurrence(const LinearRecurrence& of, std::int64_t n, const RecurrenceRows& rows,
                       std::span<const float> before, std::span<float> after) {
  const RecurrenceSpec& s = of.spec;
  convolve_rows(of, n, rows.in, before.data(), after.data());
  over_recurrent_tokens(n, s.channels(), [&](std::int64_t t) {
    if (s.delta()) normalise(s, rows.in + t * s.channels());
    weigh(of, rows.step + t * s.heads, rows.write + t * s.heads);
  });
  run_matrices(of, n, rows, before.data() + s.tail_floats(), after.data() + s.tail_floats());
  over_recurrent_tokens(n, s.values(), [&](std::int64_t t) {
    gate_and_norm(of, rows.gate + t * s.values(), rows.out + t * s.values());
  });
}

}  // namespace episodic
