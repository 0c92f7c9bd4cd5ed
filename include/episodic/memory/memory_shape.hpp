// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// What a memory must know of the model it serves.

#include <cstdint>
#include <string>
#include <vector>

#include "episodic/attention/rotary.hpp"
#include "episodic/base/bytes.hpp"
#include "episodic/base/inline.hpp"

namespace EPISODIC_NAMESPACE {

/// The version of a state from which it names the rank whose memory it is; others are of one
/// process.
inline constexpr std::uint32_t kSharesOfRanks = 7;

/// What may differ from layer to layer.
struct LayerShape {
  RotaryTable rotary;    ///< empty: the layer rotates nothing (NoPE)
  float scale = 0.0f;    ///< of the dot products; 0: 1 / sqrt(head_dim)
  float softcap = 0.0f;  ///< scores s become softcap * tanh(s / softcap); 0: as they are
  bool operator==(const LayerShape&) const = default;
};

/// The layers that a memory serves, counted from 0. Heads are the same in all of them, for an
/// event's block holds them all.
struct MemoryShape {
  std::int64_t n_layers = 0;
  std::int64_t n_heads = 0;     ///< H, query heads
  std::int64_t n_kv_heads = 0;  ///< G, key/value heads
  std::int64_t head_dim = 0;    ///< d
  RotaryTable rotary;           ///< of all layers, if `layers` is empty; must not be empty then
  /// Each layer by itself, n_layers of them, instead of `rotary`; empty: all alike.
  std::vector<LayerShape> layers = {};
  /// Of a group whose ranks divide the heads: n_heads and n_kv_heads are this rank's (share_of).
  std::int64_t ranks = 1, rank = 0;
  /// A lane is all ranks': they recall by the sum of their scores.
  bool recall_together = false;

  LayerShape layer(std::int64_t l) const {
    return layers.empty() ? LayerShape{rotary, 0.0f, 0.0f} : layers[static_cast<std::size_t>(l)];
  }
  /// However they are written down.
  bool operator==(const MemoryShape& other) const;

  void save(ByteWriter& to) const;
  /// \throws FileError for a shape that no model has
  static MemoryShape load(ByteReader& from);
};

/// What differs between the model that a memory was made with and the one it is to serve, for a
/// message: "the rotary base of layer 0 (inverse frequency 1 is 0.1, not 0.2)"; empty if nothing.
std::string difference(const MemoryShape& made_with, const MemoryShape& now);

}  // namespace EPISODIC_NAMESPACE

#ifndef EPISODIC_DECLARE_ONLY
#include "episodic/memory/impl/memory_shape.hpp"
#endif
