// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A grammar as a program for an automaton that reads bytes and has a stack.

#include <array>
#include <cstdint>
#include <vector>

#include "character_ranges.hpp"

namespace episodic::grammar {

enum class Op : std::uint8_t {
  byte,       ///< reads the byte `a`
  character,  ///< reads a character of set `a`
  split,      ///< goes to each of the `b` targets from number `a` on
  jump,       ///< goes to `a`
  call,       ///< goes to `a`, from where `ret` comes back to the next instruction
  ret,
  enter,  ///< begins to count: repeat `a`, whose `loop` is next
  loop,   ///< once more by the next instruction, or leaves to `Repeat::exit`
  again   ///< one more of repeat `a` is complete: goes to its loop
};

struct Instruction {
  Op op;
  std::uint32_t a = 0, b = 0;
};

/// A part that comes `min` to `max` times.
struct Repeat {
  std::uint32_t min, max;    ///< kUnbounded: without an end
  std::uint32_t loop, exit;  ///< instructions
  bool nullable;             ///< the part may be empty; `min` is 0 then
};

inline constexpr std::uint32_t kUnbounded = 0xffffffff;

/// Each instruction is on a way to the end of a text, and none comes back to itself without
/// reading, but through empty rounds of a loop. Immutable.
class Program {
 public:
  std::vector<Instruction> code;  ///< from 0 on
  std::vector<std::uint32_t> targets;
  std::vector<CharacterBytes> characters;
  std::vector<Repeat> repeats;
  /// Bytes of one class are read alike everywhere; the classes, and one byte of each.
  std::array<std::uint8_t, 256> class_of{};
  std::vector<std::uint8_t> byte_of_class;
};

}  // namespace episodic::grammar
