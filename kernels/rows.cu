// SPDX-License-Identifier: Apache-2.0
#include "rows.hpp"

#include <cstdint>
#include <limits>

#include "rows.cuh"

namespace episodic::kernels {

__global__ void __launch_bounds__(kRowsThreads) RowsKernel(RowsParams p, int element) {
  EPISODIC_SHARED(shared, RowsShared);
  write_rows(p, element, shared);
}

cudaError_t check_rows(const RowsParams& p) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (p.dtype == DType::int8 || p.n_kv_heads < 1 || p.head_dim < 1 || p.n < 1 || p.n_init < 0 ||
      p.n_local < 1 || p.ring_capacity < 1 || p.max_rows < 1 || p.max_rows > kMost)
    return cudaErrorInvalidValue;
  if (p.ring_head_stride > kMost || p.ring_head_stride < p.ring_capacity * p.head_dim ||
      p.n_init > kMost / p.head_dim)
    return cudaErrorInvalidValue;
  if (!p.tokens || !p.sink_key || !p.sink_value || !p.ring_key || !p.ring_value || !p.n_events ||
      !p.events || (p.recalled && (!p.event_block || !p.n_recalled)) || !p.rows || !p.n_rows ||
      !p.overflow)
    return cudaErrorInvalidValue;
  if (reinterpret_cast<std::uintptr_t>(p.rows) % alignof(KvRow) != 0)
    return cudaErrorMisalignedAddress;
  return cudaSuccess;
}

cudaError_t far_rows(const RowsParams& p, cudaStream_t stream) {
  if (const cudaError_t error = check_rows(p); error != cudaSuccess) return error;
  return launch(RowsKernel, 1, kRowsThreads, 0, stream, p, static_cast<int>(size_of(p.dtype)));
}

}  // namespace episodic::kernels
