// SPDX-License-Identifier: Apache-2.0
#pragma once
// LFM2: gated short convolutions, and layers of full attention among them.

#include "episodic/model/hf_config.hpp"
#include "json_object.hpp"

namespace episodic {

/// Its tensors' names that are not LLaMA's.
inline constexpr WeightName kLfm2Names[] = {{WeightRole::input_norm, "operator_norm"},
                                            {WeightRole::feed_norm, "ffn_norm"},
                                            {WeightRole::q_norm, "self_attn.q_layernorm"},
                                            {WeightRole::k_norm, "self_attn.k_layernorm"},
                                            {WeightRole::o, "self_attn.out_proj"},
                                            {WeightRole::gate, "feed_forward.w1"},
                                            {WeightRole::up, "feed_forward.w3"},
                                            {WeightRole::down, "feed_forward.w2"},
                                            {WeightRole::final_norm, "model.embedding_norm"}};

/// The same settings by the names that other families have: the width of the feed-forward network
/// worked out, rms_norm_eps, tie_word_embeddings.
JsonObject lfm2_usual_keys(const JsonObject& in);

/// What is the same for all layers.
void read_lfm2(const JsonObject& in, LayerSpec& each);

/// Which layers convolve. \throws FileError naming layer_types or full_attn_idxs
void read_lfm2_layers(const JsonObject& in, ModelConfig& c);

}  // namespace episodic
