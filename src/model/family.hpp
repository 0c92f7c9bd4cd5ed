// SPDX-License-Identifier: Apache-2.0
#pragma once
// What the files of families share: the form of a row, limits, and readings that several use.

#include <cstdint>
#include <span>

#include "episodic/model/hf_config.hpp"
#include "json_object.hpp"

namespace episodic {

// Far above any model that exists, and small enough that products of three stay within 63 bits.
inline constexpr std::int64_t kMostWidth = 1 << 20;
inline constexpr std::int64_t kMostVocabulary = 1 << 24;
inline constexpr std::int64_t kMostLayers = 1 << 14;
inline constexpr std::int64_t kMostHeads = 1 << 14;
inline constexpr std::int64_t kMostHeadDim = 1 << 14;
inline constexpr std::int64_t kMostPositions = std::int64_t{1} << 40;
inline constexpr double kMostMultiplier = 1e9;

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
};

/// One family. `read` fills what goes beyond LLaMA: the model's numbers in `c`, and in `each` what
/// is the same for all layers; then `layers`, if there is one, sees every layer by its number.
struct Family {
  const char* model_type;
  FamilyDefaults defaults;
  void (*read)(const JsonObject& in, const FamilyDefaults& defaults, ModelConfig& c,
               LayerSpec& each);
  void (*layers)(const JsonObject& in, const FamilyDefaults& defaults, ModelConfig& c);
};

/// Those with a mixture of experts (families_mixture.cpp).
std::span<const Family> mixture_families();

/// gpt-oss (families_gpt_oss.cpp).
std::span<const Family> gpt_oss_families();

/// What all mixtures have (families_mixture.cpp). \param key of the number of experts
MixtureSpec read_mixture(const JsonObject& in, const FamilyDefaults& d, const ModelConfig& c,
                         const char* key);

/// Readings that families share, by the family that had them first.
namespace read_as {
void llama(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
void qwen3(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
void granite(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c, LayerSpec& each);
/// Windows only where use_sliding_window says so, and only in layers from max_window_layers on.
void qwen_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c);
/// A window in all layers, unless it is null.
std::int64_t window(const JsonObject& in, std::int64_t otherwise);
/// Layers slide in turn, from the first on, unless layer_types says which.
void gemma2_layers(const JsonObject& in, const FamilyDefaults& d, ModelConfig& c);
}  // namespace read_as

}  // namespace episodic
