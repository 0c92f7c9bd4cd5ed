// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/host_only.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"

namespace episodic {

std::string host_only_part(const ModelConfig& config) {
  if (config.ranks > 1) return "heads that are divided among ranks";
  if (config.per_layer_width > 0) return "inputs of its layers beside the residual stream";
  for (const LayerSpec& layer : config.layers) {
    if (layer.mixture.groups > 0) return "mixtures of experts in groups";
    if (layer.latent) return "latent attention";
    if (layer.keys_of >= 0) return "layers that share the keys of others";
    if (layer.keys_are_values) return "values that are its keys";
    if (layer.value_norm) return "norms of values";
    if (layer.dense_beside) return "dense networks beside mixtures of experts";
    if (layer.layer_scalar) return "layers that scale the residual stream";
    if (layer.mixer == Mixer::attention && layer.head_dim != config.head_dim)
      return "heads of several sizes";
  }
  return "";
}

void require_no_host_only_part(const ModelConfig& config, const std::string& who) {
  if (const std::string part = host_only_part(config); !part.empty())
    throw ConfigError(fmt::format(
        "{}: this {} model has {}, which only the decoder on the CPU computes; run it there", who,
        config.model_type, part));
}

}  // namespace episodic
