// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The automaton of a program. It finds its states as texts reach them, and keeps them.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <utility>
#include <vector>

#include "program.hpp"

namespace episodic::grammar {

/// States are sets of ways to read the text so far. A way is an instruction that reads, how much of
/// its character was read, and a stack: where rules return to, and how often loops went round.
/// Stacks share their lower ends. Not for several threads at once.
class Automaton {
 public:
  using State = std::uint32_t;
  static constexpr State kNone = 0xffffffff;  ///< no text goes on so

  explicit Automaton(std::shared_ptr<const Program> program);

  State start();
  /// \throws DataError for too many ways; states are then as they were
  State next(State state, std::uint8_t byte) {
    const State known = next_[state * classes_ + program_->class_of[byte]];
    return known != kUnknown ? known : find_next(state, byte);
  }
  bool may_end(State state) const { return states_[state].may_end; }

  /// The state that for the next `bytes` bytes reads just what this one does, with smaller counts:
  /// in the middle of a long loop all rounds are alike.
  State within(State state, std::size_t bytes);

  /// The same state in another automaton of the program.
  State move(State state, Automaton& to) const;

  /// About what the states take.
  std::size_t bytes() const { return bytes_; }
  /// Ways looked at so far.
  std::uint64_t work() const { return work_; }

 private:
  static constexpr State kUnknown = 0xfffffffe;
  static constexpr std::uint32_t kReturns = 0xffffffff;  // in place of a count
  static constexpr std::uint32_t kBottom = 0;

  /// `where` is the instruction to return to, or the number of a repeat.
  struct Frame {
    std::uint32_t where, count, below;
    friend bool operator==(const Frame&, const Frame&) = default;
  };
  struct Way {
    std::uint32_t instruction, inside, stack;
    friend auto operator<=>(const Way&, const Way&) = default;
  };
  struct Ways {
    std::vector<Way> ways;  // ascending
    bool may_end = false;
    friend bool operator==(const Ways&, const Ways&) = default;
  };
  struct Known {
    bool may_end;
    const Ways* ways;
  };
  struct Hash {
    std::size_t operator()(const Frame& frame) const;
    std::size_t operator()(const Ways& ways) const;
    std::size_t operator()(const std::pair<std::uint32_t, std::uint32_t>& pair) const;
  };

  State find_next(State state, std::uint8_t byte);
  State intern(Ways ways);
  std::uint32_t push(const Frame& frame);
  /// Adds where reading goes on from an instruction.
  void close(std::uint32_t instruction, std::uint32_t stack, Ways& ways);
  /// \param change makes a frame of one, whose `below` is already that of the copy
  template <class Change>
  std::uint32_t copy_stack(std::uint32_t stack, Automaton& to,
                           std::unordered_map<std::uint32_t, std::uint32_t>& copied,
                           const Change& change) const;

  std::shared_ptr<const Program> program_;
  std::vector<Frame> frames_{Frame{0, 0, 0}};
  std::unordered_map<Frame, std::uint32_t, Hash> frame_numbers_;
  std::vector<Known> states_;
  std::size_t classes_;
  std::vector<State> next_;  // by state and class of byte
  std::unordered_map<Ways, State, Hash> state_numbers_;
  std::unordered_map<std::pair<State, std::size_t>, State, Hash> within_;
  std::size_t bytes_ = 0;
  std::uint64_t work_ = 0;

  // of `close`
  std::vector<std::pair<std::uint32_t, std::uint32_t>> open_;
  std::unordered_map<std::pair<std::uint32_t, std::uint32_t>, bool, Hash> seen_;
  std::unordered_map<std::pair<std::uint32_t, std::uint32_t>, std::uint32_t, Hash> rounds_;
};

}  // namespace episodic::grammar
