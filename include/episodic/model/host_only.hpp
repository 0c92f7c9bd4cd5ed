// SPDX-License-Identifier: Apache-2.0
#pragma once
/// \file
/// Parts of a model that only the decoder on the host computes: what devices, training and memories
/// for layers of your own must refuse. Torch-free.

#include <string>

#include "episodic/model/hf_config.hpp"

namespace episodic {

/// "layers that share keys" and the like; empty: the model has no such part.
std::string host_only_part(const ModelConfig& config);

/// \throws ConfigError naming the part if the model has one
/// \param who for the message, "training" for instance
void require_no_host_only_part(const ModelConfig& config, const std::string& who);

}  // namespace episodic
