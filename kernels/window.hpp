// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A step's keys and values into the local window, its angles, and its mean query: the CUDA twins
/// of LayerState::append, RotaryAngles and the query of a recall (EM 3.1, 3.4).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "batch.hpp"
#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

/// All pointers are to device memory; elements are of `dtype`: float32, float16 or bfloat16. The
/// rings and the sinks are those of kernels/attention.hpp, of one layer.
struct AppendParams {
  DType dtype = DType::bfloat16;
  std::int64_t n = 0;           ///< tokens of the step; n * n_kv_heads * (d + e) < 2^31
  std::int64_t n_kv_heads = 0;  ///< G
  std::int64_t head_dim = 0;    ///< d
  std::int64_t value_dim = 0;   ///< e, of values; 0: d
  std::int64_t rotary_dim = 0;  ///< even, <= d; 0 = no rotation
  bool interleaved = false;     ///< pairs of channels as in kernels/attention.hpp

  const std::int64_t* first_position = nullptr;  ///< token of row 0, >= 0; read on the device
  const void* k = nullptr;                       ///< [n, G, d] before rotary embedding
  const void* v = nullptr;                       ///< [n, G, e]
  std::int64_t k_row_stride = 0;                 ///< elements between tokens, >= G * d
  std::int64_t v_row_stride = 0;                 ///< >= G * e
  const float* cos = nullptr;  ///< [n, rotary_dim / 2] of the tokens' positions: rotary_angles
  const float* sin = nullptr;

  /// Written: element (g, t, c) of token t at [g * ring_head_stride + (t % ring_capacity) * d + c].
  void* ring_key = nullptr;          ///< before rotary embedding; null: not kept
  void* ring_rotated_key = nullptr;  ///< rotated by the token's position, rounded once
  void* ring_value = nullptr;
  std::int64_t ring_capacity = 0;     ///< >= n
  std::int64_t ring_head_stride = 0;  ///< elements, >= d for each slot of a piece
  /// The same of ring_value, whose element (g, t, c) is at [g * it + (t % ring_capacity) * e + c];
  /// >= e for each slot of a piece; 0: ring_head_stride.
  std::int64_t value_head_stride = 0;
  RingPages ring_pages;
  std::uint32_t value_page_stride = 0;  ///< of ring_value's pool; 0: ring_pages.page_stride

  /// Written for the step's tokens before n_init; may be null if n_init is 0.
  void* sink_key = nullptr;    ///< [G, n_init, d]
  void* sink_value = nullptr;  ///< [G, n_init, e]
  std::int64_t n_init = 0;
};

/// Writes the step's keys and values behind token *first_position, in one launch. Nothing else in
/// the rings is touched. Takes 16 bytes at a time where every array, width, stride and half of
/// rotary_dim allows it, single elements otherwise. n == 0 does nothing.
///
/// Moves n G (3 d + 2 e) elements (d + e read) and the angles: 5.5 MB for n = 512, G = 8, d = e =
/// 128 in bfloat16. Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue for
/// sizes, strides and dtypes that do not fit, cudaErrorMisalignedAddress for arrays that are not
/// aligned to their elements, or what the launch said
cudaError_t append_window(const AppendParams& params, cudaStream_t stream);
/// The field of them that append_window refuses, by its name; null: none. Reads no array.
const char* invalid_field(const AppendParams& params);

/// Of several sequences (batch.hpp), which share dtype, n_kv_heads, head_dim and value_dim.
cudaError_t append_window_batch(const AppendParams* params, std::int64_t n_sequences,
                                cudaStream_t stream);
const char* invalid_field(const AppendParams* params, std::int64_t n_sequences);

/// All pointers are to device memory.
struct RotaryAnglesParams {
  std::int64_t n = 0;
  std::int64_t n_frequencies = 0;                ///< rotary_dim / 2
  const std::int64_t* first_position = nullptr;  ///< >= 0, read on the device
  const double* inverse_frequency = nullptr;     ///< [n_frequencies]
  double attention_factor = 1.0;
  float* cos = nullptr;  ///< [n, n_frequencies], written
  float* sin = nullptr;  ///< [n, n_frequencies], written
};

/// cos and sin of (*first_position + i) * inverse_frequency[c], times attention_factor, computed in
/// float64 by the steps of RotaryAngles::compute and rounded to float32: right at position 10^7.
/// A position's angles are the same bits whatever the first one is. n == 0 does nothing.
///
/// Once a step, for all layers. Neither allocates nor waits; may be captured. \return
/// cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launch said
cudaError_t rotary_angles(const RotaryAnglesParams& params, cudaStream_t stream);
/// The field of them that rotary_angles refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RotaryAnglesParams& params);

/// Of several sequences (batch.hpp), or of several tables of one.
cudaError_t rotary_angles_batch(const RotaryAnglesParams* params, std::int64_t n_sequences,
                                cudaStream_t stream);
const char* invalid_field(const RotaryAnglesParams* params, std::int64_t n_sequences);

/// All pointers are to device memory.
struct MeanQueryParams {
  DType dtype = DType::bfloat16;
  std::int64_t n = 0;                ///< queries, 1 <= n
  std::int64_t n_heads = 0;          ///< H; H * d <= 2^24
  std::int64_t head_dim = 0;         ///< d
  std::int64_t rotary_dim = 0;       ///< even, <= d; 0 = no rotation
  bool interleaved = false;          ///< pairs of channels as in kernels/attention.hpp
  const void* q = nullptr;           ///< [n, H, d] of `dtype`, before rotary embedding
  std::int64_t q_row_stride = 0;     ///< elements between queries, >= H * d
  const float* fixed_cos = nullptr;  ///< [rotary_dim / 2] of angle index n_local - 1
  const float* fixed_sin = nullptr;
  float* mean = nullptr;  ///< [H * d], written

  void* workspace = nullptr;  ///< mean_query_workspace_bytes(), aligned to 16; null if that is 0
  std::size_t workspace_bytes = 0;
  /// [n_heads] 0 before the first call, and left so: blocks that are done. Calls that may run at
  /// once need their own. Null: the mean of more than 32 queries takes a launch more.
  std::uint32_t* maybe_arrived = nullptr;
};

/// Bytes of workspace for these sizes: never less for more queries. 0 for sizes that are refused.
std::size_t mean_query_workspace_bytes(const MeanQueryParams& params);

/// mean over the n queries of the query rotated by the fixed angle (EM 3.4). Rotation is linear:
/// the queries are averaged first, in float64, and their mean is rotated. One launch, or two for
/// more than 32 queries without maybe_arrived; the same bits on every run, and either way.
///
/// Reads n H d elements, and writes and reads min(64, n / 32) H d float64: 4.2 + 1.0 MB for n =
/// 512, H = 32, d = 128 in bfloat16. Neither allocates nor waits; may be captured. \return
/// cudaErrorInvalidValue, cudaErrorMisalignedAddress, or what the launches said
cudaError_t mean_fixed_query(const MeanQueryParams& params, cudaStream_t stream);
/// The field of them that mean_fixed_query refuses, by its name; null: none. Reads no array.
const char* invalid_field(const MeanQueryParams& params);

/// Of several sequences (batch.hpp), which share dtype, n_heads and head_dim. Those of up to 32
/// queries are in launches of their own, those beyond in others.
cudaError_t mean_fixed_query_batch(const MeanQueryParams* params, std::int64_t n_sequences,
                                   cudaStream_t stream);
const char* invalid_field(const MeanQueryParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
