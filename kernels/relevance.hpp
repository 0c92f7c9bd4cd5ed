// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Relevance of local tokens and the representatives of closed events: the CUDA twins of
/// LayerState::commit and episodic/recall/representatives.hpp (EM 3.3).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "closed_events.hpp"
#include "column_stats.hpp"
#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

/// Of an event and query head.
inline constexpr std::int64_t kMostRepresentatives = 1024;

/// One layer's part; aligned to 16 bytes where n_heads is a multiple of 4, else to 4.
struct RelevanceLayer {
  /// [n_local + n - 1, H]: row j for token max(0, first_position + 1 - n_local) + j, as
  /// kernels/attention.hpp writes them.
  const float* column_sums = nullptr;
  float* relevance = nullptr;  ///< [capacity, H], ring: slot = token % capacity
  /// [H] of scores that attention left in the place of the sums (RelevanceParams::deferred).
  const ColumnStats* maybe_stats = nullptr;
};

/// All pointers are to device memory.
struct RelevanceParams {
  std::int64_t n = 0;                            ///< tokens of the step
  std::int64_t n_heads = 0;                      ///< H, query heads
  std::int64_t n_local = 0;                      ///< window, >= 1
  const std::int64_t* first_position = nullptr;  ///< >= 0, read on the device
  std::int64_t capacity = 0;                     ///< of the rings, >= n_local + n - 1
  const RelevanceLayer* layers = nullptr;        ///< [n_layers]
  std::int64_t n_layers = 0;                     ///< <= 65,535
  /// Whether all layers' column_sums hold the scores of one query, with maybe_stats beside them
  /// (AttentionParams::maybe_column_stats): the same bits as of sums.
  bool deferred = false;
};

/// Sets the relevance of the step's tokens to what they received in this step and adds to that of
/// the earlier local ones, all layers in one launch. n == 0 or n_layers == 0 does nothing.
///
/// Moves at most 3 (n_local + n - 1) H floats a layer: 1.8 MB for n = 512, n_local = 4096, H = 32.
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress for the arrays of the parameters, or what the launch said
cudaError_t commit_relevance(const RelevanceParams& params, cudaStream_t stream);
/// The field of them that commit_relevance refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RelevanceParams& params);

/// Of several sequences (batch.hpp), which share n_heads and n_layers.
cudaError_t commit_relevance_batch(const RelevanceParams* params, std::int64_t n_sequences,
                                   cudaStream_t stream);
const char* invalid_field(const RelevanceParams* params, std::int64_t n_sequences);

/// Rings and representatives of one layer, or of one lane of it: heads side by side that recall by
/// themselves. Each aligned to its elements.
struct RepresentativeLayer {
  /// Key (g, t, c) before rotary embedding at [g * ring_head_stride + (t % ring_capacity) * d + c].
  const void* ring_key = nullptr;
  const float* relevance = nullptr;  ///< [ring_capacity, relevance_stride], the first H of a row
  /// [capacity, H * d]: row `id` is written for event number id.
  void* mean = nullptr;
  /// [capacity, n_repr, H * d]: the chosen keys in order of time, the first min(n_repr, tokens) of
  /// each event written; or null.
  void* maybe_each = nullptr;
};

/// All pointers are to device memory.
struct RepresentativeParams {
  ClosedEvents events;                ///< all their tokens still in the rings
  DType key_dtype = DType::bfloat16;  ///< float32, float16 or bfloat16
  std::int64_t n_heads = 0;           ///< H, a multiple of n_kv_heads
  std::int64_t n_kv_heads = 0;        ///< G; query head h reads kv head h / (H / G)
  std::int64_t head_dim = 0;          ///< d
  std::int64_t n_repr = 0;            ///< 1 .. kMostRepresentatives keys of an event and query head

  std::int64_t ring_capacity = 0;
  std::int64_t ring_head_stride = 0;  ///< elements, >= d for each slot of a piece
  RingPages ring_pages;               ///< of the keys, the same for all layers
  std::int64_t relevance_stride = 0;  ///< floats between tokens; 0: H

  DType repr_dtype = DType::float32;  ///< of what is written: float32, float16 or bfloat16
  std::int64_t capacity = 0;          ///< events that the arrays hold
  const RepresentativeLayer* layers = nullptr;  ///< [n_layers], or lanes
  std::int64_t n_layers = 0;                    ///< <= 65,535
  bool unit_length = false;  ///< means are scaled to length 1, in a launch more; zeros stay
  /// Set to 1 if an event's number is not in [0, capacity): it is then not written. Never set to 0.
  std::int32_t* full = nullptr;
};

/// Per closed event and query head, the min(n_repr, tokens) tokens of largest relevance (ties: the
/// earlier token; NaN counts as the smallest) and the mean of their keys, all layers in one launch.
/// They are summed in order of time in float64 and rounded to float32, then to repr_dtype: with
/// float32 keys the same bits as the CPU's twin. max_count == 0 or n_layers == 0 does nothing.
///
/// In each layer reads the events' relevance n_repr times (from L1: 4 n H bytes) and n_repr H d
/// keys; with unit_length reads and writes the means once more. Neither allocates nor waits; may be
/// captured. \return cudaErrorInvalidValue, cudaErrorMisalignedAddress for the arrays of the
/// parameters, or what the launch said
cudaError_t select_representatives(const RepresentativeParams& params, cudaStream_t stream);
/// The field of them that select_representatives refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RepresentativeParams& params);

/// Of several sequences (batch.hpp), which share dtypes, n_heads, n_kv_heads, head_dim, n_repr,
/// n_layers and unit_length.
cudaError_t select_representatives_batch(const RepresentativeParams* params,
                                         std::int64_t n_sequences, cudaStream_t stream);
const char* invalid_field(const RepresentativeParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
