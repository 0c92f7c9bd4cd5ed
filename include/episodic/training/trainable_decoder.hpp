// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// A decoder under its memory in operations that autograd can differentiate, with a LoRA adapter as
/// its only parameters.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/frozen_products.hpp"
#include "episodic/model/open_model.hpp"
#include "episodic/recall/recall_hook.hpp"
#include "episodic/timeline/step_kind.hpp"
#include "episodic/training/lora_settings.hpp"

namespace episodic {

/// The model of `Decoder` patched with an EpisodicMemory, to be trained: the same steps,
/// boundaries, events and recall, which the memory itself decides, and the same logits to rounding;
/// keys and values of the whole sequence stay with the gradients that lead to them. Every family.
/// The weights are widened to float32 and do not change.
///
/// Not differentiated: which tokens are boundaries, representatives and recalled events.
class TrainableDecoder {
 public:
  /// \param model opened without adapters \param memory of every sequence; `kv_dtype` is float32
  ///        here, whatever it says
  /// \param products of the same model, where they are not to be torch's (load_device_products):
  ///        all else, the memory and the adapter included, stays on the host; null: torch's
  /// \throws ConfigError for settings with events or recall per head (`scope`, `recall_groups`),
  ///         a model with adapters beside it, a memory that does not fit the model
  TrainableDecoder(const OpenModel& model, const MemoryConfig& memory, const LoraSettings& lora,
                   std::shared_ptr<FrozenProducts> products = nullptr);
  ~TrainableDecoder();
  TrainableDecoder(TrainableDecoder&&) noexcept;
  TrainableDecoder& operator=(TrainableDecoder&&) noexcept;

  /// A and B of every product: float32 leaves that require gradients, shared with this object.
  std::vector<at::Tensor> parameters() const;

  /// Back to the empty sequence.
  void begin();

  /// One step of n >= 1 tokens, at most `chunk`. With gradients where the caller has not switched
  /// them off (at::NoGradGuard): what a step without them leaves behind is constant to later ones.
  /// \param rows how many logits are wanted, of the last rows; 0: none
  /// \return [rows, vocab]
  /// \throws DataError for ids out of the vocabulary; as the memory's calls. Nothing of the step
  ///         counts then, and it may be made again
  at::Tensor step(std::span<const std::int64_t> ids, StepKind kind, std::int64_t rows);

  /// The memory: for what it decided, and for its hooks but the recall hook.
  const EpisodicMemory& memory() const;
  /// As EpisodicMemory::set_recall_hook: its weights count in the attention that is differentiated.
  void set_recall_hook(RecallHook hook);

  const ModelConfig& config() const;

  /// Writes the adapter as PEFT does, adapter_config.json and adapter_model.safetensors, into a
  /// folder that is there. Each file appears whole or not at all.
  /// \param base what base_model_name_or_path says
  /// \throws DataError if a number is not finite; FileError
  void save(const std::filesystem::path& dir, const std::string& base) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace episodic
