// SPDX-License-Identifier: Apache-2.0
// TorchDeviceMemory by the test of all kinds of SequenceMemory, beside the host's and DeviceMemory.
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "episodic/device_torch/device_attention.hpp"
#include "kernels/device.hpp"
#include "memory/sequence_kinds.hpp"
#if defined(EPISODIC_EMULATED_CUDA)
#include "fake_cuda.hpp"
#endif

namespace {

using namespace episodic;
using episodic_test::DeviceArray;
using sequence_kinds::Array;
using sequence_kinds::Bytes;
using sequence_kinds::Kind;

bool has_cuda_tensors() {
#if defined(EPISODIC_EMULATED_CUDA)
  fake_cuda::install();
#endif
  return c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA);
}

Array on_device(const Bytes& bytes) {
  auto kept = std::make_shared<DeviceArray<unsigned char>>(bytes);
  return {std::shared_ptr<void>(kept, kept->data()), [kept] { return kept->host(); }};
}

std::vector<Kind> all_kinds() {
  Kind host, device, torch;
  host.name = "HostMemory";
  host.any_strides = host.turns_back = true;
  host.make = [](const MemoryConfig& config, const MemoryShape& shape, DType, std::int64_t) {
    return std::make_unique<HostMemory>(config, shape);
  };
  host.array = sequence_kinds::host_array;
  device.name = "DeviceMemory";
  device.dims = {16, 40};
  device.rotary_step = 16;
  device.make = [](const MemoryConfig& config, const MemoryShape& shape, DType dtype,
                   std::int64_t max_tokens) {
    return std::make_unique<DeviceMemory>(config, shape, DeviceMemoryOptions{dtype, max_tokens},
                                          nullptr);
  };
  device.array = on_device;
  torch = device;
  torch.name = "TorchDeviceMemory";
  torch.turns_back = true;
  torch.make = [](const MemoryConfig& config, const MemoryShape& shape, DType dtype,
                  std::int64_t max_tokens) {
    DeviceMemoryOptions options{dtype, max_tokens};
    options.turns_back = true;
    return std::make_unique<TorchDeviceMemory>(config, shape, options,
                                               c10::Device(c10::DeviceType::CUDA, 0));
  };
  return {host, device, torch};
}

}  // namespace

TEST_CASE("a memory of CUDA tensors takes random steps as all kinds of memory do") {
  EPISODIC_NEEDS_DEVICE();
  if (!has_cuda_tensors()) EPISODIC_SKIP("this libtorch has no CUDA, and so no CUDA tensors");
  sequence_kinds::check_steps(all_kinds());
}

TEST_CASE("a memory of CUDA tensors goes on after a step that was abandoned") {
  EPISODIC_NEEDS_DEVICE();
  if (!has_cuda_tensors()) EPISODIC_SKIP("this libtorch has no CUDA, and so no CUDA tensors");
  sequence_kinds::check_abandoning(all_kinds().back());
}

TEST_CASE("a memory of CUDA tensors refuses the same views by name") {
  EPISODIC_NEEDS_DEVICE();
  if (!has_cuda_tensors()) EPISODIC_SKIP("this libtorch has no CUDA, and so no CUDA tensors");
  sequence_kinds::check_refusals(all_kinds().back());
}

TEST_CASE("a memory of CUDA tensors turns queries and keys back") {
  EPISODIC_NEEDS_DEVICE();
  if (!has_cuda_tensors()) EPISODIC_SKIP("this libtorch has no CUDA, and so no CUDA tensors");
  sequence_kinds::check_turning_back(all_kinds().back());
}
