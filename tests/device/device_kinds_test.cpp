// SPDX-License-Identifier: Apache-2.0
// DeviceMemory by the test of all kinds of SequenceMemory, beside the host's.
#include "episodic/device/device_memory.hpp"
#include "kernels/device.hpp"
#include "memory/sequence_kinds.hpp"

namespace {

using namespace episodic;
using episodic_test::DeviceArray;
using sequence_kinds::Array;
using sequence_kinds::Bytes;
using sequence_kinds::Kind;

Array device_array(const Bytes& bytes) {
  auto kept = std::make_shared<DeviceArray<unsigned char>>(bytes);
  return {std::shared_ptr<void>(kept, kept->data()), [kept] { return kept->host(); }};
}

Kind host_kind() {
  Kind kind;
  kind.name = "EpisodicMemory";
  kind.any_strides = kind.turns_back = true;
  kind.make = [](const MemoryConfig& config, const MemoryShape& shape, DType, std::int64_t) {
    return std::make_unique<EpisodicMemory>(config, shape);
  };
  kind.array = sequence_kinds::host_array;
  return kind;
}

Kind device_kind() {
  Kind kind;
  kind.name = "DeviceMemory";
  kind.dims = {16, 8, 24};
  kind.make = [](const MemoryConfig& config, const MemoryShape& shape, DType dtype,
                 std::int64_t max_tokens) {
    return std::make_unique<DeviceMemory>(config, shape, DeviceMemoryOptions{dtype, max_tokens},
                                          nullptr);
  };
  kind.array = device_array;
  return kind;
}

TEST_CASE("a memory on a device takes random steps as the definition says, and as the host does") {
  EPISODIC_NEEDS_DEVICE();
  sequence_kinds::check_steps({host_kind(), device_kind()});
}

TEST_CASE("a memory on a device refuses the same views by name") {
  EPISODIC_NEEDS_DEVICE();
  sequence_kinds::check_refusals(device_kind());
}

}  // namespace
