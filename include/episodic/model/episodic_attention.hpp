// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// The two adapters between a decoder and an `EpisodicMemory`: a slot for each layer, and the
/// state that hears of every step. `patch` puts them into a Decoder; a decoder of your own takes
/// them the same way (examples/patch_your_layer.cpp).

#include <memory>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/attention_slot.hpp"

namespace episodic {

/// Attention of one layer through a shared memory (EM 3.1 to 3.4).
class EpisodicAttention final : public AttentionSlot {
 public:
  /// \param layer number of the layer in the memory
  /// \param sink_logits of the layer's heads, as AttendInput::sink_logits; empty: none
  /// \param again the slot is of a later layer of the model, which attends to the keys and values
  ///        of that one (HostMemory::attend_again); its k and v have no heads
  /// \throws ConfigError for a layer that the memory has not, or another number of them
  EpisodicAttention(std::shared_ptr<EpisodicMemory> memory, std::int64_t layer,
                    std::vector<float> sink_logits = {}, bool again = false);

  /// Takes q, k, v and out of any strides (parts of a fused projection) in float32, bfloat16 or
  /// float16, in host memory, and reads and writes them where they lie; computes in float32.
  /// \throws DataError naming the view for another shape, dtype or memory
  void forward(const TensorView& q, const TensorView& k, const TensorView& v,
               const MutableTensorView& out) override;

 private:
  std::shared_ptr<EpisodicMemory> memory_;
  std::int64_t layer_;
  std::vector<float> sink_logits_;
  bool again_;
};

/// The memory as the sequence state of a decoder, with what keeps the layers that it does not
/// serve.
class EpisodicState : public SequenceState {
 public:
  /// \param beside the state of the other layers (sliding ones, convolutions, or those that keep
  ///        their own attention); null if the memory serves all
  explicit EpisodicState(std::shared_ptr<EpisodicMemory> memory,
                         std::shared_ptr<SequenceState> beside = nullptr)
      : memory_(std::move(memory)), beside_(std::move(beside)) {}

  using SequenceState::begin_step;
  /// \throws DataError also where the memory was reset or restored by its own calls, and what is
  /// beside it could not follow
  void begin_step(std::span<const std::int64_t> ids, StepKind kind) override;
  void abandon_step() noexcept override;
  /// Takes float32, bfloat16 and float16 in host memory.
  void end_step(std::span<const std::int64_t> ids, const LogitsView& logits) override;
  bool wants_all_logits() const override { return true; }
  bool takes_surprise() const override { return !beside_ || !beside_->wants_all_logits(); }
  void end_step_by_surprise(std::span<const std::int64_t> ids, const StepSurprise& step) override;
  RecurrentState* recurrent() override { return beside_ ? beside_->recurrent() : nullptr; }
  std::int64_t tokens() const override { return memory_->tokens(); }
  std::int64_t last_position() const override { return memory_->config().n_local - 1; }
  std::span<const float> last_logits() const override { return memory_->last_logits(); }
  std::int64_t chunk() const override { return memory_->config().chunk; }
  void reset() override;
  std::shared_ptr<const SequenceSnapshot> snapshot() const override;
  void restore(const SequenceSnapshot& snapshot) override;

  const std::shared_ptr<EpisodicMemory>& memory() const { return memory_; }
  const std::shared_ptr<SequenceState>& beside() const { return beside_; }

 private:
  void end_memory_step(std::span<const std::int64_t> ids, const LogitsView& logits);

  std::shared_ptr<EpisodicMemory> memory_;
  std::shared_ptr<SequenceState> beside_;
  std::vector<float> widened_;  // logits of a narrower type
};

}  // namespace episodic
