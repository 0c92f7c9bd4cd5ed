// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// LLaMA-shaped decoders from a Hugging Face directory, attention being a slot in each layer.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "episodic/model/attention_slot.hpp"
#include "episodic/model/hf_config.hpp"
#include "episodic/model/language_model.hpp"

namespace episodic {

/// Which rows of logits a forward call returns.
enum class LogitRows : std::uint8_t { all, last };

/// A decoder with its weights (shared between copies) and one attention slot per layer (its own).
/// Computes in float32; weights stored in F16 or BF16 are widened at load.
class LlamaModel final : public LanguageModel {
 public:
  /// Reads config.json and model.safetensors (or its shards). Fresh slots hold full causal
  /// attention.
  ///
  /// \throws FileError, DataError naming the file, tensor or key
  static LlamaModel load(const std::filesystem::path& model_dir);

  /// A second model on the same weights, with fresh slots: for another sequence.
  LlamaModel share_weights() const;

  const ModelConfig& config() const override;
  std::int64_t chunk() const override;
  std::int64_t tokens() const override;
  void step(std::span<const std::int64_t> ids) override;
  std::span<const float> logits() override;

  /// One step: n >= 1 tokens. \return logits float32 [n, vocab] or [1, vocab]
  /// \throws DataError for ids out of the vocabulary; the state is unchanged by a call that throws
  at::Tensor forward(std::span<const std::int64_t> ids, LogitRows rows = LogitRows::all);

  /// The slot of a layer, and the state that is told of every step. Both are replaced by patching.
  std::shared_ptr<AttentionSlot>& attention(std::int64_t layer);
  std::shared_ptr<SequenceState>& state();
  const std::shared_ptr<SequenceState>& state() const;

  /// Back to the empty sequence.
  void reset() { state()->reset(); }

  LlamaModel(LlamaModel&&) noexcept;
  LlamaModel& operator=(LlamaModel&&) noexcept;
  ~LlamaModel() override;

 private:
  LlamaModel();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// Puts full causal attention with a growing cache into every slot.
void use_full_attention(LlamaModel& model);

}  // namespace episodic
