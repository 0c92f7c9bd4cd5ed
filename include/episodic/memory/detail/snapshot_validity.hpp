// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which snapshots a memory can still go back to.

#include <cstdint>
#include <vector>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE::detail {

/// Which snapshots still tell of this sequence: those of states that no restore went back behind.
class SnapshotValidity {
 public:
  std::int64_t generation() const { return generation_; }

  /// \throws ConfigError for a snapshot from before the last `reset`, or of tokens that were given
  /// up since it was taken: others may have come in their place
  void check(std::int64_t generation, std::int64_t tokens) const {
    if (generation < first_) throw ConfigError("restore: the memory was reset since this snapshot");
    for (const Rewind& rewind : rewinds_)
      if (rewind.generation > generation && rewind.tokens < tokens)
        throw ConfigError(concat("restore: the memory has meanwhile gone back to token ",
                                 rewind.tokens, ", before this snapshot of ", tokens,
                                 " tokens; take snapshots of what came since"));
  }

  /// Makes room for one `went_back`.
  void reserve() { rewinds_.reserve(rewinds_.size() + 1); }

  /// The sequence was cut to its first `tokens`. \pre reserve()
  void went_back(std::int64_t tokens) noexcept {
    while (!rewinds_.empty() && rewinds_.back().tokens >= tokens) rewinds_.pop_back();
    rewinds_.push_back({++generation_, tokens});
  }

  /// The sequence begins anew.
  void reset() noexcept {
    first_ = ++generation_;
    rewinds_.clear();
  }

 private:
  struct Rewind {
    std::int64_t generation = 0;  ///< that began with it
    std::int64_t tokens = 0;      ///< that were kept
  };
  std::int64_t generation_ = 0, first_ = 0;
  std::vector<Rewind> rewinds_;  ///< by tokens: one that kept as few or fewer makes others idle
};

}  // namespace EPISODIC_NAMESPACE::detail
