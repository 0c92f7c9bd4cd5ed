// SPDX-License-Identifier: Apache-2.0
#pragma once
// How often engrams fired together.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Room for so many more, by doubling.
template <class T>
void make_room(std::vector<T>& list, std::size_t more) {
  const std::size_t most = list.size() + more;
  if (most > list.capacity()) list.reserve(std::max(most, 2 * list.capacity()));
}

/// Count_ij of one engram, itself included, by the other's number: in one piece, for an engram
/// that is recalled again and again has counts with nearly all that came.
struct EngramCounts {
  static constexpr std::size_t kBlock = 64;
  struct Count {
    std::int64_t other = 0, n = 0;
  };
  std::vector<Count> all;             // sorted
  std::vector<std::int64_t> largest;  // of each kBlock of them: none has a larger n
  std::size_t dead = 0;               // of engrams that are gone; their n is 0

  static bool before(const Count& c, std::int64_t id) { return c.other < id; }
  /// Of the first count at or behind `from` with an engram of that number or a later one. It is
  /// often the next one: those that fire together came together.
  std::size_t place_of(std::int64_t other, std::size_t from = 0) const {
    if (from < all.size() && all[from].other >= other) return from;
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(from);
    return static_cast<std::size_t>(std::lower_bound(begin, all.end(), other, before) -
                                    all.begin());
  }
  bool is(std::size_t place, std::int64_t other) const {
    return place < all.size() && all[place].other == other;
  }
  /// A count of zero says what none would: those of a step that is given up may stay.
  std::int64_t of(std::int64_t other) const {
    const std::size_t place = place_of(other);
    return is(place, other) ? all[place].n : 0;
  }
  /// The engram of largest n among those that `takes`; ties: the older; -1 if there is none.
  template <class Takes>
  std::int64_t strongest(const Takes& takes) const {
    std::int64_t found = -1, most = 0;
    for (std::size_t block = 0; block < largest.size(); ++block) {
      if (largest[block] <= most) continue;
      const std::size_t end = std::min(all.size(), (block + 1) * kBlock);
      for (std::size_t i = block * kBlock; i < end; ++i)
        if (all[i].n > most && takes(all[i].other)) {
          found = all[i].other;
          most = all[i].n;
        }
    }
    return found;
  }
  /// Zeros for those that it has no counts of yet. \param others sorted, no two alike
  void make_room(const std::vector<std::int64_t>& others) {
    std::size_t missing = 0, place = 0, first = all.size();
    for (const std::int64_t other : others) {
      place = place_of(other, place);
      if (is(place, other))
        ++place;
      else if (missing++ == 0)
        first = place;
    }
    if (missing == 0) return;
    std::size_t from = all.size(), to = from + missing;
    detail::make_room(largest, (to + kBlock - 1) / kBlock - largest.size());
    detail::make_room(all, missing);
    all.resize(to);
    // From the end on, so that nothing is overwritten before it has moved.
    for (auto other = others.rbegin(); from < to; ++other) {
      while (from > 0 && all[from - 1].other > *other) all[--to] = all[--from];
      if (from > 0 && all[from - 1].other == *other) continue;
      all[--to] = {*other, 0};
    }
    find_largest(first);
  }
  /// One more for each. \param others sorted, all of them with counts
  void raise(const std::vector<std::int64_t>& others) noexcept {
    std::size_t place = 0;
    for (const std::int64_t other : others) {
      place = place_of(other, place);
      std::int64_t& most = largest[place / kBlock];
      most = std::max(most, ++all[place++].n);
    }
  }
  /// Of an engram that is gone. Takes out such counts once they are the half.
  void drop(std::int64_t other) noexcept {
    const std::size_t place = place_of(other);
    if (!is(place, other) || all[place].n == 0) return;
    all[place].n = 0;
    if (++dead * 2 <= all.size()) return;
    all.erase(std::remove_if(all.begin(), all.end(), [](const Count& c) { return c.n == 0; }),
              all.end());
    dead = 0;
    find_largest(0);
  }
  /// Anew, from the block of count `first` on.
  void find_largest(std::size_t first) {
    largest.resize((all.size() + kBlock - 1) / kBlock);
    std::fill(
        largest.begin() + static_cast<std::ptrdiff_t>(std::min(first / kBlock, largest.size())),
        largest.end(), 0);
    for (std::size_t i = first / kBlock * kBlock; i < all.size(); ++i)
      largest[i / kBlock] = std::max(largest[i / kBlock], all[i].n);
  }
};

}  // namespace EPISODIC_NAMESPACE::detail
