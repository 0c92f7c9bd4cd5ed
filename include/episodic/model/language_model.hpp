// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `LanguageModel`: what a session feeds, wherever it computes. Torch-free.

#include <cstdint>
#include <span>
#include <vector>

#include "episodic/model/hf_config.hpp"
#include "episodic/timeline/step_kind.hpp"

namespace episodic {

/// A decoder with the state of one sequence.
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual const ModelConfig& config() const = 0;

  /// Largest step worth feeding at once.
  virtual std::int64_t chunk() const = 0;

  /// Tokens of the sequence so far; -1 if the model does not count them.
  virtual std::int64_t tokens() const { return -1; }

  /// One step of n >= 1 tokens. A device may still be at work when this returns.
  /// \param kind of a step of one token; longer ones are read text
  /// \throws DataError for ids out of the vocabulary; the state is unchanged by a call that throws
  virtual void step(std::span<const std::int64_t> ids, StepKind kind) = 0;
  void step(std::span<const std::int64_t> ids) { step(ids, StepKind::decode); }

  /// For when its numbers went wrong: looks for the reason in the model, a pass over all its
  /// weights if need be. \throws FileError naming a tensor that holds NaN or infinity; returns if
  /// nothing is found
  virtual void explain_not_finite() const {}

  /// Logits [vocab] that follow the last token of the sequence, in host memory; waits for them.
  /// Valid until the next step. \throws DataError before the first step
  virtual std::span<const float> logits() = 0;

  /// Whether it remembers which tokens it was fed; if not, who feeds it does.
  virtual bool keeps_ids() const { return false; }
  /// Ids of the sequence's tokens from its first one on, negative where unknown: what a repetition
  /// penalty covers. Only of a model that keeps them.
  virtual std::vector<std::int64_t> known_ids() { return {}; }

 protected:
  LanguageModel() = default;
  LanguageModel(LanguageModel&&) = default;
  LanguageModel& operator=(LanguageModel&&) = default;
};

}  // namespace episodic
