// SPDX-License-Identifier: Apache-2.0
#pragma once
// CUDA's runtime as this room uses it: errors as exceptions, memory with an owner.

#include <cuda_runtime_api.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "episodic/base/error.hpp"
#include "kernels/batch_fields.hpp"
#include "layout.hpp"

namespace episodic::device {

/// \param what was tried, for the message \param maybe_field of its parameters, that was refused
[[noreturn]] inline void fail(cudaError_t error, const char* what, const char* maybe_field) {
  static_cast<void>(cudaGetLastError());  // said once, here
  // What is said again was no wrong call but a fault on the device, which nothing clears.
  const bool is_lost = cudaGetLastError() != cudaSuccess;
  throw DeviceError(fmt::format(
      "CUDA: {}: {} ({}){}{}{}", what, cudaGetErrorString(error), cudaGetErrorName(error),
      maybe_field ? ": the kernel does not take its " : "", maybe_field ? maybe_field : "",
      is_lost ? "; a kernel before it went wrong and the CUDA context is lost with all that is in "
                "device memory: end this process and begin anew"
              : ""));
}

/// \param what was tried, for the message
/// \param of_launch of a launcher of kernels/: what it was given, for the name of what it refused
/// \throws DeviceError unless `error` is none
template <class... Arguments>
void check(cudaError_t error, const char* what, const Arguments&... of_launch) {
  if (error == cudaSuccess) return;
  if constexpr (sizeof...(of_launch) > 0)
    fail(error, what, invalid_field(of_launch...));
  else
    fail(error, what, nullptr);
}

/// The same of an x_batch of kernels/batch.hpp. \param params its arrays
template <class... Params>
void check_batch(cudaError_t error, const char* what, std::int64_t n_sequences,
                 const Params*... params) {
  if (error == cudaSuccess) return;
  const std::int64_t refused = kernels::invalid_sequence(n_sequences, params...);
  const std::string of_sequence = refused < 0 || n_sequences == 1
                                      ? ""
                                      : fmt::format(", of sequence {} of {}", refused, n_sequences);
  fail(error, (what + of_sequence).c_str(), invalid_field(params..., n_sequences));
}

/// The calls of several sequences by an x_batch, if there are any. \throws DeviceError
template <class Params>
void launch_batch(cudaError_t (*launcher)(const Params*, std::int64_t, cudaStream_t),
                  const std::vector<Params>& params, cudaStream_t stream, const char* what) {
  const auto count = static_cast<std::int64_t>(params.size());
  check_batch(launcher(params.data(), count, stream), what, count, params.data());
}

/// Makes a device current for as long as it lives: an entry of the library works on its own device,
/// whatever the caller's current one is, and leaves that as it was.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    int current = 0;
    check(cudaGetDevice(&current), "asking for the current device");
    if (current == device) return;
    check(cudaSetDevice(device), "choosing the device");
    before_ = current;
  }
  ~CurrentDevice() {
    if (before_ >= 0) static_cast<void>(cudaSetDevice(before_));
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

 private:
  int before_ = -1;  // -1: the same
};

/// Device memory that is taken once and given back at the end.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  /// \param budget setting to lower or raise, for the message. \throws BudgetError
  DeviceBuffer(std::int64_t bytes, const char* what, const char* budget) : bytes_(bytes) {
    const cudaError_t error = cudaMalloc(&data_, static_cast<std::size_t>(bytes));
    if (error == cudaSuccess) return;
    static_cast<void>(cudaGetLastError());
    std::size_t free = 0, total = 0;
    if (error == cudaErrorMemoryAllocation && cudaMemGetInfo(&free, &total) == cudaSuccess)
      throw BudgetError(
          fmt::format("CUDA: {} needs {} bytes of device memory, {} of {} are free; {}", what,
                      bytes, free, total, budget));
    check(error, what);
  }
  ~DeviceBuffer() {
    if (data_) static_cast<void>(cudaFree(data_));
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }

  std::byte* data() const { return static_cast<std::byte*>(data_); }
  std::int64_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  std::int64_t bytes_ = 0;
};

/// Page-locked host memory: copies from and to it need not wait.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  /// \param budget setting to lower or raise, for the message. \throws BudgetError, DeviceError
  PinnedBuffer(std::int64_t bytes, const char* what, const char* budget) {
    const cudaError_t error =
        cudaHostAlloc(&data_, static_cast<std::size_t>(bytes), cudaHostAllocDefault);
    if (error == cudaErrorMemoryAllocation) {
      static_cast<void>(cudaGetLastError());
      throw BudgetError(fmt::format(
          "CUDA: {} needs {} bytes of page-locked host memory, more than the system gives; {}",
          what, bytes, budget));
    }
    check(error, what);
  }
  ~PinnedBuffer() {
    if (data_) static_cast<void>(cudaFreeHost(data_));
  }
  PinnedBuffer(PinnedBuffer&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    return *this;
  }
  template <class T>
  T* as() const {
    return static_cast<T*>(data_);
  }

 private:
  void* data_ = nullptr;
};

/// A place in a stream's work that other streams wait for, and the host does not. Of the device
/// that is current when it is made.
class Event {
 public:
  Event() = default;
  static Event create() {
    Event event;
    check(cudaEventCreateWithFlags(&event.event_, cudaEventDisableTiming), "an event");
    return event;
  }
  ~Event() {
    if (event_) static_cast<void>(cudaEventDestroy(event_));
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }

  /// Behind what `stream` has now.
  void record(cudaStream_t stream) const { check(cudaEventRecord(event_, stream), "an event"); }
  /// Whether the work before it has ended.
  bool passed() const {
    const cudaError_t error = cudaEventQuery(event_);
    if (error == cudaErrorNotReady)
      static_cast<void>(cudaGetLastError());
    else
      check(error, "an event");
    return error == cudaSuccess;
  }
  /// Waits for the work before it.
  void wait() const { check(cudaEventSynchronize(event_), "an event"); }
  /// What `stream` gets from now on comes behind the place that was last recorded, if any.
  void hold(cudaStream_t stream) const {
    check(cudaStreamWaitEvent(stream, event_, 0), "waiting for another stream");
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream beside another one, which it forks off and joins by events. It may do so in a capture
/// of the other one, and is then captured with it.
class SideStream {
 public:
  SideStream() = default;
  static SideStream create() {
    SideStream side;
    side.turn_ = Event::create();
    check(cudaStreamCreateWithFlags(&side.stream_, cudaStreamNonBlocking), "a stream");
    return side;
  }
  /// Waits for what it has.
  ~SideStream() {
    if (!stream_) return;
    static_cast<void>(cudaStreamSynchronize(stream_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  SideStream(SideStream&& other) noexcept { *this = std::move(other); }
  SideStream& operator=(SideStream&& other) noexcept {
    std::swap(stream_, other.stream_);
    std::swap(turn_, other.turn_);
    return *this;
  }

  cudaStream_t get() const { return stream_; }
  /// What this stream gets from now on comes behind what `stream` has now.
  void fork_from(cudaStream_t stream) const {
    turn_.record(stream);
    turn_.hold(stream_);
  }
  /// What `stream` gets from now on comes behind what this stream has now.
  void join(cudaStream_t stream) const {
    turn_.record(stream_);
    turn_.hold(stream);
  }

 private:
  cudaStream_t stream_ = nullptr;
  Event turn_;
};

/// Host memory that the stream reads from, given out again once the stream has passed: a few blocks
/// in turn, so that the host need not wait in steady state.
class StagingRing {
 public:
  StagingRing() = default;
  explicit StagingRing(std::int64_t bytes) {
    for (Block& b : blocks_) {
      b.memory = PinnedBuffer(bytes, "a step's staging", "lower chunk");
      check(cudaEventCreateWithFlags(&b.passed, cudaEventDisableTiming), "an event");
    }
  }
  ~StagingRing() {
    for (Block& b : blocks_)
      if (b.passed) static_cast<void>(cudaEventDestroy(b.passed));
  }
  StagingRing(StagingRing&& other) noexcept { *this = std::move(other); }
  StagingRing& operator=(StagingRing&& other) noexcept {
    std::swap(blocks_, other.blocks_);
    std::swap(next_, other.next_);
    return *this;
  }

  /// Copies `bytes` that `fill` writes to device memory. fill(T* host)
  template <class T, class Fill>
  void send(T* to, std::int64_t count, cudaStream_t stream, Fill&& fill) {
    Block& b = blocks_[next_++ % kBlocks];
    // Not recorded yet, or passed long ago but for a host that runs kBlocks steps ahead.
    if (b.used && cudaEventQuery(b.passed) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());  // not ready, or what waiting says as well
      check(cudaEventSynchronize(b.passed), "staging");
    }
    fill(b.memory.template as<T>());
    check(
        cudaMemcpyAsync(to, b.memory.template as<T>(), static_cast<std::size_t>(count) * sizeof(T),
                        cudaMemcpyHostToDevice, stream),
        "a copy to the device");
    check(cudaEventRecord(b.passed, stream), "an event");
    b.used = true;
  }

 private:
  static constexpr std::size_t kBlocks = 4;
  struct Block {
    PinnedBuffer memory;
    cudaEvent_t passed = nullptr;
    bool used = false;
  };
  Block blocks_[kBlocks];
  std::size_t next_ = 0;
};

/// Work that was recorded once and is launched as a whole.
class Graph {
 public:
  /// Records what `enqueue` enqueues on `stream`, none of which runs, and brings it to the device,
  /// so that its first launch does not. Whatever goes wrong, the stream captures no longer and no
  /// error is left behind.
  /// \throws DeviceError, where something in it cannot be captured; whatever `enqueue` throws
  template <class Enqueue>
  static Graph capture(cudaStream_t stream, Enqueue&& enqueue) {
    // Other threads may allocate meanwhile.
    check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "beginning a capture");
    cudaGraph_t recorded = nullptr;
    try {
      enqueue();
    } catch (...) {
      static_cast<void>(cudaStreamEndCapture(stream, &recorded));
      if (recorded) static_cast<void>(cudaGraphDestroy(recorded));
      static_cast<void>(cudaGetLastError());
      throw;
    }
    check(cudaStreamEndCapture(stream, &recorded), "ending a capture");
    Graph graph;
    const cudaError_t error = cudaGraphInstantiate(&graph.executable_, recorded, 0);
    static_cast<void>(cudaGraphDestroy(recorded));
    check(error, "making a graph");
    check(cudaGraphUpload(graph.executable_, stream), "bringing a graph to the device");
    return graph;
  }
  /// What it launched must have ended.
  ~Graph() {
    if (executable_) static_cast<void>(cudaGraphExecDestroy(executable_));
  }
  Graph(Graph&& other) noexcept : executable_(std::exchange(other.executable_, nullptr)) {}
  Graph& operator=(Graph&& other) noexcept {
    std::swap(executable_, other.executable_);
    return *this;
  }

  void launch(cudaStream_t stream) const {
    check(cudaGraphLaunch(executable_, stream), "launching a graph");
  }

 private:
  Graph() = default;
  cudaGraphExec_t executable_ = nullptr;
};

}  // namespace episodic::device
