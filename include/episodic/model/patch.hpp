// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Replacing a model's attention by EpisodicAttention in place, and giving it back.

#include <filesystem>
#include <memory>
#include <vector>

#include "episodic/base/callbacks.hpp"
#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/decoder.hpp"
#include "episodic/model/memory_layers.hpp"

namespace episodic {

/// Puts EpisodicAttention into the slots of the layers that a memory serves
/// (ModelConfig::memory_layers) and a fresh memory behind them. The other layers, those with a
/// sliding window in a model that has both kinds, get exact sliding-window attention of their own.
/// A model that is already patched gets a fresh memory; its original attention stays what unpatch
/// gives back.
/// \param given boundaries, only for segmenter `given`
/// \param log hears a warning if n_local exceeds the window that the model was trained for
/// \return the memory; the model keeps a share of it
/// \throws ConfigError as below; BudgetError where the machine has no room for the windows
std::shared_ptr<EpisodicMemory> patch(Decoder& model, const MemoryConfig& config,
                                      std::vector<std::int64_t> given = {},
                                      const LogCallback& log = {});

/// The same with the settings of a model directory (memory_config_of).
std::shared_ptr<EpisodicMemory> patch(Decoder& model, const std::filesystem::path& model_dir,
                                      const LogCallback& log = {});

/// The same with a memory that is there already, a kept one for instance.
/// \throws ConfigError if its shape is not the model's, if its n_local exceeds the sliding window
///         of a layer that it serves, or if it holds tokens that the model's sliding layers have
///         not seen; the model is then untouched
void patch(Decoder& model, std::shared_ptr<EpisodicMemory> memory, const LogCallback& log = {});

/// Gives back the attention that patch replaced, with its state as it was then. False if the model
/// is not patched.
bool unpatch(Decoder& model);

/// The memory of a patched model, null otherwise.
std::shared_ptr<EpisodicMemory> memory_of(const Decoder& model);

}  // namespace episodic
