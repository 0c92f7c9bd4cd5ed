// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Copies between the tiers of the store (EM C.3): many runs in one launch, batches by the copy
/// engines, and closed events out of the window's rings.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "batch.hpp"
#include "closed_events.hpp"
#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

/// Bytes from one place to another, of any alignment. Either may be device memory or pinned host
/// memory that the device maps; runs of one call do not overlap.
struct CopyRun {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t bytes = 0;  ///< 0 or less: nothing
};

/// All pointers are to device memory.
struct CopyRunsParams {
  const CopyRun* runs = nullptr;        ///< [max_runs]
  const std::int32_t* count = nullptr;  ///< <= max_runs, read on the device
  std::int64_t max_runs = 0;
  /// Blocks of 256 threads at most; 0 = what the device runs at once. A copy over the host's link
  /// is as fast with a few, which leave the device to others.
  std::int64_t max_blocks = 0;
};

/// Copies all runs in one launch: a gather where their destinations lie side by side, a scatter
/// where their sources do. max_runs == 0 does nothing.
///
/// Every run is cut into tiles of 4 KB, the tiles of all runs are numbered one after the other, and
/// warp w of W takes the tiles w, w + W, ...: whatever the lengths, no warp has more than one tile
/// more than another, and neighbouring warps read neighbouring memory. Each block finds its tiles
/// itself, by a prefix sum over 256 runs at a time: 24 bytes a run and block out of L2, which some
/// thousand runs pay without notice. A tile is 8 loads of 16 bytes a lane, all on their way before
/// the first is stored. Where source and destination are not aligned alike, words of 4 bytes or
/// single ones are taken instead.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue,
/// cudaErrorMisalignedAddress for the arrays of the parameters, or what the launch said
cudaError_t copy_runs(const CopyRunsParams& params, cudaStream_t stream);
/// The field of them that copy_runs refuses, by its name; null: none. Reads no array.
const char* invalid_field(const CopyRunsParams& params);

/// Of several sequences (batch.hpp), which share max_blocks: each has an equal part of the blocks,
/// and one at least.
cudaError_t copy_runs_batch(const CopyRunsParams* params, std::int64_t n_sequences,
                            cudaStream_t stream);
const char* invalid_field(const CopyRunsParams* params, std::int64_t n_sequences);

/// Asynchronous copies of bytes[i] > 0 bytes from from[i] to to[i], host arrays of `count`, in the
/// stream's order, among each other in any: one call of cudaMemcpyBatchAsync, or one of
/// cudaMemcpyAsync for each copy where a batch is not to be had: toolkit or driver older than 12.8,
/// the legacy default stream, a stream that is being captured. The arrays may go when this returns;
/// the memory they point to may not until the stream has passed. Host memory is pinned, or the call
/// waits.
///
/// \return cudaErrorInvalidValue for null pointers and sizes of 0, before anything is copied, or
/// what the runtime said
cudaError_t copy_batch(void* const* to, const void* const* from, const std::size_t* bytes,
                       std::size_t count, cudaStream_t stream);

/// Rings of one layer, or of one lane of it: element (g, t, c) at [g * ring_head_stride + (t %
/// ring_capacity) * d + c], of values of another width as value_head_stride says. Aligned to their
/// elements; copies are fastest if they and the rows are
/// aligned to 16 bytes.
struct EventBlockLayer {
  const void* ring_key = nullptr;  ///< before rotary embedding
  const void* ring_value = nullptr;
  /// [events, 2 G], for blocks of codes: of event e, by its number in its table, a scale for the
  /// keys of each kv head and then for the values of each
  float* maybe_scales = nullptr;
};

/// All pointers are to device memory.
struct EventBlockParams {
  ClosedEvents events;                  ///< all their tokens still in the rings
  DType dtype = DType::bfloat16;        ///< of the rings: float32, float16 or bfloat16
  DType block_dtype = DType::bfloat16;  ///< of the blocks: `dtype`, int8 or fp8
  std::int64_t n_kv_heads = 0;          ///< G
  std::int64_t head_dim = 0;            ///< d
  std::int64_t value_dim = 0;           ///< e, of values; 0: d

  const EventBlockLayer* layers = nullptr;  ///< [n_layers], or lanes
  std::int64_t n_layers = 0;
  std::int64_t ring_capacity = 0;
  std::int64_t ring_head_stride = 0;  ///< elements, >= d for each slot of a piece
  /// The same of ring_value, whose element (g, t, c) is at [g * it + (t % ring_capacity) * e + c];
  /// >= e for each slot of a piece; 0: ring_head_stride.
  std::int64_t value_head_stride = 0;
  RingPages ring_pages;                 ///< the same for all layers
  std::uint32_t value_page_stride = 0;  ///< of ring_value's pools; 0: ring_pages.page_stride

  /// [n_layers, max_count] where each event's block goes, G tokens (d + e) elements, device or
  /// mapped pinned memory of any alignment; null: the event is left out.
  void* const* block = nullptr;
  std::int64_t max_blocks = 0;  ///< as in CopyRunsParams
  /// Set to 1 where an element is NaN or infinite, for which there is no code: those of its head
  /// are zeros then. Never set to 0. Only for blocks of codes.
  std::int32_t* not_finite = nullptr;
};

/// Each layer of each closed event out of the rings: keys [G, tokens, d], then values [G, tokens,
/// e], for e = d the block of episodic/store/codec.hpp for this dtype. One launch, a layer's work
/// cut as that of copy_runs over its part of the blocks. max_count == 0 or n_layers == 0 does
/// nothing.
///
/// Blocks of int8 and fp8 are the codes alone, of keys and then of values; the scales lie apart, by
/// event. Codes and scales have the bits of encode_block's for the elements that the
/// rings hold: of int8, scale = max |x| / 127 over a head's keys (values) of the event, codes are x
/// * (1 / scale) to nearest even; of fp8, as rules::fp8_scale and rules::to_fp8 say; below FLT_MIN
/// the scale is 0, and so are the codes.
///
/// Moves 2 G (d + e) elements a token and layer (half read, half written): 4.2 MB for 512 tokens,
/// G = 8, d = e = 128 in bfloat16. To codes it reads them twice, the second time mostly from the
/// caches, and writes G (d + e) bytes. Neither allocates nor waits; may be captured. \return
/// cudaErrorInvalidValue, cudaErrorMisalignedAddress for the arrays of the parameters, or what the
/// launch said
cudaError_t event_to_block(const EventBlockParams& params, cudaStream_t stream);
/// The field of them that event_to_block refuses, by its name; null: none. Reads no array.
const char* invalid_field(const EventBlockParams& params);

/// Of several sequences (batch.hpp), which share dtype, block_dtype, n_kv_heads, head_dim,
/// value_dim, n_layers and max_blocks.
cudaError_t event_to_block_batch(const EventBlockParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream);
const char* invalid_field(const EventBlockParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
