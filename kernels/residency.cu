// SPDX-License-Identifier: Apache-2.0
#include "residency.hpp"

#include "elements.cuh"
#include "residency.cuh"

namespace episodic::kernels {
namespace {

bool is_list_length(std::int64_t n) { return n >= 0 && n <= INT32_MAX - kResidencyThreads; }

bool fits(const ResidencyMap& map) {
  return map.max_events >= 0 && map.max_events <= INT32_MAX && is_list_length(map.n_slots) &&
         map.slot_of_event && map.last_recalled && map.event_of_slot && map.newest;
}

bool is_aligned(const ResidencyMap& map) {
  return all_aligned(4, map.slot_of_event, map.event_of_slot) &&
         all_aligned(8, map.last_recalled, map.newest);
}

unsigned blocks_of_threads(std::int64_t items) {
  return blocks_for((items + kResidencyThreads - 1) / kResidencyThreads);
}

}  // namespace

cudaError_t touch_events(const TouchParams& p, cudaStream_t stream) {
  if (!fits(p.map) || !is_list_length(p.max_count) || !p.step || !p.count || !p.n_missing ||
      (p.max_count > 0 && (!p.events || !p.missing)))
    return cudaErrorInvalidValue;
  if (!is_aligned(p.map) || !aligned(p.step, 8) ||
      !all_aligned(4, p.events, p.missing, p.count, p.n_missing))
    return cudaErrorMisalignedAddress;
  return launch(TouchEventsKernel, 1, kResidencyThreads, 0, stream, p);
}

cudaError_t choose_victims(const VictimParams& p, cudaStream_t stream) {
  if (!fits(p.map) || p.map.n_slots < 1 || !is_list_length(p.max_needed) || !p.since ||
      !p.n_needed || !p.n_given || !p.n_victims || (p.maybe_kept && !p.n_kept) ||
      (p.max_needed > 0 && (!p.slots || !p.victims)))
    return cudaErrorInvalidValue;
  if (!is_aligned(p.map) || !aligned(p.since, 8) ||
      !all_aligned(4, p.maybe_kept, p.n_kept, p.victims, p.n_needed, p.slots, p.n_given,
                   p.n_victims))
    return cudaErrorMisalignedAddress;
  return launch(ChooseVictimsKernel, blocks_of_threads(p.map.n_slots), kResidencyThreads, 0, stream,
                p);
}

cudaError_t occupy_slots(const OccupyParams& p, cudaStream_t stream) {
  if (!fits(p.map) || !is_list_length(p.max_needed) || p.n_init < 0 || p.token_bytes < 1 ||
      p.slot_bytes < p.token_bytes)
    return cudaErrorInvalidValue;
  if (p.max_needed == 0) return cudaSuccess;
  if (!p.missing || !p.slots || !p.n_given || !p.victims || !p.n_victims || !p.events || !p.home ||
      !p.slot_memory || !p.blocks || !p.runs)
    return cudaErrorInvalidValue;
  if (!is_aligned(p.map) || !all_aligned(8, p.events, p.blocks, p.runs) ||
      !all_aligned(4, p.missing, p.victims, p.slots, p.n_given, p.n_victims))
    return cudaErrorMisalignedAddress;
  return launch(OccupySlotsKernel, blocks_of_threads(p.max_needed), kResidencyThreads, 0, stream,
                p);
}

}  // namespace episodic::kernels
