// SPDX-License-Identifier: Apache-2.0
// The emulator itself: that it finds what it is there to find.
#include "emulator.hpp"

#include <cstdint>
#include <cstdlib>
#include <set>
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
  EPISODIC_SHARED(cells, int[64]);
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

/// A copy of nothing, whose source is not aligned.
void AbsentCopyKernel(const float* in, float4* out) {
  EPISODIC_DYNAMIC_SHARED(bytes);
  auto* cells = reinterpret_cast<float4*>(bytes);
  copy_async_16(cells + threadIdx.x, in + 1, false);
  commit_copies();
  wait_copies<0>();
  out[threadIdx.x] = cells[threadIdx.x];
}

void UnalignedLoadKernel(const float* in, float4* out) {
  out[threadIdx.x] = *reinterpret_cast<const float4*>(in + threadIdx.x);
}

/// Writes `value` where the device says, and goes on.
void AppendKernel(int* position, int* out, int value) { out[(*position)++] = value; }

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  REQUIRE(cudaStreamCreateWithFlags(&stream, flags) == cudaSuccess);
  return stream;
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

TEST_CASE("emulator runs what a stream captured at each launch of the graph, not before") {
  const DeviceArray<int> position(std::vector<int>{0}), out(std::vector<int>(8, -1)),
      copy(std::vector<int>(8, -1)), elsewhere(std::vector<int>(2, 0));
  const cudaStream_t stream = new_stream(), other = new_stream();
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  REQUIRE(cudaStreamIsCapturing(stream, &status) == cudaSuccess);
  REQUIRE(status == cudaStreamCaptureStatusActive);
  emulator::reset_calls();
  for (int value = 7; value < 9; ++value)
    REQUIRE(launch(AppendKernel, 1, 1, 0, stream, position.data(), out.data(), value) ==
            cudaSuccess);
  REQUIRE(cudaMemcpyAsync(copy.data(), out.data(), 16, cudaMemcpyDeviceToDevice, stream) ==
          cudaSuccess);
  REQUIRE(cudaMemcpy2DAsync(copy.data() + 4, 4, out.data(), 8, 4, 2, cudaMemcpyDeviceToDevice,
                            stream) == cudaSuccess);
  REQUIRE(cudaMemsetAsync(out.data() + 7, 0, 4, stream) == cudaSuccess);
  REQUIRE(emulator::calls().launches + emulator::calls().copies == 0);
  // another stream goes on meanwhile
  REQUIRE(launch(AppendKernel, 1, 1, 0, other, elsewhere.data() + 1, elsewhere.data(), 5) ==
          cudaSuccess);
  REQUIRE(emulator::calls().launches == 1);
  cudaGraph_t graph = nullptr;
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(elsewhere.host() == std::vector<int>{5, 1});
  REQUIRE(position.host()[0] == 0);
  REQUIRE(out.host() == std::vector<int>(8, -1));

  const std::int64_t before = emulator::device_bytes();
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph, 0) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  REQUIRE(emulator::device_bytes() > before);
  REQUIRE(position.host()[0] == 0);
  emulator::reset_calls();
  REQUIRE(cudaGraphUpload(executable, stream) == cudaSuccess);  // launches nothing
  REQUIRE(cudaGraphUpload(nullptr, stream) != cudaSuccess);
  static_cast<void>(cudaGetLastError());
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  REQUIRE(copy.host() == std::vector<int>{7, 8, -1, -1, 7, -1, -1, -1});
  REQUIRE(cudaGraphLaunch(executable, other) == cudaSuccess);
  REQUIRE(out.host() == std::vector<int>{7, 8, 7, 8, -1, -1, -1, 0});
  REQUIRE(copy.host() == std::vector<int>{7, 8, 7, 8, 7, 7, -1, -1});
  REQUIRE(emulator::calls().graph_launches == 2);
  REQUIRE(emulator::calls().launches == 0);
  // a graph in a graph
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
  REQUIRE(emulator::device_bytes() == before);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(position.host()[0] == 4);
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
  REQUIRE(position.host()[0] == 6);
  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(other) == cudaSuccess);
}

TEST_CASE("emulator refuses in a capture what could not be replayed, and the capture with it") {
  const DeviceArray<int> cells(std::vector<int>(4, 0));
  const cudaStream_t stream = new_stream();
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  int host[4] = {};
  void* memory = nullptr;
  cudaGraph_t graph = nullptr;
  const auto refused = [&](cudaStream_t by, cudaError_t with, auto&& call) {
    REQUIRE(cudaStreamBeginCapture(by, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    REQUIRE(call() == with);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    REQUIRE(cudaStreamIsCapturing(by, &status) == cudaSuccess);
    REQUIRE(status == cudaStreamCaptureStatusInvalidated);
    static_cast<void>(cudaGetLastError());
    REQUIRE(launch(AppendKernel, 1, 1, 0, by, cells.data(), cells.data(), 1) ==
            cudaErrorStreamCaptureInvalidated);
    REQUIRE(cudaStreamEndCapture(by, &graph) == cudaErrorStreamCaptureInvalidated);
    REQUIRE(!graph);
    REQUIRE(cudaGetLastError() == cudaErrorStreamCaptureInvalidated);
    REQUIRE(cells.host() == std::vector<int>(4, 0));
  };
  constexpr cudaError_t kUnsupported = cudaErrorStreamCaptureUnsupported;
  refused(stream, kUnsupported, [&] { return cudaStreamSynchronize(stream); });
  refused(stream, kUnsupported, [&] { return cudaDeviceSynchronize(); });
  refused(stream, kUnsupported, [&] { return cudaEventSynchronize(event); });
  refused(stream, kUnsupported, [&] { return cudaEventQuery(event); });
  refused(stream, kUnsupported, [&] { return cudaMalloc(&memory, 16); });
  refused(stream, kUnsupported, [&] { return cudaHostAlloc(&memory, 16, cudaHostAllocDefault); });
  refused(stream, kUnsupported,
          [&] { return cudaMemcpy(host, cells.data(), 16, cudaMemcpyDeviceToHost); });
  refused(stream, kUnsupported, [&] { return cudaMemset(cells.data(), 1, 16); });
  refused(stream, cudaErrorStreamCaptureIsolation,
          [&] { return cudaStreamWaitEvent(stream, event); });
  REQUIRE(!memory);

  // The legacy stream waits for streams that wait for it.
  const cudaStream_t blocking = new_stream(0);
  refused(blocking, cudaErrorStreamCaptureImplicit,
          [&] { return launch(AppendKernel, 1, 1, 0, nullptr, cells.data(), cells.data(), 1); });
  REQUIRE(cudaStreamDestroy(blocking) == cudaSuccess);

  REQUIRE(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeRelaxed) == kUnsupported);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaErrorIllegalState);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaSuccess);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed) == cudaErrorIllegalState);
  // relaxed: the caller knows what it does; what the capture holds can still not be waited for
  REQUIRE(cudaMalloc(&memory, 16) == cudaSuccess);
  REQUIRE(cudaFree(memory) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  REQUIRE(cudaEventSynchronize(event) == cudaErrorCapturedEvent);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  static_cast<void>(cudaGetLastError());
}

TEST_CASE("emulator shows a missing wait between streams as an order that it should not allow") {
  const episodic_test::DefaultsBehind defaults;
  using emulator::Overlap;
  using Order = std::vector<int>;
  const DeviceArray<int> position(Order{0}), out(Order(8, -1));
  const cudaStream_t stream = new_stream(), side = new_stream();
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  const auto append = [&](cudaStream_t to, int value) {
    REQUIRE(launch(AppendKernel, 1, 1, 0, to, position.data(), out.data(), value) == cudaSuccess);
  };
  const auto wait = [&](cudaStream_t waiting, cudaStream_t other) {
    REQUIRE(cudaEventRecord(event, other) == cudaSuccess);
    REQUIRE(cudaStreamWaitEvent(waiting, event) == cudaSuccess);
  };
  const auto enqueue = [&](bool forks, bool joins) {
    append(stream, 1);
    if (forks) wait(side, stream);
    append(side, 2);
    append(stream, 3);
    if (joins) wait(stream, side);
    append(stream, 4);
  };
  const auto restart = [&](Overlap overlap, std::uint64_t seed = 1) {
    emulator::set_overlap(overlap, seed);
    REQUIRE(cudaMemset(position.data(), 0, 4) == cudaSuccess);
    REQUIRE(cudaMemset(out.data(), 0xff, 32) == cudaSuccess);
    REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
  };
  const auto seen = [&] {
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    Order order = out.host();
    order.resize(static_cast<std::size_t>(position.host()[0]));
    return order;
  };
  const auto order = [&](Overlap overlap, bool forks, bool joins, std::uint64_t seed = 1) {
    restart(overlap, seed);
    enqueue(forks, joins);
    return seen();
  };
  for (const bool joins : {true, false})
    REQUIRE(order(Overlap::none, true, joins) == Order{1, 2, 3, 4});
  REQUIRE(order(Overlap::late, true, true) == Order{1, 3, 2, 4});
  REQUIRE(order(Overlap::late, true, false) == Order{1, 3, 4});
  REQUIRE(order(Overlap::early, true, true) == Order{1, 2, 3, 4});
  REQUIRE(order(Overlap::early, false, true) == Order{2, 1, 3, 4});

  const auto graph_of = [&](bool joins, cudaError_t said) {
    restart(Overlap::none);
    REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    enqueue(true, joins);
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    REQUIRE(cudaStreamIsCapturing(side, &status) == cudaSuccess);
    REQUIRE(status == cudaStreamCaptureStatusActive);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(stream, &graph) == said);
    REQUIRE(cudaStreamIsCapturing(side, &status) == cudaSuccess);
    REQUIRE(status == cudaStreamCaptureStatusNone);
    REQUIRE(position.host()[0] == 0);
    static_cast<void>(cudaGetLastError());
    return graph;
  };
  REQUIRE(!graph_of(false, cudaErrorStreamCaptureUnjoined));
  cudaGraph_t graph = graph_of(true, cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  REQUIRE(cudaGraphInstantiate(&executable, graph) == cudaSuccess);
  REQUIRE(cudaGraphDestroy(graph) == cudaSuccess);
  const auto order_in_graph = [&](Overlap overlap, std::uint64_t seed = 1) {
    restart(overlap, seed);
    REQUIRE(cudaGraphLaunch(executable, stream) == cudaSuccess);
    return seen();
  };
  REQUIRE(order_in_graph(Overlap::none) == Order{1, 2, 3, 4});
  REQUIRE(order_in_graph(Overlap::late) == Order{1, 3, 2, 4});
  REQUIRE(order_in_graph(Overlap::early) == Order{1, 2, 3, 4});
  std::set<Order> orders, in_graph, without_fork;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    orders.insert(order(Overlap::shuffled, true, true, seed));
    in_graph.insert(order_in_graph(Overlap::shuffled, seed));
    without_fork.insert(order(Overlap::shuffled, false, true, seed));
  }
  REQUIRE(orders == std::set<Order>{{1, 2, 3, 4}, {1, 3, 2, 4}});
  REQUIRE(in_graph == orders);
  REQUIRE(without_fork == std::set<Order>{{1, 2, 3, 4}, {1, 3, 2, 4}, {2, 1, 3, 4}});

  // A capture ends where it began.
  restart(Overlap::none);
  REQUIRE(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess);
  wait(side, stream);
  REQUIRE(cudaStreamEndCapture(side, &graph) == cudaErrorStreamCaptureUnmatched);
  REQUIRE(cudaStreamEndCapture(stream, &graph) == cudaErrorStreamCaptureInvalidated);
  static_cast<void>(cudaGetLastError());
  REQUIRE(cudaStreamWaitEvent(side, event) == cudaErrorStreamCaptureIsolation);
  static_cast<void>(cudaGetLastError());

  REQUIRE(cudaGraphExecDestroy(executable) == cudaSuccess);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(side) == cudaSuccess);
}

TEST_CASE("emulator refuses access that is not aligned, of copies that read nothing too") {
  const DeviceArray<float> in(std::vector<float>(64, 1.0f)), out(128);
  auto* const to = reinterpret_cast<float4*>(out.data());
  REQUIRE_THROWS_AS(launch(AbsentCopyKernel, 1, 32, 512, nullptr, in.data(), to), std::logic_error);
  REQUIRE(launch(AbsentCopyKernel, 1, 32, 512, nullptr, in.data() + 3, to) == cudaSuccess);
#if defined(EPISODIC_CHECKS_ALIGNMENT)
  REQUIRE_THROWS_AS(launch(UnalignedLoadKernel, 1, 2, 0, nullptr, in.data(), to), std::logic_error);
  REQUIRE(launch(UnalignedLoadKernel, 1, 1, 0, nullptr, in.data() + 4, to) == cudaSuccess);
#endif
}

TEST_CASE("emulator: what the default stream copies or fills is late for a stream beside it") {
  const episodic_test::DefaultsBehind defaults;
  const cudaStream_t beside = new_stream(), behind = new_stream(0);
  const DeviceArray<int> source(std::vector<int>{7, 7});
  const std::vector<int> pageable{3, 3};
  const auto sees = [&](cudaStream_t stream, int how, bool waits) {
    const DeviceArray<int> to(std::vector<int>{1, 1}), seen(std::vector<int>{0, 0});
    if (how == 0)
      REQUIRE(cudaMemcpy(to.data(), pageable.data(), 8, cudaMemcpyHostToDevice) == cudaSuccess);
    if (how == 1)
      REQUIRE(cudaMemcpyAsync(to.data(), pageable.data(), 8, cudaMemcpyHostToDevice, nullptr) ==
              cudaSuccess);
    if (how == 2)
      REQUIRE(cudaMemcpy(to.data(), source.data(), 8, cudaMemcpyDeviceToDevice) == cudaSuccess);
    if (how == 3) REQUIRE(cudaMemset(to.data(), 0x05, 8) == cudaSuccess);
    if (waits) REQUIRE(cudaStreamSynchronize(nullptr) == cudaSuccess);
    REQUIRE(cudaMemcpyAsync(seen.data(), to.data(), 8, cudaMemcpyDeviceToDevice, stream) ==
            cudaSuccess);
    REQUIRE(cudaStreamSynchronize(stream) == cudaSuccess);
    return seen.host()[1];
  };
  const int written[] = {3, 3, 7, 0x05050505};
  for (int how = 0; how < 4; ++how) {
    REQUIRE(sees(beside, how, false) == 1);  // what was there before
    REQUIRE(sees(beside, how, true) == written[how]);
    REQUIRE(sees(behind, how, false) == written[how]);
    REQUIRE(sees(nullptr, how, false) == written[how]);
  }
  REQUIRE(cudaStreamDestroy(beside) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(behind) == cudaSuccess);
}

TEST_CASE("emulator is as by default behind a scope that changes it, and behind its failure") {
  try {
    const episodic_test::DefaultsBehind defaults;
    emulator::set_compute_capability(8, 6);
    emulator::set_device_count(3);
    emulator::set_overlap(emulator::Overlap::late);
    throw 1;
  } catch (int) {
  }
  int value = 0;
  REQUIRE(cudaDeviceGetAttribute(&value, cudaDevAttrComputeCapabilityMajor, 0) == cudaSuccess);
  REQUIRE(value == 9);
  REQUIRE(cudaGetDeviceCount(&value) == cudaSuccess);
  REQUIRE(value == 1);
  const DeviceArray<int> out(2), position(std::vector<int>{0});
  const cudaStream_t stream = new_stream();
  REQUIRE(launch(AppendKernel, 1, 1, 0, stream, position.data(), out.data(), 5) == cudaSuccess);
  REQUIRE(*position.data() == 1);  // done as it was enqueued
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("emulator copies from pageable memory at the call, from pinned memory in its turn") {
  const episodic_test::DefaultsBehind defaults;
  emulator::set_overlap(emulator::Overlap::late);
  const cudaStream_t stream = new_stream();
  cudaEvent_t event = nullptr;
  REQUIRE(cudaEventCreateWithFlags(&event, cudaEventDisableTiming) == cudaSuccess);
  int* to = nullptr;
  int* pinned = nullptr;
  REQUIRE(cudaMalloc(&to, 2 * sizeof(int)) == cudaSuccess);
  REQUIRE(cudaHostAlloc(reinterpret_cast<void**>(&pinned), sizeof(int), cudaHostAllocDefault) ==
          cudaSuccess);
  int pageable = *pinned = 1;
  emulator::reset_calls();
  REQUIRE(cudaMemcpyAsync(to, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream) ==
          cudaSuccess);
  REQUIRE(cudaMemcpyAsync(to + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, stream) ==
          cudaSuccess);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  pageable = *pinned = 2;
  REQUIRE(cudaEventQuery(event) == cudaErrorNotReady);
  REQUIRE(emulator::calls().synchronisations == 0);
  REQUIRE(cudaEventSynchronize(event) == cudaSuccess);
  REQUIRE(cudaEventQuery(event) == cudaSuccess);
  int back[2] = {};
  REQUIRE(cudaMemcpyAsync(back, to, sizeof(back), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  REQUIRE(back[0] == 1);
  REQUIRE(back[1] == 2);
  // Nothing says that freeing it waits: what still reads it does not find what was there.
  REQUIRE(cudaMemcpyAsync(to, pinned, sizeof(int), cudaMemcpyHostToDevice, stream) == cudaSuccess);
  REQUIRE(cudaFreeHost(pinned) == cudaSuccess);
  REQUIRE(cudaEventRecord(event, stream) == cudaSuccess);
  REQUIRE(cudaEventQuery(event) == cudaErrorNotReady);
  REQUIRE(cudaMemcpyAsync(back, to, sizeof(back), cudaMemcpyDeviceToHost, stream) == cudaSuccess);
  REQUIRE(back[0] == -1);
  REQUIRE(cudaFreeHost(pinned) == cudaErrorInvalidValue);  // once only
  static_cast<void>(cudaGetLastError());
  emulator::set_overlap(emulator::Overlap::none);
  REQUIRE(cudaFree(to) == cudaSuccess);
  REQUIRE(cudaEventDestroy(event) == cudaSuccess);
  REQUIRE(cudaStreamDestroy(stream) == cudaSuccess);
}

TEST_CASE("the emulator: memory that was locked in two parts is not crossed by one copy") {
  const episodic_test::DefaultsBehind defaults;
  constexpr std::size_t kPage = 4096;
  void* const memory = std::aligned_alloc(kPage, 4 * kPage);
  auto* const at = static_cast<char*>(memory);
  const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
  REQUIRE(cudaHostRegister(at, kPage, flags) == cudaSuccess);
  REQUIRE(cudaHostRegister(at + kPage, 2 * kPage, flags) == cudaSuccess);
  REQUIRE(cudaHostRegister(at + 2 * kPage, 2 * kPage, flags) ==
          cudaErrorHostMemoryAlreadyRegistered);
  REQUIRE(cudaHostRegister(at + 1, kPage, flags) == cudaErrorInvalidValue);
  const std::int64_t locked = emulator::pinned_bytes();
  emulator::set_pinned_capacity(locked);
  REQUIRE(cudaHostRegister(at + 3 * kPage, kPage, flags) == cudaErrorMemoryAllocation);
  emulator::set_pinned_capacity(std::int64_t{1} << 50);
  void* to = nullptr;
  REQUIRE(cudaMalloc(&to, 4 * kPage) == cudaSuccess);
  const auto copy = [&](std::size_t first, std::size_t size) {
    const cudaError_t down = cudaMemcpyAsync(to, at + first, size, cudaMemcpyHostToDevice, nullptr);
    REQUIRE(cudaMemcpyAsync(at + first, to, size, cudaMemcpyDeviceToHost, nullptr) == down);
    return down;
  };
  REQUIRE(copy(0, kPage) == cudaSuccess);
  REQUIRE(copy(kPage, 2 * kPage) == cudaSuccess);
  REQUIRE(copy(kPage - 8, 8) == cudaSuccess);
  REQUIRE(copy(3 * kPage, kPage) == cudaSuccess);  // which nobody has locked
  REQUIRE(copy(kPage - 8, 16) == cudaErrorInvalidValue);
  REQUIRE(copy(2 * kPage, 2 * kPage) == cudaErrorInvalidValue);
  static_cast<void>(cudaGetLastError());
  REQUIRE(cudaHostUnregister(at + kPage) == cudaSuccess);
  REQUIRE(cudaHostUnregister(at + kPage) == cudaErrorHostMemoryNotRegistered);
  REQUIRE(cudaHostUnregister(at) == cudaSuccess);
  REQUIRE(emulator::pinned_bytes() == locked - static_cast<std::int64_t>(3 * kPage));
  REQUIRE(cudaFree(to) == cudaSuccess);
  std::free(memory);
}
