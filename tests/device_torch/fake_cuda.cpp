// SPDX-License-Identifier: Apache-2.0
#include "fake_cuda.hpp"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <cuda_runtime_api.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <optional>
#include <vector>

namespace fake_cuda {
namespace {

c10::Device cuda(int index) {
  return {c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(index)};
}

int current_device() {
  int index = 0;
  TORCH_CHECK(cudaGetDevice(&index) == cudaSuccess);
  return index;
}

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device getDevice() const override { return cuda(current_device()); }
  void setDevice(c10::Device d) const override {
    TORCH_CHECK(cudaSetDevice(d.index()) == cudaSuccess, "no device ", d);
  }
  void uncheckedSetDevice(c10::Device d) const noexcept override {
    static_cast<void>(cudaSetDevice(d.index()));
  }
  c10::Device exchangeDevice(c10::Device d) const override {
    const c10::Device before = getDevice();
    setDevice(d);
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? static_cast<c10::DeviceIndex>(count) : 0;
  }

  c10::Stream getDefaultStream(c10::Device d) const override {
    return c10::Stream(c10::Stream::DEFAULT, d);
  }
  c10::Stream getStream(c10::Device d) const override {
    const auto found = current.find(d.index());
    return found == current.end() ? getDefaultStream(d) : found->second;
  }
  c10::Stream exchangeStream(c10::Stream s) const override {
    const c10::Stream before = getStream(s.device());
    current.insert_or_assign(s.device_index(), s);
    return before;
  }
  c10::Stream getStreamFromGlobalPool(c10::Device d, bool) const override {
    const c10::Device before = exchangeDevice(d);
    cudaStream_t handle = nullptr;
    TORCH_CHECK(cudaStreamCreateWithFlags(&handle, cudaStreamNonBlocking) == cudaSuccess);
    uncheckedSetDevice(before);
    handles.push_back(handle);
    return c10::Stream(c10::Stream::UNSAFE, d, static_cast<c10::StreamId>(handles.size()));
  }
  // `override` from libtorch 2.11 on
  void* getStreamNativeHandle(const c10::Stream s) const {
    return s.id() == 0 ? nullptr : handles.at(static_cast<std::size_t>(s.id() - 1));
  }

  mutable std::map<c10::DeviceIndex, c10::Stream> current;
  mutable std::vector<cudaStream_t>
      handles;  // of stream ids 1, 2, ...; torch's pools end with the process
};

struct Allocator final : c10::Allocator {
  static void give_back(void* data) { static_cast<void>(cudaFree(data)); }
  c10::DataPtr allocate(std::size_t bytes) override {
    void* data = nullptr;
    TORCH_CHECK(bytes == 0 || cudaMalloc(&data, bytes) == cudaSuccess, "no device memory");
    return {data, data, &give_back, cuda(current_device())};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Allocator allocator;

constexpr c10::DispatchKeySet kCuda(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_generic(size, &allocator, kCuda, dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::OptionalDeviceGuard guard(device);
  return at::detail::empty_strided_generic(size, stride, &allocator, kCuda,
                                           dtype.value_or(at::kFloat));
}

/// The same elements as a tensor of the host: the emulated device's memory is the host's.
at::Tensor on_host(const at::Tensor& x) {
  return at::from_blob(x.data_ptr(), x.sizes(), x.strides(), x.options().device(at::kCPU));
}

at::Tensor& copy_(at::Tensor& self, const at::Tensor& from, bool) {
  on_host(self).copy_(on_host(from));
  return self;
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      std::optional<std::int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) {
  return at::native::view(self, size);
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("copy_", &copy_);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
}

void install() {
  if (c10::impl::hasDeviceGuardImpl(c10::DeviceType::CUDA)) return;
  c10::SetAllocator(c10::DeviceType::CUDA, &allocator);
  c10::impl::registerDeviceGuard(c10::DeviceType::CUDA, new Guard);  // never destroyed, as torch's
}

}  // namespace fake_cuda
