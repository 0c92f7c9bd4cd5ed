// SPDX-License-Identifier: Apache-2.0
#include "place_events.hpp"

#include <limits>

#include "fields.hpp"
#include "place_events.cuh"

namespace episodic::kernels {

namespace {

FieldError check(const PlaceEventsParams& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  EPISODIC_FIELD(p, max_events, p.max_events >= 1 && p.max_events <= kMost);
  EPISODIC_FIELD(p, n_init, p.n_init >= 0);
  EPISODIC_FIELD(p, n_lanes, p.n_lanes >= 1 && p.n_lanes <= kMost);
  EPISODIC_FIELD(p, lane_bytes, p.lane_bytes >= 0);
  EPISODIC_FIELD(p, token_bytes, p.token_bytes >= 1);
  EPISODIC_FIELD(p, max_count, p.max_count >= 1 && p.max_count <= kMost);
  EPISODIC_FIELD_GIVEN(p, state);
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD_GIVEN(p, home);
  EPISODIC_FIELD_GIVEN(p, blocks);
  EPISODIC_FIELD_GIVEN(p, start);
  EPISODIC_FIELD_GIVEN(p, end);
  EPISODIC_FIELD_GIVEN(p, count);
  EPISODIC_FIELD_GIVEN(p, first_id);
  EPISODIC_FIELD_GIVEN(p, step_blocks);
  return {};
}

}  // namespace

const char* invalid_field(const PlaceEventsParams& params) { return check(params).field; }

cudaError_t place_events(const PlaceEventsParams& p, cudaStream_t stream) {
  if (const FieldError wrong = check(p)) return wrong.error;
  return launch(PlaceKernel, p.of_each ? static_cast<unsigned>(p.n_lanes) : 1u, kPlaceThreads, 0,
                stream, p);
}

}  // namespace episodic::kernels
