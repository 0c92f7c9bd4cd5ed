// SPDX-License-Identifier: Apache-2.0
#include "decoder.hpp"

#include "decoder.cuh"
#include "elements.cuh"

namespace episodic::kernels {

cudaError_t embed_tokens(const EmbedParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1 || p.vocab < 1) return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.table || !p.ids || !p.hidden) return cudaErrorInvalidValue;
  return for_element(p.dtype, [&](auto element) {
    return launch(EmbedKernel<typename decltype(element)::type>, blocks_for(p.n), kDecoderThreads,
                  0, stream, p);
  });
}

cudaError_t add_norm(const AddNormParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1 || !(p.eps >= 0)) return cudaErrorInvalidValue;
  if (!p.maybe_added && (p.maybe_norm_of_added || p.multiplier != 1.0f))
    return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.hidden || !p.y) return cudaErrorInvalidValue;
  return for_element(p.dtype, [&](auto element) {
    return launch(AddNormKernel<typename decltype(element)::type>, blocks_for(p.n), kDecoderThreads,
                  0, stream, p);
  });
}

cudaError_t finish_qkv(const FinishQkvParams& p, cudaStream_t stream) {
  constexpr std::int64_t kMostHeads = 1 << 20;
  if (p.n < 0 || p.n_kv_heads < 1 || p.n_heads < 1 || p.n_heads > kMostHeads ||
      p.n_kv_heads > kMostHeads || p.head_dim < 1 || p.normed_channels < 0 ||
      p.normed_channels > p.head_dim || !(p.eps >= 0) || !is_float(p.dtype))
    return cudaErrorInvalidValue;
  if (p.n == 0 || (!p.maybe_bias && !p.maybe_q_norm && !p.maybe_k_norm)) return cudaSuccess;
  if (!p.qkv) return cudaErrorInvalidValue;
  // Values have a bias at most.
  const std::int64_t keys = p.whole_rows ? 2 : p.n_heads + p.n_kv_heads;
  const std::int64_t values = !p.maybe_bias ? 0 : p.whole_rows ? 1 : p.n_kv_heads;
  const auto parts = static_cast<int>(keys + values);
  return for_element(p.dtype, [&](auto element) {
    return launch(FinishQkvKernel<typename decltype(element)::type>, blocks_for(p.n * parts),
                  kQkvThreads, 0, stream, p, parts);
  });
}

cudaError_t gate_times_up(const GateParams& p, cudaStream_t stream) {
  if (p.n < 0 || p.width < 1) return cudaErrorInvalidValue;
  if (p.n == 0) return cudaSuccess;
  if (!p.gate_up || !p.y) return cudaErrorInvalidValue;
  const unsigned blocks = blocks_for((p.n * p.width + kDecoderThreads - 1) / kDecoderThreads);
  return for_element(p.dtype, [&](auto element) {
    return launch(GateKernel<typename decltype(element)::type>, blocks, kDecoderThreads, 0, stream,
                  p);
  });
}

}  // namespace episodic::kernels
