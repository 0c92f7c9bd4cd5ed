// SPDX-License-Identifier: Apache-2.0
#include "character_ranges.hpp"

#include <algorithm>
#include <map>
#include <utility>

namespace episodic::grammar {
namespace {

constexpr std::uint32_t kLast = 0x10ffff;
constexpr CharacterRanges::Range kSurrogates{0xd800, 0xdfff};

using Ranges = std::vector<CharacterRanges::Range>;

/// What of the ranges lies in [first, last], counted from `first`.
Ranges part_of(const Ranges& ranges, std::uint32_t first, std::uint32_t last) {
  Ranges out;
  for (const auto& [a, b] : ranges)
    if (a <= last && b >= first)
      out.emplace_back(std::max(a, first) - first, std::min(b, last) - first);
  return out;
}

/// Makes the states behind a lead byte: those with the same numbers to come are one state.
class Maker {
 public:
  explicit Maker(std::vector<std::vector<CharacterBytes::Edge>>& states) : states_(states) {}

  /// \param left continuation bytes to come, which write the numbers `ranges`
  std::uint32_t state(int left, const Ranges& ranges) {
    if (left == 0) return CharacterBytes::kDone;
    const auto [known, made] = made_.try_emplace({left, ranges}, states_.size());
    if (!made) return known->second;
    const std::uint32_t at = known->second;
    states_.emplace_back();
    edges(at, 0x80, 64, left - 1, ranges);
    return at;
  }

  /// Adds edges for `count` bytes from `first_byte`, each followed by `left` more.
  void edges(std::uint32_t at, unsigned first_byte, std::uint32_t count, int left,
             const Ranges& ranges) {
    const std::uint32_t span = std::uint32_t{1} << 6 * left;
    for (std::uint32_t b = 0; b < count; ++b) {
      const Ranges inner = part_of(ranges, b * span, b * span + span - 1);
      if (inner.empty()) continue;
      const std::uint32_t target = state(left, inner);
      const auto byte = static_cast<std::uint8_t>(first_byte + b);
      auto& to = states_[at];
      if (!to.empty() && to.back().target == target && to.back().last + 1 == byte)
        to.back().last = byte;
      else
        to.push_back({byte, byte, target});
    }
  }

 private:
  std::vector<std::vector<CharacterBytes::Edge>>& states_;
  std::map<std::pair<int, Ranges>, std::uint32_t> made_;
};

}  // namespace

CharacterRanges::CharacterRanges(std::initializer_list<Range> ranges) : ranges_(ranges) {
  normalize();
}

CharacterRanges::CharacterRanges(std::vector<Range> ranges) : ranges_(std::move(ranges)) {
  normalize();
}

CharacterRanges CharacterRanges::all() { return CharacterRanges{{0, kLast}}; }

void CharacterRanges::add(std::uint32_t first, std::uint32_t last) {
  ranges_.emplace_back(first, last);
  normalize();
}

void CharacterRanges::add(const CharacterRanges& other) {
  ranges_.insert(ranges_.end(), other.ranges_.begin(), other.ranges_.end());
  normalize();
}

void CharacterRanges::normalize() {
  Ranges parts;
  for (const auto& [first, last] : ranges_) {  // without surrogates, which UTF-8 cannot write
    if (first < kSurrogates.first) parts.emplace_back(first, std::min(last, kSurrogates.first - 1));
    if (last > kSurrogates.second)
      parts.emplace_back(std::max(first, kSurrogates.second + 1), last);
  }
  std::sort(parts.begin(), parts.end());
  ranges_.clear();
  for (const auto& [first, last] : parts)
    if (!ranges_.empty() && first <= ranges_.back().second + 1)
      ranges_.back().second = std::max(ranges_.back().second, last);
    else
      ranges_.emplace_back(first, last);
}

CharacterRanges CharacterRanges::complement() const {
  CharacterRanges out;
  std::uint32_t next = 0;
  for (const auto& [first, last] : ranges_) {
    if (first > next) out.ranges_.emplace_back(next, first - 1);
    next = last + 1;
  }
  if (next <= kLast) out.ranges_.emplace_back(next, kLast);
  out.normalize();
  return out;
}

CharacterRanges CharacterRanges::intersection(const CharacterRanges& other) const {
  CharacterRanges both = complement();
  both.add(other.complement());
  return both.complement();
}

bool CharacterRanges::contains(std::uint32_t code_point) const {
  return std::any_of(ranges_.begin(), ranges_.end(), [&](const Range& range) {
    return range.first <= code_point && code_point <= range.second;
  });
}

CharacterBytes::CharacterBytes(const CharacterRanges& set) : states(1) {
  Maker maker(states);
  const Ranges& ranges = set.ranges();
  // lead bytes, how many they are, what they stand for, and continuation bytes behind
  struct Length {
    unsigned lead;
    std::uint32_t leads, first, last;
    int left;
  };
  constexpr Length kLengths[] = {{0x00, 0x80, 0, 0x7f, 0},
                                 {0xc0, 0x20, 0x80, 0x7ff, 1},
                                 {0xe0, 0x10, 0x800, 0xffff, 2},
                                 {0xf0, 0x08, 0x10000, kLast, 3}};
  for (const Length& length : kLengths) {
    Ranges own = part_of(ranges, length.first, length.last);
    for (auto& [first, last] : own) {
      first += length.first;
      last += length.first;
    }
    maker.edges(0, length.lead, length.leads, length.left, own);
  }
}

const CharacterBytes::Edge* CharacterBytes::edge(std::uint32_t state, std::uint8_t byte) const {
  const auto& edges = states[state];
  const auto at = std::partition_point(edges.begin(), edges.end(),
                                       [&](const Edge& e) { return e.last < byte; });
  return at != edges.end() && at->first <= byte ? &*at : nullptr;
}

}  // namespace episodic::grammar
