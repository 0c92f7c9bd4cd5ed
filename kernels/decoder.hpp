// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a decoder does between its matrix products, on the GPU: the CUDA twin of the model's
/// element-wise work. The residual stream is float32, all else in the weights' dtype. What stands
/// between two products is one launch.

#include <cuda_runtime_api.h>

#include <cstdint>

#include "episodic/base/dtype.hpp"

namespace episodic::kernels {

/// hidden[i, :] = multiplier * table[ids[i], :]. An id outside [0, vocab) gives a row of NaNs,
/// which its surprise and all that follows then shows.
struct EmbedParams {
  DType dtype = DType::bfloat16;      ///< of the table: float32, float16, bfloat16
  const void* table = nullptr;        ///< [vocab, width]
  std::int64_t vocab = 0, width = 0;  ///< width: any
  const std::int64_t* ids = nullptr;  ///< [n]
  std::int64_t n = 0;
  float* hidden = nullptr;  ///< [n, width], written
  float multiplier = 1.0f;
};
cudaError_t embed_tokens(const EmbedParams& params, cudaStream_t stream);
/// The field of them that embed_tokens refuses, by its name; null: none. Reads no array.
const char* invalid_field(const EmbedParams& params);

/// Between two blocks of a decoder: the first one's output is added to the residual stream, and the
/// second one's input made of it. With norm(x, w) = x / sqrt(mean(x^2) + eps) * w of each row:
///
///     a = maybe_added + maybe_bias             a bias alone is added as it is
///     if (maybe_norm_of_added) a = norm(a, maybe_norm_of_added)
///     hidden += multiplier * a
///     y = maybe_norm ? norm(hidden, maybe_norm) : hidden
///
/// With layer_norm the last is (x - mean) / sqrt(mean((x - mean)^2) + eps) * w + maybe_norm_bias.
/// All in float32, y rounded once.
struct AddNormParams {
  DType dtype = DType::bfloat16;  ///< of y
  std::int64_t n = 0, width = 0;
  float eps = 1e-6f;
  float* hidden = nullptr;             ///< [n, width], written where anything is added
  const float* maybe_added = nullptr;  ///< [n, width]; null: nothing, or what hidden has already
  const float* maybe_bias = nullptr;   ///< [width]
  const float* maybe_norm_of_added = nullptr;  ///< [width], only with maybe_added
  float multiplier = 1.0f;                     ///< other than 1 only with maybe_added
  const float* maybe_norm = nullptr;           ///< [width]
  bool layer_norm = false;
  const float* maybe_norm_bias = nullptr;  ///< [width], only with layer_norm
  void* y = nullptr;                       ///< [n, width], written
};
cudaError_t add_norm(const AddNormParams& params, cudaStream_t stream);
/// The field of them that add_norm refuses, by its name; null: none. Reads no array.
const char* invalid_field(const AddNormParams& params);

/// What is done to the product of q, k and v: biases, then RMS norms of queries and keys, of each
/// head or of a token's whole row of heads; in float32, rounded once, in place.
struct FinishQkvParams {
  DType dtype = DType::bfloat16;
  std::int64_t n = 0;
  std::int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  void* qkv = nullptr;                ///< [n, (H + 2 G) d]: a row's queries, keys, values
  const float* maybe_bias = nullptr;  ///< [(H + 2 G) d]
  /// [d], or [H d] and [G d] with whole_rows; null: no norm
  const float* maybe_q_norm = nullptr;
  const float* maybe_k_norm = nullptr;
  bool whole_rows = false;
  /// Channels of a head that the mean of squares is over; 0: all. The others must be zero (heads
  /// that were padded).
  std::int64_t normed_channels = 0;
  float eps = 1e-6f;
};
/// Launches nothing where there is neither bias nor norm.
cudaError_t finish_qkv(const FinishQkvParams& params, cudaStream_t stream);
/// The field of them that finish_qkv refuses, by its name; null: none. Reads no array.
const char* invalid_field(const FinishQkvParams& params);

/// q[i, :] *= 1 + beta log(1 + floor(p / original)), p = min(position + i, last_position); the
/// factor in float32, rounded once.
struct ScaleQueriesParams {
  DType dtype = DType::bfloat16;
  void* q = nullptr;  ///< rows of `width`, row_stride apart
  std::int64_t n = 0, width = 0, row_stride = 0;
  const std::int64_t* position = nullptr;  ///< of row 0, read on the device
  std::int64_t last_position = 0, original = 1;
  float beta = 0.0f;
};
cudaError_t scale_queries(const ScaleQueriesParams& params, cudaStream_t stream);
/// The field of them that scale_queries refuses, by its name; null: none. Reads no array.
const char* invalid_field(const ScaleQueriesParams& params);

/// What a gated feed-forward network applies to its gate. GELU by its tanh formula. The last two
/// are only of networks without a gate.
enum class GateActivation : std::uint8_t { silu, gelu_tanh, relu_squared, xielu };

/// Above 0: positive x^2 + beta x, else negative (expm1(min(x, eps)) - x) + beta x.
struct XieluParams {
  float positive = 0.0f, negative = 0.0f, beta = 0.0f, eps = 0.0f;
};

/// y[i, c] = activation(gate[i, c]) * up[i, c], biases added before, in float32, rounded once.
/// Without a gate y[i, c] = activation(up[i, c]).
struct GateParams {
  DType dtype = DType::bfloat16;
  GateActivation activation = GateActivation::silu;
  const void* gate_up = nullptr;      ///< [n, 2 * width]: a row's gates, then its ups
  const float* maybe_bias = nullptr;  ///< [2 * width]
  std::int64_t n = 0, width = 0;
  void* y = nullptr;  ///< [n, width], written
  bool gated = true;  ///< else gate_up is [n, width], and maybe_bias [width]
  XieluParams xielu{};
};
cudaError_t gate_times_up(const GateParams& params, cudaStream_t stream);
/// The field of them that gate_times_up refuses, by its name; null: none. Reads no array.
const char* invalid_field(const GateParams& params);

/// x[i, c] *= 1 / (1 + e^-(gate[i, c] + bias[c])), in float32, rounded once: what a gate lets
/// through of attention.
struct GateRowsParams {
  DType dtype = DType::bfloat16;
  std::int64_t n = 0, width = 0;
  const void* gate = nullptr;         ///< [n, width]
  const float* maybe_bias = nullptr;  ///< [width]
  void* x = nullptr;                  ///< [n, width]
};
cudaError_t gate_rows(const GateRowsParams& params, cudaStream_t stream);
/// The field of them that gate_rows refuses, by its name; null: none. Reads no array.
const char* invalid_field(const GateRowsParams& params);

}  // namespace episodic::kernels
