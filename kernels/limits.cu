// SPDX-License-Identifier: Apache-2.0
#include "limits.hpp"

#include <atomic>
#include <map>
#include <mutex>
#include <utility>

#include "launch_early.cuh"

namespace episodic::kernels {
namespace {

/// Never launched: there to be asked for.
__global__ void ProbeKernel() {}

/// Dynamic shared memory that `kernel` was allowed on a device; 0 where all of it is static.
struct Allowance {
  std::mutex mutex;
  std::map<std::pair<int, const void*>, std::size_t> bytes;
};

/// Allows `kernel` all that a block of `device` can have beside static memory.
cudaError_t allow_all(const void* kernel, int device, std::size_t& allowed) {
  int of_block = 0;
  cudaError_t error =
      cudaDeviceGetAttribute(&of_block, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  cudaFuncAttributes attributes;
  if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
  if (error != cudaSuccess) return error;
  const auto most = static_cast<std::size_t>(of_block);
  const std::size_t left =
      attributes.sharedSizeBytes < most ? most - attributes.sharedSizeBytes : 0;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(left));
  if (error == cudaSuccess) allowed = left;
  return error;
}

}  // namespace

cudaError_t probe_kernels() {
  cudaFuncAttributes attributes;
  const cudaError_t error =
      cudaFuncGetAttributes(&attributes, reinterpret_cast<const void*>(ProbeKernel));
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

cudaError_t count_multiprocessors(int& count) {
  count = 0;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess)
    error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) static_cast<void>(cudaGetLastError());
  return error;
}

cudaError_t allow_dynamic_shared(const void* kernel, std::size_t bytes) {
  static Allowance allowance;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  std::size_t allowed = 0;
  if (error == cudaSuccess) {
    // Held while the attribute is set: nobody launches on an allowance that is not there yet.
    const std::lock_guard lock(allowance.mutex);
    const auto found = allowance.bytes.find({device, kernel});
    if (found != allowance.bytes.end()) {
      allowed = found->second;
    } else {
      error = allow_all(kernel, device, allowed);
      if (error == cudaSuccess) allowance.bytes[{device, kernel}] = allowed;
    }
  }
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // said here; not to be found again by the next call
    return error;
  }
  return bytes <= allowed ? cudaSuccess : cudaErrorInvalidValue;
}

namespace {
std::atomic<bool> early_launches{true};
}
void set_early_launches(bool allowed) { early_launches = allowed; }

#if !defined(EPISODIC_EMULATED_CUDA)
bool can_begin_early(const void* kernel) {
  if (!early_launches) return false;
  static std::mutex mutex;
  static std::map<std::pair<int, const void*>, bool> known;
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error == cudaSuccess) {
    const std::lock_guard lock(mutex);
    if (const auto found = known.find({device, kernel}); found != known.end()) return found->second;
    int major = 0;
    cudaFuncAttributes attributes;
    error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess) error = cudaFuncGetAttributes(&attributes, kernel);
    // PTX of an older architecture, made ready by the driver, has no wait in it.
    if (error == cudaSuccess)
      return known[{device, kernel}] = major >= 9 && attributes.ptxVersion >= 90;
  }
  static_cast<void>(cudaGetLastError());
  return false;
}
#endif

}  // namespace episodic::kernels
