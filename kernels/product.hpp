// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Products of a few rows with a weight matrix, for decode: with the norm that stands before them
/// and what is done to their results in one launch each. More rows are a library's work.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "blocks.hpp"
#include "decoder.hpp"
#include "episodic/base/dtype.hpp"
#include "ring_pages.hpp"

namespace episodic::kernels {

inline constexpr std::int64_t kMostProductRows = 4;

/// x W^T + bias: what goes in. All pointers are to device memory.
struct ProductParams {
  DType dtype = DType::bfloat16;  ///< of x and weight: float32, float16, bfloat16
  std::int64_t n = 0;             ///< rows, 1 to kMostProductRows
  std::int64_t in = 0, out = 0;
  const void* weight = nullptr;  ///< [out, in]
  /// In place of weight: rows of blocks, `out` in all. x is then rounded to 8 bits with a scale for
  /// each 32, as the host's products of such weights do (cpu/weights.hpp), and only then: not to
  /// dtype first. Sums of a block are whole numbers; scales and sums of blocks are float32.
  BlockWeights blocks;
  const float* maybe_bias = nullptr;  ///< [out]

  /// Either x, or the residual stream that it is made of: x = norm(hidden, maybe_norm) as in
  /// add_norm, rounded to dtype; without maybe_norm hidden itself, rounded.
  const void* x = nullptr;            ///< [n, in]
  const float* hidden = nullptr;      ///< [n, in]
  const float* maybe_norm = nullptr;  ///< [in]
  float eps = 1e-6f;
};

/// Whether the products below take these sizes: 16 bytes of a row of W at a time, and what is made
/// of hidden within a block's shared memory. Reads no pointer.
bool takes_product(DType dtype, std::int64_t n, std::int64_t in, bool of_hidden);
/// The same of rows of blocks: of one type, or of several (no fp8 among them) in even numbers, and
/// not for gated_product.
bool takes_product(const BlockWeights& blocks, std::int64_t n, std::int64_t in);

/// to[i][j] = (x W^T + bias)[i, j], float32. \param to of each of the n rows: [out], written
cudaError_t product(const ProductParams& params, float* const (&to)[kMostProductRows],
                    cudaStream_t stream);

/// y = x W^T + bias, rounded once. \param y [n, out] of dtype, written
cudaError_t narrow_product(const ProductParams& params, void* y, cudaStream_t stream);

/// sum[i, j] += multiplier * (x W^T + bias)[i, j]. \param sum [n, out]
cudaError_t add_product(const ProductParams& params, float multiplier, float* sum,
                        cudaStream_t stream);

/// y[i, c] = activation(g) * u of g = (x W^T + bias)[i, c] and u = (x W^T + bias)[i, out / 2 + c],
/// in float32, rounded once. \param y [n, out / 2] of dtype, written
cudaError_t gated_product(const ProductParams& params, GateActivation activation, void* y,
                          cudaStream_t stream);

/// Where the heads of one row go: the next token of a sequence.
struct HeadTarget {
  /// The token's position, read on the device, and the angles of it (rotary_angles).
  const std::int64_t* position = nullptr;
  const float* cos = nullptr;  ///< [rotary_dim / 2]
  const float* sin = nullptr;
  /// As in AppendParams (window.hpp).
  void* maybe_ring_key = nullptr;
  void* ring_rotated_key = nullptr;
  void* ring_value = nullptr;
  std::int64_t ring_capacity = 0, ring_head_stride = 0;
  std::int64_t value_head_stride = 0;  ///< 0: ring_head_stride
  RingPages ring_pages;
  std::uint32_t value_page_stride = 0;  ///< 0: ring_pages.page_stride
  void* sink_key = nullptr;
  void* sink_value = nullptr;
  std::int64_t n_init = 0;
  /// The mean query of a step of one token (MeanQueryParams); null: not wanted.
  const float* fixed_cos = nullptr;
  const float* fixed_sin = nullptr;
  float* maybe_mean = nullptr;
};

/// Where and how all of them lie.
struct HeadsParams {
  std::int64_t n_heads = 0, n_kv_heads = 0;
  std::int64_t head_dim = 0;    ///< d, even
  std::int64_t value_dim = 0;   ///< e, of values, even; 0: d
  std::int64_t rotary_dim = 0;  ///< even, <= d; 0: no rotation
  bool interleaved = false;     ///< pairs of channels as in kernels/attention.hpp
  void* q = nullptr;            ///< [n, H d] of dtype, written, before rotary embedding
  std::int64_t q_row_stride = 0;
  HeadTarget row[kMostProductRows];
};

/// The product of q, k and v, whose rows are of as many sequences: queries to `q`, keys and values
/// into the windows as append_window writes them, and mean queries as mean_fixed_query makes them,
/// bit for bit given the products, which are rounded once, with their biases.
/// \param params out = (H + G) d + G e
cudaError_t heads_product(const ProductParams& params, const HeadsParams& heads,
                          cudaStream_t stream);

/// What a call with these arguments refuses: the name of a field, or of the argument beside them;
/// null: nothing. Of product; narrow_product and add_product (y: what is written); gated_product;
/// heads_product. Reads no array.
const char* invalid_field(const ProductParams& params, float* const (&to)[kMostProductRows]);
const char* invalid_field(const ProductParams& params, const void* y);
const char* invalid_field(const ProductParams& params, GateActivation activation, const void* y);
const char* invalid_field(const ProductParams& params, const HeadsParams& heads);

// Of all: float32 sums, of a row in an order that depends on `in` alone: the same bits
// whatever other rows there are, and on every run. One row's NaN spoils no other. The weights are
// read once: out * in elements bound the time. They neither allocate nor wait, and may be captured.
// \return cudaErrorInvalidValue for sizes that takes_product does not have and null pointers,
// cudaErrorMisalignedAddress for rows that are not aligned to 16 bytes, or what the launch said

}  // namespace episodic::kernels
