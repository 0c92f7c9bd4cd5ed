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

}  // namespace

const char* invalid_field(const CloseEventsParams& params) { return check(params).field; }

cudaError_t close_events(const CloseEventsParams& params, cudaStream_t stream) {
  if (const FieldError wrong = check(params)) return wrong.error;
  if (params.n == 0) return cudaSuccess;
  return launch(CloseEventsKernel, static_cast<unsigned>(params.n_timelines), kCloseThreads, 0,
                stream, params);
}

}  // namespace episodic::kernels
