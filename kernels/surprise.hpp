// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Surprise of tokens on the GPU: the CUDA twin of episodic/timeline/surprise.hpp (EM 3.2).

#include <cuda_runtime_api.h>

#include <cstdint>

#include "batch.hpp"
#include "episodic/base/dtype.hpp"
#include "online_softmax.hpp"

namespace episodic::kernels {

/// Blocks that share a row of logits, at most.
inline constexpr int kSurpriseParts = 32;

/// All pointers are to device memory.
struct SurpriseParams {
  const void* logits = nullptr;  ///< [n, vocab] of `dtype`, elements of a row side by side
  DType dtype = DType::float32;
  std::int64_t n = 0, vocab = 0;
  std::int64_t row_stride = 0;            ///< elements between rows; >= vocab
  const std::int64_t* targets = nullptr;  ///< [n] token ids
  float* surprise = nullptr;              ///< [n], written: nats
  float* maybe_log_sum_exp = nullptr;     ///< [n], written; or null

  /// [n, kSurpriseParts] and [n] 0 before the first call, and left so: several blocks share each
  /// row, of which the last to be done adds their parts. Null, both: a block takes a row. Calls
  /// that may run at once need their own.
  OnlineSoftmax* maybe_parts = nullptr;
  std::uint32_t* maybe_arrived = nullptr;
};

/// surprise[i] = log-sum-exp(logits[i]) - logits[i][targets[i]], never below 0, in one pass over
/// the logits with sums in float32. NaN where the CPU's twin refuses the row (it holds NaN or +inf,
/// or nothing but -inf) or the target is not in [0, vocab): the caller looks at the values where it
/// reads them. The same bits on every run; rows in parts may differ from whole ones in the last.
/// n == 0 does nothing.
///
/// Neither allocates nor waits. \return what the launch said
cudaError_t token_surprise(const SurpriseParams& params, cudaStream_t stream);
/// The field of them that token_surprise refuses, by its name; null: none. Reads no array.
const char* invalid_field(const SurpriseParams& params);

/// Of several sequences (batch.hpp), which share dtype.
cudaError_t token_surprise_batch(const SurpriseParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream);
const char* invalid_field(const SurpriseParams* params, std::int64_t n_sequences);

/// What is known of a row's surprise when some pieces of its logits were seen.
struct SurpriseState {
  OnlineSoftmax softmax;
  float target_logit = 0.0f;
};

/// All pointers are to device memory.
struct SurprisePieceParams {
  float* logits = nullptr;  ///< [n, cols] the head's products, of tokens [first, first + cols)
  std::int64_t n = 0, cols = 0;
  std::int64_t row_stride = 0;  ///< elements between rows; >= cols
  std::int64_t first = 0, vocab = 0;
  float multiplier = 1.0f;  ///< of the products, which makes logits x of them, and then
  float soft_cap = 0.0f;    ///< cap > 0: cap * tanh(x / cap)
  bool write_back = false;  ///< the finished logits take the place of the products
  const std::int64_t* targets = nullptr;  ///< [n - 1] the token behind each row but the last
  SurpriseState* state = nullptr;         ///< [n - 1], carried on from piece to piece
  float* surprise = nullptr;              ///< [n - 1], written with the last piece: nats
  float* last = nullptr;                  ///< [vocab]: the last row's finished logits, written
};

/// token_surprise of rows whose logits come in pieces of the vocabulary, from the first token to
/// the last: no row of them is ever there as a whole, but for the last one's. The last row has no
/// target. `last` may be where the products of a step of one row lie. The same bits on every run.
///
/// Neither allocates nor waits; may be captured. \return cudaErrorInvalidValue for a piece beyond
/// the vocabulary and null pointers, or what the launch said
cudaError_t surprise_piece(const SurprisePieceParams& params, cudaStream_t stream);
/// The field of them that surprise_piece refuses, by its name; null: none. Reads no array.
const char* invalid_field(const SurprisePieceParams& params);

/// Of several sequences (batch.hpp).
cudaError_t surprise_piece_batch(const SurprisePieceParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream);
const char* invalid_field(const SurprisePieceParams* params, std::int64_t n_sequences);

}  // namespace episodic::kernels
