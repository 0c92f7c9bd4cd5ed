// SPDX-License-Identifier: Apache-2.0
#include "reweight.hpp"

#include "reweight.cuh"

namespace episodic::kernels {
namespace {

// Each block reads the query anew: no more blocks than a device runs at once.
constexpr std::int64_t kScoreBlocks = 1024;

template <class T, int kPack>
cudaError_t launch_score(const EventScoreParams& p, cudaStream_t stream) {
  const std::int64_t events = p.maybe_listed ? p.max_listed : p.max_events;
  const std::int64_t blocks = (events + kEventScoreWarps - 1) / kEventScoreWarps;
  return launch(ScoreEventsKernel<T, kPack>,
                static_cast<unsigned>(blocks < kScoreBlocks ? blocks : kScoreBlocks),
                kEventScoreThreads, static_cast<std::size_t>(p.width) * sizeof(float), stream, p);
}

/// Events that a list may come to hold.
std::int64_t most_listed(const RecallTopParams& p) {
  const std::int64_t each = p.neighbours ? 3 : 1;
  return p.top_k <= p.max_events / each ? each * p.top_k : p.max_events;
}

}  // namespace

cudaError_t score_events(const EventScoreParams& p, cudaStream_t stream) {
  if (!is_float(p.dtype) || p.width < 1 || p.width > kMostScoredWidth || p.max_events < 0 ||
      !product_within(kMaxElements, p.max_events, p.width) || p.max_listed < 0 ||
      (p.maybe_listed && !p.n_listed))
    return cudaErrorInvalidValue;
  if (p.max_events == 0 || (p.maybe_listed && p.max_listed == 0)) return cudaSuccess;
  if (!p.query || !p.representative || !p.n_events || !p.score) return cudaErrorInvalidValue;
  if (!aligned(p.representative, static_cast<std::size_t>(size_of(p.dtype))) ||
      !all_aligned(sizeof(float), p.query, p.score) || !aligned(p.n_events, 8))
    return cudaErrorMisalignedAddress;
  return for_element(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return aligned(p.representative, 16) && p.width % kPackOf<T> == 0
               ? launch_score<T, kPackOf<T>>(p, stream)
               : launch_score<T, 1>(p, stream);
  });
}

cudaError_t recall_top(const RecallTopParams& p, cudaStream_t stream) {
  if (p.top_k < 1 || p.max_events < 0 || p.max_events > INT32_MAX - kRecallTopThreads ||
      p.list_capacity < most_listed(p) || !p.n_events || !p.sizes ||
      (p.max_events > 0 &&
       (!p.score || !p.is_top || !p.similarity || !p.contiguity_list || !p.recalled)))
    return cudaErrorInvalidValue;
  if (!all_aligned(4, p.score, p.sizes) || !aligned(p.n_events, 8) ||
      !all_aligned(sizeof(DeviceEventId), p.similarity, p.contiguity_list, p.recalled))
    return cudaErrorMisalignedAddress;
  return launch(RecallTopKernel, 1, kRecallTopThreads, 0, stream, p);
}

}  // namespace episodic::kernels
