// SPDX-License-Identifier: Apache-2.0
#include "machine.hpp"

#include <algorithm>
#include <bit>
#include <climits>
#include <cstring>
#include <utility>

#include "operations.hpp"

namespace ptx {
namespace {

/// Numbers of intervals go on over launches: an access of an earlier launch has a smaller one.
std::uint32_t next_interval = 1;
constexpr std::uint32_t kIntervals = 1u << 26;

template <class F>
void each(std::uint32_t lanes, F&& f) {
  for (; lanes != 0; lanes &= lanes - 1) f(std::countr_zero(lanes));
}

std::uint32_t first_lanes(int n) { return n >= kLanes ? kAll : (1u << n) - 1; }

void merge(Knowledge& into, const Knowledge& from) {
  for (const auto& [block, published] : from) {
    Published& p = into[block];
    p.epoch = std::max(p.epoch, published.epoch);
    if (p.marks.size() < published.marks.size()) p.marks.resize(published.marks.size());
    for (std::size_t t = 0; t < published.marks.size(); ++t)
      p.marks[t] = std::max(p.marks[t], published.marks[t]);
  }
}

std::string hex(std::uint64_t value) {
  static const char* const digits = "0123456789abcdef";
  std::string out;
  do out.insert(out.begin(), digits[value % 16]);
  while ((value /= 16) != 0);
  return "0x" + out;
}

std::string lanes_text(std::uint32_t lanes) { return hex(lanes); }

void to_largest(std::vector<std::uint32_t>& into, const std::vector<std::uint32_t>& from) {
  for (std::size_t k = 0; k < into.size(); ++k) into[k] = std::max(into[k], from[k]);
}

constexpr int kWarpsOfGroup = 4;
constexpr int kRegistersOfBlock = 65536;

}  // namespace

void Clocks::merge(const Clocks& other) {
  to_largest(before, other.before);
  to_largest(proxied, other.proxied);
}

Architecture architecture(int major, int minor) {
  switch (10 * major + minor) {
    case 80:
      return {8, 0, 163 << 10, 108};
    case 86:
      return {8, 6, 99 << 10, 84};
    case 89:
      return {8, 9, 99 << 10, 142};
    case 90:
      return {9, 0, 227 << 10, 132};
    case 100:
      return {10, 0, 227 << 10, 148};
    case 120:
      return {12, 0, 99 << 10, 170};
  }
  throw std::invalid_argument("no architecture " + std::to_string(major) + "." +
                              std::to_string(minor));
}

// ---- launch -------------------------------------------------------------------------------------

Launch::Launch(const Program& program, Dim grid, Dim block, std::uint32_t dynamic_bytes,
               std::vector<unsigned char> params, const LaunchOptions& options)
    : program_(program),
      grid_(grid),
      block_(block),
      dynamic_bytes_(dynamic_bytes),
      params_(std::move(params)),
      options_(options) {}

void Launch::run() {
  if (next_interval > kIntervals / 2) {
    Memory::instance().clear_shadows();
    next_interval = 1;
  }
  first_interval_ = next_interval;
  static std::uint32_t first_of_chain = 1;
  if (!options_.is_early || first_of_chain > first_interval_) first_of_chain = first_interval_;
  first_running_ = first_of_chain;
  Block block(*this);
  const auto n = static_cast<std::uint32_t>(grid_.count());
  for (std::uint32_t i = 0; i < n; ++i) block.run(options_.backward ? n - 1 - i : i);
  // It would end before the launch before it, for which the next one then does not wait.
  if (options_.is_early && !waited_)
    throw Fault(FaultKind::race, program_.name +
                                     " began early and no thread waited for the launch before it "
                                     "(griddepcontrol.wait)");
}

// ---- block --------------------------------------------------------------------------------------

Block::Block(Launch& launch) : launch_(launch) {
  const Program& p = launch.program_;
  const std::size_t bytes = p.shared_end + launch.dynamic_bytes_;
  shared_.resize(bytes);
  shared_set_.resize(bytes);
  pending_.resize(bytes);
  reading_.resize(bytes);
  owner_.resize(bytes);
  for (std::size_t v = 0; v < p.shared.size(); ++v)
    std::fill_n(owner_.begin() + p.shared[v].offset, p.shared[v].size,
                static_cast<std::uint16_t>(v + 1));
  std::fill(owner_.begin() + p.shared_end, owner_.end(), std::uint16_t{0xffff});
  shadow_.reset(bytes);
  const auto threads = static_cast<int>(launch.block_.count());
  const int warps = (threads + kLanes - 1) / kLanes;
  for (int w = 0; w < warps; ++w) warps_.push_back(std::make_unique<Warp>(*this, w));
}

void Block::run(std::uint32_t index) {
  index_ = index;
  const Dim grid = launch_.grid_;
  id_ = {index % grid.x, index / grid.x % grid.y, index / grid.x / grid.y};
  epoch_ = 0;
  observed_.clear();
  acquired_.clear();
  marks_.assign(launch_.block_.count(), 0);
  // what the block before left there is nobody's
  std::fill(shared_.begin(), shared_.end(), 0xff);
  std::fill(shared_set_.begin(), shared_set_.end(), 0);
  std::fill(pending_.begin(), pending_.end(), 0);
  std::fill(reading_.begin(), reading_.end(), std::uint16_t{0});
  mbarriers_.clear();
  wgmmas_.assign((warps_.size() + kWarpsOfGroup - 1) / kWarpsOfGroup, {});
  if (!shared_.empty()) shadow_.clear();

  auto threads = static_cast<int>(launch_.block_.count());
  for (auto& warp : warps_) {
    warp->start(std::min(threads, kLanes));
    threads -= kLanes;
  }
  const auto n = static_cast<int>(warps_.size());
  for (bool running = true; running;) {
    const std::uint64_t events = events_;
    for (int i = 0; i < n; ++i) {
      Warp& warp = *warps_[static_cast<std::size_t>(launch_.options_.backward ? n - 1 - i : i)];
      if (warp.ended() || warp.at_barrier()) continue;
      warp.run();
    }
    running = !std::all_of(warps_.begin(), warps_.end(), [](auto& w) { return w->ended(); });
    if (running && !pass_barriers() && events_ == events) fault_stuck();
    if (launch_.instructions_ > launch_.options_.instructions)
      throw Fault(FaultKind::endless, launch_.program_.name + " does not end");
  }
  check_end();
}

bool Block::pass_barriers() {
  bool passed = false;
  for (int id = 0; id < 16; ++id) {
    std::vector<Warp*> there;
    std::size_t alive = 0;
    for (auto& warp : warps_) {
      if (warp->ended()) continue;
      ++alive;
      if (warp->at_barrier_ && warp->barrier_id_ == id) there.push_back(warp.get());
    }
    if (there.empty()) continue;
    const int threads = there[0]->barrier_threads_;
    for (const Warp* w : there)
      if (w->barrier_threads_ != threads || w->barrier_reduces_ != there[0]->barrier_reduces_)
        throw Fault(FaultKind::barrier, launch_.program_.name +
                                            ": warps reach a barrier of the same number in ways "
                                            "that do not fit, lines " +
                                            std::to_string(there[0]->barrier_line_) + " and " +
                                            std::to_string(w->barrier_line_));
    const auto arrived = static_cast<int>(there.size()) * kLanes;
    const bool whole = threads == 0 || threads == static_cast<int>(warps_.size()) * kLanes;
    if (!whole && arrived > threads)
      throw Fault(FaultKind::barrier, launch_.program_.name + ": " + std::to_string(arrived) +
                                          " threads reach a barrier of " + std::to_string(threads) +
                                          ", line " + std::to_string(there[0]->barrier_line_));
    if (whole ? there.size() != alive : arrived != threads) continue;
    if (whole)
      pass_whole();
    else
      pass_part(there);
    ++events_;
    passed = true;
  }
  return passed;
}

void Block::fault_stuck() {
  const auto line = [](const Warp& w) { return w.at_barrier_ ? w.barrier_line_ : w.wait_line_; };
  std::string where;
  const Warp* last = nullptr;
  for (auto& warp : warps_) {
    if (warp->ended()) continue;
    const bool same = last && line(*last) == line(*warp) && last->at_barrier_ == warp->at_barrier_;
    if (!same)
      where += std::string(last ? ", " : "") + "warp " + std::to_string(warp->index_) +
               (warp->at_barrier_ ? " at the barrier in line " : " for the mbarrier in line ") +
               std::to_string(line(*warp));
    last = warp.get();
  }
  throw Fault(FaultKind::barrier, launch_.program_.name + " is stuck, block " +
                                      std::to_string(index_) + ": its warps wait for what never " +
                                      "comes: " + where);
}

void Block::check_end() {
  const std::string& name = launch_.program_.name;
  for (const auto& [at, b] : mbarriers_)
    if (!b.copies.empty())
      throw Fault(FaultKind::asynchronous,
                  name + ": a block ends with copies that nothing waited for");
  int registers = 0;
  const int launched = kRegistersOfBlock / (static_cast<int>(warps_.size()) * kLanes) / 8 * 8;
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    const Warp& warp = *warps_[w];
    const Warp& first = *warps_[w / kWarpsOfGroup * kWarpsOfGroup];
    if (warp.wgmma_count_ != first.wgmma_count_ || warp.registers_ != first.registers_)
      throw Fault(FaultKind::warp, name +
                                       ": the warps of a warpgroup do not run the same wgmma or "
                                       "setmaxnreg");
    registers += kLanes * (warp.registers_ > 0 ? warp.registers_ : launched);
  }
  if (registers > kRegistersOfBlock)
    throw Fault(FaultKind::launch, name + ": setmaxnreg asks for " + std::to_string(registers) +
                                       " registers, more than there are");
}

void Block::pass_part(const std::vector<Warp*>& warps) {
  Clocks all;
  all.before.resize(2 * warps_.size() * kLanes);
  all.proxied = all.before;
  for (Warp* warp : warps) {
    warp->synchronise(warp->alive_);
    each(warp->alive_, [&](int lane) { all.merge(warp->known(lane)); });
  }
  for (Warp* warp : warps) {
    each(warp->alive_, [&](int lane) { warp->heard_[static_cast<std::size_t>(lane)] = all; });
    warp->next_clock();
    if (warp->barrier_reduces_)
      throw Fault(FaultKind::unknown,
                  launch_.program_.name + ": a barrier of a part of the block that reduces");
    warp->at_barrier_ = false;
  }
}

void Block::pass_whole() {
  std::uint64_t any = 0;
  if (launch_.program_.is_asynchronous) {
    std::vector<Warp*> alive;
    for (auto& warp : warps_)
      if (!warp->ended()) alive.push_back(warp.get());
    const bool reduces = alive[0]->barrier_reduces_;
    for (Warp* w : alive) w->barrier_reduces_ = false;
    pass_part(alive);
    for (Warp* w : alive) w->barrier_reduces_ = reduces;
  }
  for (auto& warp : warps_)
    if (!warp->ended()) any |= warp->barrier_predicates_;
  ++epoch_;
  for (auto& warp : warps_) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const auto t = static_cast<std::size_t>(warp->index_ * kLanes + lane);
      const auto l = static_cast<std::size_t>(lane);
      if (t < marks_.size()) marks_[t] = std::max(marks_[t], warp->fence_mark_[l]);
    }
    if (warp->any_observed_)
      for (Knowledge& k : warp->observed_) merge(observed_, k);
    if (warp->any_acquired_)
      for (Knowledge& k : warp->acquired_) merge(acquired_, k);
    warp->new_interval();
    if (warp->ended()) continue;
    if (warp->barrier_reduces_) {
      warp->write_predicate(warp->barrier_result_, warp->alive_, any != 0 ? kAll : 0);
      warp->write_set(warp->barrier_result_, warp->alive_, kAll);
    }
    warp->at_barrier_ = false;
  }
}

// ---- warp ---------------------------------------------------------------------------------------

Warp::Warp(Block& block, int index)
    : block_(block),
      launch_(block.launch_),
      program_(block.launch_.program_),
      index_(index),
      rows_(static_cast<std::size_t>(program_.n_rows) * kLanes),
      set_(static_cast<std::size_t>(program_.n_rows)),
      local_bytes_(program_.local_bytes) {
  for (std::size_t c = 0; c < program_.constants.size(); ++c) {
    const int r = program_.first_constant + static_cast<int>(c);
    std::fill_n(row(r), kLanes, program_.constants[c]);
    set_[static_cast<std::size_t>(r)] = kAll;
  }
  local_.resize(static_cast<std::size_t>(local_bytes_) * kLanes);
  local_set_.resize(local_.size());
  if (!program_.is_asynchronous) return;
  const auto rows = static_cast<std::size_t>(program_.n_rows);
  held_.resize(rows);
  read_by_.resize(rows);
  written_.resize(rows);
}

const std::vector<unsigned char>& Warp::params() const { return launch_.params_; }

void Warp::start(int threads) {
  alive_ = first_lanes(threads);
  waiting_ = waited_ = 0;
  pc_.fill(0);
  at_barrier_ = false;
  std::fill_n(set_.begin(), program_.special, 0);
  std::fill(local_set_.begin(), local_set_.end(), 0);
  interval_ = 0;
  clock_ = 1;
  all_know_ = 0;
  for (auto& k : knows_) k.fill(0);
  lanes_differ_ = false;
  if (any_observed_)
    for (Knowledge& k : observed_) k.clear();
  if (any_acquired_)
    for (Knowledge& k : acquired_) k.clear();
  any_observed_ = any_acquired_ = false;
  fence_mark_.fill(0);
  fence_epoch_.fill(0);
  for (auto& copies : open_) copies.clear();
  for (auto& groups : groups_) groups.clear();
  copy_clock_ = 0;
  yields_ = false;
  if (program_.is_asynchronous) {
    const std::size_t agents = 2 * ((launch_.block_.count() + kLanes - 1) / kLanes);
    const std::vector<std::uint32_t> nothing(agents * kLanes);
    heard_.assign(kLanes, {nothing, nothing});
    for (auto* of_rows : {&held_, &read_by_, &written_})
      std::fill(of_rows->begin(), of_rows->end(), 0);
  }
  wgmma_open_.clear();
  wgmma_groups_.clear();
  wgmma_committed_ = wgmma_done_ = 0;
  wgmma_fences_ = 1;
  wgmma_count_ = 0;
  wgmma_uses_ = false;
  registers_ = 0;

  const Dim block = launch_.block_, grid = launch_.grid_, id = block_.id_;
  const auto fill = [&](Special s, auto value) {
    const int r = program_.special + static_cast<int>(s);
    for (int lane = 0; lane < kLanes; ++lane) row(r)[lane] = value(lane);
    set_[static_cast<std::size_t>(r)] = kAll;
  };
  const auto thread = [&](int lane) { return static_cast<std::uint32_t>(index_ * kLanes + lane); };
  fill(Special::tid_x, [&](int l) { return thread(l) % block.x; });
  fill(Special::tid_y, [&](int l) { return thread(l) / block.x % block.y; });
  fill(Special::tid_z, [&](int l) { return thread(l) / block.x / block.y; });
  fill(Special::ntid_x, [&](int) { return block.x; });
  fill(Special::ntid_y, [&](int) { return block.y; });
  fill(Special::ntid_z, [&](int) { return block.z; });
  fill(Special::ctaid_x, [&](int) { return id.x; });
  fill(Special::ctaid_y, [&](int) { return id.y; });
  fill(Special::ctaid_z, [&](int) { return id.z; });
  fill(Special::nctaid_x, [&](int) { return grid.x; });
  fill(Special::nctaid_y, [&](int) { return grid.y; });
  fill(Special::nctaid_z, [&](int) { return grid.z; });
  fill(Special::laneid, [&](int l) { return static_cast<std::uint32_t>(l); });
  fill(Special::lanemask_eq, [&](int l) { return 1u << l; });
  fill(Special::lanemask_lt, [&](int l) { return (1u << l) - 1; });
  fill(Special::lanemask_le, [&](int l) { return (1u << l) | ((1u << l) - 1); });
  fill(Special::lanemask_gt, [&](int l) { return ~((1u << l) | ((1u << l) - 1)); });
  fill(Special::lanemask_ge, [&](int l) { return ~((1u << l) - 1); });
}

void Warp::fault(FaultKind kind, const Instruction& i, int lane, const std::string& what) {
  const Dim id = block_.id_;
  std::string where = program_.name + ", line " + std::to_string(i.line) + " (" + i.text +
                      "), block (" + std::to_string(id.x) + ", " + std::to_string(id.y) + ", " +
                      std::to_string(id.z) + ")";
  if (lane >= 0) where += ", thread " + std::to_string(index_ * kLanes + lane);
  throw Fault(kind, what + "; in " + where);
}

void Warp::need_set(const Instruction& i, int r, std::uint32_t lanes, const char* what) {
  const std::uint32_t unset = lanes & ~set(r);
  if (unset != 0) fault(FaultKind::uninitialised, i, std::countr_zero(unset), what);
}

void Warp::run() {
  const std::vector<Instruction>& code = program_.code;
  std::uint64_t budget = 1 << 22;
  while (alive_ != 0) {
    const std::uint32_t runnable = alive_ & ~waiting_;
    if (runnable == 0) {
      const int lane = std::countr_zero(waiting_);
      const Instruction& i = code[static_cast<std::size_t>(pc_[static_cast<std::size_t>(lane)])];
      fault(i.flow == Flow::barrier ? FaultKind::barrier : FaultKind::warp, i, lane,
            "lanes wait for others of their warp that never come: the waiting ones are " +
                lanes_text(waiting_) + ", and stand at different instructions");
    }
    // Those that are furthest behind go first, until they meet the next.
    int pc = INT_MAX, next = INT_MAX;
    std::uint32_t group = 0;
    each(runnable, [&](int lane) {
      const int at = pc_[static_cast<std::size_t>(lane)];
      if (at < pc) {
        next = pc;
        pc = at;
        group = 1u << lane;
      } else if (at == pc) {
        group |= 1u << lane;
      } else {
        next = std::min(next, at);
      }
    });
    const auto stand = [this](std::uint32_t lanes, int at) {
      each(lanes, [&](int lane) { pc_[static_cast<std::size_t>(lane)] = at; });
    };
    for (bool regroup = false; !regroup;) {
      const Instruction& i = code[static_cast<std::size_t>(pc)];
      std::uint32_t lanes = group;
      if (i.guard >= 0) {
        need_set(i, i.guard, group, "a predicate that was never set decides");
        lanes &= i.guard_negated ? ~predicate(i.guard) : predicate(i.guard);
      }
      ++launch_.instructions_;
      --budget;
      if (program_.is_asynchronous) check_registers(i);
      switch (i.flow) {
        case Flow::next:
          if (lanes != 0) i.execute(*this, i, lanes);
          ++pc;
          break;
        case Flow::branch:
          if (lanes == group) {
            pc = i.target;
          } else if (lanes == 0) {
            ++pc;
          } else {
            stand(lanes, i.target);
            stand(group & ~lanes, pc + 1);
            regroup = true;
            continue;
          }
          break;
        case Flow::poll:
          if (lanes != 0) i.execute(*this, i, lanes);
          ++pc;
          if (yields_) {
            stand(group, pc);
            yields_ = false;
            wait_line_ = i.line;
            return;
          }
          break;
        case Flow::exit:
          ++block_.events_;
          stand(group & ~lanes, pc + 1);
          each(lanes, [&](int lane) {
            const auto l = static_cast<std::size_t>(lane);
            const bool waited =
                open_[l].empty() && std::all_of(groups_[l].begin(), groups_[l].end(),
                                                [](const auto& copies) { return copies.empty(); });
            if (!waited)
              fault(FaultKind::asynchronous, i, lane,
                    "a thread ends with copies that nothing waited for");
            if (wgmma_uses_)
              fault(FaultKind::asynchronous, i, lane,
                    "a thread ends with a wgmma that nothing waited for");
          });
          alive_ &= ~lanes;
          waiting_ = 0;  // they may have waited for these
          regroup = true;
          continue;
        case Flow::aligned:
        case Flow::masked:
        case Flow::barrier:
          stand(group & ~lanes, pc + 1);
          stand(lanes, pc);
          if (lanes != 0) together(i, lanes);
          if (at_barrier_) return;
          regroup = true;
          continue;
      }
      if (pc >= next || budget == 0) {
        stand(group, pc);
        regroup = true;
      }
    }
    if (budget == 0) {
      ++block_.events_;
      return;
    }
  }
}

std::uint32_t Warp::together(const Instruction& i, std::uint32_t group) {
  const int pc = pc_[static_cast<std::size_t>(std::countr_zero(group))];
  std::uint32_t candidates = group;
  each(waiting_, [&](int lane) {
    if (pc_[static_cast<std::size_t>(lane)] == pc) candidates |= 1u << lane;
  });
  std::uint32_t ran = 0;
  for (std::uint32_t left = candidates; left != 0;) {
    std::uint32_t members = left, needed = alive_;
    if (i.flow == Flow::masked) {
      const int first = std::countr_zero(left);
      need_set(i, i.mask, left, "a mask of lanes that was never set");
      const auto mask = static_cast<std::uint32_t>(row(i.mask)[first]);
      members = 0;
      each(left, [&](int lane) {
        if (static_cast<std::uint32_t>(row(i.mask)[lane]) == mask) members |= 1u << lane;
      });
      if ((members & ~mask) != 0)
        fault(FaultKind::warp, i, std::countr_zero(members & ~mask),
              "a lane runs it that is not in its mask " + lanes_text(mask));
      needed &= mask;
    }
    left &= ~members;
    if (members == needed) {
      waiting_ &= ~members;
      i.execute(*this, i, members);
      each(members, [&](int lane) { pc_[static_cast<std::size_t>(lane)] = pc + 1; });
      if (i.flow == Flow::barrier) {
        at_barrier_ = true;
        barrier_line_ = i.line;
      }
      ran |= members;
    } else {
      waiting_ |= members;
    }
  }
  return ran;
}

// ---- order --------------------------------------------------------------------------------------

std::uint32_t Warp::number(int lane, bool atomic) {
  if (interval_ == 0) {
    if (next_interval == kIntervals)
      throw Fault(FaultKind::endless, program_.name + ": more barriers than the machine counts");
    interval_ = next_interval++;
    launch_.intervals_.push_back(
        {block_.index_, block_.epoch_, clock_, static_cast<std::uint16_t>(index_)});
  }
  return interval_ << 6 | (atomic ? 32u : 0u) | static_cast<std::uint32_t>(lane);
}

bool Warp::is_before(std::uint32_t access, int lane) {
  const std::uint32_t number = access >> 6;
  if (number < launch_.first_interval_)
    return number < launch_.first_running_ || (waited_ >> lane & 1) != 0;
  const Interval& v = launch_.intervals_[number - launch_.first_interval_];
  const auto other = static_cast<int>(access & 31);
  if (v.block == block_.index_) {
    if (v.epoch < block_.epoch_) return true;
    if (!heard_.empty() &&
        heard_[static_cast<std::size_t>(lane)]
                .before[static_cast<std::size_t>(v.warp * kLanes + other)] >= v.clock)
      return true;
    if (v.warp != index_) return false;
    if (other == lane || v.clock <= all_know_) return true;
    return lanes_differ_ &&
           v.clock <= knows_[static_cast<std::size_t>(lane)][static_cast<std::size_t>(other)];
  }
  const bool atomic = (access & 32) != 0;
  const auto knows = [&](const Knowledge& k) {
    const auto found = k.find(v.block);
    if (found == k.end()) return false;
    const auto thread = static_cast<std::size_t>(v.warp * kLanes + other);
    const Published& p = found->second;
    return atomic || v.epoch < p.epoch || (thread < p.marks.size() && number <= p.marks[thread]);
  };
  return knows(block_.acquired_) ||
         (any_acquired_ && knows(acquired_[static_cast<std::size_t>(lane)]));
}

std::string Warp::describe(std::uint32_t access) const {
  if (access >> 6 < launch_.first_interval_)
    return "a launch before, which this thread has not waited for (griddepcontrol.wait)";
  const Interval& v = launch_.intervals_[(access >> 6) - launch_.first_interval_];
  const auto warps = static_cast<int>(block_.warps_.size());
  if (v.warp >= warps)
    return "an asynchronous copy of thread " +
           std::to_string((v.warp - warps) * kLanes + static_cast<int>(access & 31)) +
           " of block " + std::to_string(v.block);
  return "thread " + std::to_string(v.warp * kLanes + static_cast<int>(access & 31)) +
         " of block " + std::to_string(v.block) + " after its barrier " + std::to_string(v.epoch);
}

void Warp::check_order(const Instruction& i, int lane, Shadow& shadow, std::size_t offset,
                       const unsigned char* data, const unsigned char* set, int bytes, int flags,
                       const unsigned char* value, const char* where) {
  const bool atomic = (flags & kAtomic) != 0, writes = (flags & kWrite) != 0;
  const std::uint32_t me = number(lane, atomic);
  std::size_t n = 0;
  Cell* cells = shadow.at(offset, static_cast<std::size_t>(bytes), n);
  const std::size_t granule = shadow.granule();
  const auto race = [&](const char* what, std::uint32_t other, std::size_t cell) {
    fault(FaultKind::race, i, lane,
          std::string(what) + " of " + where + " memory at byte " +
              std::to_string(offset + cell * granule) + ", unordered with that of " +
              describe(other));
  };
  for (std::size_t k = 0; k < n; ++k) {
    Cell& c = cells[k];
    // an atomic and an atomic, at the same place, are in some order
    const auto unordered = [&](std::uint32_t other) {
      return other != 0 && other != me && !(atomic && (other & 32) != 0) && !is_before(other, lane);
    };
    if (!writes) {
      if (unordered(c.write)) race("a read, and a write,", c.write, k);
      if (c.read[0] == me || c.read[1] == me) continue;
      if (!unordered(c.read[0]))
        c.read[0] = me;
      else if (!unordered(c.read[1]))
        c.read[1] = me;
      else if (c.read[0] >> 6 < launch_.first_interval_)
        c.read[0] = me;  // of a launch before: rather one of this
      else if (c.read[1] >> 6 < launch_.first_interval_)
        c.read[1] = me;
      else if (launch_.intervals_[(c.read[0] >> 6) - launch_.first_interval_].warp ==
               launch_.intervals_[(c.read[1] >> 6) - launch_.first_interval_].warp)
        c.read[1] = me;  // two of one warp: rather one of each of two
      continue;
    }
    const bool after_write = !unordered(c.write);
    const bool after_reads = !unordered(c.read[0]) && !unordered(c.read[1]);
    if (!after_write || !after_reads) {
      // what is there already may be written again by anyone
      const bool same = value &&
                        std::memcmp(value + k * granule, data + k * granule, granule) == 0 &&
                        (!set || std::all_of(set + k * granule, set + (k + 1) * granule,
                                             [](unsigned char s) { return s != 0; }));
      if (same) continue;
      if (!after_write) race("a write, and a write,", c.write, k);
      race("a write, and a read,", unordered(c.read[0]) ? c.read[0] : c.read[1], k);
    }
    c.write = me;
    c.read[0] = c.read[1] = 0;
  }
}

Warp::Place Warp::place(const Instruction& i, int lane, Space space, std::uint64_t address,
                        int bytes, int flags, const unsigned char* value) {
  if (space == Space::generic) {
    const std::uint64_t window = address >> 56;
    space = window == kSharedWindow >> 56  ? Space::shared
            : window == kLocalWindow >> 56 ? Space::local
                                           : Space::global;
    if (space != Space::global) address &= (std::uint64_t{1} << 56) - 1;
  }
  const auto size = static_cast<std::size_t>(bytes);
  if (address % size != 0)
    fault(FaultKind::misaligned, i, lane,
          std::to_string(bytes) + " bytes at " + hex(address) + ", not aligned to their size");
  switch (space) {
    case Space::shared: {
      const std::uint64_t at = address - kSharedBase;
      if (at + size > block_.owner_.size() || block_.owner_[at] == 0 ||
          block_.owner_[at] != block_.owner_[at + size - 1])
        fault(FaultKind::out_of_bounds, i, lane,
              std::to_string(bytes) + " bytes of shared memory at " +
                  std::to_string(static_cast<std::int64_t>(at)) + ", in no variable");
      if (block_.pending_[at] != 0 || block_.pending_[at + size - 1] != 0)
        fault(FaultKind::asynchronous, i, lane,
              "shared memory at " + std::to_string(at) + " while a copy to it is on its way");
      if ((flags & kWrite) != 0 &&
          (block_.reading_[at] != 0 || block_.reading_[at + size - 1] != 0))
        fault(FaultKind::asynchronous, i, lane,
              "shared memory at " + std::to_string(at) + " is written while a wgmma reads it");
      Place p{block_.shared_.data() + at, block_.shared_set_.data() + at};
      check_order(i, lane, block_.shadow_, at, p.data, p.set, bytes, flags, value, "shared");
      return p;
    }
    case Space::local: {
      if (address + size > static_cast<std::uint64_t>(local_bytes_))
        fault(FaultKind::out_of_bounds, i, lane,
              "local memory at " + std::to_string(address) + " of " + std::to_string(local_bytes_));
      return {local(lane) + address, local_set(lane) + address};
    }
    case Space::global:
    case Space::constant: {
      Allocation* const a = Memory::instance().find(address);
      const std::uint64_t at = a ? address - reinterpret_cast<std::uint64_t>(a->data) : 0;
      if (!a || size > a->size - at)
        fault(FaultKind::out_of_bounds, i, lane,
              std::to_string(bytes) + " bytes at " + hex(address) +
                  (a ? ", over the end of an allocation of " + std::to_string(a->size)
                     : ", in no allocation"));
      if ((flags & kWrite) != 0 && a->is_constant)
        fault(FaultKind::out_of_bounds, i, lane, "a write to constant memory");
      Place p{a->data + at, a->set ? a->set.get() + at : nullptr};
      if (!a->is_constant)
        check_order(i, lane, a->shadow, at, p.data, p.set, bytes, flags, value, "global");
      return p;
    }
    case Space::generic:
    case Space::param:
      break;
  }
  fault(FaultKind::unknown, i, lane, "a space that cannot be accessed so");
}

void Warp::synchronise(std::uint32_t lanes) {
  if (std::popcount(lanes) == kLanes) {
    all_know_ = clock_;
  } else {
    lanes_differ_ = true;
    std::array<std::uint32_t, kLanes> joined{};
    each(lanes, [&](int a) {
      const auto& of_a = knows_[static_cast<std::size_t>(a)];
      for (std::size_t b = 0; b < kLanes; ++b) joined[b] = std::max(joined[b], of_a[b]);
    });
    each(lanes, [&](int b) { joined[static_cast<std::size_t>(b)] = clock_; });
    each(lanes, [&](int a) { knows_[static_cast<std::size_t>(a)] = joined; });
  }
  if (!heard_.empty()) {
    Clocks joined = heard_[static_cast<std::size_t>(std::countr_zero(lanes))];
    each(lanes, [&](int lane) { joined.merge(heard_[static_cast<std::size_t>(lane)]); });
    each(lanes, [&](int lane) { heard_[static_cast<std::size_t>(lane)] = joined; });
  }
  next_clock();
}

Clocks Warp::known(int lane) const {
  const auto l = static_cast<std::size_t>(lane);
  Clocks order = heard_[l];
  for (std::size_t b = 0; b < kLanes; ++b) {
    std::uint32_t& clock = order.before[static_cast<std::size_t>(index_) * kLanes + b];
    clock =
        std::max(clock, b == l ? clock_ : std::max(all_know_, lanes_differ_ ? knows_[l][b] : 0u));
  }
  return order;
}

void Warp::fence_proxy(std::uint32_t lanes) {
  each(lanes, [&](int lane) {
    to_largest(heard_[static_cast<std::size_t>(lane)].proxied, known(lane).before);
  });
  next_clock();
}

// ---- mbarriers ----------------------------------------------------------------------------------

void Warp::init_mbarrier(const Instruction& i, int lane, std::uint32_t at, std::uint32_t count) {
  if (count == 0 || count >= 1u << 20)
    fault(FaultKind::barrier, i, lane, "an mbarrier of " + std::to_string(count) + " arrivals");
  const Place p = place(i, lane, Space::shared, at, 8, kWrite);
  std::memset(p.set, 1, 8);
  Block::Mbarrier& b = block_.mbarriers_[at];
  b = {};
  b.count = b.pending = count;
  b.arriving = b.completed = {std::vector<std::uint32_t>(heard_[0].before.size()),
                              std::vector<std::uint32_t>(heard_[0].before.size())};
}

void Block::arrive(Mbarrier& b, const Clocks& known) {
  b.arriving.merge(known);
  ++events_;
  if (--b.pending > 0) return;
  b.completed.merge(b.arriving);
  b.pending = b.count;
  b.phase ^= 1;
}

void Warp::arrive(const Instruction& i, int lane, std::uint32_t at) {
  place(i, lane, Space::shared, at, 8, kRead | kWrite | kAtomic);
  const auto found = block_.mbarriers_.find(at);
  if (found == block_.mbarriers_.end())
    fault(FaultKind::uninitialised, i, lane, "an arrival where there is no mbarrier");
  block_.arrive(found->second, known(lane));
}

void Warp::arrive_after_copies(const Instruction& i, int lane, std::uint32_t at) {
  place(i, lane, Space::shared, at, 8, kRead | kWrite | kAtomic);
  const auto found = block_.mbarriers_.find(at);
  if (found == block_.mbarriers_.end())
    fault(FaultKind::uninitialised, i, lane, "an arrival where there is no mbarrier");
  const auto l = static_cast<std::size_t>(lane);
  // As late as can be: when somebody waits for it.
  found->second.copies.push_back({this, lane, std::move(open_[l])});
  open_[l].clear();
  ++block_.events_;
}

void Warp::do_copies(const std::vector<Copy>& copies, int lane) {
  if (copies.empty()) return;
  const auto agent =
      static_cast<std::uint16_t>(block_.warps_.size() + static_cast<std::size_t>(index_));
  const std::uint32_t interval = next_interval++;
  launch_.intervals_.push_back({block_.index_, block_.epoch_, ++copy_clock_, agent});
  for (const Copy& c : copies) {
    unsigned char bytes[16] = {};
    if (c.read > 0) {
      const Place from = place(*c.instruction, lane, Space::global, c.from, c.bytes, kRead);
      if (from.set &&
          !std::all_of(from.set, from.set + c.read, [](unsigned char s) { return s != 0; }))
        fault(FaultKind::uninitialised, *c.instruction, lane,
              "an asynchronous copy of memory that nothing wrote, " + hex(c.from));
      std::memcpy(bytes, from.data, c.read);
    }
    const std::size_t at = c.to - kSharedBase;
    std::fill_n(block_.pending_.begin() + static_cast<std::ptrdiff_t>(at), c.bytes,
                std::uint8_t{0});
    std::memcpy(block_.shared_.data() + at, bytes, c.bytes);
    std::memset(block_.shared_set_.data() + at, 1, c.bytes);
    // Nobody touched it since the copy was begun: that would have been a fault.
    std::size_t n = 0;
    Cell* const cells = block_.shadow_.at(at, c.bytes, n);
    for (std::size_t k = 0; k < n; ++k)
      cells[k] = {interval << 6 | static_cast<std::uint32_t>(lane), {0, 0}};
  }
}

bool Warp::phase_is_done(const Instruction& i, int lane, std::uint32_t at, std::uint32_t parity) {
  place(i, lane, Space::shared, at, 8, kRead | kWrite | kAtomic);
  const auto found = block_.mbarriers_.find(at);
  if (found == block_.mbarriers_.end())
    fault(FaultKind::uninitialised, i, lane, "a wait where there is no mbarrier");
  Block::Mbarrier& b = found->second;
  if (b.phase == (parity & 1) && !b.copies.empty()) {
    const auto copies = std::exchange(b.copies, {});
    for (const auto& c : copies) {
      c.warp->do_copies(c.copies, c.lane);
      Clocks of_copies{std::vector<std::uint32_t>(heard_[0].before.size()),
                       std::vector<std::uint32_t>(heard_[0].before.size())};
      const std::size_t agent = block_.warps_.size() + static_cast<std::size_t>(c.warp->index_);
      of_copies.before[agent * kLanes + static_cast<std::size_t>(c.lane)] = c.warp->copy_clock_;
      block_.arrive(b, of_copies);
    }
  }
  if (b.phase == (parity & 1)) return false;
  heard_[static_cast<std::size_t>(lane)].merge(b.completed);
  ++block_.events_;
  return true;
}

// ---- wgmma --------------------------------------------------------------------------------------

const unsigned char* Warp::read_matrix(const Instruction& i, int lane, std::uint32_t at) {
  const Place p = place(i, lane, Space::shared, at, 16, kRead);
  if (!std::all_of(p.set, p.set + 16, [](unsigned char s) { return s != 0; }))
    fault(FaultKind::uninitialised, i, lane, "a matrix in shared memory that nothing wrote");
  const std::size_t offset = at - kSharedBase;
  std::size_t n = 0;
  const Cell* const cells = block_.shadow_.at(offset, 16, n);
  const auto& proxied = heard_[static_cast<std::size_t>(lane)].proxied;
  for (std::size_t k = 0; k < n; ++k) {
    const Interval& v = launch_.intervals_[(cells[k].write >> 6) - launch_.first_interval_];
    if (proxied[static_cast<std::size_t>(v.warp) * kLanes + (cells[k].write & 31)] < v.clock)
      fault(FaultKind::proxy, i, lane,
            "a matrix in shared memory at byte " + std::to_string(offset) +
                ", with no fence.proxy.async since it was written by " + describe(cells[k].write));
  }
  for (std::size_t b = 0; b < 16; ++b) ++block_.reading_[offset + b];
  wgmma_open_.push_back({at, lane});
  return p.data;
}

void Warp::begin_wgmma(const Instruction& i, std::uint64_t a, std::uint64_t b) {
  const auto group = static_cast<std::size_t>(index_ / kWarpsOfGroup);
  if ((group + 1) * kWarpsOfGroup > block_.warps_.size())
    fault(FaultKind::warp, i, -1, "a wgmma by less than a warpgroup");
  // The warps of a group run one after the other here; they must do the same.
  auto& issued = block_.wgmmas_[group];
  const Block::Issued mine{i.line, a, b};
  if (wgmma_count_ == issued.size())
    issued.push_back(mine);
  else if (!(issued[wgmma_count_] == mine))
    fault(FaultKind::warp, i, -1, "the warps of a warpgroup run different wgmmas");
  ++wgmma_count_;
  wgmma_uses_ = true;
}

void Warp::hold_registers(const Instruction& i, const std::vector<int>& accumulators,
                          const int* fragment, int n_fragment) {
  const std::uint32_t group = wgmma_committed_ + 1;
  const auto fenced = [&](int r) {
    if (written_[static_cast<std::size_t>(r)] >= wgmma_fences_)
      fault(FaultKind::asynchronous, i, -1,
            "a register of a wgmma was written after the last wgmma.fence");
  };
  for (const int r : accumulators) {
    fenced(r);
    held_[static_cast<std::size_t>(r)] = group;
    written_[static_cast<std::size_t>(r)] = 0;
  }
  for (int k = 0; k < n_fragment; ++k) {
    fenced(fragment[k]);
    if (held_[static_cast<std::size_t>(fragment[k])] > wgmma_done_)
      fault(FaultKind::asynchronous, i, -1,
            "an accumulator is a fragment before it was waited for");
    read_by_[static_cast<std::size_t>(fragment[k])] = group;
  }
}

void Warp::check_registers(const Instruction& i) {
  const auto of = [](std::vector<std::uint32_t>& rows, int r) -> std::uint32_t& {
    return rows[static_cast<std::size_t>(r)];
  };
  const bool moves = i.execute == move;
  if (wgmma_uses_) {
    const auto touch = [&](int r) {
      if (r >= 0 && of(held_, r) > wgmma_done_)
        fault(FaultKind::asynchronous, i, -1,
              "an accumulator is touched before its wgmma was waited for");
    };
    // A move carries it to another name, which then is the accumulator.
    if (!moves && i.list < 0)
      for (int k = 0; k < i.n_src; ++k) touch(i.src[k]);
    touch(i.address);
    touch(i.guard);
    for (int k = 0; k < i.n_dst; ++k) {
      touch(i.dst[k]);
      if (i.dst[k] >= 0 && of(read_by_, i.dst[k]) > wgmma_done_)
        fault(FaultKind::asynchronous, i, -1,
              "a fragment is written before its wgmma was waited for");
    }
  }
  for (int k = 0; k < i.n_dst; ++k)
    if (i.dst[k] >= 0) of(written_, i.dst[k]) = wgmma_fences_;
  if (moves && i.src[0] < program_.special) {
    of(written_, i.dst[0]) = of(written_, i.src[0]);
    of(held_, i.dst[0]) = of(held_, i.src[0]);
  }
}

void Warp::commit_wgmma() {
  wgmma_groups_.push_back(std::move(wgmma_open_));
  wgmma_open_.clear();
  ++wgmma_committed_;
}

void Warp::wait_wgmma(const Instruction& i, std::size_t groups_left) {
  new_interval();
  while (wgmma_groups_.size() > groups_left) {
    for (const Read& r : wgmma_groups_.front()) {
      const std::size_t offset = r.at - kSharedBase;
      for (std::size_t b = 0; b < 16; ++b) --block_.reading_[offset + b];
      place(i, r.lane, Space::shared, r.at, 16, kRead);  // it has read until now
    }
    wgmma_groups_.pop_front();
    ++wgmma_done_;
  }
  wgmma_uses_ = !wgmma_groups_.empty() || !wgmma_open_.empty();
}

void Warp::set_registers(const Instruction& i, int count) {
  if (static_cast<std::size_t>(index_ / kWarpsOfGroup + 1) * kWarpsOfGroup > block_.warps_.size())
    fault(FaultKind::warp, i, -1, "setmaxnreg by less than a warpgroup");
  registers_ = count;
}

void Warp::fence(std::uint32_t lanes) {
  each(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    fence_mark_[l] = next_interval - 1;
    fence_epoch_[l] = block_.epoch_;
    if (any_observed_ && !observed_[l].empty()) {
      merge(acquired_[l], observed_[l]);
      any_acquired_ = true;
    }
    if (!block_.observed_.empty()) {
      merge(acquired_[l], block_.observed_);
      any_acquired_ = true;
    }
  });
  new_interval();
}

void Warp::wait_for_launches(std::uint32_t lanes) {
  waited_ |= lanes;
  launch_.waited_ = true;
}

void Warp::observe(const Instruction&, int lane, std::uint64_t address) {
  const auto l = static_cast<std::size_t>(lane);
  Knowledge& released = launch_.released_[address];
  if (!released.empty()) {
    merge(observed_[l], released);
    any_observed_ = true;
  }
  Published mine{fence_epoch_[l], block_.marks_};
  std::uint32_t& mark = mine.marks[static_cast<std::size_t>(index_ * kLanes + lane)];
  mark = std::max(mark, fence_mark_[l]);
  if (std::all_of(mine.marks.begin(), mine.marks.end(), [](std::uint32_t m) { return m == 0; }))
    return;  // nothing was fenced: nothing is published
  merge(released, {{block_.index_, mine}});
  merge(released, block_.acquired_);
  merge(released, acquired_[l]);
}

// ---- asynchronous copies ------------------------------------------------------------------------

void Warp::begin_copy(const Instruction& i, int lane, std::uint32_t to, std::uint64_t from,
                      int bytes, int read) {
  if (from % static_cast<std::uint64_t>(bytes) != 0)
    fault(FaultKind::misaligned, i, lane, "the source " + hex(from) + " of an asynchronous copy");
  if (read > 0) place(i, lane, Space::global, from, bytes, kRead);
  place(i, lane, Space::shared, to, bytes, kWrite);
  std::fill_n(block_.pending_.begin() + (to - kSharedBase), bytes, std::uint8_t{1});
  open_[static_cast<std::size_t>(lane)].push_back({from, to, static_cast<std::uint8_t>(bytes),
                                                   static_cast<std::uint8_t>(read),
                                                   static_cast<std::uint8_t>(lane), &i});
}

void Warp::commit_copies(std::uint32_t lanes) {
  each(lanes, [&](int lane) {
    const auto l = static_cast<std::size_t>(lane);
    groups_[l].push_back(std::move(open_[l]));
    open_[l].clear();
  });
}

void Warp::wait_copies(const Instruction& wait, std::uint32_t lanes, std::size_t groups_left) {
  each(lanes, [&](int lane) {
    auto& groups = groups_[static_cast<std::size_t>(lane)];
    const std::size_t done = groups.size() > groups_left ? groups.size() - groups_left : 0;
    for (std::size_t g = 0; g < done; ++g) {
      for (const Copy& c : groups[g]) {
        unsigned char bytes[16] = {};
        if (c.read > 0) {
          const Place from = place(*c.instruction, lane, Space::global, c.from, c.bytes, kRead);
          if (from.set &&
              !std::all_of(from.set, from.set + c.read, [](unsigned char s) { return s != 0; }))
            fault(FaultKind::uninitialised, *c.instruction, lane,
                  "an asynchronous copy of memory that nothing wrote, " + hex(c.from));
          std::memcpy(bytes, from.data, c.read);
        }
        const std::size_t at = c.to - kSharedBase;
        std::fill_n(block_.pending_.begin() + static_cast<std::ptrdiff_t>(at), c.bytes,
                    std::uint8_t{0});
        const Place to = place(wait, lane, Space::shared, c.to, c.bytes, kWrite);
        std::memcpy(to.data, bytes, c.bytes);
        std::memset(to.set, 1, c.bytes);
      }
    }
    groups.erase(groups.begin(), groups.begin() + static_cast<std::ptrdiff_t>(done));
  });
}

void Warp::count_banks(const std::uint32_t* addresses, std::uint32_t lanes, int bytes) {
  // Of 8 bytes a half of the warp goes at once, of 16 a quarter; of less, several lanes a word.
  const int at_once = bytes >= 16 ? 8 : bytes == 8 ? 16 : 32;
  const int words = std::max(1, bytes / 4);
  BankCounts& counts = launch_.banks_;
  ++counts.accesses;
  for (int first = 0; first < kLanes; first += at_once) {
    std::uint32_t of_bank[32][32];
    int n[32] = {};
    bool any = false;
    for (int lane = first; lane < first + at_once; ++lane) {
      if ((lanes >> lane & 1) == 0) continue;
      any = true;
      for (int w = 0; w < words; ++w) {
        const std::uint32_t word = addresses[lane] / 4 + static_cast<std::uint32_t>(w);
        const std::uint32_t bank = word % 32;
        if (std::find(of_bank[bank], of_bank[bank] + n[bank], word) == of_bank[bank] + n[bank])
          of_bank[bank][n[bank]++] = word;
      }
    }
    if (!any) continue;
    counts.least += 1;
    counts.passes += static_cast<std::uint64_t>(*std::max_element(n, n + 32));
  }
}

}  // namespace ptx
