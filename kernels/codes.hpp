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
#include "episodic/base/rules/codes.hpp"

namespace episodic::kernels {

/// Rows get their codes a slab at a time, once all of it is there; a slab that is not full has
/// none, and its rows are bounded by nothing.
inline constexpr std::int64_t kCodeSlab = 64;
using rules::kCodeBlock;
using rules::kCodeFloor;
using rules::kMostCodedNorm;

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

/// From so many events on a search reads less by codes than their second launch and the candidates'
/// vectors cost: where codes save this many bytes. Computed, see docs/search.md ("When codes pay").
inline constexpr std::int64_t kCodesPayBytes = 32 << 20;
/// 0: from no number on. \param n_lanes of a layer, each of `width` channels
constexpr std::int64_t codes_pay_from(std::int64_t width, std::int64_t n_lanes, DType dtype) {
  const std::int64_t saved = n_lanes * (width * size_of(dtype) - code_bytes(width));
  return saved > 0 ? (kCodesPayBytes + saved - 1) / saved : 0;
}

/// Representatives of one layer, or of one lane of it, and their codes. With m the mean of rows 0
/// to kCodeSlab - 1 (keys have a large common part), a row is x = m + s c + e: s the scale of each
/// block, c the codes, 127 at most in size. A query's block is t (256 h + l) + d: t its scale, h
/// and l codes of 8 bits (rules/codes.hpp). For every query q whose norm is below kMostCodedNorm,
/// and of which each block is 0 or as large as kLeastCodedQuery,
///
///     | (q . x as recall_events computes it - q . m) - (sum of s t (256 (h . c) + l . c)) |
///         <= |q| reach + kCodeFloor
///
/// The sums over 16 channels are of integers, and exact; they are added in float32.
/// A row with an element that is not finite, or whose norm is not below kMostCodedNorm, has an
/// infinite reach.
struct CodeLayer {
  const void* representatives = nullptr;  ///< [capacity, width], aligned to 16 bytes
  std::int8_t* codes = nullptr;           ///< [capacity, code_stride(width)], aligned to 16 bytes
  float* bounds = nullptr;                ///< [capacity, code_floats(width)]
};

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
