// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Decoders of all families (docs/models.md), attention being a slot in each layer.

#include <cstdint>
#include <exception>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "episodic/model/attention_slot.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/language_model.hpp"
#include "episodic/model/open_model.hpp"

namespace episodic {

/// Which rows of logits a forward call returns.
enum class LogitRows : std::uint8_t { all, last };

/// A decoder with its weights (shared between copies) and one attention slot per layer (its own).
/// Weights stay mapped as they are stored (F32, F16, BF16); activations are float32.
class Decoder final : public LanguageModel {
 public:
  /// Opens a model's files. Fresh slots hold the model's own attention: full causal attention, or a
  /// sliding window where the layer has one.
  ///
  /// \throws FileError, DataError naming the file, tensor or key
  static Decoder load(const std::filesystem::path& path);

  /// The same of a model that is already open.
  static Decoder load(const OpenModel& model);

  /// A second model on the same weights, with fresh slots: for another sequence.
  Decoder share_weights() const;

  /// Adapters to compute beside the weights from the next step on, in place of those that were
  /// there; none: the model as it is. Switching costs nothing and loads nothing. What the sequence
  /// has cached or remembered stays as it was computed. A model begins with the adapters that it
  /// was opened with; share_weights hands them on.
  /// \throws ConfigError for a null adapter, one of another model, or a scale that is not finite
  void use_adapters(std::vector<AppliedLora> adapters);
  const std::vector<AppliedLora>& adapters() const;

  const ModelConfig& config() const override;
  /// The ranks that it is divided among, all of which make its steps together; null: one process.
  /// A step counts on all of them or on none.
  const std::shared_ptr<Group>& group() const;
  std::int64_t chunk() const override;
  std::int64_t tokens() const override;
  using LanguageModel::step;
  void step(std::span<const std::int64_t> ids, StepKind kind) override;
  std::span<const float> logits() override;
  void explain_not_finite() const override;

  /// One step: n >= 1 tokens.
  /// \return logits float32 [n, vocab] or [1, vocab], packed in host memory; valid until the next
  ///         step of this sequence, or of the batch that it is in
  /// \throws DataError for ids out of the vocabulary, and for numbers that the attention or the
  ///         state refuses (NaN); FileError instead where a weight is NaN or infinite, naming it.
  ///         The state is unchanged by a call that throws
  LogitsView forward(std::span<const std::int64_t> ids, LogitRows rows = LogitRows::all,
                     StepKind kind = StepKind::decode);

  /// The same step where logits of no row but the last are asked for: the head is computed a piece
  /// of the vocabulary at a time and never lies there as a whole.
  /// \param following [n - 1], written: surprise in nats of ids[1] and on, the same to the bit
  /// \return logits [1, vocab] that follow the last token, as `forward`
  LogitsView forward_surprise(std::span<const std::int64_t> ids, std::span<float> following,
                              StepKind kind = StepKind::decode);

  /// A sequence's part of a step.
  struct SequenceStep {
    Decoder* sequence = nullptr;
    std::span<const std::int64_t> ids;
    StepKind kind = StepKind::decode;
  };
  /// One step of several sequences that share their weights (share_weights): the weights are read
  /// once for the rows of all, which is most of a decoded token's time. Attention, memories and
  /// adapters are each sequence's own, and so is whatever comes of the step (`logits`). Lengths,
  /// kinds and states may differ. Each sequence gets the bits that its step alone would give.
  /// \return of each what kept it from its step: ids out of the vocabulary, a length beyond its
  ///         chunk, NaN, files that fail. Null: it has made its step. What one fails by leaves the
  ///         others' steps as they would be without it
  /// \throws DataError for a sequence that is named twice or has other weights: none has then made
  ///         the step
  static std::vector<std::exception_ptr> try_step_batch(std::span<const SequenceStep> batch);
  /// The same for who wants all of them or none: throws the first error, once all others have made
  /// their steps. An Error's message ends in "(sequence I of the batch)".
  static void step_batch(std::span<const SequenceStep> batch);

  /// The slot of a layer, and the state that is told of every step. Both are replaced by patching.
  /// A layer without attention has no slot: null.
  std::shared_ptr<AttentionSlot>& attention(std::int64_t layer);
  std::shared_ptr<SequenceState>& state();
  const std::shared_ptr<SequenceState>& state() const;

  /// What a slot of the layer gives each head's softmax beside the keys
  /// (AttendInput::sink_logits), for a slot of your own; empty: nothing.
  const std::vector<float>& sink_logits(std::int64_t layer) const;

  /// Back to the empty sequence.
  void reset() { state()->reset(); }

  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;
  ~Decoder() override;

 private:
  Decoder();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Puts the model's own attention into every slot: full causal attention with a growing cache, or
/// exact sliding-window attention with a bounded one.
void use_full_attention(Decoder& model);

}  // namespace episodic
