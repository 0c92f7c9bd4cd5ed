// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A look at what a layer recalls, between recall and attention: reweighting (EpMAN 3.2) and
/// whatever follows what is recalled.

#include <cstdint>
#include <functional>
#include <span>

#include "episodic/recall/index.hpp"

namespace episodic {

/// What one layer attends to of its events in the open step. Valid during the call.
struct RecalledEvents {
  std::int64_t layer = 0;           ///< of the memory
  std::span<const EventId> events;  ///< in order of time; not empty
  std::span<const float> scores;    ///< of each: query . representative, as recall ranks them
  std::span<const float> query;     ///< [H * d] mean fixed-position query, heads concatenated
  /// Of each, 1 before the call: the factor of its values after the softmax (KvSegment's
  /// value_weight). What is set here counts in this step alone.
  std::span<float> weights;
};

/// Called from the thread that attends. What it throws refuses the step, which can be begun anew:
/// it is then called again.
using RecallHook = std::function<void(const RecalledEvents&)>;

}  // namespace episodic
