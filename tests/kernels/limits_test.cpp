// SPDX-License-Identifier: Apache-2.0
// What launches ask of a device: shared memory of every kind of device, an image that it can run.
#include "kernels/limits.hpp"

#include <thread>
#include <vector>

#include "kernels/attention_plan.hpp"
#include "kernels/device.hpp"
#include "kernels/early_launches.hpp"
#include "kernels/recall.hpp"
#include "kernels/recall_state.hpp"
#if defined(EPISODIC_EMULATED_CUDA)
#include "kernels/device.cuh"  // elsewhere only nvcc reads it
#endif

namespace {

using namespace episodic::kernels;
using episodic_test::DeviceArray;

#if defined(EPISODIC_EMULATED_CUDA)
constexpr std::size_t kStatic = 20 << 10;

/// Has 20 KB of static memory, and reads the last byte of its dynamic memory.
template <int kInstance>
void StaticKernel(unsigned char* out, std::size_t dynamic) {
  EPISODIC_SHARED(cells, unsigned char[kStatic]);
  EPISODIC_DYNAMIC_SHARED(bytes);
  cells[0] = bytes[dynamic - 1];
  out[0] = cells[0];
}

template <int kInstance>
cudaError_t launch_static(std::size_t dynamic, const DeviceArray<unsigned char>& out) {
  return launch(StaticKernel<kInstance>, 1, 1, dynamic, nullptr, out.data(), dynamic);
}

std::size_t allowed(const void* kernel) {
  cudaFuncAttributes attributes{};
  REQUIRE(cudaFuncGetAttributes(&attributes, kernel) == cudaSuccess);
  return static_cast<std::size_t>(attributes.maxDynamicSharedSizeBytes);
}
#endif

}  // namespace

TEST_CASE("whether launches begin early is each thread's, and what was asked last") {
  REQUIRE(early_launches_allowed());
  {
    const EarlyLaunches none(false);
    REQUIRE_FALSE(early_launches_allowed());
    bool of_another = false;
    std::thread([&] { of_another = early_launches_allowed(); }).join();
    REQUIRE(of_another);
    {
      const EarlyLaunches some(true);
      REQUIRE(early_launches_allowed());
    }
    REQUIRE_FALSE(early_launches_allowed());
  }
  REQUIRE(early_launches_allowed());
}

#if defined(EPISODIC_EMULATED_CUDA)
TEST_CASE("a launch opts in for static and dynamic shared memory together") {
  const episodic_test::DefaultsBehind defaults;
  const DeviceArray<unsigned char> out(1);
  REQUIRE(launch_static<0>(1 << 10, out) == cudaSuccess);   // what is static is known from now on
  REQUIRE(launch_static<0>(30 << 10, out) == cudaSuccess);  // 30 of 48 KB, and 20 of static memory
  REQUIRE(launch_static<0>((227 << 10) - kStatic, out) == cudaSuccess);
  REQUIRE(launch_static<0>((227 << 10) - kStatic + 1, out) == cudaErrorInvalidValue);
  REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  REQUIRE(launch_static<1>(1 << 10, out) == cudaSuccess);
  // The device itself finds what no query had said before the first run.
  REQUIRE_THROWS_AS(launch_static<2>((227 << 10) - kStatic + 1, out), std::logic_error);
  emulator::set_device_count(2);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(launch_static<3>(1 << 10, out) == cudaSuccess);
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  REQUIRE(launch_static<3>(60 << 10, out) == cudaSuccess);
  REQUIRE(cudaSetDevice(1) == cudaSuccess);
  REQUIRE(launch_static<3>(60 << 10, out) == cudaSuccess);  // each device is asked by itself
  REQUIRE(cudaSetDevice(0) == cudaSuccess);
  emulator::set_device_count(1);
}

TEST_CASE("a kernel's allowance is the device's, whatever two host threads launch") {
  const auto* const kernel = reinterpret_cast<const void*>(StaticKernel<4>);
  const auto ask = [&](std::size_t bytes) {
    return [=] {
      for (int i = 0; i < 200; ++i) static_cast<void>(allow_dynamic_shared(kernel, bytes));
    };
  };
  std::thread large(ask(150 << 10)), small(ask(50 << 10));
  large.join();
  small.join();
  REQUIRE(allowed(kernel) == (227 << 10));
  REQUIRE(allow_dynamic_shared(kernel, 100 << 10) == cudaSuccess);
  REQUIRE(allowed(kernel) == (227 << 10));  // not lowered to what was asked for last
}

TEST_CASE("static shared memory is a block's own: nothing of the block before is in it") {
  const DeviceArray<unsigned char> out(1);
  struct Local {
    static void kernel(int* seen) {
      EPISODIC_SHARED(cell, int);
      seen[blockIdx.x] = cell;
      cell = 7;
    }
  };
  const DeviceArray<int> seen(3);
  REQUIRE(launch(Local::kernel, 3, 1, 0, nullptr, seen.data()) == cudaSuccess);
  REQUIRE(seen.host() == std::vector<int>(3, -1));
}

TEST_CASE("a build without an image for the device is found out before a launch") {
  const episodic_test::DefaultsBehind defaults;
  REQUIRE(probe_kernels() == cudaSuccess);
  emulator::set_kernel_image(false);
  REQUIRE(probe_kernels() == cudaErrorNoKernelImageForDevice);
  REQUIRE(cudaPeekAtLastError() == cudaSuccess);
  emulator::set_kernel_image(true);
}
#endif

TEST_CASE("the selection of the most events there may be fits into every device") {
  EPISODIC_NEEDS_DEVICE();
  const episodic_test::DefaultsBehind defaults;
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_compute_capability(8, 6);
#endif
  RecallParams p;
  p.n_init = 0;
  p.n_local = 4;
  p.chunk = 1;
  p.min_block = 1;
  p.max_events = 4;
  p.n = 1;
  p.width = 8;
  p.dtype = episodic::DType::float32;
  p.n_mem = 1;
  while (recall_room(p) != 0) p.n_mem *= 2;
  std::int64_t fits = p.n_mem / 2, too_many = p.n_mem;
  while (too_many - fits > 1) {
    p.n_mem = (fits + too_many) / 2;
    (recall_room(p) != 0 ? fits : too_many) = p.n_mem;
  }
  p.n_mem = fits;
  const auto room = static_cast<std::size_t>(recall_room(p));
  REQUIRE(room > 9000);
  const DeviceArray<std::int64_t> n_events(std::vector<std::int64_t>{4}),
      tokens(std::vector<std::int64_t>{8});
  const DeviceArray<EventRange> events(std::vector<EventRange>{{0, 1}, {1, 2}, {2, 3}, {3, 4}});
  const DeviceArray<float> representatives(std::vector<float>(32, 1.0f)),
      query(std::vector<float>(8, 1.0f));
  const DeviceArray<DeviceEventId> queue(room), similarity(room), near(room), recalled(room);
  const DeviceArray<std::int32_t> queue_size(std::vector<std::int32_t>{0}), sizes(3);
  const DeviceArray<unsigned char> workspace(recall_workspace_bytes(p));
  p.n_events = n_events.data();
  p.events = events.data();
  p.tokens = tokens.data();
  p.representatives = representatives.data();
  p.query = query.data();
  p.queue = queue.data();
  p.queue_size = queue_size.data();
  p.similarity = similarity.data();
  p.contiguity_list = near.data();
  p.recalled = recalled.data();
  p.sizes = sizes.data();
  const episodic_test::RecallState state(1);
  state.give(p);
  p.workspace = workspace.data();
  p.workspace_bytes = workspace.size();
  REQUIRE(recall_events(p, nullptr) == cudaSuccess);
  REQUIRE(sizes.host()[2] == 4);
#if defined(EPISODIC_EMULATED_CUDA)
  emulator::set_compute_capability(9, 0);
#endif
}
