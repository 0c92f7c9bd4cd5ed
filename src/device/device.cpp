// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include "cuda.hpp"
#include "episodic/device/device_decoder.hpp"
#include "kernels/limits.hpp"

namespace episodic {

void require_device(int device) {
  int driver = 0, runtime = 0;
  device::check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  // 0: no driver at all
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    static_cast<void>(cudaGetLastError());
    throw DeviceError(
        "CUDA: no driver is installed; install NVIDIA's driver, or compute on the host");
  }
  // Within a major version of the toolkit any driver of that version serves.
  if (driver / 1000 < runtime / 1000)
    throw DeviceError(fmt::format(
        "CUDA: the driver supports CUDA {}.{}, this build needs {}.{}; update the driver, or "
        "compute on the host",
        driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10));
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess || count == 0)
    throw DeviceError("CUDA: no device is there; compute on the host");
  if (device < 0 || device >= count)
    throw DeviceError(fmt::format("CUDA: device {} of {}; the first is number 0", device, count));
  int major = 0, minor = 0;
  device::check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
                "asking for the compute capability");
  device::check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
                "asking for the compute capability");
  if (major < 8)
    throw DeviceError(fmt::format(
        "CUDA: device {} has compute capability {}.{}; the kernels need 8.0 (A100) or later; "
        "compute on the host",
        device, major, minor));
  const device::CurrentDevice current(device);
  const cudaError_t image = kernels::probe_kernels();
  if (image != cudaSuccess)
    throw DeviceError(fmt::format(
        "CUDA: this build's kernels cannot run on device {} of compute capability {}.{}: {}; build "
        "with -DEPISODIC_CUDA_ARCHITECTURES={}{}-real, update the driver, or compute on the host",
        device, major, minor, cudaGetErrorString(image), major, minor));
}

bool has_device(int device) {
  try {
    require_device(device);
    return true;
  } catch (const DeviceError&) {
    return false;
  }
}

std::string device_name(int device) {
  cudaDeviceProp properties{};
  device::check(cudaGetDeviceProperties(&properties, device), "asking for the device's name");
  return properties.name;
}

std::int64_t free_device_bytes() {
  std::size_t free = 0, total = 0;
  device::check(cudaMemGetInfo(&free, &total), "asking for the free memory");
  return static_cast<std::int64_t>(free);
}

}  // namespace episodic
