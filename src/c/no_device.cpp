// SPDX-License-Identifier: Apache-2.0
// In place of on_device.cpp in builds without CUDA.
#include "episodic/base/error.hpp"
#include "memory_on_device.hpp"
#include "objects.hpp"

namespace episodic::c {

std::shared_ptr<const Model> load_on_device(const std::filesystem::path& /*path*/, int /*device*/) {
  throw NotBuiltError(
      "device = cuda: this build has no CUDA path; build with EPISODIC_CUDA=ON, or compute on the "
      "cpu");
}

std::unique_ptr<MemoryOnDevice> memory_on_device(const DeviceMemorySettings& /*settings*/) {
  throw NotBuiltError(
      "memory_on_device: this build has no CUDA path; build with EPISODIC_CUDA=ON, or make a "
      "memory on the host");
}

}  // namespace episodic::c
