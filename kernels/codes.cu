// SPDX-License-Identifier: Apache-2.0
#include "codes.hpp"

#include "codes.cuh"

namespace episodic::kernels {

cudaError_t encode_representatives(const CodeParams& p, cudaStream_t stream) {
  if (!is_float(p.dtype) || p.width < 8 || p.width % 8 != 0 || p.events.max_count < 0 ||
      p.n_layers < 0 || !product_within(kMaxElements, p.capacity, p.width) ||
      !product_within(kMaxElements, p.n_layers, p.events.max_count))
    return cudaErrorInvalidValue;
  if (p.events.max_count == 0 || p.n_layers == 0) return cudaSuccess;
  if (!p.events.count || !p.events.first_id || !p.layers) return cudaErrorInvalidValue;
  if (!aligned(p.events.count, 4) || !all_aligned(8, p.events.first_id, p.layers))
    return cudaErrorMisalignedAddress;
  // Slabs that so many events can fill.
  const std::int64_t slabs = p.events.max_count / kCodeSlab + 1;
  return for_element(p.dtype, [&](auto element) {
    return launch(EncodeKernel<typename decltype(element)::type>, blocks_for(p.n_layers * slabs),
                  kCodeThreads, 0, stream, p);
  });
}

}  // namespace episodic::kernels
