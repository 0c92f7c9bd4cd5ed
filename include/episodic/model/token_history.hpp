// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `TokenHistory`: which tokens a sequence was fed, as far as that is known. Torch-free.

#include <cstdint>
#include <span>
#include <vector>

namespace episodic {

/// Ids of a sequence's tokens from some token on. What reads it first calls `follow`, so that a
/// sequence that went back, or was fed by somebody else, is noticed.
class TokenHistory {
 public:
  /// The sequence has `tokens` tokens now: what lies behind them is forgotten, and those that
  /// nobody added are unknown. The first call says where the history starts.
  void follow(std::int64_t tokens) {
    if (!follows_ || tokens < start_) {
      start_ = tokens;
      ids_.clear();
    }
    follows_ = true;
    ids_.resize(static_cast<std::size_t>(tokens - start_), kUnknown);
  }
  /// Tokens behind those of the last `follow`.
  void add(std::span<const std::int64_t> ids) {
    for (const std::int64_t id : ids) ids_.push_back(static_cast<std::int32_t>(id));
  }

  /// Number of the first token in it: nothing is known of those before.
  std::int64_t start() const { return start_; }
  /// Ids of tokens [start, ...); negative: unknown.
  std::span<const std::int32_t> ids() const { return ids_; }

 private:
  static constexpr std::int32_t kUnknown = -1;
  std::vector<std::int32_t> ids_;
  std::int64_t start_ = 0;
  bool follows_ = false;
};

}  // namespace episodic
