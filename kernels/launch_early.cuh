// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Launches that are made ready while the launch before them still runs (programmatic dependent
/// launch, compute capability 9.0 and later).

#include "device.cuh"
#include "early_launches.hpp"

namespace episodic::kernels {

/// Whether `kernel` may begin while the launch before it runs (launch_early): the current device is
/// of compute capability 9.0 or later, and so is the code that it runs, which alone knows how to
/// wait. Asked once for a kernel and device. False where the runtime does not say; no error is left
/// behind.
bool can_begin_early(const void* kernel);

/// launch() of a kernel that begins with await_launch_before(): on compute capability 9.0 and later
/// its blocks may be made ready while the launch before it on the stream still runs, where the
/// calling thread allows it (early_launches.hpp).
template <class... Params, class... Args>
cudaError_t launch_early(void (*kernel)(Params...), dim3 grid, dim3 block, std::size_t shared_bytes,
                         cudaStream_t stream, const Args&... args) {
#if defined(EPISODIC_EMULATED_CUDA)
  return launch(kernel, grid, block, shared_bytes, stream, args...);
#else
  const auto* const function = reinterpret_cast<const void*>(kernel);
  if (!early_launches_allowed() || !can_begin_early(function))
    return launch(kernel, grid, block, shared_bytes, stream, args...);
  if (shared_bytes > 0) {
    const cudaError_t error = allow_dynamic_shared(function, shared_bytes);
    if (error != cudaSuccess) return error;
  }
  cudaLaunchAttribute early = {};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &early;
  config.numAttrs = 1;
  const cudaError_t error = cudaLaunchKernelEx(&config, kernel, args...);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());  // said here
  return error;
#endif
}

/// What a kernel for launch_early does before anything else, with all its threads: waits until the
/// launches before it have ended and what they wrote is there; then the next launch may begin as
/// early. So that launch finds at most this one running. Below 9.0 nothing: there a launch begins
/// when the one before it has ended.
__device__ inline void await_launch_before() {
#if !defined(EPISODIC_EMULATED_CUDA) && defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace episodic::kernels
