// SPDX-License-Identifier: Apache-2.0
#pragma once
// Gated DeltaNet and Mamba2: heads that carry a matrix from token to token (RecurrenceSpec), which
// stand where attention would.
//
// What it costs of a layer with H heads of [K, V]: a token takes 6 H K V operations (Mamba2: 4). A
// thread takes 32 columns of a head's matrix through all tokens of a step, packed in its first
// cache; the matrices are read and written once for each step. Of Qwen3.5-9B that is 3 million
// operations a token and layer beside 450 million of the layer's products, and 86 microseconds of
// one core. So there is no form of it for chunks of tokens: those trade passes over the matrices
// for more operations.
//
// What is promised of the bits: a token's numbers are computed in the same order whatever the step
// that it comes in, the threads, or the other sequences of a batch.

#include <cstdint>
#include <span>
#include <vector>

#include "episodic/model/recurrence_spec.hpp"
#include "linear.hpp"

namespace episodic {

/// The weights of one layer. Its products give each token rows: `in` what the convolution reads,
/// `gate` what the result is gated by, `step` and, of a delta rule, `write` a number a head.
struct LinearRecurrence {
  RecurrenceSpec spec;  ///< of no heads: the layer has something else
  Linear in, gate, step, write;
  std::vector<float> tap;        ///< [taps, channels]; the last meets the token itself
  std::vector<float> bias;       ///< [channels], or empty
  std::vector<float> rate;       ///< [heads], below 0: the decay is e^(rate * time step)
  std::vector<float> step_bias;  ///< [heads]
  std::vector<float> skip;       ///< [heads], of Mamba2
  std::vector<float> norm;       ///< [value_dim] of each head, or of Mamba2 [values]
  float eps = 0;
};

/// Rows of n tokens of one sequence, each packed.
struct RecurrenceRows {
  float* in = nullptr;     ///< [n, channels] of the first product; overwritten
  float* gate = nullptr;   ///< [n, values]; overwritten
  float* step = nullptr;   ///< [n, heads]; overwritten
  float* write = nullptr;  ///< [n, heads]; of Mamba2 only written
  float* out = nullptr;    ///< [n, values], written: what the layer's last product reads
};

/// n >= 1 tokens.
/// \param before spec.floats() numbers behind the token before the first
/// \param after the same behind the last token, written; not `before`
void linear_recurrence(const LinearRecurrence& of, std::int64_t n, const RecurrenceRows& rows,
                       std::span<const float> before, std::span<float> after);

}  // namespace episodic
