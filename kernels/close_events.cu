// SPDX-License-Identifier: Apache-2.0
#include "close_events.hpp"

#include "close_events.cuh"
#include "fields.hpp"

namespace episodic::kernels {

namespace {

FieldError check(const CloseEventsParams& p) {
  constexpr std::int64_t kMost = std::int64_t{1} << 60;  // sums of three stay within int64
  EPISODIC_FIELD(p, n, p.n >= 0 && p.n <= kMost);
  EPISODIC_FIELD(p, n_local, p.n_local >= 1 && p.n_local <= kMost);
  EPISODIC_FIELD(p, min_block, p.min_block >= 1);
  EPISODIC_FIELD(p, max_block, p.max_block >= p.min_block && p.max_block <= kMost);
  EPISODIC_FIELD(p, n_timelines, p.n_timelines >= 1 && p.n_timelines <= INT32_MAX);
  EPISODIC_FIELD(p, event_capacity, p.event_capacity >= 1);
  if (p.n == 0) return {};
  EPISODIC_FIELD(p, flag_capacity, p.flag_capacity >= p.n_local + p.max_block + p.n);
  EPISODIC_FIELD_GIVEN(p, state);
  EPISODIC_FIELD_GIVEN(p, flags);
  EPISODIC_FIELD_GIVEN(p, events);
  return {};
}

FieldError check(const CloseEventsParams* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const CloseEventsParams& p) { return check(p); });
}

}  // namespace

const char* invalid_field(const CloseEventsParams& params) { return check(params).field; }
const char* invalid_field(const CloseEventsParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t close_events_batch(const CloseEventsParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<CloseEventsParams>(
      n_sequences, call_with_tokens_of(params), [&](const auto& batch) {
        const std::int64_t timelines =
            largest(batch, [](const CloseEventsParams& p) { return p.n_timelines; });
        const dim3 grid(static_cast<unsigned>(timelines), static_cast<unsigned>(batch.n));
        return launch(CloseEventsKernel<kRoomOf<decltype(batch)>>, grid, kCloseThreads, 0, stream,
                      batch);
      });
}

cudaError_t close_events(const CloseEventsParams& params, cudaStream_t stream) {
  return close_events_batch(&params, 1, stream);
}

}  // namespace episodic::kernels
