// SPDX-License-Identifier: Apache-2.0
#pragma once
// The machine that runs decoded PTX: blocks one after the other, the warps of a block in turns, the
// lanes of a warp in groups that stand at the same instruction.
//
// Clocks between accesses is what the barriers, fences and atomics of the program make, never the
// order in which the machine happens to run: every access is remembered with the interval between
// two barriers in which it was made (Interval), and two of one place, one of them a write, must be
// ordered by what lies between their intervals. Launches end before the next begins, but where that
// may begin early: then all launches of the chain are unordered with a thread until it has waited.
// Barriers of the whole block are counted (epochs); barriers of a part of it and mbarriers hand on
// what their threads know (Clocks).

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "memory.hpp"
#include "text.hpp"

namespace ptx {

inline constexpr int kLanes = 32;
inline constexpr std::uint32_t kAll = ~0u;

/// What an architecture allows a launch.
struct Architecture {
  int major = 8, minor = 0;
  int shared_of_block = 163 << 10;  // static and dynamic, by opting in
  int multiprocessors = 108;
};
/// By compute capability. \throws std::invalid_argument
Architecture architecture(int major, int minor);

struct Dim {
  std::uint32_t x = 1, y = 1, z = 1;
  std::uint64_t count() const { return std::uint64_t{x} * y * z; }
};

class Warp;
struct Instruction;
using Execute = void (*)(Warp&, const Instruction&, std::uint32_t lanes);

/// How control goes on after an instruction.
enum class Flow : std::uint8_t {
  next,
  branch,
  exit,
  aligned,  // all lanes of the warp that live execute it together
  masked,   // those of its mask do
  barrier,  // all threads of the block, or as many as it says, wait for each other
  poll,     // all lanes of the warp that live; if what it waits for is not there, others go on
};

/// An instruction with all that could be decided before it runs. Operands are rows: of registers,
/// of special registers and of constants alike.
struct Instruction {
  Execute execute = nullptr;
  Flow flow = Flow::next;
  std::int16_t n_dst = 0, n_src = 0;
  int guard = -1;
  bool guard_negated = false;
  int dst[4] = {-1, -1, -1, -1};
  int src[10] = {};
  int target = -1;  // of a branch
  int mask = -1;    // row of the mask of lanes, of a masked instruction
  int cc = -1;      // row of the carry
  // loads, stores, atomics, copies
  Space space = Space::generic;
  int address = -1;  // row; -1: the offset is all
  std::int64_t offset = 0;
  int element = 0, vector = 1;  // bytes of an element, elements
  bool is_signed = false, is_volatile = false;
  std::uint32_t used = ~0u;  // bytes of a load that matter
  int variant = 0;           // what else the function distinguishes
  int list = -1;             // of registers, in Program::lists: accumulators of a wgmma
  int statement = 0;         // in Function::body or that of an inlined one
  int line = 0;
  const char* text = "";
};

/// A kernel, decoded for a machine.
struct Program {
  std::string name;
  std::vector<Instruction> code;
  std::vector<std::unique_ptr<std::string>> texts;  // opcodes, for messages
  int n_rows = 0;
  std::vector<std::vector<int>> lists;  // rows
  bool is_asynchronous = false;  // has mbarriers, proxies, wgmma, or barriers of a part of a block
  std::vector<std::uint64_t> constants;  // rows [first_constant, ...)
  int first_constant = 0;
  int special = 0;  // first of the rows of special registers (Special)
  std::vector<int> param_offsets, param_sizes;
  int param_bytes = 0;
  int local_bytes = 0;
  struct SharedVariable {
    std::string name;
    std::uint32_t offset, size;
  };
  std::vector<SharedVariable> shared;  // with gaps between them
  std::uint32_t shared_end = 0;        // where dynamic memory begins
  bool has_dynamic = false;
  int static_bytes = 0;  // what the device counts
  int max_threads = 1024;
};

/// Special registers, one row each.
enum class Special {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  lanemask_eq,
  lanemask_lt,
  lanemask_le,
  lanemask_gt,
  lanemask_ge,
  count
};

/// Generic addresses of shared and local memory: no host address looks like that.
inline constexpr std::uint64_t kSharedWindow = std::uint64_t{1} << 56;
inline constexpr std::uint64_t kLocalWindow = std::uint64_t{2} << 56;
/// Where a block's shared memory begins in its own space, so that 0 is no variable's address.
inline constexpr std::uint32_t kSharedBase = 1024;

/// A stretch of a warp's run without a barrier: accesses are numbered by it (an access is its
/// number x 64 + 32 if atomic + the lane).
struct Interval {
  std::uint32_t block;
  std::uint32_t epoch;  // barriers of the block passed
  std::uint32_t clock;  // barriers of the warp passed
  std::uint16_t warp;
};

/// What a block published by a fence and an atomic: all its accesses before `epoch`, and of thread
/// t those numbered up to marks[t].
struct Published {
  std::uint32_t epoch = 0;
  std::vector<std::uint32_t> marks;
};
using Knowledge = std::map<std::uint32_t, Published>;  // by block

/// Counts of shared memory's accesses by a kernel.
struct BankCounts {
  std::uint64_t accesses = 0;  // warp-wide loads and stores
  std::uint64_t least = 0;     // passes that their bytes take
  std::uint64_t passes = 0;    // passes that the banks make of them
};

struct LaunchOptions {
  bool backward = false;  // blocks and warps in reverse
  bool is_early = false;  // may begin before the launch before it has ended
  std::uint64_t instructions = std::uint64_t{1} << 36;  // of warps, before it is called endless
};

class Block;
class Launch {
 public:
  Launch(const Program& program, Dim grid, Dim block, std::uint32_t dynamic_bytes,
         std::vector<unsigned char> params, const LaunchOptions& options);
  /// \throws Fault
  void run();
  const BankCounts& banks() const { return banks_; }
  std::uint64_t instructions() const { return instructions_; }

 private:
  friend class Block;
  friend class Warp;
  const Program& program_;
  Dim grid_, block_;
  std::uint32_t dynamic_bytes_;
  std::vector<unsigned char> params_;
  LaunchOptions options_;
  BankCounts banks_;
  std::uint64_t instructions_ = 0;
  std::vector<Interval> intervals_;
  std::uint32_t first_interval_ = 0;
  // Accesses before it are those of launches that have ended; those from it to first_interval_ of
  // launches that may still run until a thread has waited for them.
  std::uint32_t first_running_ = 0;
  bool waited_ = false;                          // some thread has
  std::map<std::uint64_t, Knowledge> released_;  // by address of what an atomic wrote
};

/// What a lane knows of its block: for each agent (warps, and behind them the asynchronous copies
/// of each) and lane the clock up to which their accesses are before its own; and which of those,
/// when they are writes, a fence has made visible to the asynchronous proxy, which wgmma reads
/// through.
struct Clocks {
  std::vector<std::uint32_t> before, proxied;
  void merge(const Clocks& other);
};

/// A copy that cp.async began.
struct Copy {
  std::uint64_t from;
  std::uint32_t to;
  std::uint8_t bytes, read;  // written; read: the rest are zeros
  std::uint8_t lane;
  const Instruction* instruction;
};

class Warp {
 public:
  Warp(Block& block, int index);
  void start(int threads);
  /// Runs until all lanes have ended or stand at a barrier of the block, or for a while.
  void run();
  bool ended() const { return alive_ == 0; }
  int index() const { return index_; }
  bool at_barrier() const { return at_barrier_; }

  // ---- for the instructions ----
  std::uint64_t* row(int r) { return rows_.data() + static_cast<std::size_t>(r) * kLanes; }
  std::uint32_t predicate(int r) { return static_cast<std::uint32_t>(*row(r)); }
  std::uint32_t set(int r) const { return set_[static_cast<std::size_t>(r)]; }
  /// Lanes `lanes` of row r have been written; their value is one in `known`.
  void write_set(int r, std::uint32_t lanes, std::uint32_t known) {
    std::uint32_t& s = set_[static_cast<std::size_t>(r)];
    s = (s & ~lanes) | (lanes & known);
  }
  void write_predicate(int r, std::uint32_t lanes, std::uint32_t value) {
    std::uint64_t& p = *row(r);
    p = (p & ~std::uint64_t{lanes}) | (lanes & value);
  }
  [[noreturn]] void fault(FaultKind kind, const Instruction& i, int lane, const std::string& what);
  /// Faults unless row r is set in all of `lanes`.
  void need_set(const Instruction& i, int r, std::uint32_t lanes, const char* what);

  /// Where an access of `bytes` goes, checked: bounds, alignment, order; `flags`: what it does.
  enum Access { kRead = 1, kWrite = 2, kAtomic = 4 };
  struct Place {
    unsigned char* data;
    unsigned char* set;  // null: all set
  };
  /// `value`: what is about to be written, if it is: writing what is there already is no race.
  Place place(const Instruction& i, int lane, Space space, std::uint64_t address, int bytes,
              int flags, const unsigned char* value = nullptr);
  std::uint64_t address(const Instruction& i, int lane) {
    return (i.address < 0 ? 0 : row(i.address)[lane]) + static_cast<std::uint64_t>(i.offset);
  }
  const std::vector<unsigned char>& params() const;
  const std::vector<int>& list(const Instruction& i) const {
    return program_.lists[static_cast<std::size_t>(i.list)];
  }
  unsigned char* local(int lane) { return local_.data() + lane * local_bytes_; }
  unsigned char* local_set(int lane) { return local_set_.data() + lane * local_bytes_; }
  int local_bytes() const { return local_bytes_; }

  // mbarriers
  void init_mbarrier(const Instruction& i, int lane, std::uint32_t at, std::uint32_t count);
  void arrive(const Instruction& i, int lane, std::uint32_t at);
  /// An arrival once all copies are done that the lane began since its last one.
  void arrive_after_copies(const Instruction& i, int lane, std::uint32_t at);
  /// Whether the phase of this parity is complete; then what came before its arrivals is known.
  bool phase_is_done(const Instruction& i, int lane, std::uint32_t at, std::uint32_t parity);
  /// The warp gives way to others: what it waits for is not there.
  void yield() { yields_ = true; }
  /// Accesses from here on are later than what was handed on.
  void next_clock() {
    ++clock_;
    new_interval();
  }
  void fence_proxy(std::uint32_t lanes);

  // wgmma
  /// Reads 16 bytes of a matrix through the asynchronous proxy; until its group is waited for.
  const unsigned char* read_matrix(const Instruction& i, int lane, std::uint32_t at);
  void begin_wgmma(const Instruction& i, std::uint64_t a, std::uint64_t b);
  /// Registers of a wgmma: `accumulators` may not be touched before it is waited for, those of
  /// `fragment` not be written. Both must have been written before the last wgmma.fence.
  void hold_registers(const Instruction& i, const std::vector<int>& accumulators,
                      const int* fragment, int n_fragment);
  void fence_wgmma() { ++wgmma_fences_; }
  void commit_wgmma();
  void wait_wgmma(const Instruction& i, std::size_t groups_left);
  void set_registers(const Instruction& i, int count);

  void begin_copy(const Instruction& i, int lane, std::uint32_t to, std::uint64_t from, int bytes,
                  int read);
  void commit_copies(std::uint32_t lanes);
  void wait_copies(const Instruction& i, std::uint32_t lanes, std::size_t groups_left);
  void fence(std::uint32_t lanes);
  void observe(const Instruction& i, int lane, std::uint64_t address);
  /// The launches before have ended.
  void wait_for_launches(std::uint32_t lanes);
  /// Lanes of the warp wait for each other.
  void synchronise(std::uint32_t lanes);
  /// Counts the passes of an access to shared memory.
  void count_banks(const std::uint32_t* addresses, std::uint32_t lanes, int bytes);
  /// `threads`: of all warps that meet; 0: the whole block
  void set_barrier(int id, int threads, bool reduces, std::uint32_t predicates, int result) {
    barrier_id_ = id;
    barrier_threads_ = threads;
    barrier_reduces_ = reduces;
    barrier_predicates_ = predicates;
    barrier_result_ = result;
  }

 private:
  friend class Block;
  std::uint32_t number(int lane, bool atomic);
  void check_order(const Instruction& i, int lane, Shadow& shadow, std::size_t offset,
                   const unsigned char* data, const unsigned char* set, int bytes, int flags,
                   const unsigned char* value, const char* where);
  bool is_before(std::uint32_t access, int lane);
  /// All that a lane knows, with its own accesses so far.
  Clocks known(int lane) const;
  /// The copies' writes are those of the warp's second agent, which only a barrier hands on.
  void do_copies(const std::vector<Copy>& copies, int lane);
  void check_registers(const Instruction& i);
  std::string describe(std::uint32_t access) const;
  /// Runs what lanes of `group` stand at, if all that it needs are there. \return the lanes it ran
  std::uint32_t together(const Instruction& i, std::uint32_t group);
  void new_interval() { interval_ = 0; }

  Block& block_;
  Launch& launch_;
  const Program& program_;
  int index_;
  std::uint32_t alive_ = 0, waiting_ = 0;
  std::array<int, kLanes> pc_{};
  std::vector<std::uint64_t> rows_;
  std::vector<std::uint32_t> set_;
  int local_bytes_ = 0;
  std::vector<unsigned char> local_, local_set_;
  // barrier of the block
  bool at_barrier_ = false, barrier_reduces_ = false;
  int barrier_id_ = 0, barrier_threads_ = 0, barrier_result_ = -1;
  std::uint32_t barrier_predicates_ = 0;
  int barrier_line_ = 0;
  // order
  std::uint32_t interval_ = 0, clock_ = 1, all_know_ = 0;
  std::array<std::array<std::uint32_t, kLanes>, kLanes> knows_{};
  bool lanes_differ_ = false;  // some pair of lanes knows more of each other than all_know_
  std::array<Knowledge, kLanes> observed_, acquired_;
  bool any_observed_ = false, any_acquired_ = false;
  std::array<std::uint32_t, kLanes> fence_mark_{}, fence_epoch_{};
  std::uint32_t waited_ = 0;   // lanes that have waited for the launches before
  std::vector<Clocks> heard_;  // by lane, from barriers; empty where the program has none of them
  std::uint32_t copy_clock_ = 0;
  bool yields_ = false;
  int wait_line_ = 0;  // of the last wait for an mbarrier
  // wgmma: groups are numbered from 1
  struct Read {
    std::uint32_t at;
    int lane;
  };
  std::vector<Read> wgmma_open_;
  std::deque<std::vector<Read>> wgmma_groups_;
  std::uint32_t wgmma_committed_ = 0, wgmma_done_ = 0, wgmma_fences_ = 1;
  std::size_t wgmma_count_ = 0;
  bool wgmma_uses_ = false;                              // one was begun and not waited for
  std::vector<std::uint32_t> held_, read_by_, written_;  // by row: group, group, fences before
  int registers_ = 0;                                    // by setmaxnreg; 0: as launched
  // asynchronous copies
  std::array<std::vector<Copy>, kLanes> open_;
  std::array<std::vector<std::vector<Copy>>, kLanes> groups_;
};

class Block {
 public:
  explicit Block(Launch& launch);
  void run(std::uint32_t index);

 private:
  friend class Warp;
  /// Passes the barriers that all they need have reached. \return whether there was one
  bool pass_barriers();
  void pass_whole();
  void pass_part(const std::vector<Warp*>& warps);
  [[noreturn]] void fault_stuck();
  void check_end();

  Launch& launch_;
  std::uint32_t index_ = 0, epoch_ = 0;
  Dim id_;
  std::vector<unsigned char> shared_, shared_set_, pending_;  // pending: a copy is on its way there
  std::vector<std::uint16_t> reading_;                        // by how many wgmmas
  std::vector<std::uint16_t> owner_;                          // variable + 1 of each byte
  Shadow shadow_;
  std::vector<std::unique_ptr<Warp>> warps_;
  std::uint64_t events_ = 0;  // arrivals, barriers, ends: without any, nothing will ever move
  struct Mbarrier {
    std::uint32_t count = 0, pending = 0, phase = 0;
    Clocks arriving, completed;
    struct Copies {
      Warp* warp;
      int lane;
      std::vector<Copy> copies;
    };
    std::vector<Copies> copies;  // whose end arrives
  };
  std::map<std::uint32_t, Mbarrier> mbarriers_;  // by address
  void arrive(Mbarrier& b, const Clocks& known);
  struct Issued {
    int line;
    std::uint64_t a, b;
    bool operator==(const Issued&) const = default;
  };
  std::vector<std::vector<Issued>> wgmmas_;  // by warpgroup
  Knowledge observed_, acquired_;
  std::vector<std::uint32_t>
      marks_;  // what each thread had fenced when the last barrier was passed
};

}  // namespace ptx
