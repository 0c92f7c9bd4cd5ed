// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Device code of kernels/place_events.hpp.

#include <cstdint>

#include "device.cuh"
#include "place_events.hpp"

namespace episodic::kernels {

inline constexpr int kPlaceThreads = 256;

__global__ void __launch_bounds__(kPlaceThreads) PlaceKernel(PlaceEventsParams p) {
  const std::int64_t closed = p.state->n_closed < p.max_count ? p.state->n_closed : p.max_count;
  const std::int64_t first = p.state->n_events - p.state->n_closed;
  if (threadIdx.x == 0) {
    *p.count = static_cast<std::int32_t>(closed);
    *p.first_id = first;
  }
  for (std::int64_t i = threadIdx.x; i < closed; i += kPlaceThreads) {
    p.start[i] = p.events[first + i].start;
    p.end[i] = p.events[first + i].end;
  }
  for (std::int64_t j = threadIdx.x; j < closed * p.n_layers; j += kPlaceThreads) {
    const std::int64_t layer = j / closed, i = j % closed;
    const EventRange event = p.events[first + i];
    const bool fits = (event.end - p.n_init) * p.token_bytes <= p.layer_bytes;
    void* const block =
        fits ? p.home + layer * p.layer_bytes + (event.start - p.n_init) * p.token_bytes : nullptr;
    p.blocks[layer * p.max_events + first + i] = block;
    p.step_blocks[layer * p.max_count + i] = block;
  }
}

}  // namespace episodic::kernels
