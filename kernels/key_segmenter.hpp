// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Boundaries from keys on the GPU, by similarity or density, per head or over the sequence (HEM
/// 2.2-2.4).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// What is watched to fall (HEM 2.2, 2.3): mean(event keys) . k, or the log-density of k under the
/// event's diagonal Gaussian.
enum class KeySignal : std::uint8_t { similarity, gaussian };

/// The event that is growing, in device memory. The host writes `initial_key_segmenter(n_init)`
/// once.
struct KeySegmenterState {
  std::int64_t next = 0;      ///< first token not yet decided; n_init at first
  std::int64_t count = 0;     ///< keys of the event
  std::int64_t recorded = 0;  ///< signals of the event
  double mean = 0.0;          ///< of the signals
  double squares = 0.0;       ///< sum of their squared distances from it
  std::uint32_t arrived = 0;  ///< blocks of the round in progress
  std::uint32_t reserved = 0;
};

inline KeySegmenterState initial_key_segmenter(std::int64_t n_init) {
  KeySegmenterState state;
  state.next = n_init;
  return state;
}

/// All pointers are to device memory. A timeline is the whole sequence (channels D = layers * heads
/// * d, signals averaged over layers and heads), or with `per_head` each key/value head g of each
/// layer l for itself (D = d), timeline l * n_kv_heads + g.
struct KeySegmenterParams {
  KeySignal signal = KeySignal::similarity;
  bool per_head = false;
  double gamma = 1.0;
  std::int64_t min_count = 1;  ///< keys an event holds before a key gives a value; 0 .. 2^31
  double var_floor = 0.0;      ///< `gaussian`: > 0
  std::int64_t n = 0;          ///< tokens of this step

  const TimelineState* state = nullptr;    ///< [timelines]; tokens read
  KeySegmenterState* segmenter = nullptr;  ///< [timelines], updated
  double* mean = nullptr;      ///< [timelines, D] of the event's keys, updated; starts as anything
  double* variance = nullptr;  ///< the same; not looked at by `similarity`

  DType dtype = DType::bfloat16;  ///< float32, float16 or bfloat16
  std::int64_t n_layers = 0, n_kv_heads = 0, head_dim = 0;
  /// [n_layers] rings of unrotated keys, as in kernels/refine.hpp, that hold this step's tokens.
  const void* const* keys = nullptr;
  std::int64_t key_capacity = 0;  ///< >= n
  std::int64_t key_head_stride = 0, key_row_stride = 0;
  RingPages key_pages;  ///< the same for all layers

  std::uint8_t* raw = nullptr;       ///< [timelines, n], written: 1 where a key opens an event
  float* maybe_signal = nullptr;     ///< [timelines, n], written: NaN where there is none; or null
  float* maybe_threshold = nullptr;  ///< the same

  void* workspace = nullptr;  ///< key_segmenter_workspace_bytes(), aligned to 256
  std::size_t workspace_bytes = 0;
};

/// Bytes of workspace that any call with these sizes needs; 0 for sizes that segment_by_keys
/// refuses.
std::size_t key_segmenter_workspace_bytes(const KeySegmenterParams& params);

/// Raw boundary flags of one step. x_{n_init} starts the first event without a flag; tokens before
/// it have none. All in float64, summed in a fixed order: the same bits on every run.
///
/// A cut sets all channels back, so a round looks ahead: blocks of 256 channels compute the signals
/// of up to 32 tokens as if none cut, the last block to finish adds them up, finds the first that
/// does, and the next round starts there. Up to 256 channels (a head), one launch does all rounds
/// of a timeline in its block. More take a launch for each round that the step may need:
/// 2 + (n - 1) / (max(min_count, 1) + 2) + n / 32. Those left over end at once.
///
/// A round reads the keys of 32 tokens, reads and writes 8 D bytes of means (`gaussian`: and as
/// many of variances), and does 5 float64 operations for each key (`gaussian`: about 60, with a
/// logarithm). Over the sequence at 32 layers x 8 heads x 128 (D = 32768, 128 blocks), 512 tokens,
/// min_count 1 and a cut every 30 tokens: 18 rounds of 188 launches, 38 MB of bfloat16 keys, 9 MB
/// of means, 0.1 GFLOP (`gaussian`: 19 MB, 1.1 GFLOP) in float64.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue for sizes, strides,
/// dtypes or a workspace that do not fit, cudaErrorMisalignedAddress, or what the launches said
cudaError_t segment_by_keys(const KeySegmenterParams& params, cudaStream_t stream);
/// The field of them that segment_by_keys refuses, by its name; null: none. Reads no array.
const char* invalid_field(const KeySegmenterParams& params);

/// Of several sequences (batch.hpp), which share per_head, dtype, n_layers, n_kv_heads and
/// head_dim. Those with `similarity` and those with `gaussian` are launches of their own.
cudaError_t segment_by_keys_batch(const KeySegmenterParams* params, std::int64_t n_sequences,
                                  cudaStream_t stream);
const char* invalid_field(const KeySegmenterParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
