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

FieldError check(const PlaceEventsParams* params, std::int64_t n_sequences) {
  return check_batch(
      params, n_sequences, [](const PlaceEventsParams& p) { return check(p); },
      [](const PlaceEventsParams& p, const PlaceEventsParams& first) -> FieldError {
        EPISODIC_FIELD_SHARED(p, first, n_lanes);
        EPISODIC_FIELD_SHARED(p, first, of_each);
        return {};
      });
}

}  // namespace

const char* invalid_field(const PlaceEventsParams& params) { return check(params).field; }
const char* invalid_field(const PlaceEventsParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t place_events_batch(const PlaceEventsParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<PlaceEventsParams>(n_sequences, call_of(params), [&](const auto& batch) {
    const PlaceEventsParams& p = batch.of[0];
    const dim3 grid(p.of_each ? static_cast<unsigned>(p.n_lanes) : 1u,
                    static_cast<unsigned>(batch.n));
    return launch(PlaceKernel<kRoomOf<decltype(batch)>>, grid, kPlaceThreads, 0, stream, batch);
  });
}

cudaError_t place_events(const PlaceEventsParams& p, cudaStream_t stream) {
  return place_events_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
