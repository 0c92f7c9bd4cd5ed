// SPDX-License-Identifier: Apache-2.0
#include "reweight.hpp"

#include "fields.hpp"
#include "reweight.cuh"

namespace episodic::kernels {
namespace {

// Each block reads the query anew: no more blocks than a device runs at once.
constexpr std::int64_t kScoreBlocks = 1024;

template <class T, int kPack>
cudaError_t launch_score(const EventScoreParams& p, cudaStream_t stream) {
  const std::int64_t events = p.maybe_listed ? p.max_listed : p.max_events;
  const std::int64_t blocks = (events + kEventScoreWarps - 1) / kEventScoreWarps;
  const std::int64_t share = p.n_lanes < kScoreBlocks ? kScoreBlocks / p.n_lanes : 1;
  return launch(ScoreEventsKernel<T, kPack>,
                dim3(static_cast<unsigned>(blocks < share ? blocks : share),
                     static_cast<unsigned>(p.n_lanes)),
                kEventScoreThreads, static_cast<std::size_t>(p.width) * sizeof(float), stream, p);
}

/// Events that a list may come to hold.
std::int64_t most_listed(const RecallTopParams& p) {
  const std::int64_t each = p.neighbours ? 3 : 1;
  return p.top_k <= p.max_events / each ? each * p.top_k : p.max_events;
}

FieldError check(const EventScoreParams& p) {
  EPISODIC_FIELD(p, dtype, is_float(p.dtype));
  EPISODIC_FIELD(p, width, p.width >= 1 && p.width <= kMostScoredWidth);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 1 && p.n_lanes <= kMostGridRows);
  EPISODIC_FIELD(p, count_stride, p.count_stride >= 0);
  EPISODIC_FIELD(p, listed_stride, p.listed_stride >= 0);
  EPISODIC_FIELD(
      p, max_events,
      p.max_events <= INT32_MAX && product_within(kMaxElements, p.n_lanes, p.max_events, p.width));
  EPISODIC_FIELD(p, max_listed, p.max_listed >= 0 && p.max_listed <= INT32_MAX);
  EPISODIC_FIELD(p, n_listed, !p.maybe_listed || p.n_listed);
  if (p.max_events == 0 || (p.maybe_listed && p.max_listed == 0)) return {};
  EPISODIC_FIELD_GIVEN(p, query);
  EPISODIC_FIELD_GIVEN(p, representative);
  EPISODIC_FIELD_GIVEN(p, n_events);
  EPISODIC_FIELD_GIVEN(p, score);
  EPISODIC_FIELD_ALIGNED(p, representative, static_cast<std::size_t>(size_of(p.dtype)));
  EPISODIC_FIELD_ALIGNED(p, query, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, score, sizeof(float));
  EPISODIC_FIELD_ALIGNED(p, n_events, 8);
  return {};
}

FieldError check(const RecallTopParams& p) {
  EPISODIC_FIELD(p, top_k, p.top_k >= 1);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 1 && p.n_lanes <= kMostGridRows);
  EPISODIC_FIELD(p, count_stride, p.count_stride >= 0);
  EPISODIC_FIELD(p, mark_stride, p.mark_stride >= 0);
  EPISODIC_FIELD(p, max_events, p.max_events >= 0 && p.max_events <= INT32_MAX - kRecallTopThreads);
  EPISODIC_FIELD(p, list_capacity, p.list_capacity >= most_listed(p));
  EPISODIC_FIELD_GIVEN(p, n_events);
  EPISODIC_FIELD_GIVEN(p, sizes);
  const bool some = p.max_events > 0;
  EPISODIC_FIELD(p, score, !some || p.score);
  EPISODIC_FIELD(p, is_top, !some || p.is_top);
  EPISODIC_FIELD(p, similarity, !some || p.similarity);
  EPISODIC_FIELD(p, contiguity_list, !some || p.contiguity_list);
  EPISODIC_FIELD(p, recalled, !some || p.recalled);
  EPISODIC_FIELD_ALIGNED(p, score, 4);
  EPISODIC_FIELD_ALIGNED(p, sizes, 4);
  EPISODIC_FIELD_ALIGNED(p, n_events, 8);
  EPISODIC_FIELD_ALIGNED(p, similarity, sizeof(DeviceEventId));
  EPISODIC_FIELD_ALIGNED(p, contiguity_list, sizeof(DeviceEventId));
  EPISODIC_FIELD_ALIGNED(p, recalled, sizeof(DeviceEventId));
  return {};
}

}  // namespace

const char* invalid_field(const EventScoreParams& params) { return check(params).field; }
const char* invalid_field(const RecallTopParams& params) { return check(params).field; }

cudaError_t score_events(const EventScoreParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  if (p.max_events == 0 || (p.maybe_listed && p.max_listed == 0)) return cudaSuccess;
  return for_element(p.dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    return aligned(p.representative, 16) && p.width % kPackOf<T> == 0
               ? launch_score<T, kPackOf<T>>(p, stream)
               : launch_score<T, 1>(p, stream);
  });
}

cudaError_t recall_top(const RecallTopParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  return launch(RecallTopKernel, static_cast<unsigned>(p.n_lanes), kRecallTopThreads, 0, stream, p);
}

}  // namespace episodic::kernels
