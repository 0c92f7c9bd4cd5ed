// SPDX-License-Identifier: Apache-2.0
#include "emulator.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <chrono>
#include <cstdlib>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "emulated_device.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// ---- the runtime's handles ---------------------------------------------------------------------

namespace emulator {
namespace {

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

}  // namespace
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

// ---- switching between stacks ----------------------------------------------------------------

namespace emulator {
namespace {

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__)
// swapcontext asks the kernel for the signal mask at every switch; this does not.
extern "C" void episodic_switch_stack(void** save, void* load);
asm(R"(
.text
.type episodic_switch_stack, @function
episodic_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size episodic_switch_stack, .-episodic_switch_stack
)");
constexpr std::size_t kStackBytes = 64 << 10;

struct Context {
  void* top = nullptr;
  void start(void* stack, std::size_t size, void (*entry)()) {
    auto** at = reinterpret_cast<void**>(static_cast<char*>(stack) + size);
    *--at = nullptr;  // keeps the stack aligned as after a call
    *--at = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--at = nullptr;
    top = at;
  }
};
void change(Context& from, Context& to, bool) { episodic_switch_stack(&from.top, to.top); }
void arrived() {}
#else
constexpr std::size_t kStackBytes = 256 << 10;

struct Context {
  ucontext_t context{};
  const void* stack = nullptr;
  std::size_t size = 0;
  void* fake = nullptr;
  void start(void* memory, std::size_t bytes, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = memory;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
    stack = memory;
    size = bytes;
  }
};
Context* leaving = nullptr;
Context* entering = nullptr;
void arrived() {
#if defined(__SANITIZE_ADDRESS__)
  const void* stack = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(entering->fake, &stack, &size);
  if (leaving && !leaving->stack) leaving->stack = stack, leaving->size = size;
#endif
}
void change(Context& from, Context& to, bool for_good) {
  leaving = &from;
  entering = &to;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(for_good ? nullptr : &from.fake, to.stack, to.size);
#else
  (void)for_good;
#endif
  swapcontext(&from.context, &to.context);
  arrived();
}
#endif

// ---- one block -------------------------------------------------------------------------------

/// Lanes that meet under one mask.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  std::uint64_t generation = 0;
  std::array<std::array<LanePayload, 32>, 2> payloads;
};

struct PendingCopy {
  void* to;
  const void* from;
  std::size_t bytes;
  bool valid;
  std::int64_t group;
};

struct Fiber {
  Context context;
  ThreadIndex index;
  void* stack = nullptr;
  const std::uint64_t* waits_for = nullptr;  // a generation, until it differs from `seen`
  std::uint64_t seen = 0;
  bool finished = false;
  std::deque<PendingCopy> copies;
  std::int64_t group = 0;
};

/// A variable of static shared memory.
struct StaticShared {
  const char* place;
  unsigned char* at;
  std::size_t bytes;
};
/// Static memory of a block; no compiler gives it more.
constexpr std::size_t kMostStatic = 48 << 10;
/// Between two variables, never written: an access beyond one of them meets no other.
constexpr std::size_t kStaticGap = 64;

struct Block {
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::size_t size = 0, alive = 0;
  std::size_t at_barrier = 0;
  int votes = 0, last_votes = 0;
  std::uint64_t barrier_generation = 0;
  std::vector<std::map<unsigned, Meeting>> warps;
  std::vector<unsigned char> shared;
  std::vector<StaticShared> statics;  // those that were met so far
  std::unique_ptr<unsigned char[]> static_memory;
  std::size_t static_bytes = 0, shared_bytes = 0;
  const std::function<void()>* thread = nullptr;
  std::exception_ptr failure;
};

Block block;
Fiber* current = nullptr;
Context scheduler;
Order order = Order::forward;
std::mt19937_64 shuffle_state;

void finish_barrier() {
  block.at_barrier = 0;
  block.last_votes = block.votes;
  block.votes = 0;
  ++block.barrier_generation;
}

void wait_for(const std::uint64_t& generation, std::uint64_t seen) {
  while (generation == seen) {
    current->waits_for = &generation;
    current->seen = seen;
    change(current->context, scheduler, false);
  }
  current->waits_for = nullptr;
}

void fiber_main() {
  arrived();
  try {
    (*block.thread)();
  } catch (...) {
    block.failure = std::current_exception();
  }
  current->finished = true;
  --block.alive;
  // a thread that returned no longer counts at the block's barrier
  if (block.alive > 0 && block.at_barrier == block.alive) finish_barrier();
  change(current->context, scheduler, true);
}

void* new_stack() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
}

std::vector<std::size_t> turns(std::size_t n) {
  std::vector<std::size_t> all(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (order == Order::backward) std::reverse(all.begin(), all.end());
  if (order == Order::shuffled) std::shuffle(all.begin(), all.end(), shuffle_state);
  return all;
}

/// Room for all variables and their gaps; poisoned where none is.
constexpr std::size_t kStaticRoom = kMostStatic + 64 * (kStaticGap + 128);

/// Nothing of the block before is left, and nothing may be touched before it is declared.
void reset_static() {
  std::size_t used = kStaticRoom;
  if (!block.static_memory) {
    block.static_memory.reset(new unsigned char[kStaticRoom]);
  } else if (block.statics.empty()) {
    return;
  } else {
    const StaticShared& last = block.statics.back();
    used = static_cast<std::size_t>(last.at + last.bytes - block.static_memory.get());
  }
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(block.static_memory.get(), used);
#endif
  std::memset(block.static_memory.get(), 0xff, used);
#if defined(__SANITIZE_ADDRESS__)
  __asan_poison_memory_region(block.static_memory.get(), used);
#endif
  block.statics.clear();
}

void* add_static(const char* place, std::size_t bytes) {
  unsigned char* at = block.static_memory.get();
  if (!block.statics.empty()) {
    const StaticShared& last = block.statics.back();
    at = last.at + last.bytes + kStaticGap;
  }
  at += (128 - reinterpret_cast<std::uintptr_t>(at) % 128) % 128;
  if (at + bytes > block.static_memory.get() + kStaticRoom)
    throw std::logic_error("emulated kernel: too many variables in static shared memory");
#if defined(__SANITIZE_ADDRESS__)
  __asan_unpoison_memory_region(at, bytes);
#endif
  block.statics.push_back({place, at, bytes});
  return at;
}

void run_block(dim3 grid, dim3 block_size, uint3 at, std::size_t shared_bytes) {
  block.size = std::size_t{block_size.x} * block_size.y * block_size.z;
  block.alive = block.size;
  block.at_barrier = 0;
  block.votes = 0;
  block.warps.assign((block.size + 31) / 32, {});
  // quiet NaNs in every float type, so that what was never set shows
  block.shared.assign(shared_bytes + 128, 0xff);
  reset_static();
  block.static_bytes = 0;
  block.shared_bytes = shared_bytes;
  while (block.fibers.size() < block.size) {
    block.fibers.push_back(std::make_unique<Fiber>());
    block.fibers.back()->stack = new_stack();
  }
  for (std::size_t i = 0; i < block.size; ++i) {
    Fiber& f = *block.fibers[i];
    const auto n = static_cast<unsigned>(i);
    f.index = {{n % block_size.x, n / block_size.x % block_size.y, n / block_size.x / block_size.y},
               at,
               block_size,
               grid};
    f.finished = false;
    f.waits_for = nullptr;
    f.copies.clear();
    f.group = 0;
    f.context = {};
    f.context.start(f.stack, kStackBytes, fiber_main);
  }
  while (block.alive > 0) {
    bool moved = false;
    for (const std::size_t i : turns(block.size)) {
      Fiber& f = *block.fibers[i];
      if (f.finished || (f.waits_for && *f.waits_for == f.seen)) continue;
      moved = true;
      current = &f;
      change(scheduler, f.context, false);
      current = nullptr;
      if (block.failure) std::rethrow_exception(std::exchange(block.failure, nullptr));
    }
    if (!moved)
      throw std::logic_error("emulated kernel: " + std::to_string(block.alive) +
                             " threads wait at a collective that the others never reach");
  }
}

// ---- the runtime's state -----------------------------------------------------------------------

struct Device {
  std::map<void*, std::size_t> allocations, pinned;
  std::vector<void*> left_pinned;  // given back while work may still have used it
  std::map<std::pair<int, const void*>, int> max_shared;  // of a device and kernel
  std::map<const void*, std::size_t> static_shared;       // of kernels that have run
  std::int64_t used = 0, peak = 0, capacity = std::int64_t{8} << 30;
  int count = 1, current = 0, major = 9, minor = 0, driver = 13000;
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
Device device;

/// Of a block, as the programming guide's table of compute capabilities has it.
int shared_bytes_of_block() {
  const int version = 10 * device.major + device.minor;
  if (version == 86 || version == 89 || device.major >= 12) return 99 << 10;
  return device.major == 8 ? 163 << 10 : 227 << 10;
}
constexpr std::int64_t kGraphNodeBytes = 1 << 10;  // of an executable graph

cudaError_t record(cudaError_t error) {
  if (error != cudaSuccess) device.last_error = error;
  return error;
}

bool is_legacy(cudaStream_t stream) { return !stream || stream == cudaStreamLegacy; }
bool captures(cudaStream_t stream) { return !is_legacy(stream) && stream->capture; }
/// Of the legacy stream, which every device has, the current device's.
int device_of(cudaStream_t stream) { return is_legacy(stream) ? device.current : stream->device; }

CUstream_st& queue_of(cudaStream_t stream) { return is_legacy(stream) ? device.legacy : *stream; }

/// Whether work may be enqueued. The legacy stream would wait for every capture that waits for it.
cudaError_t may_enqueue(cudaStream_t stream) {
  if (captures(stream))
    return stream->capture->spoilt ? record(cudaErrorStreamCaptureInvalidated) : cudaSuccess;
  if (!is_legacy(stream)) return cudaSuccess;
  bool any = false;
  for (const auto& capture : device.captures)
    for (const cudaStream_t other : capture->streams)
      if (other->waits_for_legacy) any = capture->spoilt = true;
  return any ? record(cudaErrorStreamCaptureImplicit) : cudaSuccess;
}

/// Calls that no capture could replay: refused to who captures, unless relaxed.
cudaError_t may_call_unsafe() {
  bool any = false;
  for (const auto& capture : device.captures)
    if (capture->mode != cudaStreamCaptureModeRelaxed) any = capture->spoilt = true;
  return any ? record(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}

cudaError_t refuse_in_capture(cudaStream_t stream) {
  stream->capture->spoilt = true;
  return record(cudaErrorStreamCaptureUnsupported);
}

void run_grid(const void* kernel, dim3 grid, dim3 block_size, std::size_t shared_bytes,
              const std::function<void()>& thread) {
  block.thread = &thread;
  std::size_t most_static = device.static_shared[kernel];
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  for (const std::size_t b : turns(blocks)) {
    const auto n = static_cast<unsigned>(b);
    run_block(grid, block_size, {n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y},
              shared_bytes);
    most_static = std::max(most_static, block.static_bytes);
  }
  device.static_shared[kernel] = most_static;
}

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

/// Does `last` and all that it is behind, in one of the orders that the waits allow.
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
  for (void* const pointer : std::exchange(device.left_pinned, {})) std::free(pointer);
}

/// Puts work, or a wait alone, behind what the stream has and, if any, behind `other`.
void append(cudaStream_t stream, std::function<void()> work, const NodePtr& other = nullptr) {
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
  if (device.overlap == Overlap::none) perform(node);
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

/// Whether `node` is `last` or among what that is behind.
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

bool is_within(const std::map<void*, std::size_t>& blocks, const void* at) {
  auto next = blocks.upper_bound(const_cast<void*>(at));
  if (next == blocks.begin()) return false;
  --next;
  return static_cast<const char*>(at) < static_cast<const char*>(next->first) + next->second;
}
bool is_pageable(const void* at) {
  return !is_within(device.allocations, at) && !is_within(device.pinned, at);
}

}  // namespace

cudaError_t enqueue(cudaStream_t stream, std::int64_t Calls::*counted, std::function<void()> work) {
  const cudaError_t error = may_enqueue(stream);
  if (error != cudaSuccess) return error;
  if (!captures(stream) && counted) {
    ++(device.calls.*counted);
    if (counted == &Calls::launches) ++queue_of(stream).launches;
  }
  append(stream, std::move(work));
  return cudaSuccess;
}

cudaError_t may_multiply(cudaStream_t stream) {
  return captures(stream) && !device.cublas_captures ? refuse_in_capture(stream) : cudaSuccess;
}

const ThreadIndex& index() { return current->index; }

unsigned lane() {
  const ThreadIndex& i = current->index;
  return (i.thread.x + i.block_size.x * (i.thread.y + i.block_size.y * i.thread.z)) % 32u;
}

int barrier(int votes) {
  const std::uint64_t seen = block.barrier_generation;
  block.votes += votes;
  if (++block.at_barrier == block.alive)
    finish_barrier();
  else
    wait_for(block.barrier_generation, seen);
  return block.last_votes;
}

const LanePayload* rendezvous(unsigned mask, const void* payload, std::size_t bytes) {
  const ThreadIndex& i = current->index;
  const std::size_t linear =
      i.thread.x + std::size_t{i.block_size.x} * (i.thread.y + i.block_size.y * i.thread.z);
  const auto own = static_cast<unsigned>(linear % 32);
  if (!(mask >> own & 1u))
    throw std::logic_error("emulated kernel: a lane calls a collective whose mask leaves it out");
  // Lanes that a block of odd size does not have take no part.
  const std::size_t left = block.size - linear / 32 * 32;
  if (left < 32) mask &= (1u << left) - 1u;
  Meeting& meeting = block.warps[linear / 32][mask];
  const std::uint64_t seen = meeting.generation;
  // Two payloads in turn: a lane that is here again has read those of the meeting before the last.
  auto& slots = meeting.payloads[seen % 2];
  std::memcpy(slots[own].data(), payload, bytes);
  meeting.arrived |= 1u << own;
  if (meeting.arrived == mask) {
    meeting.arrived = 0;
    ++meeting.generation;
  } else {
    wait_for(meeting.generation, seen);
  }
  return slots.data();
}

unsigned char* dynamic_shared() {
  const auto at = reinterpret_cast<std::uintptr_t>(block.shared.data());
  return block.shared.data() + (128 - at % 128) % 128;
}

void* static_shared(const char* place, std::size_t bytes, std::size_t alignment) {
  for (const StaticShared& known : block.statics)
    if (known.place == place) return known.at;
  // As a compiler lays them out, if in another order; the gaps do not count.
  block.static_bytes = (block.static_bytes + alignment - 1) / alignment * alignment + bytes;
  if (block.static_bytes > kMostStatic)
    throw std::logic_error("emulated kernel: more than 48 KB of static shared memory");
  if (block.static_bytes + block.shared_bytes > shared_limit())
    throw std::logic_error("emulated kernel: " + std::to_string(block.static_bytes) +
                           " bytes of static and " + std::to_string(block.shared_bytes) +
                           " of dynamic shared memory are more than the device has");
  return add_static(place, bytes);
}

void copy_async(void* to, const void* from, std::size_t bytes, bool valid) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 ||
      (valid && reinterpret_cast<std::uintptr_t>(from) % bytes != 0))
    throw std::logic_error("emulated kernel: an asynchronous copy is not aligned to its size");
  current->copies.push_back({to, from, bytes, valid, current->group});
}

void commit_copies() { ++current->group; }

void wait_copies(int groups_left) {
  auto& copies = current->copies;
  while (!copies.empty() && copies.front().group < current->group - groups_left) {
    const PendingCopy& c = copies.front();
    if (c.valid)
      std::memcpy(c.to, c.from, c.bytes);
    else
      std::memset(c.to, 0, c.bytes);
    copies.pop_front();
  }
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
  return enqueue(stream, &Calls::launches, [=, thread = std::move(thread)] {
    run_grid(kernel, grid, block_size, shared_bytes, thread);
  });
}

void set_order(Order new_order, std::uint64_t seed) {
  order = new_order;
  shuffle_state.seed(seed);
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
void set_driver_version(int version) { device.driver = version; }
void set_pinned_capacity(std::int64_t bytes) { device.pinned_capacity = bytes; }
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
std::vector<std::int64_t> launches_of_streams() {
  std::vector<std::int64_t> launches = {device.legacy.launches};
  for (const cudaStream_t stream : device.streams) launches.push_back(stream->launches);
  return launches;
}

}  // namespace emulator

// ---- the runtime's calls -----------------------------------------------------------------------

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
  std::memset(memory, 0xff, size);  // NaNs, as what was never written
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
  if (device.pinned_used + bytes > device.pinned_capacity) return record(cudaErrorMemoryAllocation);
  *pointer = std::aligned_alloc(256, (size + 255) / 256 * 256);
  if (!*pointer) return record(cudaErrorMemoryAllocation);
  device.pinned[*pointer] = size;
  device.pinned_used += bytes;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* pointer) {
  const cudaError_t error = may_call_unsafe();
  if (error != cudaSuccess) return error;
  if (!pointer) return cudaSuccess;
  ++device.calls.frees;
  const auto at = device.pinned.find(pointer);
  if (at == device.pinned.end()) return record(cudaErrorInvalidValue);
  // Nothing says that this waits. What still uses it finds NaNs, and does no harm later on.
  std::memset(pointer, 0xff, at->second);
  device.pinned_used -= static_cast<std::int64_t>(at->second);
  device.pinned.erase(at);
  device.left_pinned.push_back(pointer);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(std::size_t* free, std::size_t* total) {
  *total = static_cast<std::size_t>(device.capacity);
  *free = static_cast<std::size_t>(device.capacity - device.used);
  return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t size, cudaMemcpyKind,
                            cudaStream_t stream) {
  if (size > 0 && (!to || !from)) return record(cudaErrorInvalidValue);
  if (size > 0 && !captures(stream) && device.overlap != emulator::Overlap::none &&
      emulator::is_pageable(from)) {
    // read before the call returns
    const auto* bytes = static_cast<const char*>(from);
    return enqueue(stream, &Calls::copies, [to, kept = std::vector<char>(bytes, bytes + size)] {
      std::memcpy(to, kept.data(), kept.size());
    });
  }
  const cudaError_t error = enqueue(stream, &Calls::copies, [=] {
    if (size > 0) std::memmove(to, from, size);
  });
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
  if (copied == cudaSuccess) emulator::perform(device.legacy.last);
  return copied;
}
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const std::size_t* sizes,
                                 std::size_t count, cudaMemcpyAttributes* attributes,
                                 std::size_t* first_copies, std::size_t n_attributes,
                                 cudaStream_t stream) {
  if (device.driver < 12080) return record(cudaErrorCallRequiresNewerDriver);
  if (captures(stream)) return refuse_in_capture(stream);
  if (!stream || stream == cudaStreamLegacy || !attributes || !first_copies || n_attributes != 1 ||
      first_copies[0] != 0 || attributes->srcAccessOrder != cudaMemcpySrcAccessOrderStream)
    return record(cudaErrorInvalidValue);
  for (std::size_t i = 0; i < count; ++i)
    if (!to[i] || !from[i] || sizes[i] == 0) return record(cudaErrorInvalidValue);
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
  if (width > to_pitch || width > from_pitch) return record(cudaErrorInvalidValue);
  return enqueue(stream, &Calls::copies, [=] {
    for (std::size_t row = 0; row < height; ++row)
      std::memcpy(static_cast<char*>(to) + row * to_pitch,
                  static_cast<const char*>(from) + row * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* pointer, int value, std::size_t size, cudaStream_t stream) {
  if (emulator::device_of(stream) != device.current) return record(cudaErrorInvalidResourceHandle);
  return enqueue(stream, nullptr, [=] {
    if (size > 0) std::memset(pointer, value, size);
  });
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
cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
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
      *value = 4;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMajor:
      *value = device.major;
      return cudaSuccess;
    case cudaDevAttrComputeCapabilityMinor:
      *value = device.minor;
      return cudaSuccess;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = emulator::shared_bytes_of_block();
      return cudaSuccess;
  }
  return record(cudaErrorInvalidValue);
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int id) {
  if (id < 0 || id >= device.count) return record(cudaErrorInvalidDevice);
  *properties = {"emulated device",
                 static_cast<std::size_t>(device.capacity),
                 device.major,
                 device.minor,
                 4,
                 0};
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
