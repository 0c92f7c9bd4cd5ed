// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `MixtureSpec`: a feed-forward network that is a mixture of experts, as data. Torch-free.

#include <cstdint>

namespace episodic {

/// How a router's products become scores.
enum class RouterScoring : std::uint8_t { softmax, sigmoid };

/// What a router's bias is added to: nothing, its products, or the scores by which experts are
/// chosen but not their weights (DeepSeek V3).
enum class RouterBias : std::uint8_t { none, product, choice };

/// How a checkpoint calls and holds a mixture's tensors: a row of kMixtureTensors
/// (src/model/mixture_plan.cpp). A family says what its files usually have; what a model's files
/// have is found when they are opened.
enum class MixtureTensors : std::uint8_t {
  qwen,           ///< a matrix for each product of each expert
  mixtral,        ///< the same by the names w1, w3, w2
  granite,        ///< all experts in one tensor, gate and up its rows
  fused,          ///< the same as transformers 5 holds it in memory
  granite_fused,  ///< the same under Granite's names
  stacked,        ///< all experts in one tensor for each product (GGUF, gpt-oss)
  gemma,          ///< as fused, beside a dense network
  deepseek,       ///< as qwen, but for the shared expert's names
  deepseek_fused,
};

/// The mixture of a layer. For each token the router scores all experts, the best `chosen` compute,
/// and the sum of their results by their weights is the layer's. Equal scores: the expert of the
/// lower number goes first.
struct MixtureSpec {
  std::int64_t experts = 0;       ///< 0: the layer's network is dense
  std::int64_t chosen = 0;        ///< for each token
  std::int64_t width = 0;         ///< of an expert
  std::int64_t shared_width = 0;  ///< of an expert that every token uses besides; 0: there is none
  bool shared_gate = false;       ///< its result is multiplied by the sigmoid of a product
  bool normalised = false;        ///< weights of the chosen are divided by their sum
  RouterScoring scoring = RouterScoring::softmax;
  RouterBias bias = RouterBias::none;
  MixtureTensors tensors = MixtureTensors::qwen;
  double scaling = 1;  ///< of the weights
  /// Experts in so many groups side by side, and how many of those are looked at: the ones of the
  /// largest sum of their two best scores, or of the best score; 0: all experts are.
  std::int64_t groups = 0, chosen_groups = 0;
  bool group_by_two = false;
  bool expert_bias = false;  ///< products of the experts have biases
  /// Above 0 an expert computes (u + 1) * g * sigmoid(slope * g) of its gate g and its up u, in
  /// place of the layer's activation: g at most `limit`, u within `limit` either way (gpt-oss).
  double slope = 0, limit = 0;

  explicit operator bool() const { return experts > 0; }
  bool operator==(const MixtureSpec&) const = default;
};

}  // namespace episodic
