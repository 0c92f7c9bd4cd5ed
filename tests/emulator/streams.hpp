// SPDX-License-Identifier: Apache-2.0
#pragma once
// Streams, events, captures and graphs of the emulated runtime, and all that it remembers.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <utility>
#include <vector>

#include "cuda_runtime_api.h"
#include "emulator.hpp"

namespace emulator {

/// A piece of a stream's work, or nothing but a wait.
struct Node {
  std::function<void()> work;
  std::vector<std::shared_ptr<Node>> after;  // what its stream did before, then what that waits for
  bool done = false;
};
using NodePtr = std::shared_ptr<Node>;

/// A capture, of the streams that an event of it made wait as well.
struct Capture {
  cudaStream_t origin;
  cudaStreamCaptureMode mode;
  std::vector<cudaStream_t> streams;
  std::vector<NodePtr> nodes;  // in the order of the calls
  bool spoilt = false, ended = false;
};

struct GraphNode {
  std::function<void()> work;
  std::vector<std::size_t> after;  // all of them before it
};
using GraphNodes = std::shared_ptr<const std::vector<GraphNode>>;  // the last one is behind all

}  // namespace emulator

struct CUgraph_st {
  emulator::GraphNodes nodes;
};
struct CUgraphExec_st {
  emulator::GraphNodes nodes;
  std::int64_t bytes;
};
struct CUstream_st {
  bool waits_for_legacy = false;
  int device = 0;
  emulator::NodePtr last;
  std::shared_ptr<emulator::Capture> capture;  // while it captures
  emulator::NodePtr last_captured;
  std::int64_t launches = 0;
};
struct CUevent_st {
  int device = 0;
  emulator::NodePtr after;                     // the last of its stream when it was recorded
  std::shared_ptr<emulator::Capture> capture;  // last recorded in one
  std::chrono::steady_clock::time_point recorded;
};

namespace emulator {

struct FreeMemory {
  void operator()(void* memory) const { std::free(memory); }
};

/// Memory that can be mapped behind reserved addresses, and where one is.
struct Physical {
  std::size_t size = 0;
  std::int64_t offset = 0;   // in the file that is the device's memory
  int held = 0, mapped = 0;  // handles to it; places where it is
  bool opened = false;
};
struct Mapping {
  std::size_t size = 0;
  unsigned long long memory = 0;
};

struct Device {
  std::map<void*, std::size_t> allocations, pinned;
  std::map<void*, std::size_t> reservations;  // of addresses
  // of the program's own pages; a thread beside the one that drives the streams may add to them
  std::map<void*, std::size_t> registered;
  std::mutex registering;  // of these, and pinned_used
  bool same_addresses = true;
  std::map<unsigned long long, Physical> physical;
  std::map<unsigned long long, Mapping> mappings;  // by their first address
  unsigned long long last_physical = 0;
  std::int64_t physical_end = 0;  // of that file
  std::size_t granularity = std::size_t{2} << 20;
  bool reserves = true;
  std::int64_t creates_left = -1, launches_left = -1, link_copies_left = -1;  // -1: no bound
  // given back while work may still use it: freed once the work is done, or the process
  std::vector<std::unique_ptr<void, FreeMemory>> left_pinned;
  std::map<std::pair<int, const void*>, int> max_shared;  // of a device and kernel
  std::map<const void*, std::size_t> static_shared;       // of kernels that have run
  std::map<const void*, std::int64_t> launched;           // how often kernels ran to their end
  std::int64_t used = 0, peak = 0, capacity = std::int64_t{8} << 30;
  static inline thread_local int current = 0;  // of each thread, as the runtime has it
  // Whether the thread does work of a stream for the host, which may call nothing of the runtime.
  static inline thread_local bool in_host_function = false;
  int count = 1, major = 9, minor = 0, multiprocessors = 4, driver = 13000;
  bool cublas_captures = true, has_image = true;
  cudaError_t lost = cudaSuccess;
  std::int64_t pinned_used = 0, pinned_capacity = std::int64_t{1} << 50;
  CUstream_st legacy;
  std::vector<cudaStream_t> streams;  // the others, in the order they were made
  std::vector<std::shared_ptr<Capture>> captures;
  Overlap overlap = Overlap::none;
  std::mt19937_64 overlap_random;
  cudaError_t last_error = cudaSuccess;
  Calls calls;
};
extern Device device;

/// Of a block, as the programming guide's table of compute capabilities has it.
int shared_bytes_of_block();
inline constexpr std::int64_t kGraphNodeBytes = 1 << 10;  // of an executable graph

/// Remembers the error, if it is one, for cudaGetLastError.
cudaError_t record(cudaError_t error);

inline bool is_legacy(cudaStream_t stream) { return !stream || stream == cudaStreamLegacy; }
inline bool captures(cudaStream_t stream) { return !is_legacy(stream) && stream->capture; }
/// Of the legacy stream, which every device has, the current device's.
inline int device_of(cudaStream_t stream) {
  return is_legacy(stream) ? device.current : stream->device;
}
inline CUstream_st& queue_of(cudaStream_t stream) {
  return is_legacy(stream) ? device.legacy : *stream;
}

/// Whether work may be enqueued. The legacy stream would wait for every capture that waits for it.
cudaError_t may_enqueue(cudaStream_t stream);
/// Calls that no capture could replay: refused to who captures, unless relaxed.
cudaError_t may_call_unsafe();
cudaError_t refuse_in_capture(cudaStream_t stream);

/// Does `last` and all that it is behind, in one of the orders that the waits allow.
void perform(const NodePtr& last);
void perform_all();
void perform_graph(const std::vector<GraphNode>& graph);
/// Puts work, or a wait alone, behind what the stream has and, if any, behind `other`.
/// \param late as of enqueue
void append(cudaStream_t stream, std::function<void()> work, const NodePtr& other = nullptr,
            bool late = false);

/// Whether `node` is `last` or among what that is behind.
bool is_behind(const NodePtr& last, const NodePtr& node);
/// Ends a capture: its streams are free again.
void leave(const std::shared_ptr<Capture>& capture);
/// Host memory that the runtime did not hand out.
bool is_pageable(const void* at);
bool is_device_memory(const void* at);
bool crosses_registrations(const void* at, std::size_t size);

}  // namespace emulator
