// SPDX-License-Identifier: Apache-2.0
#include "reweight.hpp"

#include "batch.hpp"
#include "fields.hpp"
#include "reweight.cuh"

namespace episodic::kernels {
namespace {

// Each block reads the query anew: no more blocks than a device runs at once.
constexpr std::int64_t kScoreBlocks = 1024;

/// Events that a call may have to score.
std::int64_t most_scored(const EventScoreParams& p) {
  return p.maybe_listed && p.max_events > 0 ? p.max_listed : p.max_events;
}

template <class T>
bool takes_packs(const EventScoreParams& p) {
  return aligned(p.representative, 16) && p.width % kPackOf<T> == 0;
}

/// The calls that take packs of kPack: the others add up in another order.
template <class T, int kPack>
cudaError_t launch_scores(const EventScoreParams* params, std::int64_t n_sequences,
                          cudaStream_t stream) {
  return launch_in_batches<EventScoreParams>(
      n_sequences,
      [&](std::int64_t i, EventScoreParams& args) {
        args = params[i];
        return most_scored(args) > 0 && takes_packs<T>(args) == (kPack > 1);
      },
      [&](const auto& batch) {
        const std::int64_t lanes = batch.of[0].n_lanes, rows = lanes * batch.n;
        const std::int64_t blocks =
            (largest(batch, most_scored) + kEventScoreWarps - 1) / kEventScoreWarps;
        const std::int64_t share = rows < kScoreBlocks ? kScoreBlocks / rows : 1;
        const std::int64_t width =
            largest(batch, [](const EventScoreParams& p) { return p.width; });
        return launch(ScoreEventsKernel<T, kPack, kRoomOf<decltype(batch)>>,
                      dim3(static_cast<unsigned>(blocks < share ? blocks : share),
                           static_cast<unsigned>(lanes), static_cast<unsigned>(batch.n)),
                      kEventScoreThreads, static_cast<std::size_t>(width) * sizeof(float), stream,
                      batch);
      });
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
  if (most_scored(p) == 0) return {};
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

FieldError check(const EventScoreParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const EventScoreParams& p) { return check(p); },
      [](const EventScoreParams& p, const EventScoreParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, dtype);
        EPISODIC_FIELD_SHARED(p, first, n_lanes);
        return {};
      });
}

FieldError check(const RecallTopParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const RecallTopParams& p) { return check(p); },
      [](const RecallTopParams& p, const RecallTopParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, n_lanes);
        return {};
      });
}

}  // namespace

const char* invalid_field(const EventScoreParams& params) { return check(params).field; }
const char* invalid_field(const RecallTopParams& params) { return check(params).field; }
const char* invalid_field(const EventScoreParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const RecallTopParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t score_events_batch(const EventScoreParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  if (n_sequences == 0) return cudaSuccess;
  return for_element(params->dtype, [&](auto element) {
    using T = typename decltype(element)::type;
    const cudaError_t error = launch_scores<T, kPackOf<T>>(params, n_sequences, stream);
    return error ? error : launch_scores<T, 1>(params, n_sequences, stream);
  });
}

cudaError_t score_events(const EventScoreParams& p, cudaStream_t stream) {
  return score_events_batch(&p, 1, stream);
}

cudaError_t recall_top_batch(const RecallTopParams* params, std::int64_t n_sequences,
                             cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<RecallTopParams>(n_sequences, call_of(params), [&](const auto& batch) {
    const dim3 grid(static_cast<unsigned>(batch.of[0].n_lanes), static_cast<unsigned>(batch.n));
    return launch(RecallTopKernel<kRoomOf<decltype(batch)>>, grid, kRecallTopThreads, 0, stream,
                  batch);
  });
}

cudaError_t recall_top(const RecallTopParams& p, cudaStream_t stream) {
  return recall_top_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
