// SPDX-License-Identifier: Apache-2.0
#pragma once
// The two kinds of engine.

#include "engine.hpp"

namespace episodic::tools {

/// float32 in host memory, through libtorch.
std::unique_ptr<Engine> load_host_engine(const std::filesystem::path& model);

/// The stored dtype on the current CUDA device; null where `common.device` means the host.
/// device_engine.cpp, and in builds without a CUDA path no_device.cpp, have it and plan_on_device.
std::unique_ptr<Engine> load_device_engine(const CommonFlags& common,
                                           const std::filesystem::path& model);

}  // namespace episodic::tools
