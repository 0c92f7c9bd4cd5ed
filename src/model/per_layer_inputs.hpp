// SPDX-License-Identifier: Apache-2.0
#pragma once
// Inputs that each layer has beside the residual stream (Gemma 4's per-layer embeddings): of a row
// of a table, by the token alone, and of a product of the token's embedding.

#include <cstdint>
#include <span>

#include "base/aligned_buffer.hpp"
#include "decoder_buffers.hpp"
#include "decoder_weights.hpp"

namespace episodic {

/// Those of a step's rows, kept from step to step.
class PerLayerInputs {
 public:
  /// Room for so many rows.
  void fit(const ModelConfig& c, std::int64_t rows);

  /// What the table has of a sequence's tokens, whose rows begin at `first`.
  void look_up(const DecoderWeights& w, std::span<const std::int64_t> ids, std::int64_t first);

  /// Adds what follows from the embedding: the step's residual stream, before its first layer.
  void add_projected(const DecoderWeights& w, StepBuffers& step);

  /// [rows from `row` on, width] of a layer.
  const float* of(std::size_t layer, std::int64_t row) const {
    return inputs_.floats() + (static_cast<std::int64_t>(layer) * rows_ + row) * width_;
  }

 private:
  float* place(std::int64_t layer, std::int64_t row) {
    return inputs_.floats() + (layer * rows_ + row) * width_;
  }

  std::int64_t rows_ = 0, width_ = 0;
  AlignedBuffer inputs_;     // [layers, rows, width]
  AlignedBuffer projected_;  // [rows, layers * width]
  AlignedBuffer row_;        // [layers * width]
};

}  // namespace episodic
