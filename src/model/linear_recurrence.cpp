// SPDX-License-Identifier: Apache-2.0
#include "linear_recurrence.hpp"

#include <algorithm>
#include <cmath>

#include "base/aligned_buffer.hpp"
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

/// Some columns of a head's matrix, side by side: [key_dim, kMatrixColumns]. Where they lie in the
/// state, rows are a power of two apart, and each load would wait for the store that has its last
/// twelve bits.
using Columns = float[kMatrixColumns];

/// Numbers that one token's step of them reads and writes.
struct HeadToken {
  const float *q, *k;
  float decay, write;
  Columns v, y;
};

/// What they say of the token's key.
EPISODIC_CLONES void recall_columns(const float* k, std::int64_t key_dim, const Columns* rows,
                                    float* said) {
  Columns sum = {};
  for (std::int64_t i = 0; i < key_dim; ++i) {
    const float *const row = rows[i], by = k[i];
#pragma omp simd
    for (std::int64_t c = 0; c < kMatrixColumns; ++c) sum[c] += by * row[c];
  }
  std::copy_n(sum, kMatrixColumns, said);
}

/// Lets them decay, adds `added` by the token's key and reads them by its query.
EPISODIC_CLONES void step_columns(HeadToken& of, const float* added, std::int64_t key_dim,
                                  Columns* rows) {
  Columns sum = {};
  const float decay = of.decay;
  for (std::int64_t i = 0; i < key_dim; ++i) {
    float* const row = rows[i];
    const float k = of.k[i], q = of.q[i];
#pragma omp simd
    for (std::int64_t c = 0; c < kMatrixColumns; ++c) {
      const float s = decay * row[c] + k * added[c];
      row[c] = s;
      sum[c] += q * s;
    }
  }
  std::copy_n(sum, kMatrixColumns, of.y);
}

void step_token(bool delta, HeadToken& of, std::int64_t key_dim, Columns* rows) {
  Columns added = {};
  if (delta) recall_columns(of.k, key_dim, rows, added);
  for (std::int64_t c = 0; c < kMatrixColumns; ++c)
    added[c] = of.write * (of.v[c] - of.decay * added[c]);
  step_columns(of, added, key_dim, rows);
}

/// A head's columns [first, first + width) through all tokens.
void run_columns(const LinearRecurrence& of, std::int64_t h, std::int64_t first, std::int64_t width,
                 std::int64_t n, const RecurrenceRows& rows, const float* before, float* after) {
  const RecurrenceSpec& s = of.spec;
  const std::int64_t at = h * s.key_dim * s.value_dim + first;
  const std::int64_t key = s.key_head(h) * s.key_dim, value = h * s.value_dim + first;
  AlignedBuffer memory;
  auto* const columns = reinterpret_cast<Columns*>(memory.floats(s.key_dim * kMatrixColumns));
  for (std::int64_t i = 0; i < s.key_dim; ++i) {
    std::fill_n(columns[i], kMatrixColumns, 0.0f);
    std::copy_n(before + at + i * s.value_dim, width, columns[i]);
  }
  const float skip = of.skip.empty() ? 0.0f : of.skip[static_cast<std::size_t>(h)];
  for (std::int64_t t = 0; t < n; ++t) {
    const float* const row = rows.in + t * s.channels();
    HeadToken token{row + s.first_query() + key,
                    row + s.first_key() + key,
                    rows.step[t * s.heads + h],
                    rows.write[t * s.heads + h],
                    {},
                    {}};
    std::copy_n(row + s.first_value() + value, width, token.v);
    step_token(s.delta(), token, s.key_dim, columns);
    float* const y = rows.out + t * s.values() + value;
    for (std::int64_t c = 0; c < width; ++c) y[c] = token.y[c] + skip * token.v[c];
  }
  for (std::int64_t i = 0; i < s.key_dim; ++i)
    std::copy_n(columns[i], width, after + at + i * s.value_dim);
}

/// Every head's matrix through all tokens, some columns at a time: they do not meet.
void run_matrices(const LinearRecurrence& of, std::int64_t n, const RecurrenceRows& rows,
                  const float* before, float* after) {
  const std::int64_t width = of.spec.value_dim;
  const std::int64_t pieces = (width + kMatrixColumns - 1) / kMatrixColumns;
  parallel_for(of.spec.heads * pieces, [&](std::int64_t part) {
    const std::int64_t first = part % pieces * kMatrixColumns;
    run_columns(of, part / pieces, first, std::min(kMatrixColumns, width - first), n, rows, before,
                after);
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
