// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a memory must know of a model. Torch-free.

#include <cstdint>

#include "episodic/memory/episodic_memory.hpp"
#include "episodic/model/hf_config.hpp"

namespace episodic {

/// The shape of a memory for the layers that it serves (ModelConfig::memory_layers): the memory's
/// layer i is the model's layer memory_layers()[i].
/// \param n_local of the memory: a rotary table that depends on the length of the context is that
///        of this length, for no query of a memory looks further; 0: of the first training
/// \throws ConfigError for layers that a memory cannot serve
MemoryShape memory_shape(const ModelConfig& config, std::int64_t n_local = 0);

}  // namespace episodic
