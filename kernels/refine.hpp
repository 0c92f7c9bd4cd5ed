// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Boundary refinement on the GPU: the CUDA twin of BoundaryRefiner in episodic/timeline/refine.hpp
/// (EM 3.3, eqs. 2-4, algorithm 1).

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "batch.hpp"
#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"
#include "timeline_state.hpp"

namespace episodic::kernels {

enum class RefineObjective : std::uint8_t { none, modularity, conductance, intra_inter };

/// All pointers are to device memory.
struct RefineParams {
  RefineObjective objective = RefineObjective::none;
  std::int64_t n_init = 0;
  std::int64_t min_block = 1;     ///< >= 1
  std::int64_t n = 0;             ///< tokens of this step
  std::int64_t max_previous = 0;  ///< no step before was longer; with n at most 65536
  /// 1, the sequence; or each kv head of each layer alone (HEM 2.4): n_layers * n_kv_heads, head
  /// g of layer l being timeline l * n_kv_heads + g, whose graph is of that head's keys alone.
  /// Without an objective any number.
  std::int64_t n_timelines = 1;

  TimelineState* state = nullptr;     ///< [n_timelines]; tokens read, the two boundaries updated
  const std::uint8_t* raw = nullptr;  ///< [n_timelines, n] 0 or 1
  bool shared_raw = false;            ///< raw is [n], the same for all timelines
  /// [n_timelines, flag_capacity] rings over tokens, written: the final flag of token t at
  /// t % flag_capacity, for this step's tokens.
  std::uint8_t* flags = nullptr;
  std::int64_t flag_capacity = 0;  ///< >= n

  // The rest is not looked at without an objective.
  DType dtype = DType::bfloat16;  ///< float32, float16 or bfloat16
  std::int64_t n_layers = 0;      ///< layers that enter the graph, >= 1
  std::int64_t n_kv_heads = 0;    ///< each counts once
  std::int64_t head_dim = 0;      ///< d; for 16-bit keys a multiple of 8, <= 4096
  /// [n_layers] rings of unrotated keys: element (g, t, c) of token t lies at
  /// keys[layer][g * key_head_stride + (t % key_capacity) * key_row_stride + c]. They hold the
  /// previous step and this one. 16-bit keys: aligned to 16 bytes, strides multiples of 8.
  const void* const* keys = nullptr;
  std::int64_t key_capacity = 0;  ///< >= max_previous + n, < 2^31
  std::int64_t key_head_stride = 0, key_row_stride = 0;
  RingPages key_pages;  ///< the same for all layers

  void* workspace = nullptr;  ///< refine_workspace_bytes(), aligned to 256
  std::size_t workspace_bytes = 0;
};

/// Bytes of workspace that any call with these sizes needs, or with a smaller n; 0 without an
/// objective, and for sizes that refine_boundaries refuses.
std::size_t refine_workspace_bytes(const RefineParams& params);

/// Moves the raw boundaries of one step, left to right, as in EM 3.3; without an objective they
/// are kept as they are. Events are cut at the final flags by kernels/close_events.hpp.
///
/// In float64 all through for float32 keys; 16-bit keys are multiplied on the tensor cores and
/// summed in float32 within a head, in float64 over heads, layers and tokens. Splits that differ by
/// rounding alone are ties, and the latest wins, as on the CPU. The same bits on every run.
///
/// Three launches, all of which read on the device whether there is a choice to make:
///  - the graph G[i,j] = sum over layers and heads of k_i . k_j, of the tokens at hand (those since
///    the last boundary of the previous step), its upper triangle, in tiles of 64 x 64, split over
///    layers and heads;
///  - within each tile the splits' sum, then sums along columns and along rows;
///  - one block that walks the flags: every score of a window of w tokens follows from 2 w of those
///    sums and one scan, all of them sums from within the window.
/// At 512 tokens after 512 (M = 1024), 12 layers x 8 heads x 128, bfloat16: 12.9 GFLOP, 25 MB of
/// keys once from memory (0.43 GB through the cache), 18 MB of tiles written and read, 9 MB of
/// sums. n == 1 launches the last alone, in which nothing can move; steps without a flag end each
/// at once.
///
/// Many timelines are taken together, as many as 2,048 tiles are for, in three launches each: at
/// the 1024 tokens above (136 tiles a head) 15 heads at a time, in 139 MB of workspace; 32 layers x
/// 8 heads are 18 times three launches, and as many operations as the sequence's graph of them all.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue for sizes, strides,
/// dtypes or a workspace that do not fit, cudaErrorMisalignedAddress, or what the launches said
cudaError_t refine_boundaries(const RefineParams& params, cudaStream_t stream);
/// The field of them that refine_boundaries refuses, by its name; null: none. Reads no array.
const char* invalid_field(const RefineParams& params);

/// Of several sequences (batch.hpp). One launch takes those without an objective, and one the last
/// of the three of all others; the first two are each one's own.
cudaError_t refine_boundaries_batch(const RefineParams* params, std::int64_t n_sequences,
                                    cudaStream_t stream);
const char* invalid_field(const RefineParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
