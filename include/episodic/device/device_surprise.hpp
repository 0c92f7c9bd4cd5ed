// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `DeviceSurprise`: what a DeviceMemory's steps end with (EM 3.2), from logits that a caller's own
/// decoder leaves in device memory. Torch-free. In builds with CUDA.

#include <cstdint>
#include <memory>
#include <span>

struct CUstream_st;  // what a cudaStream_t points to

namespace episodic {

/// Of one sequence. A token's surprise follows from the logits before it, so the last row of each
/// step is kept for the next one:
///
///     DeviceSurprise surprise(vocab, memory.config().chunk);
///     memory.begin_step(n);
///     for (layer ...) memory.attend(layer, q, k, v, out);
///     memory.end_step(surprise.step(ids, logits, vocab, memory.tokens(), stream));
///
/// Works on the device that was current when it was made. One thread at a time.
class DeviceSurprise {
 public:
  /// \param chunk longest step \throws DataError for sizes below 1; BudgetError
  DeviceSurprise(std::int64_t vocab, std::int64_t chunk);
  ~DeviceSurprise();
  DeviceSurprise(DeviceSurprise&&) noexcept;
  DeviceSurprise& operator=(DeviceSurprise&&) noexcept;

  std::int64_t vocab() const;

  /// Enqueues the surprise of a step's tokens.
  /// \param ids of the step, 1 to chunk of them, in host memory
  /// \param logits [n, vocab] in device memory, row_stride elements between rows: row i follows
  ///        ids[i]. Not read any more once the stream has passed
  /// \param tokens of the sequence before the step
  /// \return [n] nats in device memory until the next call; that of the sequence's first token is 0
  /// \throws DataError naming the parameter; where the logits behind `tokens` tokens are not known
  const float* step(std::span<const std::int64_t> ids, const float* logits, std::int64_t row_stride,
                    std::int64_t tokens, CUstream_st* stream);

  /// The logits behind a sequence's last token, to come back to or to go on with in another one.
  class State;
  /// On the stream. \throws BudgetError
  std::shared_ptr<const State> snapshot(CUstream_st* stream) const;
  void restore(const State& state, CUstream_st* stream);
  /// Another one that goes on from here. \throws BudgetError
  DeviceSurprise fork(CUstream_st* stream) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
