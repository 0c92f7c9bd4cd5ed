// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Replacing a model's attention by EpisodicAttention in place, and giving it back.

#include <filesystem>
#include <memory>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/llama.hpp"

namespace episodic {

/// Puts EpisodicAttention into every layer's slot and a fresh memory behind them. A model that is
/// already patched gets a fresh memory; its original attention stays what unpatch gives back.
/// \param given boundaries, only for segmenter `given`
/// \return the memory; the model keeps a share of it
std::shared_ptr<EpisodicMemory> patch(LlamaModel& model, const MemoryConfig& config,
                                      std::vector<std::int64_t> given = {});

/// The same with the settings of a model directory (memory_config_of).
std::shared_ptr<EpisodicMemory> patch(LlamaModel& model, const std::filesystem::path& model_dir);

/// The same with a memory that is there already, a kept one for instance.
/// \throws ConfigError if its shape is not the model's; the model is then untouched
void patch(LlamaModel& model, std::shared_ptr<EpisodicMemory> memory);

/// What a memory must know of a model.
MemoryShape memory_shape(const ModelConfig& config);

/// Gives back the attention that patch replaced, with its state as it was then. False if the model
/// is not patched.
bool unpatch(LlamaModel& model);

/// The memory of a patched model, null otherwise.
std::shared_ptr<EpisodicMemory> memory_of(const LlamaModel& model);

}  // namespace episodic
