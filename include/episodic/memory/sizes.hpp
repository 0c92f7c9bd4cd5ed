// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lengths that follow from a configuration, the same wherever the memory computes.

#include <cstdint>

#include "episodic/base/config.hpp"
#include "episodic/memory/episodic_memory.hpp"

namespace episodic {

/// \throws ConfigError for a shape that makes no sense, or settings that name layers it has not
void check_shape(const MemoryConfig& config, const MemoryShape& shape);

/// Whether a layer recalls.
bool recalls(const MemoryConfig& config, std::int64_t layer);

/// Layers that recall: those with events in the store.
std::int64_t recalling_layers(const MemoryConfig& config, const MemoryShape& shape);

/// Most tokens of events that a layer recalls: both buffers take whole events, so each may pass its
/// capacity.
std::int64_t most_recalled_tokens(const MemoryConfig& config);

/// Tokens of the rings: what attention needs (window, pending, the step) and, for refinement, the
/// step before, whatever has left the window since.
std::int64_t ring_capacity(const MemoryConfig& config);

}  // namespace episodic
