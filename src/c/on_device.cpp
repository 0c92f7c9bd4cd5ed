// SPDX-License-Identifier: Apache-2.0
// Models on a CUDA device, in builds with CUDA.
#include "episodic/device/device_engine.hpp"
#include "objects.hpp"

namespace episodic::c {

std::shared_ptr<const Model> load_on_device(const std::filesystem::path& path, int device) {
  DeviceDecoder::Options options;
  options.device = device;
  return load_device_model(path, options);
}

}  // namespace episodic::c
