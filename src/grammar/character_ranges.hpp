// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Sets of code points, and the bytes that write them.

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <utility>
#include <vector>

namespace episodic::grammar {

/// A set of Unicode's scalar values: surrogates are in none.
class CharacterRanges {
 public:
  using Range = std::pair<std::uint32_t, std::uint32_t>;  ///< both ends are in it

  CharacterRanges() = default;
  CharacterRanges(std::initializer_list<Range> ranges);
  explicit CharacterRanges(std::vector<Range> ranges);
  static CharacterRanges all();

  /// \param first <= last <= 0x10ffff
  void add(std::uint32_t first, std::uint32_t last);
  void add(const CharacterRanges& other);
  CharacterRanges complement() const;
  CharacterRanges intersection(const CharacterRanges& other) const;
  bool contains(std::uint32_t code_point) const;
  bool empty() const { return ranges_.empty(); }
  /// Ascending, with something between each two.
  const std::vector<Range>& ranges() const { return ranges_; }
  friend bool operator<(const CharacterRanges& a, const CharacterRanges& b) {
    return a.ranges_ < b.ranges_;
  }

 private:
  void normalize();
  std::vector<Range> ranges_;
};

/// A deterministic automaton over the UTF-8 bytes of one character of a set.
struct CharacterBytes {
  static constexpr std::uint32_t kDone = 0xffffffff;  ///< the character is complete
  struct Edge {
    std::uint8_t first, last;
    std::uint32_t target;
  };
  /// From each state, 0 first: ascending and apart.
  std::vector<std::vector<Edge>> states;

  explicit CharacterBytes(const CharacterRanges& set);
  /// The edge for a byte; null: the byte is none of the set's here.
  const Edge* edge(std::uint32_t state, std::uint8_t byte) const;
};

}  // namespace episodic::grammar
