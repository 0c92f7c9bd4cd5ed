// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/memory_layers.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"

namespace episodic {

MemoryShape memory_shape(const ModelConfig& c, std::int64_t n_local) {
  const std::vector<std::int64_t> served = c.memory_layers();
  const LayerSpec& first = c.layers.at(static_cast<std::size_t>(served.at(0)));
  for (const std::int64_t l : served) {
    const LayerSpec& layer = c.layers[static_cast<std::size_t>(l)];
    const auto refuse = [&](const char* what) {
      throw ConfigError(
          fmt::format("memory_shape: layer {} of this {} model has {}, which a memory does not "
                      "serve yet; use the model with its own attention",
                      l, c.model_type, what));
    };
    if (layer.soft_cap != 0) refuse("capped attention scores");
    if (layer.rope < 0) refuse("no rotary embedding");
    if (layer.rope != first.rope) refuse("a rotary table of its own");
  }
  return {static_cast<std::int64_t>(served.size()), first.n_heads, first.n_kv_heads, first.head_dim,
          c.ropes[static_cast<std::size_t>(first.rope)].at(n_local)};
}

}  // namespace episodic
