// SPDX-License-Identifier: Apache-2.0
#include "surprise.hpp"

#include <algorithm>

#include "elements.cuh"
#include "fields.hpp"
#include "surprise.cuh"

namespace episodic::kernels {
namespace {

FieldError check(const SurpriseParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, vocab, p.vocab >= 1);
  EPISODIC_FIELD(p, row_stride, p.row_stride >= p.vocab);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, logits);
  EPISODIC_FIELD_GIVEN(p, targets);
  EPISODIC_FIELD_GIVEN(p, surprise);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, maybe_arrived, !p.maybe_arrived == !p.maybe_parts);
  EPISODIC_FIELD_ALIGNED(p, maybe_parts, alignof(OnlineSoftmax));
  EPISODIC_FIELD_ALIGNED(p, maybe_arrived, 4);
  return {};
}

FieldError check(const SurprisePieceParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, cols, p.cols >= 1);
  EPISODIC_FIELD(p, row_stride, p.row_stride >= p.cols);
  EPISODIC_FIELD(p, first, p.first >= 0);
  EPISODIC_FIELD(p, vocab, p.cols <= p.vocab - p.first);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, logits);
  EPISODIC_FIELD_GIVEN(p, last);
  if (p.n == 1) return {};
  EPISODIC_FIELD_GIVEN(p, targets);
  EPISODIC_FIELD_GIVEN(p, state);
  EPISODIC_FIELD_GIVEN(p, surprise);
  return {};
}

FieldError check(const SurpriseParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const SurpriseParams& p) { return check(p); },
      [](const SurpriseParams& p, const SurpriseParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        return {};
      });
}

FieldError check(const SurprisePieceParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const SurprisePieceParams& p) { return check(p); });
}

/// \param blocks(call) that its rows have work for
/// \param kernel(batch) that takes such a batch
template <class Params, class Kernel, class Blocks>
cudaError_t launch_rows(const Kernel& kernel, const Params* params, std::int64_t n_sequences,
                        const Blocks& blocks, cudaStream_t stream) {
  return launch_in_batches<Params>(
      n_sequences, call_with_tokens_of(params), [&](const auto& batch) {
        const dim3 grid = blocks_for_layers(largest(batch, blocks), batch.n);
        return launch(kernel(batch), grid, kSurpriseThreads, 0, stream, batch);
      });
}

}  // namespace

const char* invalid_field(const SurpriseParams& params) { return check(params).field; }
const char* invalid_field(const SurprisePieceParams& params) { return check(params).field; }
const char* invalid_field(const SurpriseParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const SurprisePieceParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t token_surprise_batch(const SurpriseParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  const bool any =
      std::any_of(params, params + n_sequences, [](const SurpriseParams& p) { return p.n > 0; });
  if (!any) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    using Logit = typename decltype(element)::type;
    return launch_rows(
        [](const auto& batch) { return SurpriseKernel<Logit, kRoomOf<decltype(batch)>>; }, params,
        n_sequences, [](const SurpriseParams& p) { return p.n * surprise_parts(p).count; }, stream);
  });
}

cudaError_t token_surprise(const SurpriseParams& params, cudaStream_t stream) {
  return token_surprise_batch(&params, 1, stream);
}

cudaError_t surprise_piece_batch(const SurprisePieceParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_rows(
      [](const auto& batch) { return SurprisePieceKernel<kRoomOf<decltype(batch)>>; }, params,
      n_sequences, [](const SurprisePieceParams& p) { return p.n; }, stream);
}

cudaError_t surprise_piece(const SurprisePieceParams& params, cudaStream_t stream) {
  return surprise_piece_batch(&params, 1, stream);
}

}  // namespace episodic::kernels
