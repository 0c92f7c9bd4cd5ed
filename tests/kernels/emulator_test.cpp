// SPDX-License-Identifier: Apache-2.0
// The emulator itself: that it finds what it is there to find.
#include "emulator.hpp"

#include <stdexcept>
#include <vector>

#include "kernels/device.cuh"
#include "kernels/device.hpp"
#include "kernels/ptx.cuh"

namespace {

using namespace episodic::kernels;
using episodic_test::DeviceArray;

/// out[i] = sum over the block of in, each thread adding its neighbour's after a barrier.
template <bool kBarrier>
void NeighbourKernel(const int* in, int* out) {
  __shared__ int cells[64];
  cells[threadIdx.x] = in[threadIdx.x];
  if (kBarrier) __syncthreads();
  out[threadIdx.x] = cells[(threadIdx.x + 1) % 64];
  __syncthreads();
  cells[threadIdx.x] = -1;
}

void UnreachedBarrierKernel(int* out) {
  if (threadIdx.x % 2 == 0) __syncwarp();
  out[threadIdx.x] = 1;
}

void ReturnedThreadsKernel(int* out) {
  if (threadIdx.x >= 40) return;
  out[threadIdx.x] = __syncthreads_count(threadIdx.x < 7);
}

void WarpKernel(float* sums, unsigned* ballots) {
  const float x = static_cast<float>(threadIdx.x);
  sums[threadIdx.x] = warp_reduce(x, Sum{});
  ballots[threadIdx.x] = __ballot_sync(kFullMask, threadIdx.x % 3 == 0);
  if (threadIdx.x % 32 < 8) sums[threadIdx.x] += __shfl_xor_sync(0xffu, x, 1);
}

template <bool kWait>
void CopyKernel(const float4* in, float4* out) {
  EPISODIC_DYNAMIC_SHARED(bytes);
  auto* cells = reinterpret_cast<float4*>(bytes);
  copy_async_16(cells + threadIdx.x, in + threadIdx.x, threadIdx.x != 3);
  commit_copies();
  if (kWait) wait_copies<0>();
  out[threadIdx.x] = cells[threadIdx.x];
}

void MmaKernel(const __nv_bfloat16* a, const __nv_bfloat16* b, float* c) {
  // a [16, 16] and b [16, 8], both by rows, through shared memory
  EPISODIC_DYNAMIC_SHARED(bytes);
  auto* tile_a = reinterpret_cast<__nv_bfloat16*>(bytes);
  auto* tile_b = tile_a + 256;
  const unsigned lane = threadIdx.x;
  for (unsigned i = lane; i < 256; i += 32) tile_a[i] = a[i];
  for (unsigned i = lane; i < 256; i += 32)
    tile_b[i] = i % 16 < 8 ? b[i / 16 * 8 + i % 16] : narrow<__nv_bfloat16>(0.0f);
  __syncthreads();
  std::uint32_t of_a[4], of_b[4];
  load_matrices_x4(of_a, tile_a + (lane % 16) * 16 + (lane / 16) * 8);
  load_matrices_x4_transposed(of_b, tile_b + (lane % 16) * 16 + (lane / 16) * 8);
  float sum[4] = {};
  const std::uint32_t first[2] = {of_b[0], of_b[1]};
  mma_m16n8k16<__nv_bfloat16>(sum, of_a, first);
  for (unsigned i = 0; i < 4; ++i)
    c[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sum[i];
}

}  // namespace

TEST_CASE("emulator shows a missing barrier as a result that depends on the order") {
  std::vector<int> in(64);
  for (int i = 0; i < 64; ++i) in[static_cast<std::size_t>(i)] = i * i;
  const DeviceArray<int> d_in(in), d_out(64);
  bool differs = false;
  episodic_test::in_every_order([&] {
    REQUIRE(launch(NeighbourKernel<true>, 1, 64, 0, nullptr, d_in.data(), d_out.data()) ==
            cudaSuccess);
    const std::vector<int> out = d_out.host();
    for (std::size_t i = 0; i < 64; ++i) REQUIRE(out[i] == in[(i + 1) % 64]);
    REQUIRE(launch(NeighbourKernel<false>, 1, 64, 0, nullptr, d_in.data(), d_out.data()) ==
            cudaSuccess);
    differs = differs || d_out.host() != out;
  });
  REQUIRE(differs);
}

TEST_CASE("emulator refuses a collective that not all its threads reach") {
  const DeviceArray<int> out(32);
  REQUIRE_THROWS_AS(launch(UnreachedBarrierKernel, 1, 32, 0, nullptr, out.data()),
                    std::logic_error);
}

TEST_CASE("emulator counts no returned thread at the block's barrier") {
  const DeviceArray<int> out(48);
  REQUIRE(launch(ReturnedThreadsKernel, 1, 48, 0, nullptr, out.data()) == cudaSuccess);
  for (std::size_t i = 0; i < 40; ++i) REQUIRE(out.host()[i] == 7);
}

TEST_CASE("emulator's warps reduce, vote and exchange, also in parts") {
  const DeviceArray<float> sums(64);
  const DeviceArray<unsigned> ballots(64);
  episodic_test::in_every_order([&] {
    REQUIRE(launch(WarpKernel, 1, 64, 0, nullptr, sums.data(), ballots.data()) == cudaSuccess);
    const std::vector<float> got = sums.host();
    for (std::size_t i = 0; i < 64; ++i) {
      float expected = i < 32 ? 496.0f : 1520.0f;
      if (i % 32 < 8) expected += static_cast<float>(i ^ 1u);
      REQUIRE(got[i] == expected);
      unsigned ballot = 0;
      for (unsigned lane = 0; lane < 32; ++lane)
        if ((i / 32 * 32 + lane) % 3 == 0) ballot |= 1u << lane;
      REQUIRE(ballots.host()[i] == ballot);
    }
  });
}

TEST_CASE("emulator delivers an asynchronous copy to those who wait, NaNs to others") {
  std::vector<float4> in(32);
  for (std::size_t i = 0; i < 32; ++i) in[i] = {1.0f + static_cast<float>(i), 2, 3, 4};
  const DeviceArray<float4> d_in(in), d_out(32);
  REQUIRE(launch(CopyKernel<true>, 1, 32, 512, nullptr, d_in.data(), d_out.data()) == cudaSuccess);
  for (std::size_t i = 0; i < 32; ++i) REQUIRE(d_out.host()[i].x == (i == 3 ? 0.0f : in[i].x));
  REQUIRE(launch(CopyKernel<false>, 1, 32, 512, nullptr, d_in.data(), d_out.data()) == cudaSuccess);
  REQUIRE(std::isnan(d_out.host()[0].x));
}

TEST_CASE("emulator refuses what no device could launch and leaves no error behind") {
  const DeviceArray<int> out(64);
  REQUIRE(launch(ReturnedThreadsKernel, 1, 1025, 0, nullptr, out.data()) ==
          cudaErrorInvalidConfiguration);
  REQUIRE(launch(ReturnedThreadsKernel, dim3(1, 65536), 32, 0, nullptr, out.data()) ==
          cudaErrorInvalidConfiguration);
  REQUIRE(launch(ReturnedThreadsKernel, 1, 32, 228 << 10, nullptr, out.data()) ==
          cudaErrorInvalidValue);
  REQUIRE(launch(ReturnedThreadsKernel, 1, 32, 200 << 10, nullptr, out.data()) == cudaSuccess);
  REQUIRE(cudaGetLastError() == cudaSuccess);
}

TEST_CASE("emulator's matrix product is that of the fragments' documented layout") {
  std::mt19937 random(5);
  std::vector<float> a = episodic_test::normal_floats(256, random);
  std::vector<float> b = episodic_test::normal_floats(128, random);
  const DeviceArray<unsigned char> d_a(episodic_test::stored(a, episodic::DType::bfloat16));
  const DeviceArray<unsigned char> d_b(episodic_test::stored(b, episodic::DType::bfloat16));
  const DeviceArray<float> c(128);
  REQUIRE(launch(MmaKernel, 1, 32, 1024, nullptr,
                 reinterpret_cast<const __nv_bfloat16*>(d_a.data()),
                 reinterpret_cast<const __nv_bfloat16*>(d_b.data()), c.data()) == cudaSuccess);
  const std::vector<float> got = c.host();
  for (std::size_t i = 0; i < 16; ++i)
    for (std::size_t j = 0; j < 8; ++j) {
      double sum = 0;
      for (std::size_t k = 0; k < 16; ++k) sum += double{a[i * 16 + k]} * double{b[k * 8 + j]};
      REQUIRE(std::abs(double{got[i * 8 + j]} - sum) < 1e-5);
    }
}
