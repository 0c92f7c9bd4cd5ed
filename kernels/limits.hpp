// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a block may ask of a device, and whether a device can run this build at all.

#include <cuda_runtime_api.h>

#include <cstddef>

namespace episodic::kernels {

/// Shared memory that a block can have on every device of compute capability 8.0 and later, static
/// and dynamic together: 99 KiB on 8.6, 8.9 and 12.x (8.0 has 163, 9.0 and 10.0 have 227). No
/// kernel of this library asks for more, but for those that run on 9.0 alone.
inline constexpr std::size_t kSharedOfEveryDevice = 99 << 10;
inline constexpr std::size_t kSharedOfHopper = 227 << 10;

/// Whether the current device can run this library: whether machine code for it, or PTX that its
/// driver can compile, is in the library. Launches nothing.
/// \return cudaSuccess; cudaErrorNoKernelImageForDevice or whatever else the runtime says
cudaError_t probe_kernels();

/// Multiprocessors of the current device; 0 where the runtime says an error. A look-up of the
/// runtime: no call to the device. May be called while a stream is captured.
/// \return cudaSuccess, or what the runtime said; no error is left behind
cudaError_t count_multiprocessors(int& count);

/// Makes sure that `kernel` may be launched on the current device with `bytes` of dynamic shared
/// memory beside its static memory. The first call for a kernel and device allows it all that the
/// device has, once for all; later ones are a look-up. So no launch depends on what another host
/// thread launches at the same time. May be called while a stream is captured.
/// \return cudaErrorInvalidValue where static and dynamic memory together are more than a block of
/// this device can have, or what the runtime said; no error is left behind
cudaError_t allow_dynamic_shared(const void* kernel, std::size_t bytes);

/// Whether launches of this process may begin early (launch_early.cuh); they may at first. To
/// measure both: set it before the first launch, for a graph keeps what it captured.
void set_early_launches(bool allowed);

}  // namespace episodic::kernels
