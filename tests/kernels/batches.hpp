// SPDX-License-Identifier: Apache-2.0
#pragma once
// Batches beside their calls one by one: the same bits.

#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kernels/batch.hpp"
#include "kernels/batch_fields.hpp"
#include "kernels/device.hpp"

namespace episodic_test {

/// Sizes of batches: one, some, as many as a launch of few takes, one more, and many more.
inline std::vector<std::int64_t> batch_sizes(std::int64_t most_in_launch) {
  return {1, 2, 3, most_in_launch, most_in_launch + 1, 33};
}
/// Launches of n calls with something to do.
inline std::int64_t launches_of(
    std::int64_t n, std::int64_t most_in_launch = episodic::kernels::kMostInLongLaunch) {
  return (n + most_in_launch - 1) / most_in_launch;
}

/// Launches that f makes; -1 on a device, where they are not counted.
template <class F>
std::int64_t count_launches(F&& f) {
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::reset_calls();
  f();
  return emulator::calls().launches;
#else
  f();
  return -1;
#endif
}

/// Arrays in device memory that live as long as this.
class Arena {
 public:
  /// What calls read.
  template <class T>
  T* in(const std::vector<T>& host) {
    auto array = std::make_shared<DeviceArray<T>>(host);
    kept_.push_back(array);
    return array->data();
  }
  /// What they write, and may read before.
  template <class T>
  T* out(const std::vector<T>& host) {
    auto array = std::make_shared<DeviceArray<T>>(host);
    outputs_.push_back([array] {
      const std::vector<T> values = array->host();
      const auto* const bytes = reinterpret_cast<const unsigned char*>(values.data());
      return std::vector<unsigned char>(bytes, bytes + values.size() * sizeof(T));
    });
    return array->data();
  }
  /// The same, of which each element is to be written or left alone.
  template <class T>
  T* out(std::int64_t n) {
    return out(std::vector<T>(static_cast<std::size_t>(n), T{}));
  }
  /// All of them, as they are now.
  std::vector<std::vector<unsigned char>> outputs() const {
    std::vector<std::vector<unsigned char>> all;
    for (const auto& read : outputs_) all.push_back(read());
    return all;
  }

 private:
  std::vector<std::shared_ptr<void>> kept_;
  std::vector<std::function<std::vector<unsigned char>()>> outputs_;
};

/// Holds a batch of every size to its calls one by one. \param make(i, arena) the parameters of
/// sequence i, alike whenever it is asked \param launches(n) of n sequences \param sizes less of
/// them where a sequence takes long
template <class Params, class Make, class Launches>
void check_batches(
    const Make& make, cudaError_t (*single)(const Params&, cudaStream_t),
    cudaError_t (*batch)(const Params*, std::int64_t, cudaStream_t), const Launches& launches,
    const std::vector<std::int64_t>& sizes = batch_sizes(episodic::kernels::kMostInLaunch)) {
  for (const std::int64_t n : sizes)
    in_every_order([&] {
      CAPTURE(n);
      Arena alone, together;
      std::vector<Params> params;
      for (std::int64_t i = 0; i < n; ++i) {
        REQUIRE(single(make(i, alone), nullptr) == cudaSuccess);
        params.push_back(make(i, together));
      }
      const std::int64_t count =
          count_launches([&] { REQUIRE(batch(params.data(), n, nullptr) == cudaSuccess); });
      REQUIRE((count < 0 || count == launches(n)));
      REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
      REQUIRE(alone.outputs() == together.outputs());
    });
  REQUIRE(batch(nullptr, 0, nullptr) == cudaSuccess);
  REQUIRE(batch(nullptr, 1, nullptr) == cudaErrorInvalidValue);
  REQUIRE(batch(nullptr, -1, nullptr) == cudaErrorInvalidValue);
}

/// What x_batch refuses beyond what x does. \param change makes of one call another, whose field
/// its batch must share or which is wrong by itself
template <class Params>
void check_shared(const Params& sound,
                  cudaError_t (*batch)(const Params*, std::int64_t, cudaStream_t),
                  const char* field, void (*change)(Params&)) {
  std::vector<Params> params(3, sound);
  REQUIRE(invalid_field(params.data(), 3) == nullptr);
  change(params[2]);
  CAPTURE(field);
  const char* const named = invalid_field(params.data(), 3);
  REQUIRE(named != nullptr);
  REQUIRE(std::string(named) == field);
  REQUIRE(invalid_sequence(3, params.data()) == 2);
  REQUIRE(invalid_sequence(2, params.data()) == -1);
  REQUIRE(batch(params.data(), 3, nullptr) == cudaErrorInvalidValue);
  REQUIRE(std::string(invalid_field(params.data(), -1)) == "n_sequences");
  const Params* const none = nullptr;
  REQUIRE(std::string(invalid_field(none, 1)) == "params");
  REQUIRE(invalid_sequence(1, none) == -1);
}

inline std::vector<unsigned char> random_elements(std::int64_t n, episodic::DType dtype,
                                                  std::mt19937& random) {
  std::vector<float> x = normal_floats(static_cast<std::size_t>(n), random);
  return stored(x, dtype);
}

}  // namespace episodic_test
