// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/memory_layers.hpp"

#include <fmt/format.h>

#include "episodic/base/error.hpp"

namespace episodic {

MemoryShape memory_shape(const ModelConfig& c, std::int64_t n_local) {
  const std::vector<std::int64_t> served = c.memory_layers();
  const LayerSpec& first = c.layers.at(static_cast<std::size_t>(served.at(0)));
  MemoryShape shape;
  shape.n_layers = static_cast<std::int64_t>(served.size());
  shape.n_heads = first.n_heads;
  shape.n_kv_heads = first.n_kv_heads;
  shape.head_dim = first.head_dim;
  shape.ranks = c.ranks;
  shape.rank = c.rank;
  bool alike = true;
  for (const std::int64_t l : served) {
    const LayerSpec& layer = c.layers[static_cast<std::size_t>(l)];
    if (layer.n_heads != first.n_heads || layer.n_kv_heads != first.n_kv_heads ||
        layer.head_dim != first.head_dim)
      throw ConfigError(fmt::format(
          "memory_shape: layer {} of this {} model has heads of its own; a memory keeps "
          "all layers of an event in one block, so they must have the same",
          l, c.model_type));
    LayerShape one;  // scaled by the decoder, which scales its queries
    if (layer.rope >= 0) one.rotary = c.ropes[static_cast<std::size_t>(layer.rope)].at(n_local);
    one.softcap = static_cast<float>(layer.soft_cap);
    alike = alike && layer.rope == first.rope && layer.soft_cap == 0 && layer.rope >= 0;
    shape.layers.push_back(std::move(one));
  }
  if (alike) {
    shape.rotary = shape.layers.front().rotary;
    shape.layers.clear();
  }
  return shape;
}

}  // namespace episodic
