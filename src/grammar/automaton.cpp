// SPDX-License-Identifier: Apache-2.0
#include "automaton.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "episodic/grammar/grammar.hpp"

namespace episodic::grammar {
namespace {

// Ways to read one text at once. Grammars of practice have a few dozen.
constexpr std::size_t kMostWays = 4096;

std::size_t mixed(std::size_t hash, std::uint64_t value) {
  std::uint64_t z = (hash ^ value) * 0x9e3779b97f4a7c15ull;
  z ^= z >> 29;
  return static_cast<std::size_t>(z * 0xbf58476d1ce4e5b9ull ^ z >> 32);
}

}  // namespace

std::size_t Automaton::Hash::operator()(const Frame& frame) const {
  return mixed(mixed(frame.where, frame.count), frame.below);
}

std::size_t Automaton::Hash::operator()(const Ways& ways) const {
  std::size_t hash = ways.may_end ? 1 : 0;
  for (const Way& way : ways.ways)
    hash = mixed(mixed(hash, std::uint64_t{way.instruction} << 32 | way.inside), way.stack);
  return hash;
}

std::size_t Automaton::Hash::operator()(const std::pair<std::uint32_t, std::uint32_t>& pair) const {
  return mixed(pair.first, pair.second);
}

Automaton::Automaton(std::shared_ptr<const Program> program)
    : program_(std::move(program)), classes_(program_->byte_of_class.size()) {}

Automaton::State Automaton::start() {
  Ways ways;
  seen_.clear();
  rounds_.clear();
  close(0, kBottom, ways);
  return intern(std::move(ways));
}

Automaton::State Automaton::find_next(State state, std::uint8_t byte) {
  Ways ways;
  seen_.clear();
  rounds_.clear();
  for (const Way& way : states_[state].ways->ways) {
    ++work_;
    const Instruction& instruction = program_->code[way.instruction];
    if (instruction.op == Op::byte) {
      if (instruction.a == byte) close(way.instruction + 1, way.stack, ways);
      continue;
    }
    const auto* edge = program_->characters[instruction.a].edge(way.inside, byte);
    if (!edge) continue;
    if (edge->target == CharacterBytes::kDone)
      close(way.instruction + 1, way.stack, ways);
    else
      ways.ways.push_back({way.instruction, edge->target, way.stack});
  }
  const State found = ways.ways.empty() && !ways.may_end ? kNone : intern(std::move(ways));
  next_[state * classes_ + program_->class_of[byte]] = found;
  return found;
}

void Automaton::close(std::uint32_t instruction, std::uint32_t stack, Ways& ways) {
  open_.assign(1, {instruction, stack});
  while (!open_.empty()) {
    const auto [at, on] = open_.back();
    open_.pop_back();
    if (!seen_.try_emplace({at, on}, true).second) continue;
    if (seen_.size() > kMostWays)
      throw DataError(fmt::format(
          "grammar: more than {} ways to read the text so far; write rules that begin differently",
          kMostWays));
    ++work_;
    const Instruction& i = program_->code[at];
    switch (i.op) {
      case Op::byte:
      case Op::character:
        ways.ways.push_back({at, 0, on});
        break;
      case Op::split:
        for (std::uint32_t k = i.b; k-- > 0;) open_.emplace_back(program_->targets[i.a + k], on);
        break;
      case Op::jump:
        open_.emplace_back(i.a, on);
        break;
      case Op::call:
        // What would return only to return again leaves nothing on the stack: lists written by
        // rules that end with themselves then read any number of items in one place.
        open_.emplace_back(
            i.a, program_->code[at + 1].op == Op::ret ? on : push({at + 1, kReturns, on}));
        break;
      case Op::ret:
        if (on == kBottom)
          ways.may_end = true;
        else
          open_.emplace_back(frames_[on].where, frames_[on].below);
        break;
      case Op::enter:
        open_.emplace_back(at + 1, push({i.a, 0, on}));
        break;
      case Op::loop: {
        const Repeat& repeat = program_->repeats[i.a];
        const std::uint32_t count = frames_[on].count, below = frames_[on].below;
        if (repeat.nullable) {
          // Fewer rounds can do all that more rounds can, so a round that read nothing ends here.
          const auto [known, made] = rounds_.try_emplace({at, below}, count);
          if (!made && known->second <= count) break;
          known->second = count;
        }
        if (count >= repeat.min) open_.emplace_back(repeat.exit, below);
        if (repeat.max == kUnbounded || count < repeat.max) open_.emplace_back(at + 1, on);
        break;
      }
      case Op::again: {
        const Repeat& repeat = program_->repeats[i.a];
        // without an end, rounds beyond the least number are alike
        const std::uint32_t most = repeat.max == kUnbounded ? repeat.min : repeat.max;
        const Frame frame = frames_[on];
        open_.emplace_back(repeat.loop, push({i.a, std::min(frame.count + 1, most), frame.below}));
        break;
      }
    }
  }
}

std::uint32_t Automaton::push(const Frame& frame) {
  const auto known = frame_numbers_.find(frame);
  if (known != frame_numbers_.end()) return known->second;
  frames_.push_back(frame);  // first: a number without its frame would be found again
  const auto number = static_cast<std::uint32_t>(frames_.size() - 1);
  frame_numbers_.emplace(frame, number);
  bytes_ += 4 * sizeof(Frame);
  return number;
}

Automaton::State Automaton::intern(Ways ways) {
  std::sort(ways.ways.begin(), ways.ways.end());
  ways.ways.erase(std::unique(ways.ways.begin(), ways.ways.end()), ways.ways.end());
  const auto known = state_numbers_.find(ways);
  if (known != state_numbers_.end()) return known->second;
  const auto number = static_cast<State>(states_.size());
  next_.resize((number + std::size_t{1}) * classes_, kUnknown);
  states_.push_back({ways.may_end, nullptr});
  bytes_ += classes_ * sizeof(State) + ways.ways.size() * sizeof(Way) + 6 * sizeof(Known);
  states_.back().ways = &state_numbers_.emplace(std::move(ways), number).first->first;
  return number;
}

template <class Change>
std::uint32_t Automaton::copy_stack(std::uint32_t stack, Automaton& to,
                                    std::unordered_map<std::uint32_t, std::uint32_t>& copied,
                                    const Change& change) const {
  std::vector<std::uint32_t> down;
  for (; stack != kBottom && !copied.contains(stack); stack = frames_[stack].below)
    down.push_back(stack);
  std::uint32_t top = stack == kBottom ? kBottom : copied.at(stack);
  for (; !down.empty(); down.pop_back()) {
    Frame frame = frames_[down.back()];  // a copy: the list may grow
    frame.below = top;
    change(frame);
    top = to.push(frame);
    copied.emplace(down.back(), top);
  }
  return top;
}

Automaton::State Automaton::within(State state, std::size_t bytes) {
  const auto known = within_.find({state, bytes});
  if (known != within_.end()) return known->second;
  // A round reads a byte at least, unless it is one that counts for nothing.
  const auto shorten = [&](Frame& frame) {
    if (frame.count == kReturns) return;
    const Repeat& repeat = program_->repeats[frame.where];
    const std::uint64_t after = std::uint64_t{frame.count} + bytes;
    if (after < repeat.min)
      frame.count = 0;
    else if (frame.count >= repeat.min && repeat.max != kUnbounded && after < repeat.max)
      frame.count = repeat.min;
  };
  Ways ways;
  std::unordered_map<std::uint32_t, std::uint32_t> copied;
  const std::size_t count = states_[state].ways->ways.size();
  for (std::size_t k = 0; k < count; ++k) {
    Way way = states_[state].ways->ways[k];
    way.stack = copy_stack(way.stack, *this, copied, shorten);
    ways.ways.push_back(way);
  }
  ways.may_end = states_[state].may_end;
  const State found = intern(std::move(ways));
  within_.emplace(std::pair{state, bytes}, found);
  return found;
}

Automaton::State Automaton::move(State state, Automaton& to) const {
  Ways ways;
  std::unordered_map<std::uint32_t, std::uint32_t> copied;
  for (Way way : states_[state].ways->ways) {
    way.stack = copy_stack(way.stack, to, copied, [](Frame&) {});
    ways.ways.push_back(way);
  }
  ways.may_end = states_[state].may_end;
  return to.intern(std::move(ways));
}

}  // namespace episodic::grammar

namespace episodic {

Grammar::Grammar(std::shared_ptr<const grammar::Program> program) : program_(std::move(program)) {}

bool Grammar::matches(std::string_view text) const {
  constexpr std::size_t kKept = std::size_t{16} << 20;
  auto automaton = std::make_unique<grammar::Automaton>(program_);
  auto state = automaton->start();
  for (const char c : text) {
    state = automaton->next(state, static_cast<std::uint8_t>(c));
    if (state == grammar::Automaton::kNone) return false;
    if (automaton->bytes() < kKept) continue;
    auto fresh = std::make_unique<grammar::Automaton>(program_);
    state = automaton->move(state, *fresh);
    automaton = std::move(fresh);
  }
  return automaton->may_end(state);
}

}  // namespace episodic
