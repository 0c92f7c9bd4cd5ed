// SPDX-License-Identifier: Apache-2.0
#include "surprise.hpp"

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

template <class Logit>
cudaError_t launch_for(const SurpriseParams& p, cudaStream_t stream) {
  return launch(SurpriseKernel<Logit>, blocks_for(p.n), kSurpriseThreads, 0, stream, p);
}

}  // namespace

const char* invalid_field(const SurpriseParams& params) { return check(params).field; }
const char* invalid_field(const SurprisePieceParams& params) { return check(params).field; }

cudaError_t token_surprise(const SurpriseParams& params, cudaStream_t stream) {
  if (const FieldError wrong = check(params)) return wrong.error;
  if (params.n == 0) return cudaSuccess;
  return for_element(params.dtype, [&](auto element) {
    return launch_for<typename decltype(element)::type>(params, stream);
  });
}

cudaError_t surprise_piece(const SurprisePieceParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return launch(SurprisePieceKernel, blocks_for(p.n), kSurpriseThreads, 0, stream, p);
}

}  // namespace episodic::kernels
