// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// States of attention over parts of the keys, merged: the CUDA twin of attention/state.hpp.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"

namespace episodic::kernels {

/// All pointers are to device memory. Rows are a query's heads, one after the other.
struct MergeStatesParams {
  std::int64_t n_rows = 0;               ///< n * H
  std::int64_t value_dim = 0;            ///< channels of a value
  float* out = nullptr;                  ///< [n_rows, value_dim] of one part; becomes that of both
  float* lse = nullptr;                  ///< [n_rows] natural log-sum-exp; -inf: no key
  float* maybe_weighted_mass = nullptr;  ///< [n_rows], or null in both
  const float* part_out = nullptr;       ///< the same of the other part, read
  const float* part_lse = nullptr;
  const float* maybe_part_weighted_mass = nullptr;
};

/// The first state becomes that of both parts. A row without a key (lse -inf) takes no part,
/// whatever stands in its output: its arrays are not read there. Shares are computed in float64 and
/// rounded once, as on the host. n_rows == 0 does nothing.
///
/// A warp a row: reads two rows and writes one, 12 bytes an element. Neither allocates nor waits;
/// may be captured. \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch
/// said
cudaError_t merge_states(const MergeStatesParams& params, cudaStream_t stream);
/// The field of them that merge_states refuses, by its name; null: none. Reads no array.
const char* invalid_field(const MergeStatesParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t merge_states_batch(const MergeStatesParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const MergeStatesParams* params, std::int64_t n_sequences);

/// All pointers are to device memory. Of one query.
struct RescaleSumsParams {
  std::int64_t n_heads = 0;          ///< H
  std::int64_t n_keys = 0;           ///< rows of maybe_sums
  std::int64_t n_events = 0;         ///< rows of maybe_masses
  const float* part_lse = nullptr;   ///< [H] log-sum-exp of the part
  const float* whole_lse = nullptr;  ///< [H] that of all keys
  float* maybe_sums = nullptr;     ///< [n_keys, H] column sums of the part; null where n_keys is 0
  double* maybe_masses = nullptr;  ///< [n_events, H] its events' masses; null where n_events is 0
};

/// Shares of a part's softmax become shares of the whole, in place. A head without a key in the
/// part keeps its zeros. Without keys and events it does nothing.
///
/// A thread an element: 8 bytes each for a sum, 16 for a mass. Neither allocates nor waits; may be
/// captured. \return cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t rescale_sums(const RescaleSumsParams& params, cudaStream_t stream);
/// The field of them that rescale_sums refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RescaleSumsParams& params);

/// Of several sequences (batch.hpp), which need share nothing.
cudaError_t rescale_sums_batch(const RescaleSumsParams* params, std::int64_t n_sequences,
                               cudaStream_t stream);
const char* invalid_field(const RescaleSumsParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
