// SPDX-License-Identifier: Apache-2.0
#pragma once
// A range of bytes in pieces of one size, and which of them have memory.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace episodic::device {

class Pieces {
 public:
  /// Bytes [begin, end) of the range.
  struct Part {
    std::int64_t begin, end;
  };

  Pieces() = default;
  /// None has memory. \param bytes whole pieces
  Pieces(std::int64_t bytes, std::int64_t piece)
      : piece_(piece), there_(static_cast<std::size_t>(bytes / piece), false) {}

  std::int64_t piece() const { return piece_; }
  /// Bytes of those that have memory.
  std::int64_t held() const { return held_; }

  /// Of what these parts lie in the pieces without memory: runs in order, none of which touches
  /// another.
  std::vector<Part> missing(std::span<const Part> parts) const {
    std::vector<std::int64_t> pieces;  // two parts may end and begin in one
    for (const Part& part : parts) {
      if (part.begin >= part.end) continue;
      for (std::int64_t p = part.begin / piece_; p * piece_ < part.end; ++p)
        if (!there_[static_cast<std::size_t>(p)]) pieces.push_back(p);
    }
    std::sort(pieces.begin(), pieces.end());
    std::vector<Part> runs;
    for (const std::int64_t p : pieces) {
      if (runs.empty() || runs.back().end < p * piece_)
        runs.push_back({p * piece_, (p + 1) * piece_});
      else
        runs.back().end = (p + 1) * piece_;
    }
    return runs;
  }

  /// A run of those that have memory has none from here on.
  void remove(const Part& run) {
    for (std::int64_t p = run.begin / piece_; p * piece_ < run.end; ++p)
      there_[static_cast<std::size_t>(p)] = false;
    held_ -= run.end - run.begin;
  }

  /// A run of those.
  void add(const Part& run) {
    for (std::int64_t p = run.begin / piece_; p * piece_ < run.end; ++p)
      there_[static_cast<std::size_t>(p)] = true;
    held_ += run.end - run.begin;
  }

 private:
  std::int64_t piece_ = 0, held_ = 0;
  std::vector<bool> there_;
};

}  // namespace episodic::device
