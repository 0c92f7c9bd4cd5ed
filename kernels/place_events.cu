// SPDX-License-Identifier: Apache-2.0
#include "place_events.hpp"

#include <limits>

#include "place_events.cuh"

namespace episodic::kernels {

cudaError_t place_events(const PlaceEventsParams& p, cudaStream_t stream) {
  if (p.max_events < 1 || p.max_events > std::numeric_limits<std::int32_t>::max() || p.n_init < 0 ||
      p.n_layers < 1 || p.layer_bytes < 0 || p.token_bytes < 1 || p.max_count < 1 ||
      p.max_count > std::numeric_limits<std::int32_t>::max())
    return cudaErrorInvalidValue;
  if (!p.state || !p.events || !p.home || !p.blocks || !p.start || !p.end || !p.count ||
      !p.first_id || !p.step_blocks)
    return cudaErrorInvalidValue;
  return launch(PlaceKernel, 1, kPlaceThreads, 0, stream, p);
}

}  // namespace episodic::kernels
