// SPDX-License-Identifier: Apache-2.0
// The memory on a CUDA device under a torch decoder. A libtorch without CUDA is told so.
#include <cstdio>
#include <string>

#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"
#include "episodic/device_torch/device_attention.hpp"

int main() {
  const episodic::MemoryConfig config = episodic::parse_memory_config(R"({"n_local": 1024})");
  const episodic::MemoryShape shape{2, 8, 2, 64, episodic::plain_rotary(64, 10000.0)};
  try {
    const auto memory = std::make_shared<episodic::TorchDeviceMemory>(
        config, shape, episodic::DeviceMemoryOptions{episodic::DType::bfloat16, 100000},
        c10::Device("cuda:0"));
    episodic::DeviceAttention attention(memory, 1);
    return episodic::has_device() && episodic::DeviceState(memory).tokens() == 0 ? 0 : 1;
  } catch (const episodic::NotBuiltError& e) {
    std::printf("%s\n", e.what());
    return std::string(e.what()).find("no CUDA of libtorch") == std::string::npos;
  } catch (const episodic::DeviceError& e) {
    std::printf("%s\n", e.what());
    return episodic::has_device();
  }
}
