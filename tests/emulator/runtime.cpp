// SPDX-License-Identifier: Apache-2.0
// The CUDA runtime's calls, as far as they are used here.
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "emulated_device.hpp"
#include "streams.hpp"
#include "unwritten.hpp"

using emulator::Calls;
using emulator::captures;
using emulator::device;
using emulator::enqueue;
using emulator::may_call_unsafe;
using emulator::may_enqueue;
using emulator::record;
using emulator::refuse_in_capture;

namespace {
cudaError_t allocate(void** pointer, std::size_t size) {
  if (!pointer) return record(cudaErrorInvalidValue);
  *pointer = nullptr;
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  ++device.calls.allocations;
  const auto bytes = static_cast<std::int64_t>(size);
  if (device.used + bytes > device.capacity) return record(cudaErrorMemoryAllocation);
  if (size == 0) return cudaSuccess;
  void* memory = std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (!memory) return record(cudaErrorMemoryAllocation);
  emulator::make_unwritten(memory, size);
  device.allocations[memory] = size;
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  *pointer = memory;
  return cudaSuccess;
}
}  // namespace

cudaError_t cudaMalloc(void** pointer, std::size_t size) {
  if (device.count == 0) return record(cudaErrorNoDevice);
  return allocate(pointer, size);
}

cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  ++device.calls.frees;
  emulator::perform_all();  // as the runtime does, for what still uses it
  const auto at = device.allocations.find(pointer);
  if (at == device.allocations.end()) return record(cudaErrorInvalidValue);
  device.used -= static_cast<std::int64_t>(at->second);
  device.allocations.erase(at);
  std::free(pointer);
  return cudaSuccess;
}

cudaError_t cudaHostAlloc(void** pointer, std::size_t size, unsigned) {
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  ++device.calls.allocations;
  const auto bytes = static_cast<std::int64_t>(size);
  *pointer = nullptr;
  const std::lock_guard lock(device.registering);
  if (device.pinned_used + bytes > device.pinned_capacity) return record(cudaErrorMemoryAllocation);
  *pointer = std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (!*pointer) return record(cudaErrorMemoryAllocation);
  emulator::make_unwritten(*pointer, size);
  device.pinned[*pointer] = size;
  device.pinned_used += bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  if (!pointer) return cudaSuccess;
  ++device.calls.frees;
  const std::lock_guard lock(device.registering);
  const auto at = device.pinned.find(pointer);
  if (at == device.pinned.end()) return record(cudaErrorInvalidValue);
  // Nothing says that this waits. What still uses it finds NaNs, and does no harm later on.
  std::memset(pointer, 0xff, at->second);
  device.pinned_used -= static_cast<std::int64_t>(at->second);
  device.pinned.erase(at);
  device.left_pinned.emplace_back(pointer);
  return cudaSuccess;
}
/// By any thread: its errors are its own, and are not recorded.
cudaError_t cudaHostRegister(void* at, std::size_t size, unsigned flags) {
  constexpr std::size_t kPage = 4096;
  if (!at || size == 0 || reinterpret_cast<std::uintptr_t>(at) % kPage != 0 || size % kPage != 0 ||
      flags != (cudaHostRegisterPortable | cudaHostRegisterMapped))
    return cudaErrorInvalidValue;
  const std::lock_guard lock(device.registering);
  auto* const first = static_cast<char*>(at);
  for (const auto& [begin, bytes] : device.registered)
    if (static_cast<char*>(begin) < first + size && first < static_cast<char*>(begin) + bytes)
      return cudaErrorHostMemoryAlreadyRegistered;
  const auto bytes = static_cast<std::int64_t>(size);
  if (device.pinned_used + bytes > device.pinned_capacity) return cudaErrorMemoryAllocation;
  device.registered[at] = size;
  device.pinned_used += bytes;
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* at) {
  const std::lock_guard lock(device.registering);
  const auto found = device.registered.find(at);
  if (found == device.registered.end()) return cudaErrorHostMemoryNotRegistered;
  device.pinned_used -= static_cast<std::int64_t>(found->second);
  device.registered.erase(found);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = static_cast<std::size_t>(device.capacity);
  *free = static_cast<std::size_t>(device.capacity - device.used);
  return cudaSuccess;
}
namespace {
/// Whether a copy of the default stream, synchronous or not, returns before it is done ("API
/// synchronization behavior"): from pageable memory, whose bytes a staging buffer has, and within
/// the device. Nothing orders it with a stream that does not wait for the default one.
bool returns_before(const void* to, const void* from, std::size_t size, cudaStream_t stream) {
  return size > 0 && emulator::is_legacy(stream) && emulator::is_device_memory(to) &&
         (emulator::is_pageable(from) || emulator::is_device_memory(from));
}
/// Counts a copy that goes over the host's link. What a capture records is none.
cudaError_t over_link(const void* to, const void* from, std::size_t size, cudaStream_t stream) {
  if (size == 0 || captures(stream) ||
      emulator::is_device_memory(to) == emulator::is_device_memory(from))
    return cudaSuccess;
  if (device.link_copies_left == 0) return record(cudaErrorIllegalAddress);
  if (device.link_copies_left > 0) --device.link_copies_left;
  device.calls.link_bytes += static_cast<std::int64_t>(size);
  return cudaSuccess;
}
}  // namespace

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  const emulator::OwnWork own;
  if (size > 0 && (!to || !from)) return record(cudaErrorInvalidValue);
  if (const cudaError_t refused = over_link(to, from, size, stream); refused != cudaSuccess)
    return refused;
  for (const void* end : {static_cast<const void*>(to), from})
    if (size > 0 && emulator::crosses_registrations(end, size))
      return record(cudaErrorInvalidValue);
  const bool pageable = size > 0 && emulator::is_pageable(from);
  const bool late = returns_before(to, from, size, stream);
  if (pageable && !captures(stream) && (late || device.overlap != emulator::Overlap::none)) {
    // read before the call returns
    const auto* bytes = static_cast<const char*>(from);
    return enqueue(
        stream, &Calls::copies,
        [to, kept = std::vector<char>(bytes, bytes + size)] {
          std::memcpy(to, kept.data(), kept.size());
        },
        late);
  }
  const cudaError_t error = enqueue(
      stream, &Calls::copies,
      [=] {
        if (size > 0) std::memmove(to, from, size);
      },
      late);
  // written before the call returns
  if (error == cudaSuccess && !captures(stream) && emulator::is_pageable(to))
    emulator::perform(emulator::queue_of(stream).last);
  return error;
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  ++device.calls.synchronisations;
  const cudaError_t copied = cudaMemcpyAsync(to, from, size, kind, nullptr);
  if (copied == cudaSuccess && !returns_before(to, from, size, nullptr))
    emulator::perform(device.legacy.last);
  return copied;
}
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* sizes,
                                 std::size_t count, cudaMemcpyAttributes* attributes,
                                 std::size_t* first_copies, std::size_t n_attributes,
                                 cudaStream_t stream) {
  const emulator::OwnWork own;
  if (device.driver < 12080) return record(cudaErrorCallRequiresNewerDriver);
  if (captures(stream)) return refuse_in_capture(stream);
  if (!stream || stream == cudaStreamLegacy || !attributes || !first_copies || n_attributes != 1 ||
      first_copies[0] != 0 || attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
    return record(cudaErrorInvalidValue);
  for (std::size_t i = 0; i < count; ++i)
    if (!to[i] || !from[i] || sizes[i] == 0) return record(cudaErrorInvalidValue);
  for (std::size_t i = 0; i < count; ++i)
    if (const cudaError_t refused = over_link(to[i], from[i], sizes[i], stream);
        refused != cudaSuccess)
      return refused;
  return enqueue(stream, &Calls::copies,
                 [tos = std::vector<void*>(to, to + count),
                  froms = std::vector<const void*>(from, from + count),
                  bytes = std::vector<std::size_t>(sizes, sizes + count)] {
                   // the order among them is not said
                   for (std::size_t i = tos.size(); i-- > 0;)
                     std::memcpy(tos[i], froms[i], bytes[i]);
                 });
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  const emulator::OwnWork own;
  if (width > to_pitch || width > from_pitch) return record(cudaErrorInvalidValue);
  if (const cudaError_t refused = over_link(to, from, width * height, stream);
      refused != cudaSuccess)
    return refused;
  return enqueue(stream, &Calls::copies, [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t size, cudaStream_t stream) {
  const emulator::OwnWork own;
  if (emulator::device_of(stream) != device.current) return record(cudaErrorInvalidResourceHandle);
  return enqueue(
      stream, nullptr,
      [=] {
        if (size > 0) std::memset(pointer, value, size);
      },
      emulator::is_legacy(stream) && emulator::is_device_memory(pointer));
}
cudaError_t cudaMemset(void* pointer, int value, std::size_t size) {
  const cudaError_t error = may_call_unsafe();
  return error == cudaSuccess ? cudaMemsetAsync(pointer, value, size, nullptr) : error;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  ++device.calls.allocations;
  *stream = new CUstream_st;
  (*stream)->waits_for_legacy = flags != cudaStreamNonBlocking;
  (*stream)->device = device.current;
  device.streams.push_back(*stream);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  if (captures(stream)) {
    stream->capture->spoilt = true;
    std::erase(stream->capture->streams, stream);
  }
  emulator::perform(stream->last);
  std::erase(device.streams, stream);
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const emulator::OwnWork own;
  if (captures(stream)) return refuse_in_capture(stream);
  const cudaError_t error = may_enqueue(stream);
  if (error != cudaSuccess) return error;
  if (device.lost != cudaSuccess) return record(device.lost);
  ++device.calls.synchronisations;
  // The legacy stream's work is behind that of those it waits for, but only if there is any.
  if (emulator::is_legacy(stream)) emulator::append(stream, {});
  emulator::perform(emulator::queue_of(stream).last);
  return cudaSuccess;
}
/// On a thread of its own, as the runtime has one for them.
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  const emulator::OwnWork own;
  if (!function) return record(cudaErrorInvalidValue);
  return enqueue(stream, &Calls::host_functions, [=] {
    std::thread([=] {
      emulator::Device::in_host_function = true;
      function(data);
    }).join();
  });
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  if (!status) return record(cudaErrorInvalidValue);
  *status = !captures(stream)         ? cudaStreamCaptureStatusNone
            : stream->capture->spoilt ? cudaStreamCaptureStatusInvalidated
                                      : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (emulator::is_legacy(stream)) return record(cudaErrorStreamCaptureUnsupported);
  if (captures(stream)) return record(cudaErrorIllegalState);
  ++device.calls.captures;
  stream->capture = std::make_shared<emulator::Capture>();
  stream->capture->origin = stream;
  stream->capture->mode = mode;
  stream->capture->streams = {stream};
  device.captures.push_back(stream->capture);
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (!graph) return record(cudaErrorInvalidValue);
  *graph = nullptr;
  if (!captures(stream)) return record(cudaErrorIllegalState);
  const std::shared_ptr<emulator::Capture> capture = stream->capture;
  if (capture->origin != stream) {
    capture->spoilt = true;
    return record(cudaErrorStreamCaptureUnmatched);
  }
  const emulator::NodePtr last = stream->last_captured;
  bool all_joined = true;
  for (const cudaStream_t each : capture->streams)
    all_joined = all_joined && (!each->last_captured || is_behind(last, each->last_captured));
  emulator::leave(capture);
  if (capture->spoilt) return record(cudaErrorStreamCaptureInvalidated);
  if (!all_joined) return record(cudaErrorStreamCaptureUnjoined);
  std::map<const emulator::Node*, std::size_t> number;
  std::vector<emulator::GraphNode> nodes;
  for (const emulator::NodePtr& node : capture->nodes) {
    number[node.get()] = nodes.size();
    nodes.push_back({node->work, {}});
    for (const emulator::NodePtr& before : node->after)
      nodes.back().after.push_back(number.at(before.get()));
  }
  *graph =
      new CUgraph_st{std::make_shared<const std::vector<emulator::GraphNode>>(std::move(nodes))};
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long flags) {
  if (!executable || !graph || flags != 0) return record(cudaErrorInvalidValue);
  cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  const std::int64_t bytes =
      static_cast<std::int64_t>(graph->nodes->size()) * emulator::kGraphNodeBytes;
  if (device.used + bytes > device.capacity) return record(cudaErrorMemoryAllocation);
  device.used += bytes;
  device.peak = std::max(device.peak, device.used);
  *executable = new CUgraphExec_st{graph->nodes, bytes};
  return cudaSuccess;
}
cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t stream) {
  if (!executable) return record(cudaErrorInvalidValue);
  if (captures(stream)) return emulator::refuse_in_capture(stream);
  return may_enqueue(stream);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  const emulator::OwnWork own;
  if (!executable) return record(cudaErrorInvalidValue);
  // shared: as part of another graph it may outlive its executable
  return enqueue(stream, &Calls::graph_launches,
                 [nodes = executable->nodes] { emulator::perform_graph(*nodes); });
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  if (!executable) return record(cudaErrorInvalidValue);
  device.used -= executable->bytes;
  delete executable;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (!graph) return record(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  const emulator::OwnWork own;
  if (!event) return record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = may_enqueue(stream);
  if (error != cudaSuccess) return error;
  if (captures(stream) && stream->capture != event->capture) {
    stream->capture->spoilt = true;
    return record(cudaErrorStreamCaptureIsolation);
  }
  if (!captures(stream) && event->capture) {
    // It forks off the capture, and captures what comes.
    if (event->capture->ended || emulator::is_legacy(stream))
      return record(cudaErrorStreamCaptureIsolation);
    if (event->capture->spoilt) return record(cudaErrorStreamCaptureInvalidated);
    stream->capture = event->capture;
    stream->capture->streams.push_back(stream);
  }
  emulator::append(stream, {}, event->after);
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  ++device.calls.allocations;
  *event = new CUevent_st{device.current};
  return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  if (!event || event->device != emulator::device_of(stream))
    return record(cudaErrorInvalidResourceHandle);
  const cudaError_t error = may_enqueue(stream);
  if (error == cudaSuccess) {
    const CUstream_st& queue = emulator::queue_of(stream);
    event->capture = queue.capture;
    event->after = queue.capture ? queue.last_captured : queue.last;
    event->recorded = std::chrono::steady_clock::now();
  }
  return error;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (!milliseconds || !begin || !end) return record(cudaErrorInvalidResourceHandle);
  *milliseconds = std::chrono::duration<float, std::milli>(end->recorded - begin->recorded).count();
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  if (event->capture) return record(cudaErrorCapturedEvent);
  return event->after && !event->after->done ? cudaErrorNotReady : cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  const emulator::OwnWork own;
  const cudaError_t error = cudaEventQuery(event);
  if (error != cudaSuccess && error != cudaErrorNotReady) return error;
  ++device.calls.synchronisations;
  emulator::perform(event->after);
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  // illegal in a capture of any mode
  for (const auto& capture : device.captures) capture->spoilt = true;
  if (!device.captures.empty()) return record(cudaErrorStreamCaptureUnsupported);
  ++device.calls.synchronisations;
  emulator::perform_all();
  return device.count == 0 ? record(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetLastError() {
  return device.lost != cudaSuccess ? device.lost : std::exchange(device.last_error, cudaSuccess);
}
cudaError_t cudaPeekAtLastError() { return device.last_error; }
cudaError_t cudaGetDeviceCount(int* count) {
  *count = device.count;
  return device.count == 0 ? record(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaGetDevice(int* id) {
  *id = device.current;
  return device.count == 0 ? record(cudaErrorNoDevice) : cudaSuccess;
}
cudaError_t cudaSetDevice(int id) {
  if (device.count == 0) return record(cudaErrorNoDevice);
  if (id < 0 || id >= device.count) return record(cudaErrorInvalidDevice);
  device.current = id;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int id) {
  if (id < 0 || id >= device.count) return record(cudaErrorInvalidDevice);
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = device.multiprocessors;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.minor;
      return cudaSuccess;
    case cudaDevAttrCanUseHostPointerForRegisteredMem:
      *value = device.same_addresses;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulator::shared_bytes_of_block();
      return cudaSuccess;
  }
  return record(cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int id) {
  if (id < 0 || id >= device.count) return record(cudaErrorInvalidDevice);
  *properties = {"emulated device",      static_cast<std::size_t>(device.capacity),
                 device.major,           device.minor,
                 device.multiprocessors, 0};
  return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
  *version = device.driver;
  return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* kernel) {
  if (device.count == 0) return record(cudaErrorNoDevice);
  if (!attributes || !kernel) return record(cudaErrorInvalidValue);
  if (!device.has_image) return record(cudaErrorNoKernelImageForDevice);
  const auto seen = device.static_shared.find(kernel);
  const auto found = device.max_shared.find({device.current, kernel});
  attributes->sharedSizeBytes = seen == device.static_shared.end() ? 0 : seen->second;
  attributes->maxDynamicSharedSizeBytes =
      found == device.max_shared.end() ? 48 << 10 : found->second;
  return cudaSuccess;
}
cudaError_t cudaFuncSetAttribute(const void* kernel, cudaFuncAttribute attribute, int value) {
  const auto seen = device.static_shared.find(kernel);
  const int known = seen == device.static_shared.end() ? 0 : static_cast<int>(seen->second);
  if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 ||
      value > emulator::shared_bytes_of_block() - known)
    return record(cudaErrorInvalidValue);
  device.max_shared[{device.current, kernel}] = value;
  return cudaSuccess;
}
const char* cudaGetErrorName(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorNoKernelImageForDevice:
      return "cudaErrorNoKernelImageForDevice";
    case cudaErrorInvalidResourceHandle:
      return "cudaErrorInvalidResourceHandle";
    default:
      return "another error";
  }
}
const char* cudaGetErrorString(cudaError_t error) { return cudaGetErrorName(error); }
