// SPDX-License-Identifier: Apache-2.0
#include "support/device.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <ctime>
#include <fstream>
#include <random>
#include <stdexcept>

#include "support/commit.hpp"

namespace episodic::bench {
namespace {

constexpr std::int64_t kPeriod = 4194301;  // a prime: no row length divides it
constexpr std::int64_t kFlushColumns = 4096;
constexpr std::int64_t kCublasWorkspace = 32 << 20;  // what it recommends for sm_90

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

}  // namespace

void check(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error(
      fmt::format("CUDA: {}: {} ({})", what, cudaGetErrorString(error), cudaGetErrorName(error)));
}

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw std::runtime_error(fmt::format("cuBLAS: {}: {}", what, cublasGetStatusString(status)));
}

void use_device(int number) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  static_cast<void>(cudaGetLastError());
  if (error != cudaSuccess || count == 0)
    throw std::runtime_error(fmt::format("no CUDA device: {}", cudaGetErrorString(error)));
  if (number < 0 || number >= count)
    throw std::runtime_error(
        fmt::format("--device {}: there are {}, the first is 0", number, count));
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, number), "asking for the device's properties");
  if (properties.major < 8)
    throw std::runtime_error(
        fmt::format("device {} ({}) has compute capability {}.{}; the kernels need 8.0 or later",
                    number, properties.name, properties.major, properties.minor));
  check(cudaSetDevice(number), "choosing the device");
}

nlohmann::json device_environment(const std::string& commit) {
  int device = 0, driver = 0, runtime = 0;
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaDriverGetVersion(&driver), "asking for the driver's version");
  check(cudaRuntimeGetVersion(&runtime), "asking for the runtime's version");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
  std::string driver_release = "unknown";
  std::ifstream in("/proc/driver/nvidia/version");
  std::getline(in, driver_release);
  char date[32];
  const std::time_t now = std::time(nullptr);
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&now));
  return {{"device", properties.name},
          {"compute_capability", fmt::format("{}.{}", properties.major, properties.minor)},
          {"multiprocessors", properties.multiProcessorCount},
          {"memory_bytes", properties.totalGlobalMem},
          {"l2_cache_bytes", properties.l2CacheSize},
          {"driver", driver_release},
          {"driver_cuda", version(driver)},
          {"runtime_cuda", version(runtime)},
          {"toolkit", version(CUDART_VERSION)},
          {"date", date},
          {"commit", commit.empty() ? commit_name() : commit}};
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

NormalArray::NormalArray(std::int64_t elements, DType dtype, float sigma)
    : bytes_(elements * size_of(dtype)) {
  const std::int64_t block = std::min(elements, kPeriod);
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, sigma);
  std::vector<unsigned char> host(static_cast<std::size_t>(block * size_of(dtype)));
  for (std::int64_t i = 0; i < block; ++i) {
    const float x = normal(random);
    unsigned char* at = host.data() + i * size_of(dtype);
    const std::uint16_t h = dtype == DType::bfloat16 ? to_bfloat16(x) : to_float16(x);
    if (dtype == DType::float32)
      std::memcpy(at, &x, 4);
    else
      std::memcpy(at, &h, 2);
  }
  check(cudaMemcpy(bytes_.data(), host.data(), host.size(), cudaMemcpyHostToDevice), "a copy");
  const std::int64_t all = bytes_.size();
  for (std::int64_t done = block * size_of(dtype); done < all;) {
    const std::int64_t more = std::min(done, all - done);  // whole periods until the end
    check(cudaMemcpy(bytes_.data() + done, bytes_.data(), static_cast<std::size_t>(more),
                     cudaMemcpyDeviceToDevice),
          "a copy");
    done += more;
  }
  check(cudaStreamSynchronize(nullptr), "a copy");  // for the streams that do not wait for it
}

DeviceClock::DeviceClock() {
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "a stream");
  check(cudaEventCreateWithFlags(&begin_, 0), "an event");
  check(cudaEventCreateWithFlags(&end_, 0), "an event");
  check(cublasCreate(&cublas_), "starting it");
  check(cublasSetStream(cublas_, stream_), "setting its stream");
  cublas_workspace_ = std::make_unique<DeviceArray<unsigned char>>(kCublasWorkspace);
  check(cublasSetWorkspace(cublas_, cublas_workspace_->data(), kCublasWorkspace), "its workspace");
  int device = 0;
  cudaDeviceProp properties{};
  check(cudaGetDevice(&device), "asking for the device");
  check(cudaGetDeviceProperties(&properties, device), "asking for the device's properties");
  flush_rows_ = std::max<std::int64_t>(16, 4LL * properties.l2CacheSize / (2 * kFlushColumns));
  flush_matrix_ = std::make_unique<DeviceArray<std::uint16_t>>(flush_rows_ * kFlushColumns);
  flush_vector_ = std::make_unique<DeviceArray<std::uint16_t>>(kFlushColumns);
  flush_sums_ = std::make_unique<DeviceArray<std::uint16_t>>(flush_rows_);
  for (const auto* zeros : {flush_matrix_.get(), flush_vector_.get()})
    check(cudaMemset(zeros->data(), 0, static_cast<std::size_t>(zeros->size()) * 2), "zeros");
}

DeviceClock::~DeviceClock() {
  if (cublas_) static_cast<void>(cublasDestroy(cublas_));
  for (cudaEvent_t event : {begin_, end_})
    if (event) static_cast<void>(cudaEventDestroy(event));
  if (stream_) static_cast<void>(cudaStreamDestroy(stream_));
}

void DeviceClock::flush() {
  multiply(flush_rows_, 1, kFlushColumns, flush_matrix_->data(), flush_vector_->data(),
           flush_sums_->data());
}

std::vector<std::vector<double>> DeviceClock::in_turn(const std::vector<Call>& calls, int runs,
                                                      int warm_up) {
  std::vector<std::vector<double>> seconds(calls.size());
  check(cudaDeviceSynchronize(), "what was laid out");  // on another stream
  for (int round = 0; round < warm_up + runs; ++round)
    for (std::size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].prepare) calls[i].prepare();
      flush();
      check(cudaEventRecord(begin_, stream_), "an event");
      calls[i].run();
      check(cudaEventRecord(end_, stream_), "an event");
      check(cudaEventSynchronize(end_), "what was measured");
      float milliseconds = 0;
      check(cudaEventElapsedTime(&milliseconds, begin_, end_), "the clock");
      if (round >= warm_up) seconds[i].push_back(1e-3 * static_cast<double>(milliseconds));
    }
  return seconds;
}

std::function<void()> DeviceClock::copy(std::int64_t bytes) {
  const std::int64_t half = std::max<std::int64_t>(1, bytes / 2);
  const auto memory = std::make_shared<DeviceArray<unsigned char>>(2 * ((half + 255) / 256 * 256));
  return [this, memory, half] {
    check(cudaMemcpyAsync(memory->data() + memory->size() / 2, memory->data(),
                          static_cast<std::size_t>(half), cudaMemcpyDeviceToDevice, stream_),
          "a copy");
  };
}

void DeviceClock::multiply(std::int64_t m, std::int64_t n, std::int64_t k, const void* a,
                           const void* b, void* c) {
  const float one = 1.0f, zero = 0.0f;
  // cuBLAS is column-major: C^T [n, m] = B A^T
  check(cublasGemmEx(cublas_, CUBLAS_OP_T, CUBLAS_OP_N, static_cast<int>(n), static_cast<int>(m),
                     static_cast<int>(k), &one, b, CUDA_R_16BF, static_cast<int>(k), a, CUDA_R_16BF,
                     static_cast<int>(k), &zero, c, CUDA_R_16BF, static_cast<int>(n),
                     CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT),
        "a product");
}

DeviceClock::Square DeviceClock::square_product(double flops) {
  const double side = std::cbrt(flops / 2);
  const double multiple = side >= 1024 ? 128 : 16;
  Square out;
  out.side = static_cast<std::int64_t>(multiple * std::max(1.0, std::round(side / multiple)));
  out.flops = 2.0 * std::pow(static_cast<double>(out.side), 3);
  const auto a = std::make_shared<NormalArray>(out.side * out.side, DType::bfloat16);
  const auto b = std::make_shared<NormalArray>(out.side * out.side, DType::bfloat16);
  const auto c = std::make_shared<DeviceArray<std::uint16_t>>(out.side * out.side);
  out.run = [this, a, b, c, side = out.side] {
    multiply(side, side, side, a->data(), b->data(), c->data());
  };
  return out;
}

}  // namespace episodic::bench
