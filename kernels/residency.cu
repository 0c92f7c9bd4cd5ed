// SPDX-License-Identifier: Apache-2.0
#include "residency.hpp"

#include "elements.cuh"
#include "residency.cuh"

namespace episodic::kernels {
namespace {

bool is_list_length(std::int64_t n) { return n >= 0 && n <= INT32_MAX - kResidencyThreads; }

bool fits(const ResidencyMap& map) {
  return map.max_events >= 0 && is_list_length(map.n_slots) && map.slot_of_event &&
         map.last_recalled && map.event_of_slot;
}

bool is_aligned(const ResidencyMap& map) {
  return aligned(map.slot_of_event, 4) && all_aligned(8, map.last_recalled, map.event_of_slot);
}

unsigned blocks_of_threads(std::int64_t items) {
  return blocks_for((items + kResidencyThreads - 1) / kResidencyThreads);
}

}  // namespace

cudaError_t touch_events(const TouchParams& p, cudaStream_t stream) {
  if (!fits(p.map) || !is_list_length(p.max_count) || !p.step || !p.count || !p.n_missing ||
      (p.max_count > 0 && (!p.events || !p.missing)))
    return cudaErrorInvalidValue;
  if (!is_aligned(p.map) || !all_aligned(8, p.step, p.events, p.missing) ||
      !all_aligned(4, p.count, p.n_missing))
    return cudaErrorMisalignedAddress;
  return launch(TouchEventsKernel, 1, kResidencyThreads, 0, stream, p);
}

cudaError_t choose_victims(const VictimParams& p, cudaStream_t stream) {
  if (!fits(p.map) || p.map.n_slots < 1 || !is_list_length(p.max_needed) || !p.step ||
      !p.n_needed || !p.n_given || !p.n_victims || (p.max_needed > 0 && (!p.slots || !p.victims)))
    return cudaErrorInvalidValue;
  if (!is_aligned(p.map) || !all_aligned(8, p.step, p.victims) ||
      !all_aligned(4, p.n_needed, p.slots, p.n_given, p.n_victims))
    return cudaErrorMisalignedAddress;
  return launch(ChooseVictimsKernel, blocks_of_threads(p.map.n_slots), kResidencyThreads, 0, stream,
                p);
}

cudaError_t place_events(const PlaceParams& p, cudaStream_t stream) {
  if (!fits(p.map) || !is_list_length(p.max_needed)) return cudaErrorInvalidValue;
  if (p.max_needed == 0) return cudaSuccess;
  if (!p.missing || !p.slots || !p.n_given || !p.victims || !p.n_victims)
    return cudaErrorInvalidValue;
  if (!is_aligned(p.map) || !all_aligned(8, p.missing, p.victims) ||
      !all_aligned(4, p.slots, p.n_given, p.n_victims))
    return cudaErrorMisalignedAddress;
  return launch(PlaceEventsKernel, blocks_of_threads(p.max_needed), kResidencyThreads, 0, stream,
                p);
}

}  // namespace episodic::kernels
