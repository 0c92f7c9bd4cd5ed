// SPDX-License-Identifier: Apache-2.0
#include "streams.hpp"

#include <cxxabi.h>
#include <dlfcn.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "block.hpp"
#include "emulated_device.hpp"
#include "unwritten.hpp"

namespace emulator {

Device device;

namespace {
/// A process with EPISODIC_EMULATED_LAUNCHES=FILE in its environment leaves in that file, when it
/// exits, how often each kernel ran to its end, a line `COUNT NAME` for each. Names are those that
/// the program exports (episodic_emulated exports all kernels'), else `?`.
struct LaunchesAtTheEnd {
  ~LaunchesAtTheEnd() {  // before `device`, which is made before it
    const char* const path = std::getenv("EPISODIC_EMULATED_LAUNCHES");
    if (!path) return;
    std::ofstream out(path);
    for (const auto& [kernel, count] : device.launched) {
      Dl_info symbol = {};
      const bool named = dladdr(kernel, &symbol) != 0 && symbol.dli_saddr == kernel;
      int status = 0;
      const std::unique_ptr<char, FreeMemory> name(
          named ? abi::__cxa_demangle(symbol.dli_sname, nullptr, nullptr, &status) : nullptr);
      out << count << ' ' << (name ? name.get() : "?") << '\n';
    }
  }
};
const LaunchesAtTheEnd launches_at_the_end;
}  // namespace

int shared_bytes_of_block() {
  const int version = 10 * device.major + device.minor;
  if (version == 86 || version == 89 || device.major >= 12) return 99 << 10;
  return device.major == 8 ? 163 << 10 : 227 << 10;
}
cudaError_t record(cudaError_t error) {
  if (error != cudaSuccess) device.last_error = error;
  return error;
}

cudaError_t may_enqueue(cudaStream_t stream) {
  if (Device::in_host_function) return cudaErrorNotPermitted;
  if (captures(stream))
    return stream->capture->spoilt ? record(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  if (!is_legacy(stream)) return cudaSuccess;
  bool any = false;
  for (const auto& capture : device.captures)
    for (const cudaStream_t other : capture->streams)
      if (other->waits_for_legacy) any = capture->spoilt = true;
  return any ? record(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

cudaError_t may_call_unsafe() {
  if (Device::in_host_function) return cudaErrorNotPermitted;
  bool any = false;
  for (const auto& capture : device.captures)
    if (capture->mode != cudaStreamCaptureModeRelaxed) any = capture->spoilt = true;
  return any ? record(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t refuse_in_capture(cudaStream_t stream) {
  stream->capture->spoilt = true;
  return record(cudaErrorStreamCaptureUnsupported);
}

namespace {

void perform(Node& node) {
  node.done = true;
  node.after.clear();
  if (const std::function<void()> work = std::exchange(node.work, nullptr)) work();
}

/// Does what `ends` are and are behind in an order drawn from all that the waits allow, until
/// `last` is done.
void perform_shuffled(const std::vector<NodePtr>& ends, const Node& last) {
  struct Open {
    NodePtr node;
    std::size_t missing = 0;         // of what it is behind
    std::vector<std::size_t> ahead;  // of what is behind it
  };
  std::vector<Open> open;
  std::map<const Node*, std::size_t> number;
  const auto add = [&](const NodePtr& node) {
    const auto [at, is_new] = number.emplace(node.get(), open.size());
    if (is_new) open.push_back({node});
    return at->second;
  };
  for (const NodePtr& end : ends)
    if (end && !end->done) add(end);
  for (std::size_t i = 0; i < open.size(); ++i) {
    const Node& node = *open[i].node;
    for (const NodePtr& before : node.after) {
      if (before->done) continue;
      ++open[i].missing;
      const std::size_t at = add(before);
      open[at].ahead.push_back(i);
    }
  }
  std::vector<std::size_t> ready;
  for (std::size_t i = 0; i < open.size(); ++i)
    if (open[i].missing == 0) ready.push_back(i);
  while (!last.done) {
    // Mostly on with what is behind the last one, so that a stream may get far ahead of another.
    if (device.overlap_random() % 4 == 0)
      std::swap(ready[device.overlap_random() % ready.size()], ready.back());
    const Open& next = open[ready.back()];
    ready.pop_back();
    perform(*next.node);
    for (const std::size_t i : next.ahead)
      if (--open[i].missing == 0) ready.push_back(i);
  }
}

}  // namespace

void perform(const NodePtr& last) {
  if (!last || last->done) return;
  if (device.overlap == Overlap::shuffled) {
    std::vector<NodePtr> ends = {last, device.legacy.last};
    for (const cudaStream_t stream : device.streams) ends.push_back(stream->last);
    return perform_shuffled(ends, *last);
  }
  std::vector<Node*> open = {last.get()};
  while (!open.empty()) {
    Node& node = *open.back();
    Node* next = nullptr;
    for (const NodePtr& before : node.after)
      if (!before->done && (!next || device.overlap == Overlap::early)) next = before.get();
    if (next) {
      open.push_back(next);
      continue;
    }
    open.pop_back();
    perform(node);
  }
}

void perform_all() {
  perform(device.legacy.last);
  for (const cudaStream_t stream : device.streams) perform(stream->last);
  device.left_pinned.clear();
}

void append(cudaStream_t stream, std::function<void()> work, const NodePtr& other, bool late) {
  CUstream_st& queue = queue_of(stream);
  const auto node = std::make_shared<Node>();
  node->work = std::move(work);
  const auto behind = [&](const NodePtr& before) {
    if (before && !before->done) node->after.push_back(before);
  };
  if (queue.capture) {
    behind(queue.last_captured);
    behind(other);
    queue.capture->nodes.push_back(node);
    queue.last_captured = node;
    return;
  }
  behind(queue.last);
  behind(other);
  // The legacy stream and those that wait for it do so both ways.
  if (is_legacy(stream)) {
    for (const cudaStream_t each : device.streams)
      if (each->waits_for_legacy) behind(each->last);
  } else if (queue.waits_for_legacy) {
    behind(device.legacy.last);
  }
  queue.last = node;
  if (device.overlap == Overlap::none && !late) perform(node);
}

void perform_graph(const std::vector<GraphNode>& graph) {
  std::vector<NodePtr> nodes;
  for (const GraphNode& each : graph) {
    nodes.push_back(std::make_shared<Node>());
    nodes.back()->work = each.work;
    for (const std::size_t before : each.after) nodes.back()->after.push_back(nodes[before]);
    if (device.overlap == Overlap::none) perform(nodes.back());
  }
  if (nodes.empty()) return;
  if (device.overlap == Overlap::shuffled)
    perform_shuffled({nodes.back()}, *nodes.back());
  else
    perform(nodes.back());
}

bool is_behind(const NodePtr& last, const NodePtr& node) {
  std::set<const Node*> seen;
  std::vector<const Node*> open = {last.get()};
  while (!open.empty()) {
    const Node* const each = open.back();
    open.pop_back();
    if (each == node.get()) return true;
    if (!each || !seen.insert(each).second) continue;
    for (const NodePtr& before : each->after) open.push_back(before.get());
  }
  return false;
}

void leave(const std::shared_ptr<Capture>& capture) {
  for (const cudaStream_t stream : capture->streams) {
    stream->capture = nullptr;
    stream->last_captured = nullptr;
  }
  capture->ended = true;
  std::erase(device.captures, capture);
}

namespace {
bool is_within(const std::map<void*, std::size_t>& blocks, const void* at) {
  auto next = blocks.upper_bound(const_cast<void*>(at));
  if (next == blocks.begin()) return false;
  --next;
  return static_cast<const char*>(at) < static_cast<const char*>(next->first) + next->second;
}
}  // namespace

bool is_pageable(const void* at) {
  const std::lock_guard lock(device.registering);
  return !is_within(device.allocations, at) && !is_within(device.pinned, at) &&
         !is_within(device.reservations, at) && !is_within(device.registered, at);
}

bool is_device_memory(const void* at) {
  const std::lock_guard lock(device.registering);
  return is_within(device.allocations, at) || is_within(device.reservations, at);
}

/// Whether memory begins in one registration, or outside all, and ends in another.
bool crosses_registrations(const void* at, std::size_t size) {
  const std::lock_guard lock(device.registering);
  const auto* const first = static_cast<const char*>(at);
  for (const auto& [begin, bytes] : device.registered) {
    const auto* const from = static_cast<const char*>(begin);
    if (from + bytes <= first || first + size <= from) continue;
    return first < from || first + size > from + bytes;
  }
  return false;
}

cudaError_t enqueue(cudaStream_t stream, std::int64_t Calls::*counted, std::function<void()> work,
                    bool late) {
  const cudaError_t error = may_enqueue(stream);
  if (error != cudaSuccess) return error;
  if (!captures(stream) && counted) {
    ++(device.calls.*counted);
    if (counted == &Calls::launches) ++queue_of(stream).launches;
  }
  append(stream, std::move(work), nullptr, late);
  return cudaSuccess;
}

cudaError_t may_multiply(cudaStream_t stream) {
  return captures(stream) && !device.cublas_captures ? refuse_in_capture(stream) : cudaSuccess;
}

cudaError_t run(const void* kernel, dim3 grid, dim3 block_size, std::size_t shared_bytes,
                cudaStream_t stream, std::function<void()> thread) {
  if (device.count == 0) return record(cudaErrorNoDevice);
  const std::size_t threads = std::size_t{block_size.x} * block_size.y * block_size.z;
  const auto found = device.max_shared.find({device.current, kernel});
  const auto seen = device.static_shared.find(kernel);
  const std::size_t known = seen == device.static_shared.end() ? 0 : seen->second;
  // Without asking a block has 48 KB, static memory included.
  const std::size_t allowed = found == device.max_shared.end()
                                  ? (std::size_t{48} << 10) - known
                                  : static_cast<std::size_t>(found->second);
  if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.x > 0x7fffffffu || grid.y > 65535 ||
      grid.z > 65535 || threads < 1 || threads > 1024 || block_size.z > 64)
    return record(cudaErrorInvalidConfiguration);
  if (shared_bytes > allowed || known + shared_bytes > shared_limit())
    return record(cudaErrorInvalidValue);
  if (device_of(stream) != device.current) return record(cudaErrorInvalidResourceHandle);
  if (device.launches_left == 0) return record(cudaErrorIllegalAddress);
  if (device.launches_left > 0) --device.launches_left;
  return enqueue(stream, &Calls::launches, [=, thread = std::move(thread)] {
    device.calls.blocks += std::int64_t{grid.x} * grid.y * grid.z;
    const std::size_t met = run_grid(grid, block_size, shared_bytes, thread);
    std::size_t& most = device.static_shared[kernel];
    most = std::max(most, met);
    ++device.launched[kernel];
  });
}

Calls calls() { return device.calls; }
void reset_calls() {
  device.calls = {};
  device.legacy.launches = 0;
  for (const cudaStream_t stream : device.streams) stream->launches = 0;
  device.peak = device.used;
}
std::int64_t device_bytes() { return device.used; }
std::int64_t peak_device_bytes() { return device.peak; }
void set_device_capacity(std::int64_t bytes) { device.capacity = bytes; }
void set_device_count(int devices) { device.count = devices; }
void set_compute_capability(int major, int minor) {
  device.major = major;
  device.minor = minor;
}
void set_multiprocessors(int count) { device.multiprocessors = count; }
void set_driver_version(int version) { device.driver = version; }
void set_pinned_capacity(std::int64_t bytes) {
  const std::lock_guard lock(device.registering);
  device.pinned_capacity = bytes;
}
std::int64_t pinned_bytes() {
  const std::lock_guard lock(device.registering);
  return device.pinned_used;
}
void set_same_addresses(bool value) { device.same_addresses = value; }
void set_launches_left(std::int64_t count) { device.launches_left = count; }
void set_link_copies_left(std::int64_t count) { device.link_copies_left = count; }
void set_kernel_image(bool is_there) { device.has_image = is_there; }
void set_context_lost(cudaError_t error) {
  device.lost = error;
  device.last_error = cudaSuccess;
}
std::size_t shared_limit() { return static_cast<std::size_t>(shared_bytes_of_block()); }
void set_cublas_captures(bool captures) { device.cublas_captures = captures; }
void set_overlap(Overlap overlap, std::uint64_t seed) {
  perform_all();
  device.overlap = overlap;
  device.overlap_random.seed(seed);
}
void set_unwritten(Unwritten what) { unwritten = what; }
void restore_defaults() {
  set_order(Order::forward);
  set_overlap(Overlap::none);
  set_unwritten(Unwritten::not_a_number);
  set_device_capacity(std::int64_t{8} << 30);
  set_mapping_granularity(2 << 20);
  set_reserves_addresses(true);
  set_mappings_left(-1);
  set_device_count(1);
  set_compute_capability(9, 0);
  set_multiprocessors(4);
  set_pinned_capacity(std::int64_t{1} << 50);
  set_same_addresses(true);
  set_launches_left(-1);
  set_link_copies_left(-1);
  set_kernel_image(true);
  set_context_lost(cudaSuccess);
  set_driver_version(13000);
  set_cublas_captures(true);
}
DefaultsBehind::~DefaultsBehind() {
  try {
    restore_defaults();
  } catch (...) {  // of work that a failed case left
    device.legacy.last = nullptr;
    for (const cudaStream_t stream : device.streams) stream->last = nullptr;
    restore_defaults();
  }
}
std::vector<std::int64_t> launches_of_streams() {
  std::vector<std::int64_t> launches = {device.legacy.launches};
  for (const cudaStream_t stream : device.streams) launches.push_back(stream->launches);
  return launches;
}

}  // namespace emulator
