// SPDX-License-Identifier: Apache-2.0
#include "decode.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "operations.hpp"

namespace ptx {
namespace {

// Rows while the number of registers is not known yet.
constexpr int kSpecialRows = 1 << 24, kConstantRows = 1 << 25;

/// Between two variables of shared memory, so that running over the end of one is seen: whole
/// rounds of the banks.
constexpr std::uint32_t kGap = 128;

std::uint32_t align_up(std::uint32_t at, std::uint64_t align) {
  const auto a = static_cast<std::uint32_t>(align);
  return (at + a - 1) / a * a;
}

std::vector<std::string> split(const std::string& opcode) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= opcode.size();) {
    const std::size_t dot = std::min(opcode.find('.', at), opcode.size());
    parts.push_back(opcode.substr(at, dot - at));
    at = dot + 1;
  }
  return parts;
}

const char* const kSpecialNames[] = {
    "%tid.x",   "%tid.y",       "%tid.z",       "%ntid.x",      "%ntid.y",      "%ntid.z",
    "%ctaid.x", "%ctaid.y",     "%ctaid.z",     "%nctaid.x",    "%nctaid.y",    "%nctaid.z",
    "%laneid",  "%lanemask_eq", "%lanemask_lt", "%lanemask_le", "%lanemask_gt", "%lanemask_ge"};
static_assert(std::size(kSpecialNames) == static_cast<std::size_t>(Special::count));

class Decoder {
 public:
  Decoder(const Module& module, const Globals& globals) : module_(module), globals_(globals) {}

  Program decode(const Function& kernel) {
    program_.name = kernel.name;
    if (kernel.max_threads > 0) program_.max_threads = kernel.max_threads;
    int at = 0;
    for (const Variable& p : kernel.params) {
      at = static_cast<int>(align_up(static_cast<std::uint32_t>(at), p.align));
      program_.param_offsets.push_back(at);
      program_.param_sizes.push_back(static_cast<int>(p.size));
      params_[p.name] = at;
      at += static_cast<int>(p.size);
    }
    program_.param_bytes = at;
    shared_end_ = 0;
    for (const Variable& v : module_.variables)
      if (v.space == Space::shared && !v.is_extern && mentions(kernel, v.name)) place_shared(v);
    cc_ = n_registers_++;
    Frame frame;
    frame.function = &kernel;
    function(frame);
    // the dynamic memory comes last, aligned to 128 bytes and to no more
    program_.shared_end = align_up(shared_end_, 1024) + kGap;
    for (Instruction& i : program_.code) fix(i);  // (lists are registers alone)
    program_.special = n_registers_;
    program_.first_constant = n_registers_ + static_cast<int>(Special::count);
    program_.n_rows = program_.first_constant + static_cast<int>(program_.constants.size());
    for (std::size_t c = 0; c < program_.constants.size(); ++c)
      if (dynamic_constants_.contains(static_cast<int>(c)))
        program_.constants[c] += program_.shared_end + kSharedBase;
    for (std::size_t k = 0; k < program_.code.size(); ++k) {
      Instruction& i = program_.code[k];
      i.text = program_.texts[k]->c_str();
      if (dynamic_addresses_.contains(static_cast<int>(k)))
        i.offset += program_.shared_end + kSharedBase;
    }
    return std::move(program_);
  }

 private:
  /// A function's body where it stands: the kernel's, or one that was called, put in its place.
  struct Frame {
    const Function* function = nullptr;
    int first_register = 0;
    std::map<std::string, int, std::less<>> labels;     // to places in the code
    std::map<std::string, int, std::less<>> locals;     // offsets in local memory
    std::vector<std::pair<int, std::string>> branches;  // to labels that may come later
    std::vector<int> returns;                           // branches behind the call
    bool is_inlined = false;
  };

  [[noreturn]] void unknown(const Statement& s, const std::string& what = {}) const {
    throw Fault(FaultKind::unknown, "'" + s.opcode + "'" + (what.empty() ? "" : " " + what) +
                                        ", line " + std::to_string(s.line) + " of " +
                                        program_.name);
  }

  static bool mentions(const Operand& o, const std::string& name) {
    return o.symbol == name || std::any_of(o.list.begin(), o.list.end(),
                                           [&](const Operand& e) { return mentions(e, name); });
  }
  static bool mentions(const Function& f, const std::string& name) {
    return std::any_of(f.body.begin(), f.body.end(), [&](const Statement& s) {
      return std::any_of(s.operands.begin(), s.operands.end(),
                         [&](const Operand& o) { return mentions(o, name); });
    });
  }

  void place_shared(const Variable& v) {
    // what the device counts has no gaps
    program_.static_bytes = static_cast<int>(
        align_up(static_cast<std::uint32_t>(program_.static_bytes), v.align) + v.size);
    shared_end_ = align_up(shared_end_ + kGap, std::max<std::uint64_t>(v.align, kGap));
    program_.shared.push_back({v.name, shared_end_, static_cast<std::uint32_t>(v.size)});
    shared_end_ += static_cast<std::uint32_t>(v.size);
  }

  void function(Frame& frame) {
    const Function& f = *frame.function;
    frame.first_register = n_registers_;
    n_registers_ += static_cast<int>(f.registers.size());
    for (const Variable& v : f.variables) {
      if (v.space == Space::shared)
        place_shared(v);
      else
        local(frame, v);
    }
    frame_ = &frame;
    for (const Statement& s : f.body) {
      if (!s.label.empty()) {
        if (!frame.labels.emplace(s.label, static_cast<int>(program_.code.size())).second)
          throw TextError(s.line, "the label " + s.label + " is there twice");
        continue;
      }
      statement(s);
    }
    // A label at the end, and a body that runs off its end, need something to stand on.
    if (!frame.is_inlined) {
      Statement end;
      end.opcode = "ret";
      end.line = f.body.empty() ? f.line : f.body.back().line;
      statement(end);
    }
    for (const auto& [at, label] : frame.branches) {
      const auto found = frame.labels.find(label);
      if (found == frame.labels.end())
        throw TextError(program_.code[static_cast<std::size_t>(at)].line, "no label " + label);
      program_.code[static_cast<std::size_t>(at)].target = found->second;
    }
    for (const int at : frame.returns)
      program_.code[static_cast<std::size_t>(at)].target = static_cast<int>(program_.code.size());
  }

  void local(Frame& frame, const Variable& v) {
    auto& at = program_.local_bytes;
    at = static_cast<int>(
        align_up(static_cast<std::uint32_t>(at), std::max<std::uint64_t>(v.align, 16)));
    frame.locals[v.name] = at;
    at += static_cast<int>(v.size);
  }

  // ---- operands ----
  int constant(std::uint64_t bits) {
    const auto found = constants_.find(bits);
    if (found != constants_.end()) return found->second;
    const int row = kConstantRows + static_cast<int>(program_.constants.size());
    program_.constants.push_back(bits);
    return constants_[bits] = row;
  }
  int own_constant(std::uint64_t bits) {
    program_.constants.push_back(bits);
    return kConstantRows + static_cast<int>(program_.constants.size()) - 1;
  }
  int reg(int r) const { return r < 0 ? -1 : frame_->first_register + r; }

  /// Where a symbol lies. `dynamic`: after all the other shared variables
  std::uint64_t place_of(const Statement& s, const std::string& name, bool& dynamic) {
    dynamic = false;
    if (const auto l = frame_->locals.find(name); l != frame_->locals.end())
      return static_cast<std::uint64_t>(l->second);
    if (!frame_->is_inlined)
      if (const auto p = params_.find(name); p != params_.end())
        return static_cast<std::uint64_t>(p->second);
    for (const Program::SharedVariable& v : program_.shared)
      if (v.name == name) return kSharedBase + v.offset;
    for (const Variable& v : module_.variables) {
      if (v.name != name || v.space != Space::shared || !v.is_extern) continue;
      dynamic = program_.has_dynamic = true;
      return 0;
    }
    if (const auto g = globals_.find(name); g != globals_.end()) return g->second;
    unknown(s, "with '" + name + "'");
  }

  int row(const Statement& s, const Operand& o, bool predicate = false) {
    if (o.negated) unknown(s, "with a negated operand");
    if (!o.pair.empty()) unknown(s, "with a pair where none is known");
    switch (o.kind) {
      case Operand::Kind::reg:
        return reg(o.reg);
      case Operand::Kind::immediate:
        return constant(predicate && o.bits != 0 ? ~0ull : o.bits);
      case Operand::Kind::symbol: {
        for (std::size_t n = 0; n < std::size(kSpecialNames); ++n)
          if (o.symbol == kSpecialNames[n]) return kSpecialRows + static_cast<int>(n);
        if (o.symbol == "WARP_SZ") return constant(kLanes);
        bool dynamic = false;
        const std::uint64_t at = place_of(s, o.symbol, dynamic);
        if (!dynamic) return constant(at);
        const int r = own_constant(at);
        dynamic_constants_.insert({r - kConstantRows, true});
        return r;
      }
      case Operand::Kind::list:
      case Operand::Kind::address:
        break;
    }
    unknown(s, "with an operand of this kind");
  }
  int destination(const Statement& s, const Operand& o) {
    if (o.kind != Operand::Kind::reg) unknown(s, "whose result is no register");
    return reg(o.reg);
  }
  void address(const Statement& s, const Operand& o, Instruction& i) {
    if (o.kind != Operand::Kind::address) unknown(s, "without an address");
    i.offset = o.offset;
    if (!o.symbol.empty()) {
      bool dynamic = false;
      i.offset += static_cast<std::int64_t>(place_of(s, o.symbol, dynamic));
      if (dynamic) dynamic_addresses_.insert({static_cast<int>(program_.code.size()), true});
    } else if (o.reg >= 0) {
      i.address = reg(o.reg);
    }
  }
  const Operand& operand(const Statement& s, std::size_t n) const {
    if (n >= s.operands.size()) unknown(s, "with too few operands");
    return s.operands[n];
  }
  void count(const Statement& s, std::size_t n) const {
    if (s.operands.size() != n)
      unknown(s, "with " + std::to_string(s.operands.size()) + " operands");
  }

  void emit(const Statement& s, Instruction i) {
    i.line = s.line;
    i.guard = s.guard < 0 ? -1 : reg(s.guard);
    i.guard_negated = s.guard_negated;
    program_.code.push_back(i);
    program_.texts.push_back(std::make_unique<std::string>(s.opcode));
  }

  /// Rows that were given before the number of registers was known.
  void fix(Instruction& i) const {
    const auto one = [this](int& r) {
      if (r >= kConstantRows)
        r += n_registers_ + static_cast<int>(Special::count) - kConstantRows;
      else if (r >= kSpecialRows)
        r += n_registers_ - kSpecialRows;
    };
    for (int& r : i.dst) one(r);
    for (int k = 0; k < i.n_src; ++k) one(i.src[k]);
    one(i.mask);
    one(i.address);
  }

  // ---- statements ----
  void statement(const Statement& s) {
    const std::vector<std::string> parts = split(s.opcode);
    const std::string& name = parts[0];
    if (const Operation operation = find_operation(s.opcode); operation.execute)
      return compute(s, operation);
    if (name == "mov") return move_statement(s, parts);
    if (name == "setp") return compare_statement(s, parts);
    if (name == "selp") return select_statement(s, parts);
    if (name == "bra") return branch(s);
    if (name == "ret" || name == "exit") return end(s);
    if (name == "ld" || name == "st" || name == "atom" || name == "red") return memory(s, parts);
    if (name == "cvta") return convert_address(s, parts);
    if (name == "call") return call(s);
    if (s.opcode == "bar.sync" || s.opcode == "barrier.sync.aligned") return barrier(s);
    if (s.opcode == "bar.red.or.pred" || s.opcode == "barrier.red.or.aligned.pred")
      return barrier_or(s);
    if (s.opcode == "bar.warp.sync") return warp_barrier(s);
    if (name == "shfl") return shuffle_statement(s, parts);
    if (name == "vote") return vote_statement(s);
    if (name == "membar" || name == "fence") return fence_statement(s);
    if (name == "griddepcontrol") return launches(s);
    if (name == "prefetch") {  // of what a cache has: nothing that a lane sees
      if (s.opcode != "prefetch.global.L2") unknown(s);
      return;
    }
    if (name == "ldmatrix") return matrices(s);
    if (name == "mma") return product(s);
    if (name == "cp") return copy(s);
    if (name == "mbarrier") return mbarrier(s);
    if (name == "wgmma") return warpgroup(s, parts);
    if (name == "setmaxnreg") return max_registers(s);
    unknown(s);
  }

  void compute(const Statement& s, const Operation& operation) {
    count(s, static_cast<std::size_t>(operation.operands) + 1);
    Instruction i;
    i.execute = operation.execute;
    i.n_dst = 1;
    i.dst[0] = destination(s, s.operands[0]);
    for (int k = 0; k < operation.operands; ++k)
      i.src[i.n_src++] = row(s, s.operands[static_cast<std::size_t>(k) + 1], operation.predicates);
    i.cc = cc_;
    emit(s, i);
  }

  void move_statement(const Statement& s, const std::vector<std::string>& parts) {
    count(s, 2);
    if (parts.size() != 2) unknown(s);
    const int bytes = size_of_type(parts[1]);
    if (bytes == 0 || parts[1] == "pred") unknown(s);
    Instruction i;
    const Operand &to = s.operands[0], &from = s.operands[1];
    if (to.kind == Operand::Kind::list) {
      i.execute = unpack;
      if (to.list.size() > 4) unknown(s);
      for (const Operand& o : to.list) i.dst[i.n_dst++] = destination(s, o);
      i.element = bytes / i.n_dst;
      i.src[i.n_src++] = row(s, from);
    } else if (from.kind == Operand::Kind::list) {
      i.execute = pack;
      if (from.list.size() > 4) unknown(s);
      i.n_dst = 1;
      i.dst[0] = destination(s, to);
      for (const Operand& o : from.list) i.src[i.n_src++] = row(s, o);
      i.element = bytes / i.n_src;
    } else {
      i.execute = move;
      i.n_dst = 1;
      i.dst[0] = destination(s, to);
      i.src[i.n_src++] = row(s, from);
    }
    emit(s, i);
  }

  void compare_statement(const Statement& s, const std::vector<std::string>& parts) {
    count(s, 3);
    if (parts.size() != 3) unknown(s);
    Instruction i;
    i.execute = comparison(parts[1], parts[2]);
    if (!i.execute) unknown(s);
    Operand to = s.operands[0];
    i.n_dst = 2;
    if (!to.pair.empty()) i.dst[1] = destination(s, to.pair[0]);
    to.pair.clear();
    i.dst[0] = destination(s, to);
    i.src[i.n_src++] = row(s, s.operands[1]);
    i.src[i.n_src++] = row(s, s.operands[2]);
    emit(s, i);
  }

  void select_statement(const Statement& s, const std::vector<std::string>& parts) {
    count(s, 4);
    if (parts.size() != 2 || size_of_type(parts[1]) < 2) unknown(s);
    Instruction i;
    i.execute = select;
    i.n_dst = 1;
    i.dst[0] = destination(s, s.operands[0]);
    for (std::size_t k = 1; k < 4; ++k) i.src[i.n_src++] = row(s, s.operands[k], k == 3);
    emit(s, i);
  }

  void branch(const Statement& s) {
    if (s.opcode != "bra" && s.opcode != "bra.uni") unknown(s);
    count(s, 1);
    Instruction i;
    i.flow = Flow::branch;
    frame_->branches.emplace_back(static_cast<int>(program_.code.size()), s.operands[0].symbol);
    emit(s, i);
  }

  void end(const Statement& s) {
    if (s.opcode != "ret" && s.opcode != "exit" && s.opcode != "ret.uni") unknown(s);
    Instruction i;
    if (frame_->is_inlined && s.opcode != "exit") {
      i.flow = Flow::branch;
      frame_->returns.push_back(static_cast<int>(program_.code.size()));
    } else {
      i.flow = Flow::exit;
    }
    emit(s, i);
  }

  void memory(const Statement& s, const std::vector<std::string>& parts) {
    const bool loads = parts[0] == "ld", stores = parts[0] == "st";
    Instruction i;
    i.used = s.used;
    i.space = Space::generic;
    int what = -1;
    std::string type;
    for (std::size_t k = 1; k < parts.size(); ++k) {
      const std::string& p = parts[k];
      if (p == "global")
        i.space = Space::global;
      else if (p == "shared")
        i.space = Space::shared;
      else if (p == "local")
        i.space = Space::local;
      else if (p == "param")
        i.space = Space::param;
      else if (p == "const")
        i.space = Space::constant;
      else if (p == "volatile")
        i.is_volatile = true;
      else if (p == "relaxed" || p == "gpu" || p == "cta" || p == "sys") {
        if (loads || stores) unknown(s);  // strong accesses: none in the library yet
      } else if (p == "ca" || p == "cg" || p == "cs" || p == "lu" || p == "cv" || p == "nc" ||
                 p == "wb" || p == "wt") {
        continue;  // where it is cached changes nothing here
      } else if (p == "v2" || p == "v4")
        i.vector = p == "v2" ? 2 : 4;
      else if (!loads && !stores && what < 0) {
        static const std::map<std::string, int> kinds = {
            {"add", kAdd}, {"min", kMin}, {"max", kMax}, {"exch", kExch}, {"and", kAnd},
            {"or", kOr},   {"xor", kXor}, {"cas", kCas}, {"inc", kInc}};
        const auto found = kinds.find(p);
        if (found == kinds.end()) unknown(s);
        what = found->second;
      } else if (k + 1 == parts.size() && size_of_type(p) > 0 && p != "pred") {
        type = p;
      } else {
        unknown(s);
      }
    }
    i.element = size_of_type(type);
    if (i.element == 0) unknown(s);
    i.is_signed = type[0] == 's';
    const bool returns = parts[0] != "st" && parts[0] != "red";
    std::size_t at = 0;
    if (returns) {
      const Operand& to = operand(s, at++);
      if (to.kind == Operand::Kind::list) {
        for (const Operand& o : to.list) i.dst[i.n_dst++] = destination(s, o);
      } else {
        i.dst[i.n_dst++] = destination(s, to);
      }
    }
    address(s, operand(s, at), i);
    // The parameters of a function that was put in its place, and those of a call, are local.
    if (i.space == Space::param) {
      const std::string& base = s.operands[at].symbol;
      const bool of_call = frame_->locals.contains(base);
      if (of_call)
        i.space = Space::local;
      else if (!loads || (frame_->is_inlined && !base.empty()))
        unknown(s);
    }
    ++at;
    if (!loads) {
      const Operand& from = operand(s, at++);
      if (from.kind == Operand::Kind::list) {
        for (const Operand& o : from.list) i.src[i.n_src++] = row(s, o);
      } else {
        i.src[i.n_src++] = row(s, from);
      }
      if (what == kCas) i.src[i.n_src++] = row(s, operand(s, at++));
    }
    count(s, at);
    if ((loads ? i.n_dst : stores ? i.n_src : 1) != i.vector) unknown(s);
    if (what >= 0) {
      if (i.element < 4 || i.vector != 1 || (type[0] == 'f' && what != kAdd)) unknown(s);
      if (i.space != Space::global && i.space != Space::shared && i.space != Space::generic)
        unknown(s);
      i.variant = type[0] == 'f' ? static_cast<int>(kAddFloat) : what;
    }
    i.execute = what >= 0 ? atomic : loads ? (i.space == Space::param ? load_param : load) : store;
    emit(s, i);
  }

  void convert_address(const Statement& s, const std::vector<std::string>& parts) {
    count(s, 2);
    Instruction i;
    const bool to = parts.size() == 4 && parts[1] == "to";
    if (!to && parts.size() != 3) unknown(s);
    const std::string& space = parts[to ? 2 : 1];
    if (parts.back() != "u64") unknown(s);
    if (space == "global")
      i.space = Space::global;
    else if (space == "shared")
      i.space = Space::shared;
    else if (space == "local")
      i.space = Space::local;
    else
      unknown(s);
    i.execute = to ? from_generic : to_generic;
    i.n_dst = 1;
    i.dst[0] = destination(s, s.operands[0]);
    i.src[i.n_src++] = row(s, s.operands[1]);
    emit(s, i);
  }

  /// The called function's body in place of the call; its parameters are those of the call.
  void call(const Statement& s) {
    if (s.opcode != "call.uni" || s.guard >= 0) unknown(s, "as it stands here");
    count(s, 3);
    const auto found = module_.functions.find(s.operands[1].symbol);
    if (found == module_.functions.end()) unknown(s, "of '" + s.operands[1].symbol + "'");
    const Function& f = found->second;
    if (++depth_ > 8) unknown(s, "calls itself");
    Frame frame;
    frame.function = &f;
    frame.is_inlined = true;
    const auto bind = [&](const std::vector<Variable>& formal, const std::vector<Operand>& actual) {
      if (formal.size() != actual.size()) unknown(s, "with other parameters than its function");
      for (std::size_t k = 0; k < formal.size(); ++k) {
        const auto at = frame_->locals.find(actual[k].symbol);
        if (at == frame_->locals.end()) unknown(s, "with '" + actual[k].symbol + "'");
        frame.locals[formal[k].name] = at->second;
      }
    };
    bind(f.results, s.operands[0].list);
    bind(f.params, s.operands[2].list);
    Frame* const caller = frame_;
    function(frame);
    frame_ = caller;
    --depth_;
  }

  std::uint64_t immediate(const Statement& s, const Operand& o) const {
    if (o.kind != Operand::Kind::immediate) unknown(s, "whose operand is no number");
    return o.bits;
  }

  void barrier(const Statement& s) {
    Instruction i;
    if (s.operands.size() == 2) {
      const std::uint64_t threads = immediate(s, s.operands[1]);
      if (threads == 0 || threads > 1024 || threads % kLanes != 0) unknown(s);
      i.variant = static_cast<int>(threads);
      program_.is_asynchronous = true;
    } else {
      count(s, 1);
    }
    i.flow = Flow::barrier;
    i.execute = sync_block;
    i.src[i.n_src++] = row(s, s.operands[0]);
    emit(s, i);
  }
  void barrier_or(const Statement& s) {
    count(s, 3);
    if (immediate(s, s.operands[1]) > 15) unknown(s);
    Instruction i;
    i.flow = Flow::barrier;
    i.execute = sync_block_or;
    i.n_dst = 1;
    i.dst[0] = destination(s, s.operands[0]);
    i.src[i.n_src++] = row(s, s.operands[1]);
    i.src[i.n_src++] = row(s, s.operands[2], true);
    emit(s, i);
  }
  void warp_barrier(const Statement& s) {
    count(s, 1);
    Instruction i;
    i.flow = Flow::masked;
    i.execute = sync_warp;
    i.mask = row(s, s.operands[0]);
    emit(s, i);
  }

  void shuffle_statement(const Statement& s, const std::vector<std::string>& parts) {
    if (parts.size() != 4 || parts[1] != "sync" || parts[3] != "b32") unknown(s);
    static const std::map<std::string, int> kinds = {
        {"up", kUp}, {"down", kDown}, {"bfly", kButterfly}, {"idx", kIndex}};
    const auto kind = kinds.find(parts[2]);
    if (kind == kinds.end()) unknown(s);
    count(s, 5);
    Instruction i;
    i.flow = Flow::masked;
    i.execute = shuffle;
    i.variant = kind->second;
    Operand to = s.operands[0];
    i.n_dst = 2;
    if (!to.pair.empty()) i.dst[1] = destination(s, to.pair[0]);
    to.pair.clear();
    i.dst[0] = destination(s, to);
    for (std::size_t k = 1; k < 4; ++k) i.src[i.n_src++] = row(s, s.operands[k]);
    i.mask = row(s, s.operands[4]);
    emit(s, i);
  }

  void vote_statement(const Statement& s) {
    static const std::map<std::string, int> kinds = {{"vote.sync.any.pred", kAnyOf},
                                                     {"vote.sync.all.pred", kAllOf},
                                                     {"vote.sync.uni.pred", kUniform},
                                                     {"vote.sync.ballot.b32", kBallot}};
    const auto kind = kinds.find(s.opcode);
    if (kind == kinds.end()) unknown(s);
    count(s, 3);
    Instruction i;
    i.flow = Flow::masked;
    i.execute = vote;
    i.variant = kind->second;
    i.n_dst = 1;
    i.dst[0] = destination(s, s.operands[0]);
    i.src[i.n_src++] = row(s, s.operands[1], true);
    i.mask = row(s, s.operands[2]);
    emit(s, i);
  }

  void fence_statement(const Statement& s) {
    if (plain(s.opcode) == "fence.proxy.async.shared" || s.opcode == "fence.proxy.async") {
      count(s, 0);
      Instruction i;
      i.execute = ptx::fence_proxy;
      program_.is_asynchronous = true;
      return emit(s, i);
    }
    if (s.opcode != "membar.gl" && s.opcode != "membar.sys" && s.opcode != "fence.acq_rel.gpu" &&
        s.opcode != "fence.sc.gpu")
      unknown(s);
    count(s, 0);
    Instruction i;
    i.execute = ptx::fence;
    emit(s, i);
  }

  void launches(const Statement& s) {
    count(s, 0);
    // When the next launch begins is not decided here: an early one might at any time.
    if (s.opcode == "griddepcontrol.launch_dependents") return;
    if (s.opcode != "griddepcontrol.wait") unknown(s);
    Instruction i;
    i.execute = ptx::wait_for_launches;
    emit(s, i);
  }

  void matrices(const Statement& s) {
    if (s.opcode != "ldmatrix.sync.aligned.m8n8.x4.shared.b16" &&
        s.opcode != "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16")
      unknown(s);
    count(s, 2);
    Instruction i;
    i.flow = Flow::aligned;
    i.execute = load_matrices;
    i.variant = s.opcode.find(".trans.") != std::string::npos ? 1 : 0;
    i.space = Space::shared;
    i.element = 16;
    i.vector = 4;
    if (s.operands[0].list.size() != 4) unknown(s);
    for (const Operand& o : s.operands[0].list) i.dst[i.n_dst++] = destination(s, o);
    address(s, s.operands[1], i);
    emit(s, i);
  }

  void product(const Statement& s) {
    const bool half = s.opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    if (!half && s.opcode != "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") unknown(s);
    count(s, 4);
    Instruction i;
    i.flow = Flow::aligned;
    i.execute = matrix_product;
    i.variant = half ? 0 : 1;
    constexpr std::size_t kSizes[4] = {4, 4, 2, 4};
    for (std::size_t k = 0; k < 4; ++k) {
      if (s.operands[k].list.size() != kSizes[k]) unknown(s);
      for (const Operand& o : s.operands[k].list) {
        if (k == 0)
          i.dst[i.n_dst++] = destination(s, o);
        else
          i.src[i.n_src++] = row(s, o);
      }
    }
    emit(s, i);
  }

  /// `.shared` is `.shared::cta`.
  static std::string plain(std::string opcode) {
    const std::size_t at = opcode.find(".shared::cta");
    if (at != std::string::npos) opcode.erase(at + 7, 5);
    return opcode;
  }

  void mbarrier(const Statement& s) {
    const std::string opcode = plain(s.opcode);
    Instruction i;
    i.space = Space::shared;
    std::size_t at = 0;
    if (opcode == "mbarrier.init.shared.b64") {
      count(s, 2);
      i.execute = mbarrier_init;
      i.src[i.n_src++] = row(s, s.operands[1]);
    } else if (opcode == "mbarrier.arrive.shared.b64") {
      count(s, 2);
      i.execute = mbarrier_arrive;
      // the state that it returns is for waits without a parity
      if (s.operands[0].kind != Operand::Kind::reg || s.operands[0].reg >= 0) unknown(s);
      at = 1;
    } else if (opcode == "mbarrier.try_wait.parity.shared.b64") {
      count(s, 3);
      i.flow = Flow::poll;
      i.execute = mbarrier_try_wait;
      i.n_dst = 1;
      i.dst[0] = destination(s, s.operands[0]);
      i.src[i.n_src++] = row(s, s.operands[2]);
      at = 1;
    } else {
      unknown(s);
    }
    address(s, s.operands[at], i);
    program_.is_asynchronous = true;
    emit(s, i);
  }

  void max_registers(const Statement& s) {
    if (s.opcode != "setmaxnreg.inc.sync.aligned.u32" &&
        s.opcode != "setmaxnreg.dec.sync.aligned.u32")
      unknown(s);
    count(s, 1);
    const std::uint64_t registers = immediate(s, s.operands[0]);
    if (registers < 24 || registers > 256 || registers % 8 != 0)
      unknown(s, "of that many registers");
    Instruction i;
    i.flow = Flow::aligned;
    i.execute = set_max_registers;
    i.variant = static_cast<int>(registers);
    program_.is_asynchronous = true;
    emit(s, i);
  }

  void warpgroup(const Statement& s, const std::vector<std::string>& parts) {
    Instruction i;
    i.flow = Flow::aligned;
    program_.is_asynchronous = true;
    if (s.opcode == "wgmma.fence.sync.aligned" || s.opcode == "wgmma.commit_group.sync.aligned") {
      count(s, 0);
      i.execute = parts[1] == "fence" ? wgmma_fence : wgmma_commit;
      return emit(s, i);
    }
    if (s.opcode == "wgmma.wait_group.sync.aligned") {
      count(s, 1);
      i.execute = ptx::wgmma_wait;
      i.variant = static_cast<int>(immediate(s, s.operands[0]));
      return emit(s, i);
    }
    // wgmma.mma_async.sync.aligned.m64nNk16.f32.TYPE.TYPE
    if (parts.size() != 8 || s.opcode.rfind("wgmma.mma_async.sync.aligned.m64n", 0) != 0 ||
        parts[5] != "f32" || parts[6] != parts[7] || (parts[6] != "f16" && parts[6] != "bf16"))
      unknown(s);
    int n = 0;
    std::size_t k = 4;
    const std::string& shape = parts[4];
    for (; k < shape.size() && shape[k] >= '0' && shape[k] <= '9'; ++k)
      n = 10 * n + (shape[k] - '0');
    if (shape.substr(k) != "k16" || n < 8 || n > 256 || n % 8 != 0) unknown(s);
    i.execute = ptx::wgmma;
    i.vector = n;
    if (parts[6] == "bf16") i.variant |= kBfloat;
    const bool fragment = operand(s, 1).kind == Operand::Kind::list;
    count(s, fragment ? 7 : 8);
    if (s.operands[0].list.size() != static_cast<std::size_t>(n / 2)) unknown(s);
    i.list = static_cast<int>(program_.lists.size());
    program_.lists.emplace_back();
    for (const Operand& o : s.operands[0].list) program_.lists.back().push_back(destination(s, o));
    if (fragment) {
      i.variant |= kFragment;
      if (s.operands[1].list.size() != 4) unknown(s);
      for (const Operand& o : s.operands[1].list) i.src[i.n_src++] = destination(s, o);
    } else {
      i.src[i.n_src++] = row(s, s.operands[1]);
    }
    i.src[i.n_src++] = row(s, s.operands[2]);
    i.src[i.n_src++] = row(s, s.operands[3], true);
    // signs of both factors, then whether they lie transposed
    for (std::size_t sign = 4; sign < 6; ++sign)
      if (immediate(s, s.operands[sign]) != 1) unknown(s, "with a negated factor");
    for (std::size_t t = 6; t < s.operands.size(); ++t) {
      const std::uint64_t transposed = immediate(s, s.operands[t]);
      if (transposed > 1) unknown(s);
      if (transposed == 1) i.variant |= t + 1 == s.operands.size() ? kTransposedB : kTransposedA;
    }
    emit(s, i);
  }

  void copy(const Statement& s) {
    Instruction i;
    if (plain(s.opcode) == "cp.async.mbarrier.arrive.noinc.shared.b64") {
      count(s, 1);
      i.execute = copy_async_arrive;
      i.space = Space::shared;
      address(s, s.operands[0], i);
      program_.is_asynchronous = true;
      return emit(s, i);
    }
    if (s.opcode == "cp.async.commit_group") {
      count(s, 0);
      i.execute = copy_async_commit;
    } else if (s.opcode == "cp.async.wait_group") {
      count(s, 1);
      i.execute = copy_async_wait;
      i.variant = static_cast<int>(immediate(s, s.operands[0]));
      i.space = Space::shared;
    } else if (s.opcode == "cp.async.cg.shared.global" || s.opcode == "cp.async.ca.shared.global") {
      if (s.operands.size() != 4) count(s, 3);
      i.execute = copy_async;
      i.space = Space::shared;
      i.element = static_cast<int>(immediate(s, s.operands[2]));
      // past the first-level cache 16 bytes alone, through it fewer too
      if (i.element != 16 && (s.opcode == "cp.async.cg.shared.global" || i.element != 8))
        unknown(s, "of so many bytes");
      address(s, s.operands[0], i);
      if (i.address < 0) i.address = constant(0);
      const Operand& from = s.operands[1];
      if (from.kind != Operand::Kind::address || from.reg < 0) unknown(s);
      i.src[i.n_src++] = reg(from.reg);
      i.variant = static_cast<int>(from.offset);
      i.src[i.n_src++] = s.operands.size() == 4 ? row(s, s.operands[3])
                                                : constant(static_cast<std::uint64_t>(i.element));
    } else {
      unknown(s);
    }
    emit(s, i);
  }

  const Module& module_;
  const Globals& globals_;
  Program program_;
  std::map<std::string, int, std::less<>> params_;
  std::map<std::uint64_t, int> constants_;
  std::map<int, bool> dynamic_constants_, dynamic_addresses_;
  std::uint32_t shared_end_ = 0;
  int n_registers_ = 0, cc_ = -1, depth_ = 0;
  Frame* frame_ = nullptr;
};

}  // namespace

Globals place_variables(const Module& module) {
  Globals globals;
  for (const Variable& v : module.variables) {
    if (v.space != Space::global && v.space != Space::constant) continue;
    if (v.is_extern) continue;
    Allocation* const a = Memory::instance().allocate(std::max<std::uint64_t>(v.size, 1), true);
    if (!a) throw std::bad_alloc();
    std::memset(a->data, 0, v.size);
    std::memcpy(a->data, v.value.data(), v.value.size());
    a->is_constant = v.space == Space::constant;
    globals[v.name] = reinterpret_cast<std::uint64_t>(a->data);
  }
  return globals;
}

Program decode(const Module& module, const Function& kernel, const Globals& globals) {
  return Decoder(module, globals).decode(kernel);
}

}  // namespace ptx
