// SPDX-License-Identifier: Apache-2.0
// The threads of one block, each a fiber of its own, and what they do together: barriers,
// collectives of lanes, shared memory, asynchronous copies.
#include "block.hpp"

#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstdlib>
#include <deque>
#include <exception>
#include <memory>
#include <new>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "emulated_device.hpp"
#include "emulator.hpp"
#include "unwritten.hpp"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

// ---- switching between stacks ----------------------------------------------------------------

namespace emulator {
namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr std::size_t kStackBytes = 256 << 10;
#else
constexpr std::size_t kStackBytes = 80 << 10;
#endif
/// Of a block, as a device has it.
constexpr std::size_t kMostThreads = 1024;
/// Between the beginnings of two threads' stacks, from those of whole pages; keeps them aligned.
constexpr std::size_t kStackShift = 192;

/// A stack that waits, and how to go on there. `fetch` brings what is read first into the caches: a
/// thread stays for some hundred instructions, and half of its time was waiting for its stack.
#if defined(__x86_64__)
// swapcontext asks the kernel for the signal mask at every switch, and a sanitizer's forgets what
// it knows of the whole stack; this does neither.
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

struct Waiting {
  void* top = nullptr;
  void start(void* stack, std::size_t size, void (*entry)()) {
    auto** at = reinterpret_cast<void**>(static_cast<char*>(stack) + size);
    *--at = nullptr;  // keeps the stack aligned as after a call
    *--at = reinterpret_cast<void*>(entry);
    for (int i = 0; i < 6; ++i) *--at = nullptr;
    top = at;
  }
  void go_on_at(Waiting& to) { episodic_switch_stack(&top, to.top); }
  void fetch() const {
    for (int line = 0; line < 3; ++line) __builtin_prefetch(static_cast<char*>(top) + 64 * line);
  }
};
#else
struct Waiting {
  ucontext_t context{};
  void start(void* stack, std::size_t size, void (*entry)()) {
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = size;
    context.uc_link = nullptr;
    makecontext(&context, entry, 0);
  }
  void go_on_at(Waiting& to) { swapcontext(&context, &to.context); }
  void fetch() const {}
};
#endif

#if defined(__SANITIZE_ADDRESS__)
// The sanitizer is told which stack is in use.
struct Context {
  Waiting waiting;
  const void* stack = nullptr;
  std::size_t size = 0;
  void* fake = nullptr;
  void start(void* memory, std::size_t bytes, void (*entry)()) {
    __asan_unpoison_memory_region(memory, bytes);  // of frames that a failed block left for good
    stack = memory;
    size = bytes;
    waiting.start(memory, bytes, entry);
  }
  void fetch() const { waiting.fetch(); }
};
Context* leaving = nullptr;
Context* entering = nullptr;
void arrived() {
  const void* stack = nullptr;
  std::size_t size = 0;
  __sanitizer_finish_switch_fiber(entering->fake, &stack, &size);
  if (leaving && !leaving->stack) leaving->stack = stack, leaving->size = size;
}
void change(Context& from, Context& to) {
  leaving = &from;
  entering = &to;
  __sanitizer_start_switch_fiber(&from.fake, to.stack, to.size);
  from.waiting.go_on_at(to.waiting);
  arrived();
}
#else
using Context = Waiting;
void change(Context& from, Context& to) { from.go_on_at(to); }
void arrived() {}
#endif

// ---- one block -------------------------------------------------------------------------------

/// Lanes that meet under one mask.
struct Meeting {
  unsigned mask = 0, arrived = 0;
  std::uint64_t generation = 0;
  std::array<std::array<LanePayload, 32>, 2> payloads;
};

/// The meetings of a warp, by mask. Their memory stays for the next block.
class Meetings {
 public:
  void clear() { used_ = 0; }
  Meeting& of(unsigned mask) {
    for (std::size_t i = 0; i < used_; ++i)
      if (all_[i]->mask == mask) return *all_[i];
    if (used_ == all_.size()) all_.push_back(std::make_unique<Meeting>());
    Meeting& added = *all_[used_++];
    added.mask = mask;
    added.arrived = 0;
    added.generation = 0;
    return added;
  }

 private:
  std::vector<std::unique_ptr<Meeting>> all_;
  std::size_t used_ = 0;
};

struct PendingCopy {
  void* to;
  const void* from;
  std::size_t bytes;
  bool valid;
  std::int64_t group;
};

struct Fiber {
  ThreadIndex index;
  std::size_t number = 0;  // in its block
  void* stack = nullptr;
  bool finished = false;  // its thread returned; it can take one of the next block
  std::deque<PendingCopy> copies;
  std::int64_t group = 0;
};

/// What a thread waits for: a generation, until it differs from `seen`. Apart from the threads:
/// those that look for the next one touch no more.
struct Wait {
  const std::uint64_t* generation = nullptr;
  std::uint64_t seen = 0;
  bool over() const { return !generation || *generation != seen; }
};
/// Of a thread that returned.
constexpr std::uint64_t kNever = 0;

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
  std::vector<Wait> waits;        // of each
  std::vector<Context> contexts;  // of each
  std::size_t size = 0, alive = 0;
  std::size_t at_barrier = 0;
  int votes = 0, last_votes = 0;
  std::uint64_t barrier_generation = 0;
  std::vector<Meetings> warps;
  std::vector<std::size_t> turns;  // of its threads
  std::size_t next_turn = 0;
  bool moved = false;  // a thread had a turn since the first of `turns`
  std::vector<unsigned char> shared;
  std::vector<StaticShared> statics;  // those that were met so far
  std::unique_ptr<unsigned char[]> static_memory;
  std::size_t static_bytes = 0, shared_bytes = 0;
  const std::function<void()>* thread = nullptr;
  std::exception_ptr failure;
};

Block block;
Fiber* current = nullptr;  // set with current_index
Context scheduler;
Order order = Order::forward;
std::mt19937_64 shuffle_state;

void set_current(Fiber* f) {
  current = f;
  current_index = f ? &f->index : nullptr;
}

void finish_barrier() {
  block.at_barrier = 0;
  block.last_votes = block.votes;
  block.votes = 0;
  ++block.barrier_generation;
}

void set_turns(std::vector<std::size_t>& all, std::size_t n) {
  if (all.size() == n && order != Order::shuffled) return;  // set_order clears them
  all.resize(n);
  std::iota(all.begin(), all.end(), std::size_t{0});
  if (order == Order::backward) std::reverse(all.begin(), all.end());
  if (order == Order::shuffled) std::shuffle(all.begin(), all.end(), shuffle_state);
}

/// Another lane of the warp that runs, or null where none can go on. A warp's stacks fit into the
/// first cache, a block's do not.
Fiber* next_lane() {
  const std::size_t own = current->number % 32, first = current->number - own;
  const std::size_t lanes = std::min<std::size_t>(32, block.size - first);
  const bool backward = order == Order::backward;
  for (std::size_t i = 1, lane = own; i < lanes; ++i) {
    if (backward)
      lane = (lane == 0 ? lanes : lane) - 1;
    else
      lane = lane + 1 == lanes ? 0 : lane + 1;
    if (!block.waits[first + lane].over()) continue;
    if (first + lane + 1 < block.size) block.contexts[first + lane + 1].fetch();
    return block.fibers[first + lane].get();
  }
  return nullptr;
}

/// The thread whose turn is next, or null where none is left or none can go on.
Fiber* next_fiber() {
  if (current && order != Order::shuffled)
    if (Fiber* const lane = next_lane()) return lane;
  while (block.alive > 0) {
    for (; block.next_turn < block.size; ++block.next_turn) {
      const std::size_t next = block.turns[block.next_turn];
      if (!block.waits[next].over()) continue;
      ++block.next_turn;
      block.moved = true;
      return block.fibers[next].get();
    }
    if (!block.moved) return nullptr;
    block.moved = false;
    block.next_turn = 0;
    set_turns(block.turns, block.size);
  }
  return nullptr;
}

/// Leaves the running thread for whoever is next.
void give_turn() {
  Fiber* const from = current;
  Fiber* const to = block.failure ? nullptr : next_fiber();
  if (to == from) return;
  set_current(to);
  change(block.contexts[from->number], to ? block.contexts[to->number] : scheduler);
}

void wait_for(const std::uint64_t& generation, std::uint64_t seen) {
  block.waits[current->number] = {&generation, seen};
  give_turn();
  block.waits[current->number] = {};
}

/// One thread of a block after another: a stack of its own costs a sanitizer much to begin.
void fiber_main() {
  arrived();
  for (;;) {
    try {
      (*block.thread)();
    } catch (...) {
      block.failure = std::current_exception();
    }
    current->finished = true;
    block.waits[current->number] = {&kNever, kNever};
    --block.alive;
    // a thread that returned no longer counts at the block's barrier
    if (block.alive > 0 && block.at_barrier == block.alive) finish_barrier();
    give_turn();  // comes back for a thread of a later block
  }
}

void* new_stack() {
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  return memory;
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
  std::memset(block.static_memory.get(), unwritten_byte(), used);
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
  block.warps.resize(std::max(block.warps.size(), (block.size + 31) / 32));
  for (Meetings& warp : block.warps) warp.clear();
  // by default quiet NaNs in every float type, so that what was never set shows
  block.shared.assign(shared_bytes + 128, static_cast<unsigned char>(unwritten_byte()));
  reset_static();
  block.static_bytes = 0;
  block.shared_bytes = shared_bytes;
  block.contexts.reserve(
      kMostThreads);  // one that waits stays where it is: it may point into itself
  while (block.fibers.size() < block.size) {
    block.fibers.push_back(std::make_unique<Fiber>());
    block.fibers.back()->stack = new_stack();
    block.contexts.emplace_back();
  }
  for (std::size_t i = 0; i < block.size; ++i) {
    Fiber& f = *block.fibers[i];
    const auto n = static_cast<unsigned>(i);
    f.index = {{n % block_size.x, n / block_size.x % block_size.y, n / block_size.x / block_size.y},
               at,
               block_size,
               grid};
    f.number = i;
    if (!f.finished) {  // a new one, or left in the middle of a block that failed
      block.contexts[i] = {};
      // Stacks that all begin at the same address of a page would share a few lines of the caches.
      block.contexts[i].start(f.stack, kStackBytes - i % 64 * kStackShift, fiber_main);
    }
    f.finished = false;
    f.copies.clear();
    f.group = 0;
  }
  block.waits.assign(block.size, {});
  set_turns(block.turns, block.size);
  block.next_turn = 0;
  block.moved = false;
  if (Fiber* const first = next_fiber()) {
    set_current(first);
    change(scheduler, block.contexts[first->number]);
  }
  if (block.failure) std::rethrow_exception(std::exchange(block.failure, nullptr));
  if (block.alive > 0)
    throw std::logic_error("emulated kernel: " + std::to_string(block.alive) +
                           " threads wait at a collective that the others never reach");
}

}  // namespace

std::size_t run_grid(dim3 grid, dim3 block_size, std::size_t shared_bytes,
                     const std::function<void()>& thread) {
  block.thread = &thread;
  std::size_t most_static = 0;
  const std::size_t blocks = std::size_t{grid.x} * grid.y * grid.z;
  std::vector<std::size_t> turns;
  set_turns(turns, blocks);
  for (const std::size_t b : turns) {
    const auto n = static_cast<unsigned>(b);
    run_block(grid, block_size, {n % grid.x, n / grid.x % grid.y, n / grid.x / grid.y},
              shared_bytes);
    most_static = std::max(most_static, block.static_bytes);
  }
  return most_static;
}

void set_order(Order new_order, std::uint64_t seed) {
  order = new_order;
  shuffle_state.seed(seed);
  block.turns.clear();
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
  const std::size_t linear = current->number;
  const auto own = static_cast<unsigned>(linear % 32);
  if (!(mask >> own & 1u))
    throw std::logic_error("emulated kernel: a lane calls a collective whose mask leaves it out");
  // Lanes that a block of odd size does not have take no part.
  const std::size_t left = block.size - linear / 32 * 32;
  if (left < 32) mask &= (1u << left) - 1u;
  Meeting& meeting = block.warps[linear / 32].of(mask);
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

}  // namespace emulator

#if defined(EPISODIC_CHECKS_ALIGNMENT)
/// What -fsanitize=alignment calls, whose own library is not linked: the compiler checks each
/// access of the kernels against its type, as a device would refuse it. It may not throw, and the
/// access behind it might trap: the thread is left where it is for good, and the block has failed.
extern "C" {
struct EmulatedMismatch {
  const char* file;
  std::uint32_t line, column;
  const void* type;
  unsigned char log_alignment, kind;
};
void __ubsan_handle_type_mismatch_v1(void* of, void* at) {
  const auto* const where = static_cast<const EmulatedMismatch*>(of);
  if (!emulator::current) return;  // of a launcher
  emulator::block.failure = std::make_exception_ptr(std::logic_error(
      "emulated kernel: " + std::string(where->file) + ":" + std::to_string(where->line) +
      ": an access at " + std::to_string(reinterpret_cast<std::uintptr_t>(at)) +
      ", which is no multiple of " + std::to_string(1 << where->log_alignment)));
  emulator::give_turn();
}
}
#endif

namespace emulator {

void copy_async(void* to, const void* from, std::size_t bytes, bool valid) {
  // PTX asks it of the source of a copy that reads nothing, too.
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0 ||
      reinterpret_cast<std::uintptr_t>(from) % bytes != 0)
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

}  // namespace emulator
