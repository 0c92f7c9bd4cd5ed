// SPDX-License-Identifier: Apache-2.0
#pragma once
// Which tensors of a checkpoint are the weights of a mixture of experts. Torch-free.

#include <cstdint>
#include <string>
#include <vector>

#include "episodic/model/hf_config.hpp"
#include "episodic/model/tensor_source.hpp"
#include "episodic/model/weight_plan.hpp"

namespace episodic {

/// Adds the weights of a layer's mixture, expert by expert. \param prefix "model.layers.N."
void plan_mixture(const MixtureSpec& spec, std::int64_t hidden, std::int64_t layer,
                  const std::string& prefix, std::vector<WeightEntry>& to);

/// Sets how the mixtures' tensors are called to what the files have, where that is known.
void find_mixture_tensors(const TensorSource& tensors, ModelConfig& config);

/// Whether a name is one of an expert's or a router's: of the tensor, or of its module.
bool names_a_mixture(std::string_view name);

/// \throws ConfigError for a model with experts \param who cannot train them
void require_dense(const ModelConfig& config, const char* who);

}  // namespace episodic
