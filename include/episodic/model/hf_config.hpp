// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// `ModelConfig`: a decoder as data, read from the config.json and generation_config.json of a
/// Hugging Face model. Torch-free.

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "episodic/model/latent_spec.hpp"
#include "episodic/model/mixture_spec.hpp"
#include "episodic/model/recurrence_spec.hpp"
#include "episodic/model/rope.hpp"
#include "episodic/model/weight_roles.hpp"

namespace episodic {

/// What the feed-forward network applies to its gate, or without one to the rows of up. Of squared
/// ReLU and xIELU (arXiv 2411.13010) there are only networks without a gate.
enum class Activation : std::uint8_t { silu, gelu_tanh, relu_squared, xielu };

/// RMS norm of queries and keys before the rotary embedding: none, of each head over its head_dim
/// channels, or of a token's whole row over all heads (OLMo 2).
enum class QkNorm : std::uint8_t { none, head, row };

/// Where a block (attention, feed-forward network) has its RMS norm: on what it reads, on what it
/// adds to the residual stream, or both.
enum class NormPlace : std::uint8_t { before, after, both };

/// What mixes the tokens of a layer.
enum class Mixer : std::uint8_t { attention, short_convolution, recurrence };

/// One layer of a decoder.
struct LayerSpec {
  std::int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0, intermediate_size = 0;
  std::int64_t window = 0;  ///< sliding window: a token sees the last `window` tokens; 0: all
  int rope = 0;             ///< of ModelConfig::ropes; -1: no rotary embedding (NoPE)
  double scale = 0;         ///< of q . k
  double soft_cap = 0;  ///< scaled scores s become soft_cap * tanh(s / soft_cap); 0: as they are
  QkNorm qk_norm = QkNorm::none;
  NormPlace norms = NormPlace::before;
  Activation activation = Activation::silu;
  bool gated = true;      ///< activation(gate) * up; else activation(up)
  bool parallel = false;  ///< the feed-forward network reads what attention reads
  bool qkv_bias = false, o_bias = false, mlp_bias = false;
  bool sink_logits = false;    ///< each head has a sink (AttendInput::sink_logits)
  bool fused_qkv = false;      ///< q, k and v are rows of one tensor
  bool fused_gate_up = false;  ///< gate and up are rows of one tensor
  MixtureSpec mixture;         ///< in place of the dense network, if there are experts
  Mixer mixer = Mixer::attention;
  std::int64_t conv_taps = 0;  ///< of a short convolution: tokens that it sees, its own the last
  bool conv_bias = false;      ///< of the convolution and of the products around it
  /// The earlier layer whose keys and values it attends to, with queries of its own; -1: its own.
  std::int64_t keys_of = -1;
  bool keys_are_values = false;  ///< its values are what its keys are before their norm
  bool value_norm = false;       ///< RMS norm of each head's values, without factors
  bool dense_beside = false;     ///< a dense network is beside the mixture (Gemma 4)
  LatentSpec latent;             ///< in place of products of heads; n_kv_heads is then 1
  bool layer_scalar = false;     ///< behind the layer the residual stream is multiplied by a number
  RecurrenceSpec recurrence;     ///< in place of attention
  /// What attention gives is multiplied by a sigmoid of as many numbers, which lie behind each
  /// head's query in the rows of q.
  bool output_gate = false;

  std::int64_t q_rows() const { return (output_gate ? 2 : 1) * n_heads * head_dim; }

  bool operator==(const LayerSpec&) const = default;
};

/// Queries at position p are multiplied by 1 + beta log(1 + floor(p / original)) (Ministral 3). In
/// a memory p ends with the position that all queries have for recalled keys, n_local - 1.
struct QueryScale {
  double beta = 0;  ///< 0: queries are as they are
  std::int64_t original = 1;

  double at(std::int64_t position) const;
  bool operator==(const QueryScale&) const = default;
};

/// A decoder as data. Both generations of config.json are read (rope_theta / rope_parameters).
struct ModelConfig {
  std::string model_type;
  std::int64_t vocab_size = 0, hidden_size = 0, intermediate_size = 0;
  std::int64_t n_layers = 0;
  /// Of every layer; where they differ, of those that a memory serves.
  std::int64_t n_heads = 0, n_kv_heads = 0, head_dim = 0;
  std::int64_t max_positions = 0;   ///< window the model was trained for; 0 if not said
  double rms_norm_eps = 1e-6;       ///< of LayerNorms too
  bool layer_norm = false;          ///< the norms of rows subtract the mean first (LayerNorm)
  bool norm_bias = false;           ///< and add a bias
  double norm_offset = 0;           ///< norms multiply by norm_offset + weight (Gemma: 1)
  double embedding_multiplier = 1;  ///< of the rows of the embedding (Gemma, Granite)
  double residual_multiplier = 1;   ///< of what a block adds to the residual stream (Granite)
  double logit_multiplier = 1;      ///< of the logits, before their cap (Granite)
  double logit_soft_cap = 0;        ///< logits x become cap * tanh(x / cap); 0: as they are
  bool tie_word_embeddings = false;
  std::int64_t drafting_layers = 0;  ///< behind the last layer in the file, and left out
  QueryScale query_scale;
  /// Each layer has an input of this width that follows from the token alone (Gemma 4's per-layer
  /// embeddings), of a table of so many tokens; 0: there is none.
  std::int64_t per_layer_width = 0, per_layer_vocab = 0;
  /// Rows of q and k are in GGUF's order, where Hugging Face's has the pairs half a head apart.
  bool pairs_moved = false;
  /// Hugging Face's names of weights that are not those of weight_roles.hpp.
  std::span<const WeightName> names;
  /// The model that it is the text part of, by its model_type; empty: of none.
  std::string text_part_of;
  std::vector<Rope> ropes;
  std::vector<LayerSpec> layers;
  /// Of a group whose ranks divide heads and feed-forward channels: those above are this rank's
  /// (model/tensor_parallel.hpp).
  std::int64_t ranks = 1, rank = 0;
  std::int64_t bos_token = -1;
  /// Tokens that end an answer: of generation_config.json, then of config.json; in a GGUF file
  /// those of its keys and of the names that llama.cpp takes for ends.
  std::vector<std::int64_t> eos_tokens;
  std::string ends_note;  ///< one line where the files disagree about them; empty: they agree
  /// How the weights are said to be quantised (quantization_config and its like); empty: they are
  /// not said to be.
  std::string quantization;
  /// What config.json says and this model does not do, a line each: nobody need be stopped by it.
  std::vector<std::string> notes;

  bool has_mixture() const;  ///< of experts, in any layer

  /// Layers that a memory serves, in order: those of full attention where a model mixes them with
  /// sliding windows (which need no memory of what has left them), else all that have attention.
  /// Those that attend to another layer's keys (LayerSpec::keys_of) are none of them: they attend
  /// through that layer's.
  std::vector<std::int64_t> memory_layers() const;
};

/// \throws FileError naming the file, the key and what is expected there; for a model_type, a kind
///         of rope or an activation that is not supported, with the list of those that are
/// \param model a Hugging Face directory, or a GGUF file
ModelConfig load_model_config(const std::filesystem::path& model);

/// The same from the texts of the two files.
/// \param generation_json text of generation_config.json, empty if there is none
/// \param label of the directory, for messages
/// \throws FileError as load_model_config
ModelConfig parse_model_config(std::string_view config_json, std::string_view generation_json,
                               std::string_view label);

/// The model_type of every family that is supported.
std::vector<std::string_view> model_families();

}  // namespace episodic
