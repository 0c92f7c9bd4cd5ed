// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// An 8-bit copy of representatives, with a bound on what it gets wrong: recall_events reads it in
/// place of the vectors and still finds the exact list. The device's twin of
/// episodic/recall/detail/quantised.hpp; the bounds are derived in docs/search.md.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "closed_events.hpp"
#include "episodic/base/dtype.hpp"
#include "episodic/base/rules/host_device.hpp"

namespace episodic::kernels {

/// Rows get their codes a slab at a time, once all of it is there; a slab that is not full has
/// none, and its rows are bounded by nothing.
inline constexpr std::int64_t kCodeSlab = 64;
/// Channels that share a scale.
inline constexpr std::int64_t kCodeBlock = 128;

/// Of n_events: those that have codes.
EPISODIC_HOST_DEVICE constexpr std::int64_t coded_rows(std::int64_t n_events) {
  return n_events / kCodeSlab * kCodeSlab;
}
/// Codes of a row, and of what fills it up to whole packs of 16 bytes.
EPISODIC_HOST_DEVICE constexpr std::int64_t code_stride(std::int64_t width) {
  return (width + 15) / 16 * 16;
}
EPISODIC_HOST_DEVICE constexpr std::int64_t code_blocks(std::int64_t width) {
  return (width + kCodeBlock - 1) / kCodeBlock;
}
/// Floats of a row beside its codes: the scale of each block, then the row's reach.
EPISODIC_HOST_DEVICE constexpr std::int64_t code_floats(std::int64_t width) {
  return code_blocks(width) + 1;
}
/// Bytes of a row.
EPISODIC_HOST_DEVICE constexpr std::int64_t code_bytes(std::int64_t width) {
  return code_stride(width) + 4 * code_floats(width);
}

/// Representatives of one layer, or of one lane of it, and their codes. With m the mean of rows 0
/// to kCodeSlab - 1 (keys have a large common part), a row is x = m + s c + e: s the scale of each
/// block, c the codes, 127 at most in size. For every query q whose norm is below kMostCodedNorm
///
///     | (q . x as recall_events computes it - q . m) - (sum of s (q . c) in float32) |
///         <= |q| reach + kCodeFloor
///
/// A row with an element that is not finite, or whose norm is not below kMostCodedNorm, has an
/// infinite reach.
struct CodeLayer {
  const void* representatives = nullptr;  ///< [capacity, width], aligned to 16 bytes
  std::int8_t* codes = nullptr;           ///< [capacity, code_stride(width)], aligned to 16 bytes
  float* bounds = nullptr;                ///< [capacity, code_floats(width)]
};

/// Beyond it sums of products might overflow, of which a bound says nothing.
inline constexpr float kMostCodedNorm = 1e15f;
/// What products that underflow add to the error, whatever the norms.
inline constexpr float kCodeFloor = 1e-37f;

/// All pointers are to device memory.
struct CodeParams {
  /// The events that are new: rows below first_id have codes where their slab is full. start and
  /// end are not read.
  ClosedEvents events;
  DType dtype = DType::float32;       ///< of representatives: float32, float16 or bfloat16
  std::int64_t width = 0;             ///< H * d, a multiple of 8
  std::int64_t capacity = 0;          ///< events that the arrays hold
  const CodeLayer* layers = nullptr;  ///< [n_layers], or lanes
  std::int64_t n_layers = 0;          ///< <= 65,535
};

/// Writes codes and bounds of the slabs that the new events filled, all layers in one launch;
/// mostly there are none. Reads kCodeSlab rows three times for each of them, and those of the first
/// slab once. The same bits on every run. max_count == 0 or n_layers == 0 does nothing.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress for the arrays of the parameters, or what the launch said
cudaError_t encode_representatives(const CodeParams& params, cudaStream_t stream);
/// The field of them that encode_representatives refuses, by its name; null: none. Reads no array.
const char* invalid_field(const CodeParams& params);

/// Of several sequences (batch.hpp), which share dtype, width and n_layers.
cudaError_t encode_representatives_batch(const CodeParams* params, std::int64_t n_sequences,
                                         cudaStream_t stream);
const char* invalid_field(const CodeParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
