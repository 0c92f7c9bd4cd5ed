// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lists of events in order of time.

#include <cstdint>

#include "device.cuh"
#include "timeline_state.hpp"

namespace episodic::kernels {

/// Whether an ascending list holds an event.
__device__ inline bool holds(const DeviceEventId* list, std::int64_t count, DeviceEventId event) {
  std::int64_t low = 0, high = count;
  while (low < high) {
    const std::int64_t middle = (low + high) / 2;
    if (list[middle] < event)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && list[low] == event;
}

}  // namespace episodic::kernels
