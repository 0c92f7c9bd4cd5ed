// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Lengths that follow from a configuration, the same wherever the memory computes.

#include <cstdint>

#include "episodic/base/config.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/memory/memory_shape.hpp"
#include "episodic/store/codec.hpp"

namespace EPISODIC_NAMESPACE {

/// \throws ConfigError for a shape that makes no sense, or settings that name layers it has not
void check_shape(const MemoryConfig& config, const MemoryShape& shape);

/// The settings of one rank, from those of the whole: `recall_groups` are its own. Says in `shape`
/// whether its ranks recall together: with `recall_groups` 1 and one table of events.
/// \throws ConfigError for recall_groups that the ranks do not divide
MemoryConfig share_of(const MemoryConfig& config, MemoryShape& shape);

/// Whether a layer recalls.
bool recalls(const MemoryConfig& config, std::int64_t layer);

/// Layers that recall: those with events in the store.
std::int64_t recalling_layers(const MemoryConfig& config, const MemoryShape& shape);

/// The layer whose representatives are retention's engrams: the one that is named, or the middle
/// one of those that recall. \pre config.retention
std::int64_t retention_layer(const MemoryConfig& config, const MemoryShape& shape);

/// Lanes that recall, and the heads of each.
struct LaneShape {
  std::int64_t n_lanes = 0;
  std::int64_t per_layer = 1;                ///< P
  std::int64_t n_heads = 0, n_kv_heads = 0;  ///< H / P, G / P
  std::int64_t width(std::int64_t head_dim) const { return n_heads * head_dim; }
};
LaneShape lane_shape(const MemoryConfig& config, const MemoryShape& shape);

/// What the store of such a memory holds.
StoreShape store_shape(const MemoryConfig& config, const MemoryShape& shape);

/// Most tokens of events that a lane recalls: both buffers take whole events, so each may pass its
/// capacity.
std::int64_t most_recalled_tokens(const MemoryConfig& config);

/// The same of all lanes of a layer together, each token counted in the lane's heads.
std::int64_t most_leased_tokens(const MemoryConfig& config, const MemoryShape& shape);
/// The least host_bytes that a memory with a disk tier can work with; 0 if nothing recalls. In the
/// compiled library.
std::int64_t least_host_bytes(const MemoryConfig& config, const MemoryShape& shape);

/// Tokens of the rings: what attention needs (window, pending, the step) and, for refinement, the
/// step before, whatever has left the window since.
std::int64_t ring_capacity(const MemoryConfig& config);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/sizes.hpp"
#endif
