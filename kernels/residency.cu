// SPDX-License-Identifier: Apache-2.0
#include "residency.hpp"

#include "batch.hpp"
#include "elements.cuh"
#include "fields.hpp"
#include "residency.cuh"

namespace episodic::kernels {
namespace {

bool is_list_length(std::int64_t n) { return n >= 0 && n <= INT32_MAX - kResidencyThreads; }

/// A row for each sequence, of a thread an item where there are not too many.
dim3 grid_of(std::int64_t items, int n_sequences) {
  return dim3(blocks_for((items + kResidencyThreads - 1) / kResidencyThreads),
              static_cast<unsigned>(n_sequences));
}

template <class Params>
FieldError check_map(const Params& p) {
  EPISODIC_FIELD(p, map.max_events, p.map.max_events >= 0 && p.map.max_events <= INT32_MAX);
  EPISODIC_FIELD(p, map.n_slots, is_list_length(p.map.n_slots));
  EPISODIC_FIELD(p, map.n_lanes, p.map.n_lanes >= 1 && p.map.max_events % p.map.n_lanes == 0);
  EPISODIC_FIELD_GIVEN(p, map.slot_of_event);
  EPISODIC_FIELD_GIVEN(p, map.last_recalled);
  EPISODIC_FIELD_GIVEN(p, map.event_of_slot);
  EPISODIC_FIELD_GIVEN(p, map.newest);
  return {};
}

template <class Params>
FieldError check_map_alignment(const Params& p) {
  EPISODIC_FIELD_ALIGNED(p, map.slot_of_event, 4);
  EPISODIC_FIELD_ALIGNED(p, map.event_of_slot, 4);
  EPISODIC_FIELD_ALIGNED(p, map.last_recalled, 8);
  EPISODIC_FIELD_ALIGNED(p, map.newest, 8);
  return {};
}

FieldError check(const TouchParams& p) {
  if (const FieldError wrong = check_map(p)) return wrong;
  EPISODIC_FIELD(p, max_count,
                 is_list_length(p.max_count) &&
                     p.max_count <= (INT32_MAX - kResidencyThreads) / p.map.n_lanes);
  EPISODIC_FIELD_GIVEN(p, step);
  EPISODIC_FIELD_GIVEN(p, count);
  EPISODIC_FIELD_GIVEN(p, n_missing);
  EPISODIC_FIELD(p, events, p.max_count == 0 || p.events);
  EPISODIC_FIELD(p, missing, p.max_count == 0 || p.missing);
  EPISODIC_FIELD(p, count_stride, p.count_stride >= 0);
  if (const FieldError wrong = check_map_alignment(p)) return wrong;
  EPISODIC_FIELD_ALIGNED(p, step, 8);
  EPISODIC_FIELD_ALIGNED(p, maybe_n_events, 8);
  EPISODIC_FIELD_ALIGNED(p, events, 4);
  EPISODIC_FIELD_ALIGNED(p, missing, 4);
  EPISODIC_FIELD_ALIGNED(p, count, 4);
  EPISODIC_FIELD_ALIGNED(p, n_missing, 4);
  return {};
}

FieldError check(const VictimParams& p) {
  if (const FieldError wrong = check_map(p)) return wrong;
  EPISODIC_FIELD(p, map.n_slots, p.map.n_slots >= 1);
  EPISODIC_FIELD(p, max_needed, is_list_length(p.max_needed));
  EPISODIC_FIELD_GIVEN(p, since);
  EPISODIC_FIELD_GIVEN(p, n_needed);
  EPISODIC_FIELD_GIVEN(p, n_given);
  EPISODIC_FIELD_GIVEN(p, n_victims);
  EPISODIC_FIELD(p, n_kept, !p.maybe_kept || p.n_kept);
  EPISODIC_FIELD(p, kept_capacity, !p.maybe_kept || p.kept_capacity >= 0);
  EPISODIC_FIELD(p, pin_stride, p.pin_stride >= 0);
  EPISODIC_FIELD(p, slots, p.max_needed == 0 || p.slots);
  EPISODIC_FIELD(p, victims, p.max_needed == 0 || p.victims);
  if (const FieldError wrong = check_map_alignment(p)) return wrong;
  EPISODIC_FIELD_ALIGNED(p, since, 8);
  EPISODIC_FIELD_ALIGNED(p, maybe_kept, 4);
  EPISODIC_FIELD_ALIGNED(p, n_kept, 4);
  EPISODIC_FIELD_ALIGNED(p, victims, 4);
  EPISODIC_FIELD_ALIGNED(p, n_needed, 4);
  EPISODIC_FIELD_ALIGNED(p, slots, 4);
  EPISODIC_FIELD_ALIGNED(p, n_given, 4);
  EPISODIC_FIELD_ALIGNED(p, n_victims, 4);
  return {};
}

FieldError check(const OccupyParams& p) {
  if (const FieldError wrong = check_map(p)) return wrong;
  EPISODIC_FIELD(p, max_needed, is_list_length(p.max_needed));
  EPISODIC_FIELD(p, n_init, p.n_init >= 0);
  EPISODIC_FIELD(p, table_stride, p.table_stride >= 0);
  EPISODIC_FIELD(p, lane_bytes, p.lane_bytes >= 0);
  EPISODIC_FIELD(p, token_bytes, p.token_bytes >= 1);
  EPISODIC_FIELD(p, slot_bytes, p.slot_bytes >= p.token_bytes);
  EPISODIC_FIELD(p, base_end, p.base_end >= 0);
  if (p.max_needed == 0) return {};
  EPISODIC_FIELD_GIVEN(p, missing);
  EPISODIC_FIELD_GIVEN(p, slots);
  EPISODIC_FIELD_GIVEN(p, n_given);
  EPISODIC_FIELD_GIVEN(p, victims);
  EPISODIC_FIELD_GIVEN(p, n_victims);
  EPISODIC_FIELD_GIVEN(p, events);
  EPISODIC_FIELD_GIVEN(p, home);
  EPISODIC_FIELD(p, base_home, p.base_end == 0 || p.base_home);
  EPISODIC_FIELD_GIVEN(p, slot_memory);
  EPISODIC_FIELD_GIVEN(p, blocks);
  EPISODIC_FIELD_GIVEN(p, runs);
  if (const FieldError wrong = check_map_alignment(p)) return wrong;
  EPISODIC_FIELD_ALIGNED(p, events, 8);
  EPISODIC_FIELD_ALIGNED(p, blocks, 8);
  EPISODIC_FIELD_ALIGNED(p, runs, 8);
  EPISODIC_FIELD_ALIGNED(p, missing, 4);
  EPISODIC_FIELD_ALIGNED(p, victims, 4);
  EPISODIC_FIELD_ALIGNED(p, slots, 4);
  EPISODIC_FIELD_ALIGNED(p, n_given, 4);
  EPISODIC_FIELD_ALIGNED(p, n_victims, 4);
  return {};
}

template <class Params>
FieldError check(const Params* params, std::int64_t n_sequences) {
  return check_batch(params, n_sequences, [](const Params& p) { return check(p); });
}

}  // namespace

const char* invalid_field(const TouchParams& params) { return check(params).field; }
const char* invalid_field(const VictimParams& params) { return check(params).field; }
const char* invalid_field(const OccupyParams& params) { return check(params).field; }
const char* invalid_field(const TouchParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const VictimParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}
const char* invalid_field(const OccupyParams* params, std::int64_t n_sequences) {
  return check(params, n_sequences).field;
}

cudaError_t touch_events_batch(const TouchParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<TouchParams>(n_sequences, call_of(params), [&](const auto& batch) {
    return launch(TouchEventsKernel<kRoomOf<decltype(batch)>>, static_cast<unsigned>(batch.n),
                  kResidencyThreads, 0, stream, batch);
  });
}

cudaError_t choose_victims_batch(const VictimParams* params, std::int64_t n_sequences,
                                 cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<VictimParams>(n_sequences, call_of(params), [&](const auto& batch) {
    const std::int64_t slots = largest(batch, [](const VictimParams& p) { return p.map.n_slots; });
    return launch(ChooseVictimsKernel<kRoomOf<decltype(batch)>>, grid_of(slots, batch.n),
                  kResidencyThreads, 0, stream, batch);
  });
}

cudaError_t occupy_slots_batch(const OccupyParams* params, std::int64_t n_sequences,
                               cudaStream_t stream) {
  if (const FieldError wrong = check(params, n_sequences)) return wrong.error;
  return launch_in_batches<OccupyParams>(
      n_sequences,
      [&](std::int64_t i, OccupyParams& args) {
        args = params[i];
        return args.max_needed > 0;
      },
      [&](const auto& batch) {
        const std::int64_t most =
            largest(batch, [](const OccupyParams& p) { return p.max_needed; });
        return launch(OccupySlotsKernel<kRoomOf<decltype(batch)>>, grid_of(most, batch.n),
                      kResidencyThreads, 0, stream, batch);
      });
}

cudaError_t touch_events(const TouchParams& p, cudaStream_t stream) {
  return touch_events_batch(&p, 1, stream);
}

cudaError_t choose_victims(const VictimParams& p, cudaStream_t stream) {
  return choose_victims_batch(&p, 1, stream);
}

cudaError_t occupy_slots(const OccupyParams& p, cudaStream_t stream) {
  return occupy_slots_batch(&p, 1, stream);
}

}  // namespace episodic::kernels
