// SPDX-License-Identifier: Apache-2.0
// The memory on a CUDA device under an engine of one's own; without a device, what it would take.
#include <cstdio>

#include "episodic/base/error.hpp"
#include "episodic/device/device_decoder.hpp"

int main() {
  const episodic::MemoryConfig config = episodic::parse_memory_config(R"({"n_local": 1024})");
  const episodic::MemoryShape shape{2, 8, 2, 64, episodic::plain_rotary(64, 10000.0)};
  const episodic::DeviceMemoryOptions options{episodic::DType::bfloat16, 100000};
  const std::int64_t bytes = episodic::DeviceMemory::bytes_needed(config, shape, options).total();
  std::printf("100000 tokens take %lld bytes of device memory\n", static_cast<long long>(bytes));
  if (bytes < 100000 * 2 * 2 * 64 * 2 * 2) return 1;  // keys and values alone
  if (!episodic::has_device()) {
    try {
      episodic::DeviceMemory(config, shape, options, nullptr);
      return 1;
    } catch (const episodic::Error& e) {
      std::printf("%s\n", e.what());
      return 0;
    }
  }
  return episodic::DeviceMemory(config, shape, options, nullptr).tokens() == 0 ? 0 : 1;
}
