// SPDX-License-Identifier: Apache-2.0
#pragma once
// A model's own attention: full causal attention with a growing cache, or exact sliding-window
// attention with a bounded one, by what each layer's specification says. And what its layers
// without attention carry.

#include <memory>
#include <vector>

#include "base/aligned_buffer.hpp"
#include "episodic/attention/attend.hpp"
#include "episodic/attention/rotary.hpp"
#include "episodic/memory/kept_memory.hpp"
#include "episodic/model/attention_slot.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/recurrent_state.hpp"

namespace episodic {

/// State of one sequence over some layers of a model. Every layer's keys are kept as its queries
/// meet them: rotated by their position.
class CausalState final : public SequenceState, public BesideMemory {
 public:
  explicit CausalState(const ModelConfig& config);

  using SequenceState::begin_step;
  void begin_step(std::span<const std::int64_t> ids, StepKind kind) override;
  /// Only here do the tokens of the step count, so a step that throws leaves no trace.
  void end_step(std::span<const std::int64_t> ids, const LogitsView& logits) override;
  bool wants_all_logits() const override { return false; }
  RecurrentState* recurrent() override { return recurrent_.empty() ? nullptr : &recurrent_; }
  std::int64_t tokens() const override { return tokens_; }
  std::int64_t chunk() const override;
  void reset() override;
  /// Copies the caches.
  std::shared_ptr<const SequenceSnapshot> snapshot() const override;
  void restore(const SequenceSnapshot& snapshot) override;
  /// Of each cache in use, what the next query may still see; then the recurrent state, of models
  /// that have one.
  void save(ByteWriter& to) const override;
  void load(ByteReader& from) override;

  void attend_layer(std::int64_t layer, const TensorView& q, const TensorView& k,
                    const TensorView& v, const MutableTensorView& out,
                    const float* maybe_sink_logits = nullptr);

 private:
  /// One of the model's ropes, at the length that the step reaches.
  struct Rotation {
    Rope rope;
    RotaryTable table;
    RotaryAngles angles;  // of the step's positions
    int version = 0;      // counts the tables
  };

  /// Keys and values of tokens `first` and on, of one layer: [G, capacity, d] each.
  struct Cache {
    AlignedBuffer keys, values;
    AlignedBuffer unrotated;  // keys, only where the rotary table depends on the length
    std::int64_t first = 0, capacity = 0;
    int version = 0;  // of the table that turned the keys

    bool used() const { return capacity > 0; }
    Cache copy() const;
    /// The arrays that it has.
    std::vector<AlignedBuffer*> arrays();
  };

  struct Snapshot;
  static std::vector<Cache> copies_of(const std::vector<Cache>& caches);

  const LayerSpec& spec(std::int64_t layer) const;
  Rotation& rotation(std::int64_t layer);
  /// First token that a query of this step may still see.
  std::int64_t first_seen(std::int64_t layer) const;
  template <class View>
  void check(const char* name, const View& x, std::int64_t heads, std::int64_t dim) const;
  void reserve(std::int64_t layer);
  /// A cache for `need` tokens of a layer, without their rows.
  Cache room_for(std::int64_t layer, std::int64_t need, std::int64_t before);
  void append(std::int64_t layer, const float* k, const float* v);

  const ModelConfig config_;
  std::vector<Rotation> rotations_;  // of config_.ropes, and one that does not turn
  std::vector<Cache> caches_;        // of each layer, empty until it is used
  RecurrentState recurrent_;         // of layers without attention
  AlignedBuffer rotated_;            // [longest step so far * H * d], reused by all layers
  AttendWorkspace workspace_;
  std::int64_t tokens_ = 0;
  std::int64_t step_ = 0;  // tokens between begin_step and end_step
};

/// The slot of one layer on a shared state. \param sink_logits of the layer's heads; empty: none
std::shared_ptr<AttentionSlot> causal_slot(std::shared_ptr<CausalState> state, std::int64_t layer,
                                           std::vector<float> sink_logits = {});

}  // namespace episodic
