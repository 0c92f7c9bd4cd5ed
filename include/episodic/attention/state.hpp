// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// States of attention: what attention over some of a query's keys leaves behind, so that the keys
/// may be divided among calls, threads or machines and the results merged. The arithmetic is that
/// of the online softmax (Milakov and Gimelshein, 2018).
///
/// \code
/// const TensorSizes sizes = shape.of_outputs();
/// attend(shape, first_half, {.out = {a.data(), sizes}, .lse = a_lse.data()}, workspace);
/// attend(shape, second_half, {.out = {b.data(), sizes}, .lse = b_lse.data()}, workspace);
/// merge_states({rows, d, a.data(), a_lse.data()}, {rows, d, b.data(), b_lse.data()});
/// // a is now attention over both halves
/// \endcode
///
/// Column sums and masses are shares of a softmax, so they depend on all its keys:
/// - for one query, `rescale_sums` turns those of a part into those of the whole;
/// - for several queries their sum cannot be taken apart again. Attend to find the parts' lse,
///   merge these, and attend once more with `AttendInput::other_lse` for the sums.

#include <cstdint>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// A view of the state of n queries and H heads over some keys. The arrays are the caller's.
struct AttentionState {
  std::int64_t n_rows = 0;         ///< n * H
  std::int64_t value_dim = 0;      ///< channels of a value
  float* out = nullptr;            ///< [n_rows, value_dim], packed
  float* lse = nullptr;            ///< [n_rows] natural log-sum-exp of the scores; -inf: no key
  float* weighted_mass = nullptr;  ///< [n_rows] as AttendOutput::weighted_mass, or null
};

/// `into` becomes attention over the keys of both. A row without a key (lse -inf) takes no part,
/// whatever stands in its output. Merging in another order gives the same but for rounding; a state
/// merged with rows without keys keeps its bits. `part` is only read.
/// \throws DataError naming the field if shapes differ, an array is missing, or only one of the two
///         has weighted_mass; `into` is unchanged then
void merge_states(const AttentionState& into, const AttentionState& part);

/// Of one query: turns shares of a part's softmax into shares of the whole softmax, in place.
/// \param sums [n, n_heads] column sums (n keys) or segment masses (n segments) of the part
/// \param part_lse [n_heads] the part's log-sum-exp; whole_lse: that of all keys
/// \throws DataError for negative sizes or null arrays
void rescale_sums(std::int64_t n, std::int64_t n_heads, const float* part_lse,
                  const float* whole_lse, float* sums);
void rescale_sums(std::int64_t n, std::int64_t n_heads, const float* part_lse,
                  const float* whole_lse, double* sums);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/attention/impl/state.hpp"
#endif
