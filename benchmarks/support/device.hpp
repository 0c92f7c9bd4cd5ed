// SPDX-License-Identifier: Apache-2.0
#pragma once
// Measuring on a CUDA device: arrays, clocks, and the two limits that figures stand beside. Free of
// torch, and of the rest of the benchmarks' support.

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "episodic/base/dtype.hpp"

namespace episodic::bench {

/// \throws std::runtime_error
void check(cudaError_t error, const char* what);
void check(cublasStatus_t status, const char* what);

/// Makes the device current. \throws std::runtime_error in one line if it cannot run this build
void use_device(int number);

/// Name, memory, clocks, driver, toolkit, date, commit. \param commit empty: EPISODIC_COMMIT of the
/// environment, else that of the build
nlohmann::json device_environment(const std::string& commit);

double median(std::vector<double> values);

/// An array in device memory: a copy of a host array, which is there for every stream (the copy's
/// call returns before its bytes are), or `n` elements that were never written.
template <class T>
class DeviceArray {
 public:
  explicit DeviceArray(std::int64_t n) : size_(n) {
    check(cudaMalloc(reinterpret_cast<void**>(&data_),
                     static_cast<std::size_t>(n > 0 ? n : 1) * sizeof(T)),
          "device memory");
  }
  explicit DeviceArray(const std::vector<T>& host)
      : DeviceArray(static_cast<std::int64_t>(host.size())) {
    check(cudaMemcpy(data_, host.data(), host.size() * sizeof(T), cudaMemcpyHostToDevice),
          "a copy to the device");
    check(cudaStreamSynchronize(nullptr), "a copy to the device");
  }
  ~DeviceArray() { static_cast<void>(cudaFree(data_)); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;

  T* data() const { return data_; }
  std::int64_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  std::int64_t size_;
};

/// Elements of `dtype`: standard normal times sigma, from a block of 4,194,301 (a prime) that is
/// repeated, so that no two rows of a matrix are alike.
class NormalArray {
 public:
  NormalArray(std::int64_t elements, DType dtype, float sigma = 1.0f);
  unsigned char* data() const { return bytes_.data(); }

 private:
  DeviceArray<unsigned char> bytes_;
};

/// A stream with a clock, and what is measured beside the kernels on the same stream.
class DeviceClock {
 public:
  DeviceClock();
  ~DeviceClock();
  DeviceClock(const DeviceClock&) = delete;
  DeviceClock& operator=(const DeviceClock&) = delete;

  cudaStream_t stream() const { return stream_; }

  struct Call {
    std::function<void()> run;      ///< enqueues on the stream what is timed
    std::function<void()> prepare;  ///< before it, not timed; or empty
  };

  /// Seconds of each call in each of `runs` rounds after `warm_up` others, the calls one after the
  /// other in each round. Before each, a read of a buffer of several times the L2 cache empties it,
  /// leaves no dirty lines behind, and gives the host time to enqueue all of the call.
  std::vector<std::vector<double>> in_turn(const std::vector<Call>& calls, int runs, int warm_up);

  /// A copy within the device that moves `bytes` in all: half of them read, half written.
  std::function<void()> copy(std::int64_t bytes);

  /// A product of bfloat16 matrices, float32 sums: C [m, n] = A [m, k] B^T, B [n, k].
  void multiply(std::int64_t m, std::int64_t n, std::int64_t k, const void* a, const void* b,
                void* c);

  /// One square product of about so many flops: the side is a multiple of 128, or of 16 if small.
  struct Square {
    std::function<void()> run;
    std::int64_t side = 0;
    double flops = 0;
  };
  Square square_product(double flops);

 private:
  void flush();

  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  cublasHandle_t cublas_ = nullptr;
  std::int64_t flush_rows_ = 0;
  std::unique_ptr<DeviceArray<std::uint16_t>> flush_matrix_, flush_vector_, flush_sums_;
  std::unique_ptr<DeviceArray<unsigned char>> cublas_workspace_;
};

}  // namespace episodic::bench
