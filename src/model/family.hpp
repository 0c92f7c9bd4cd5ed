// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the files of families share: the form of a row, limits, and readings that several use.

#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "episodic/model/hf_config.hpp"
#include "json_object.hpp"
#include "rope.hpp"

namespace episodic {

// Far above any model that exists, and small enough that products of three stay within 63 bits.
inline constexpr std::int64_t kMostWidth = 1 << 20;
inline constexpr std::int64_t kMostVocabulary = 1 << 24;
inline constexpr std::int64_t kMostLayers = 1 << 14;
inline constexpr std::int64_t kMostHeads = 1 << 14;
inline constexpr std::int64_t kMostHeadDim = 1 << 14;
inline constexpr std::int64_t kMostExperts = 1 << 13;
inline constexpr std::int64_t kMostPositions = std::int64_t{1} << 40;
inline constexpr double kMostMultiplier = 1e9;

/// Keys of config.json that Hugging Face has not, of models that come from GGUF files: head h of a
/// recurrence has the keys of h modulo their number (RecurrenceSpec::tiled); gate and up of Granite
/// 4's dense network are tensors of their own.
inline constexpr const char *kTiledHeads = "_tiled_heads", *kSplitGateUp = "_split_gate_up";

/// What the reference's classes take where config.json says nothing.
struct FamilyDefaults {
  std::int64_t n_kv_heads = 0;  // 0: as many as heads
  std::int64_t head_dim = 0;    // 0: hidden_size / heads
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000;
  bool tied = false;
  std::int64_t window = 0;  // 0: none
  const char* activation = "silu";
  std::int64_t positions = 2048;  // max_position_embeddings
  std::int64_t original = 0;      // original_max_position_embeddings; 0: the class has none
  bool partial = false;           // rotary embedding of part of a head
  bool layered_rope = false;      // rope settings by type of layer
  std::int64_t experts = 0;       // of a mixture
  std::int64_t chosen = 0;        // num_experts_per_tok
  std::int64_t expert_width = 0;  // moe_intermediate_size; 0: intermediate_size
  double share = 1;               // the part of a head that turns, where it is not said
  bool interleaved = false;       // rotary pairs side by side
  const char* rope = nullptr;     // rope_parameters, where there are others than {}
  const char* eps_key = "rms_norm_eps";
  std::int64_t n_heads = 0, vocab = 0;  // 0: must be said
  bool gemma = false;                   // its hidden_act is not read
  bool own_ropes = false;               // rotary tables are read with the layers
};

/// One family. `read` fills what goes beyond LLaMA: the model's numbers in `c`, and in `each` what
/// is the same for all layers; then `layers`, if there is one, sees every layer by its number.
struct Family {
  const char* model_type;
  FamilyDefaults defaults;
  void (*read)(const JsonObject& in, const FamilyDefaults& defaults, ModelConfig& c,
               LayerSpec& each);
  void (*layers)(const JsonObject& in, const FamilyDefaults& defaults, ModelConfig& c) = nullptr;
  std::span<const WeightName> names = {};
  /// The settings by the names that other families have, where this one has others.
  JsonObject (*usual_keys)(const JsonObject& said) = nullptr;
};

/// Families whose blocks differ from LLaMA's in more than numbers (families_dense.cpp).
std::span<const Family> dense_families();

/// Those with a mixture of experts (families_mixture.cpp).
std::span<const Family> mixture_families();

/// Those whose layers have recurrences in place of attention (families_hybrid.cpp).
std::span<const Family> hybrid_families();

/// gpt-oss (families_gpt_oss.cpp).
std::span<const Family> gpt_oss_families();

/// Gemma 4 (families_gemma4.cpp).
std::span<const Family> gemma4_families();

/// Latent attention (families_latent.cpp).
std::span<const Family> latent_families();

/// What all mixtures have (families_mixture.cpp). \param key of the number of experts
MixtureSpec read_mixture(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c,
                         const char* key);

/// Readings that families share, by the family that had them first.
namespace read_as {
void llama(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
void qwen3(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
/// Norms behind the blocks, and of whole rows of queries and keys.
void olmo2(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
void granite(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
void granitemoeshared(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c,
                      LayerSpec& each);
/// A mixture in every decoder_sparse_step-th layer that mlp_only_layers does not name.
void sparse_layers(const JsonObject& in, ModelConfig& c);
/// Windows only where use_sliding_window says so, and only in layers from max_window_layers on.
void qwen_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c);
/// A window in all layers, unless it is null.
std::int64_t window(const JsonObject& in, std::int64_t otherwise);
/// Layers slide in turn, from the first on, unless layer_types says which.
void gemma2_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c);
}  // namespace read_as

RopeAround rope_around(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c);

/// Gives sliding layers a table of their own: of rope_parameters.sliding_attention, or plain.
/// \param theta where that does not say it
void add_sliding_rope(const JsonObject& in, const FamilyDefaults& d, double theta, ModelConfig& c);

/// Gives a window to the layers that layer_types calls sliding; `slides` decides where config.json
/// has no such list.
/// \param optional a sliding layer without a window sees all, for its class can switch windows off
template <class F>
void mix_windows(const JsonObject& in, std::int64_t window, bool optional, ModelConfig& c,
                 F slides) {
  const auto types = in.strings("layer_types", c.n_layers);
  for (std::int64_t l = 0; l < c.n_layers; ++l) {
    const auto at = static_cast<std::size_t>(l);
    if (types && (*types)[at] != "full_attention" && (*types)[at] != "sliding_attention")
      in.unsupported("layer_types", (*types)[at], "full_attention, sliding_attention");
    const bool sliding = types ? (*types)[at] == "sliding_attention" : slides(l);
    if (sliding && window == 0 && !optional)
      in.fail("sliding_window", fmt::format("is missing, but layer {} slides", l));
    c.layers[at].window = sliding ? window : 0;
  }
}

}  // namespace episodic
