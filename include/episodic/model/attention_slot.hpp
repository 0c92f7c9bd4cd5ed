// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The seam that patching uses: each layer of a decoder holds a shared `AttentionSlot`, and a
/// sequence's state hears of every step. A third-party decoder calls the same two interfaces;
/// torch tensors reach them by torch_slots/torch_slots.hpp.

#include <cstdint>
#include <limits>
#include <memory>
#include <span>

#include "episodic/base/tensor_view.hpp"
#include "episodic/model/logits_view.hpp"
#include "episodic/timeline/step_kind.hpp"
#include "episodic/timeline/surprise.hpp"

namespace episodic {

/// What sits where a layer's attention was: everything between the q, k, v projections and the
/// output projection, rotary embedding included.
class AttentionSlot {
 public:
  virtual ~AttentionSlot() = default;

  /// Attends with the n queries of this step and appends their keys and values.
  /// \param q [n, H, d], k, v [n, G, d]: before rotary embedding; valid during the call only;
  /// packed
  ///        float32 in host memory, unless the slot takes others (EpisodicAttention,
  ///        DeviceAttention)
  ///        From a Decoder q is the model's own times LayerSpec::scale * sqrt(d), which leaves
  ///        1 / sqrt(d) to the slot, whatever the model scales its scores by. Of a layer that
  ///        attends to an earlier layer's keys (LayerSpec::keys_of) k and v are [n, 0, d]
  /// \param out [n, H, d], written; of q's dtype and memory
  /// \throws DataError naming what it does not take
  virtual void forward(const TensorView& q, const TensorView& k, const TensorView& v,
                       const MutableTensorView& out) = 0;
};

class RecurrentState;  // recurrent_state.hpp

/// What a sequence's state gives to come back to.
class SequenceSnapshot {
 public:
  virtual ~SequenceSnapshot() = default;
};

/// State of one sequence over all layers. The decoder calls begin_step before the first layer and
/// end_step after the last; a step that throws in between leaves the state as it was before it.
class SequenceState {
 public:
  virtual ~SequenceState() = default;

  /// \param ids the n >= 1 tokens of the step
  /// \param kind of a step of one token; longer ones are read text
  virtual void begin_step(std::span<const std::int64_t> ids, StepKind kind) = 0;
  void begin_step(std::span<const std::int64_t> ids) { begin_step(ids, StepKind::decode); }

  /// Nothing of the step that was begun counts: it failed before its end, or its end did.
  virtual void abandon_step() noexcept {}

  /// \param logits [n, vocab], or the last row alone if it does not want all: row i follows token
  /// i;
  ///        valid during the call only; float32 in host memory, unless it takes others
  virtual void end_step(std::span<const std::int64_t> ids, const LogitsView& logits) = 0;

  /// True if end_step wants logits of every row; false if none are needed.
  virtual bool wants_all_logits() const = 0;

  /// True if a step of several tokens may end by end_step_by_surprise where nobody else asked for
  /// all its logits: they are then never there as a whole.
  virtual bool takes_surprise() const { return false; }
  virtual void end_step_by_surprise(std::span<const std::int64_t> ids, const StepSurprise& step);

  /// What layers without attention carry of this sequence, for the decoder to read and write within
  /// a step; null if this state keeps nothing of the kind. It counts with the step.
  virtual RecurrentState* recurrent() { return nullptr; }

  /// Tokens seen so far.
  virtual std::int64_t tokens() const = 0;

  /// The largest position that a query is given: in a memory the one that all queries have for far
  /// keys, n_local - 1.
  virtual std::int64_t last_position() const { return std::numeric_limits<std::int64_t>::max(); }

  /// Logits [vocab] that follow the last token, if the state keeps them; empty otherwise.
  virtual std::span<const float> last_logits() const { return {}; }

  /// Largest step worth feeding at once.
  virtual std::int64_t chunk() const = 0;

  /// Back to the empty sequence.
  virtual void reset() = 0;

  /// A copy of the state, which later steps leave alone; null if this state cannot go back.
  virtual std::shared_ptr<const SequenceSnapshot> snapshot() const { return nullptr; }

  /// Back to a snapshot that this state gave. \throws ConfigError if it gave none such
  virtual void restore(const SequenceSnapshot& snapshot);
};

}  // namespace episodic
