// SPDX-License-Identifier: Apache-2.0
#pragma once
// Copies between the host and a device that the host waits for, and within a device.

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cuda.hpp"

namespace episodic::device {

/// Behind all that the stream has. \throws DeviceError
template <class T>
std::vector<T> read(const T* from, std::int64_t count, cudaStream_t stream) {
  std::vector<T> host(static_cast<std::size_t>(count));
  if (count > 0)
    check(
        cudaMemcpyAsync(host.data(), from, host.size() * sizeof(T), cudaMemcpyDeviceToHost, stream),
        "a copy from the device");
  check(cudaStreamSynchronize(stream), "the memory's kernels");
  return host;
}

template <class T>
void write(T* to, const T* from, std::int64_t count, cudaStream_t stream) {
  if (count > 0)
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                          cudaMemcpyHostToDevice, stream),
          "a copy to the device");
  check(cudaStreamSynchronize(stream), "a copy to the device");
}

/// Within the device. Does not wait.
template <class T>
void move(T* to, const T* from, std::int64_t count, cudaStream_t stream) {
  if (count > 0)
    check(cudaMemcpyAsync(to, from, static_cast<std::size_t>(count) * sizeof(T),
                          cudaMemcpyDeviceToDevice, stream),
          "a copy within the device");
}

/// The same byte in each of `count` elements. Does not wait.
template <class T>
void fill(T* at, int byte, std::int64_t count, cudaStream_t stream) {
  check(cudaMemsetAsync(at, byte, static_cast<std::size_t>(count) * sizeof(T), stream), "clearing");
}

/// What must live until it is copied: the host waits elsewhere.
template <class T>
void send(T* to, const std::vector<T>& from, cudaStream_t stream) {
  if (!from.empty())
    check(cudaMemcpyAsync(to, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice, stream),
          "a copy to the device");
}

}  // namespace episodic::device
