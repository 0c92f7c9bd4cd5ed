// SPDX-License-Identifier: Apache-2.0
#pragma once
// The weights of a decoder where they lie in their files, shared by all models made from them.

#include <memory>
#include <vector>

#include "elementwise.hpp"
#include "episodic/model/open_model.hpp"
#include "latent_attention.hpp"
#include "linear.hpp"
#include "linear_recurrence.hpp"
#include "mixture.hpp"
#include "short_convolution.hpp"

namespace episodic {

/// A norm's factors, and what it adds where norms have biases.
struct DecoderNorm {
  std::vector<float> weight, bias;

  bool empty() const { return weight.empty(); }
};

struct DecoderLayer {
  // norms of rows, by what they are applied to (WeightRole); empty where there is none
  DecoderNorm input_norm, attended_norm, feed_norm, fed_norm;
  DecoderNorm q_norm, k_norm, v_norm;
  std::vector<float> sink_logits;  // [n_heads], empty where attention has none
  Linear q, k, v, o;
  LatentWeights latent;         // in place of q, k and v
  ShortConvolution conv;        // the same; the product behind it is `o`
  LinearRecurrence recurrence;  // the same
  Linear gate, up, down;        // gate: only of a gated network
  Xielu xielu;                  // where it is the activation
  MixtureWeights mixture;       // in their place, where the layer is one
  // where the dense network is beside the mixture: what the router and the experts read, and what
  // both add
  DecoderNorm router_norm, expert_in_norm, dense_norm, expert_norm;
  Linear per_layer_gate, per_layer_out;  // of the layer's own input
  DecoderNorm per_layer_norm;
  float scalar = 1;  // of the residual stream behind the layer
};

struct DecoderWeights {
  ModelConfig config;
  Linear embedding;                             ///< [vocab, hidden]: rows that are looked up
  Linear per_layer_embedding, per_layer_model;  ///< of inputs of the layers, if there are any
  DecoderNorm per_layer_model_norm;
  std::vector<DecoderLayer> layers;
  DecoderNorm final_norm;
  Linear head;
  std::shared_ptr<Group> group;  ///< whose ranks have the other heads and channels; null: none

  // what the above points into
  std::shared_ptr<const TensorSource> source;
  std::vector<std::unique_ptr<std::byte[]>> copies;  // of tensors that lie unaligned
  std::vector<std::vector<float>> biases;
};

/// \throws FileError naming the tensor and its file
std::shared_ptr<const DecoderWeights> load_decoder_weights(const OpenModel& model);

}  // namespace episodic
