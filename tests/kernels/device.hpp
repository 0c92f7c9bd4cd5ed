// SPDX-License-Identifier: Apache-2.0
#pragma once
// What tests of kernels share: arrays in device memory, elements of every dtype, and the orders in
// which an emulated device runs its threads.

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "episodic/base/dtype.hpp"
#include "support/sampled.hpp"
#include "support/test.hpp"
#if defined(EPISODIC_EMULATED_CUDA)
#include "emulator.hpp"
#endif

namespace episodic_test {

/// Ends a test case in sight where there is no device.
#define EPISODIC_NEEDS_DEVICE() \
  if (episodic_test::no_device()) EPISODIC_SKIP("no CUDA device")

inline bool no_device() {
  int devices = 0;
  const bool none = cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0;
  static_cast<void>(cudaGetLastError());
  return none;
}

/// An array in device memory: a copy of a host array, or `n` elements that were never written. A
/// copy is there for every stream: cudaMemcpy from pageable memory returns before its bytes are,
/// and a non-blocking stream does not wait for it.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::size_t n) : size_(n) {
    REQUIRE(cudaMalloc(reinterpret_cast<void**>(&data_), n > 0 ? n * sizeof(T) : 1) == cudaSuccess);
  }
  DeviceArray(const std::vector<T>& host) : DeviceArray(host.size()) {
    REQUIRE(cudaMemcpy(data_, host.data(), size_ * sizeof(T), cudaMemcpyHostToDevice) ==
            cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  }
  ~DeviceArray() { cudaFree(data_); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::size_t size() const { return size_; }
  std::vector<T> host() const {
    std::vector<T> out(size_);
    REQUIRE(cudaMemcpy(out.data(), data_, size_ * sizeof(T), cudaMemcpyDeviceToHost) ==
            cudaSuccess);
    return out;
  }

 private:
  T* data_ = nullptr;
  std::size_t size_;
};

/// The emulated device is again as it is by default when the scope ends, a failure too; a device is
/// left alone.
#if defined(EPISODIC_EMULATED_CUDA)
using emulator::DefaultsBehind;
#else
struct DefaultsBehind {
  ~DefaultsBehind() {}
};
#endif

/// Floats as they are stored in `dtype`, one after the other. `x` becomes what was stored.
inline std::vector<unsigned char> stored(std::vector<float>& x, episodic::DType dtype) {
  const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
  std::vector<unsigned char> bytes(x.size() * element);
  for (std::size_t i = 0; i < x.size(); ++i) {
    unsigned char* at = bytes.data() + i * element;
    if (dtype == episodic::DType::float32) {
      std::memcpy(at, &x[i], 4);
      continue;
    }
    const bool brain = dtype == episodic::DType::bfloat16;
    const std::uint16_t h = brain ? episodic::to_bfloat16(x[i]) : episodic::to_float16(x[i]);
    x[i] = brain ? episodic::from_bfloat16(h) : episodic::from_float16(h);
    std::memcpy(at, &h, 2);
  }
  return bytes;
}

/// The reverse.
inline std::vector<float> floats(const std::vector<unsigned char>& bytes, episodic::DType dtype) {
  const auto element = static_cast<std::size_t>(episodic::size_of(dtype));
  std::vector<float> x(bytes.size() / element);
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (dtype == episodic::DType::float32) {
      std::memcpy(&x[i], bytes.data() + 4 * i, 4);
      continue;
    }
    std::uint16_t h;
    std::memcpy(&h, bytes.data() + 2 * i, 2);
    x[i] =
        dtype == episodic::DType::bfloat16 ? episodic::from_bfloat16(h) : episodic::from_float16(h);
  }
  return x;
}

inline std::vector<float> normal_floats(std::size_t n, std::mt19937& random, float sigma = 1.0f) {
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<float> x(n);
  for (float& value : x) value = normal(random);
  return x;
}

/// f once for each order in which an emulated device runs threads and blocks; on a device, twice.
/// Results that must not depend on the order are compared by the caller.
template <class F>
void in_every_order(F&& f) {
#if defined(EPISODIC_EMULATED_CUDA)
  const struct Behind {
    ~Behind() { emulator::set_order(emulator::Order::forward); }
  } behind;
  for (const auto order :
       {emulator::Order::backward, emulator::Order::shuffled, emulator::Order::forward}) {
    emulator::set_order(order, 17);
    f();
  }
#else
  f();
  f();
#endif
}

/// f once for each way in which the streams of an emulated device overlap; on a device, once.
template <class F>
void in_every_overlap(F&& f) {
#if defined(EPISODIC_EMULATED_CUDA)
  using emulator::Overlap;
  const struct Behind {
    ~Behind() {
      try {
        emulator::set_overlap(Overlap::none);
      } catch (...) {  // of work that a failed case left
      }
    }
  } behind;
  std::uint64_t seed = 0;
  std::vector<Overlap> overlaps{Overlap::late, Overlap::early, Overlap::shuffled, Overlap::none};
  if (all_cases()) overlaps.push_back(Overlap::shuffled);
  for (const Overlap overlap : overlaps) {
    emulator::set_overlap(overlap, ++seed);
    f();
  }
#else
  f();
#endif
}

}  // namespace episodic_test
