// SPDX-License-Identifier: Apache-2.0
#include "decoder.hpp"

#include "decoder.cuh"
#include "elements.cuh"
#include "fields.hpp"

namespace episodic::kernels {

namespace {

FieldError check(const EmbedParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, vocab, p.vocab >= 1);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, table);
  EPISODIC_FIELD_GIVEN(p, ids);
  EPISODIC_FIELD_GIVEN(p, hidden);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  return {};
}

FieldError check(const AddNormParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, eps, p.eps >= 0);
  // these are said of what is added
  EPISODIC_FIELD(p, maybe_norm_of_added, p.maybe_added || !p.maybe_norm_of_added);
  EPISODIC_FIELD(p, multiplier, p.maybe_added || p.multiplier == 1.0f);
  EPISODIC_FIELD(p, maybe_norm_bias, p.layer_norm || !p.maybe_norm_bias);
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, hidden);
  EPISODIC_FIELD_GIVEN(p, y);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  return {};
}

bool changes_nothing(const FinishQkvParams& p) {
  return p.n == 0 || (!p.maybe_bias && !p.maybe_q_norm && !p.maybe_k_norm);
}

FieldError check(const FinishQkvParams& p) {
  constexpr std::int64_t kMostHeads = 1 << 20;
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, n_heads, p.n_heads >= 1 && p.n_heads <= kMostHeads);
  EPISODIC_FIELD(p, n_kv_heads, p.n_kv_heads >= 1 && p.n_kv_heads <= kMostHeads);
  EPISODIC_FIELD(p, head_dim, p.head_dim >= 1);
  EPISODIC_FIELD(p, normed_channels, p.normed_channels >= 0 && p.normed_channels <= p.head_dim);
  EPISODIC_FIELD(p, eps, p.eps >= 0);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  if (changes_nothing(p)) return {};
  EPISODIC_FIELD_GIVEN(p, qkv);
  return {};
}

FieldError check(const ScaleQueriesParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, row_stride, p.row_stride >= p.width);
  EPISODIC_FIELD(p, original, p.original >= 1);
  EPISODIC_FIELD(p, last_position, p.last_position >= 0);
  EPISODIC_FIELD(p, beta, p.beta >= 0);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, q);
  EPISODIC_FIELD_GIVEN(p, position);
  return {};
}

bool only_without_gate(GateActivation a) {
  return a == GateActivation::relu_squared || a == GateActivation::xielu;
}

FieldError check(const GateParams& p) {
  EPISODIC_FIELD(p, n, p.n >= 0);
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, activation, !p.gated || !only_without_gate(p.activation));
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, gate_up);
  EPISODIC_FIELD_GIVEN(p, y);
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  return {};
}

FieldError check(const GateRowsParams& p) {
  EPISODIC_FIELD(p, width, p.width >= 1);
  EPISODIC_FIELD(p, n, p.n >= 0 && product_within(kMaxElements, p.n, p.width));
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  if (p.n == 0) return {};
  EPISODIC_FIELD_GIVEN(p, gate);
  EPISODIC_FIELD_GIVEN(p, x);
  return {};
}

}  // namespace

const char* invalid_field(const EmbedParams& params) { return check(params).field; }
const char* invalid_field(const AddNormParams& params) { return check(params).field; }
const char* invalid_field(const FinishQkvParams& params) { return check(params).field; }
const char* invalid_field(const ScaleQueriesParams& params) { return check(params).field; }
const char* invalid_field(const GateParams& params) { return check(params).field; }
const char* invalid_field(const GateRowsParams& params) { return check(params).field; }

cudaError_t embed_tokens(const EmbedParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    return launch(EmbedKernel<typename decltype(element)::type>, blocks_for(p.n), kDecoderThreads,
                  0, stream, p);
  });
}

cudaError_t add_norm(const AddNormParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  constexpr int kPacks = 4, kMorePacks = 8;
  const auto fits = [&](int packs) { return p.width <= packs * kRowPack * kDecoderThreads; };
  const bool in_registers =
      p.width % kRowPack == 0 && fits(kMorePacks) &&
      all_aligned(16, p.hidden, p.maybe_added, p.maybe_bias, p.maybe_norm_of_added, p.maybe_norm,
                  p.maybe_norm_bias, p.y);
  return for_element(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    auto* const kernel = !in_registers  ? AddNormKernel<T>
                         : fits(kPacks) ? AddNormRowKernel<T, kPacks>
                                        : AddNormRowKernel<T, kMorePacks>;
    return launch(kernel, blocks_for(p.n), kDecoderThreads, 0, stream, p);
  });
}

cudaError_t finish_qkv(const FinishQkvParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (changes_nothing(p)) return cudaSuccess;
  // Values have a bias at most.
  const std::int64_t keys = p.whole_rows ? 2 : p.n_heads + p.n_kv_heads;
  const std::int64_t values = !p.maybe_bias ? 0 : p.whole_rows ? 1 : p.n_kv_heads;
  const auto parts = static_cast<int>(keys + values);
  return for_element(p.dtype, [&](auto element) {
    return launch(FinishQkvKernel<typename decltype(element)::type>, blocks_for(p.n * parts),
                  kQkvThreads, 0, stream, p, parts);
  });
}

cudaError_t scale_queries(const ScaleQueriesParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    return launch(ScaleQueriesKernel<typename decltype(element)::type>, blocks_for(p.n),
                  kDecoderThreads, 0, stream, p);
  });
}

cudaError_t gate_times_up(const GateParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    constexpr int kPack = kPackOf<T>;
    const bool packed = p.width % kPack == 0 && all_aligned(16, p.gate_up, p.y);
    if (!p.gated)
      return launch(ActivationKernel<T>,
                    blocks_for_layers((p.width + kDecoderThreads - 1) / kDecoderThreads,
                                      p.n < kMostGridRows ? p.n : kMostGridRows),
                    kDecoderThreads, 0, stream, p);
    const std::int64_t threads = packed ? p.width / kPack : p.width;
    return launch(packed ? GateKernel<T, kPack> : GateKernel<T, 1>,
                  blocks_for_layers((threads + kDecoderThreads - 1) / kDecoderThreads,
                                    p.n < kMostGridRows ? p.n : kMostGridRows),
                  kDecoderThreads, 0, stream, p);
  });
}

cudaError_t gate_rows(const GateRowsParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.n == 0) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    return launch(GateRowsKernel<typename decltype(element)::type>,
                  blocks_for_layers((p.width + kDecoderThreads - 1) / kDecoderThreads,
                                    p.n < kMostGridRows ? p.n : kMostGridRows),
                  kDecoderThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
