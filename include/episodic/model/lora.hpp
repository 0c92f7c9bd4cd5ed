// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Low-rank adapters (LoRA) as PEFT saves them: beside a model's weights, or merged into them.
/// Torch-free.

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "episodic/model/weight_plan.hpp"

namespace episodic {

struct OpenModel;  // model/open_model.hpp

/// What an adapter adds to one product y = W x of a decoder: scaling * B (A x). Of a fused tensor
/// each part has an entry with the same A.
struct LoraProduct {
  WeightRole role = WeightRole::q;
  std::int64_t layer = -1;   ///< -1: the head
  std::int64_t rank = 0;     ///< r
  std::int64_t in = 0;       ///< columns of W
  std::int64_t out = 0;      ///< rows of W
  const float* a = nullptr;  ///< [rank, in]
  const float* b = nullptr;  ///< [out, rank]
  double scaling = 1;        ///< lora_alpha / r, or lora_alpha / sqrt(r) with use_rslora
};

/// One adapter of a decoder, in float32. It does not change, and any number of models share it.
///
/// Read from adapter_config.json: r, lora_alpha, use_rslora, rank_pattern, alpha_pattern (by
/// names), target_modules, layers_to_transform. fan_in_fan_out has no meaning for the layers of
/// these models, as in PEFT. Whatever else would change what is computed (DoRA, biases, saved
/// modules, adapters of embeddings, initialisations that change the weights, ...) is refused by
/// name. A tied model's head may have an adapter; the embedding then stays as it is, as in PEFT.
class LoraAdapter {
 public:
  /// \param dir with adapter_config.json and adapter_model.safetensors
  /// \param model that it is for
  /// \throws FileError naming the file and the key or tensor: what is missing, damaged, not
  ///         supported, not finite, or does not fit the model
  static std::shared_ptr<const LoraAdapter> load(const std::filesystem::path& dir,
                                                 const OpenModel& model);

  const std::filesystem::path& dir() const { return dir_; }
  /// Name of its directory, for people.
  std::string name() const;
  std::span<const LoraProduct> products() const { return products_; }
  /// Of its numbers and scalings, whatever they are stored as: part of a memory's identity.
  const std::string& fingerprint() const { return fingerprint_; }
  std::int64_t bytes() const;

 private:
  class Reader;
  LoraAdapter() = default;

  std::filesystem::path dir_;
  std::vector<LoraProduct> products_;
  std::vector<std::vector<float>> factors_;  // what the products point into
  std::string fingerprint_;
};

/// An adapter in use, with a factor of the caller's.
struct AppliedLora {
  std::shared_ptr<const LoraAdapter> adapter;
  double scale = 1;
};

/// Adds adapters to the weights of an open model: W + scale * scaling * B A, computed in float32
/// and stored in the type of W (bfloat16 and float16 round). The files stay as they are; the
/// changed matrices lie in memory. The head of a tied model becomes a matrix of its own.
/// \throws ConfigError for block-quantised weights, which cannot take them, and for a scale that is
///         not finite; DataError where a sum is not finite in that type
void merge_lora(OpenModel& model, std::span<const AppliedLora> adapters);

}  // namespace episodic
