// SPDX-License-Identifier: Apache-2.0
#pragma once
// LFM2: gated short convolutions, and layers of full attention among them.

#include "episodic/model/hf_config.hpp"
#include "json_object.hpp"

namespace episodic {

/// The same settings by the names that other families have: the width of the feed-forward network
/// worked out, rms_norm_eps, tie_word_embeddings.
JsonObject lfm2_usual_keys(const JsonObject& in);

/// What is the same for all layers.
void read_lfm2(const JsonObject& in, LayerSpec& each);

/// Which layers convolve. \throws FileError naming layer_types or full_attn_idxs
void read_lfm2_layers(const JsonObject& in, ModelConfig& c);

}  // namespace episodic
