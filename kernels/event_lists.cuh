// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lists of events in order of time.

#include <cstdint>

#include "device.cuh"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// Whether an ascending list holds an event. Counts in 32 bits, which take half the registers:
/// there are less than 2^31 events.
__device__ inline bool holds(const DeviceEventId* list, std::int32_t count, DeviceEventId event) {
  std::int32_t low = 0, high = count;
  while (low < high) {
    const std::int32_t middle = (low + high) / 2;
    if (list[middle] < event)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && list[low] == event;
}

}  // namespace episodic::kernels
