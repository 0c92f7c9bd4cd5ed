// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Where a caller takes part in a layer's recall: the ranking of its events, their weights between
/// recall and attention (EpMAN 3.2), and what follows from what attention made of them (Memoria
/// 3.3).

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "episodic/base/inline.hpp"
#include "episodic/recall/index.hpp"

namespace EPISODIC_NAMESPACE {

/// A lane that is about to recall. Valid during the call.
struct RankRequest {
  std::int64_t layer = 0;              ///< of the memory
  std::int64_t group = 0;              ///< of the layer's key/value heads: the lane in it
  std::int64_t n_events = 0;           ///< closed events of the lane: 0 to n_events - 1
  std::span<const EventId> forgotten;  ///< those of them that must not be ranked, ascending
  std::span<const float> query;        ///< as RecalledEvents::query
  std::int64_t count = 0;              ///< how many are asked for
};

/// Ranks a lane's events in place of its index: writes the `count` most relevant ones to `best`,
/// the largest score first and of equal scores the earlier event; fewer where it does not know
/// more. \return false: it has no opinion in this step, and the index ranks. Called from the thread
/// that attends, possibly several times for a lane with a larger `count`; what it throws refuses
/// the step.
using RankHook = std::function<bool(const RankRequest&, std::vector<ScoredEvent>& best)>;

/// What one lane attends to of its events in the open step. Valid during the call.
struct RecalledEvents {
  std::int64_t layer = 0;           ///< of the memory
  std::int64_t group = 0;           ///< of the layer's key/value heads: the lane in it
  std::span<const EventId> events;  ///< in order of time; not empty
  std::span<const float> scores;    ///< of each: query . representative, as recall ranks them
  /// [H / P * d] mean fixed-position query of the lane's heads, from the queries that attention was
  /// given. Those of the host's `Decoder` are the model's own times LayerSpec::scale * sqrt(d): it
  /// is 1 but for models that scale their scores otherwise (Granite, Gemma 27B).
  std::span<const float> query;
  /// Of each, before the call what `reweight` says (1 without it): the factor of its values after
  /// the softmax (KvSegment's value_weight). What is set here counts in this step alone.
  std::span<float> weights;
};

/// Called from the thread that attends. What it throws refuses the step, which can be begun anew:
/// it is then called again.
using RecallHook = std::function<void(const RecalledEvents&)>;

/// What one lane attended to of its events in the open step. Valid during the call.
struct AttendedEvents {
  std::int64_t layer = 0, group = 0;
  std::span<const EventId> events;  ///< in order of time; not empty
  /// Attention that each received: probabilities before value weights, summed over its tokens, the
  /// lane's heads and the step's queries.
  std::span<const double> mass;
};

/// As RecallHook.
using AttentionHook = std::function<void(const AttendedEvents&)>;

}  // namespace EPISODIC_NAMESPACE
