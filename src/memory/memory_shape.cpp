// SPDX-License-Identifier: Apache-2.0
#include "episodic/memory/memory_shape.hpp"

#include <fmt/format.h>

#include <cmath>

#include "episodic/base/config.hpp"
#include "episodic/base/error.hpp"
#include "episodic/memory/sizes.hpp"

namespace episodic {

bool MemoryShape::operator==(const MemoryShape& other) const {
  return difference(*this, other).empty();
}

std::string difference(const MemoryShape& a, const MemoryShape& b) {
  const auto number = [](const char* name, std::int64_t then, std::int64_t now) {
    return then == now ? std::string() : fmt::format("{} is {}, not {}", name, then, now);
  };
  for (const std::string& found :
       {number("the number of layers", a.n_layers, b.n_layers),
        number("the number of query heads", a.n_heads, b.n_heads),
        number("the number of key/value heads", a.n_kv_heads, b.n_kv_heads),
        number("head_dim", a.head_dim, b.head_dim)})
    if (!found.empty()) return found;
  for (std::int64_t l = 0; l < a.n_layers; ++l) {
    const LayerShape x = a.layer(l), y = b.layer(l);
    if (x == y) continue;
    if (x.rotary.rotary_dim() != y.rotary.rotary_dim())
      return fmt::format("the rotary dimension of layer {} is {}, not {}", l, x.rotary.rotary_dim(),
                         y.rotary.rotary_dim());
    for (std::size_t c = 0; c < x.rotary.inverse_frequency.size(); ++c)
      if (x.rotary.inverse_frequency[c] != y.rotary.inverse_frequency[c])
        return fmt::format(
            "the rotary base or scaling of layer {} (inverse frequency {} is {}, not {})", l, c,
            x.rotary.inverse_frequency[c], y.rotary.inverse_frequency[c]);
    if (x.rotary.attention_factor != y.rotary.attention_factor)
      return fmt::format("the rotary attention_factor of layer {} is {}, not {}", l,
                         x.rotary.attention_factor, y.rotary.attention_factor);
    if (x.rotary.pairs != y.rotary.pairs)
      return fmt::format("the layout of rotary pairs (halves or interleaved) of layer {}", l);
    if (x.scale != y.scale)
      return fmt::format("the attention scale of layer {} is {}, not {}", l, x.scale, y.scale);
    if (x.softcap != y.softcap)
      return fmt::format("the soft cap of layer {} is {}, not {}", l, x.softcap, y.softcap);
    return fmt::format("the rotary embedding of layer {}", l);
  }
  return {};
}

void check_shape(const MemoryConfig& config, const MemoryShape& shape) {
  const auto positive = [](const char* name, std::int64_t value) {
    if (value < 1)
      throw ConfigError(fmt::format("memory shape: {} = {}, must be >= 1", name, value));
  };
  positive("n_layers", shape.n_layers);
  positive("n_heads", shape.n_heads);
  positive("n_kv_heads", shape.n_kv_heads);
  positive("head_dim", shape.head_dim);
  if (shape.n_heads % shape.n_kv_heads != 0)
    throw ConfigError(fmt::format("memory shape: n_heads = {} is no multiple of n_kv_heads = {}",
                                  shape.n_heads, shape.n_kv_heads));
  if (shape.layers.empty() && shape.rotary.inverse_frequency.empty())
    throw ConfigError(
        "memory shape: rotary is empty, which would turn nothing; give plain_rotary(head_dim, "
        "theta) "
        "or the model's own table, or, for layers without rotary embedding, list them in `layers`");
  if (!shape.layers.empty() && static_cast<std::int64_t>(shape.layers.size()) != shape.n_layers)
    throw ConfigError(fmt::format("memory shape: {} layers are listed, n_layers is {}",
                                  shape.layers.size(), shape.n_layers));
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    const LayerShape layer = shape.layer(l);
    if (layer.rotary.rotary_dim() > shape.head_dim)
      throw ConfigError(
          fmt::format("memory shape: rotary_dim = {} of layer {} exceeds head_dim = {}",
                      layer.rotary.rotary_dim(), l, shape.head_dim));
    if (!std::isfinite(layer.scale) || layer.scale < 0)
      throw ConfigError(
          fmt::format("memory shape: scale = {} of layer {}, must be >= 0 (0: 1 / sqrt(head_dim))",
                      layer.scale, l));
    if (!std::isfinite(layer.softcap) || layer.softcap < 0)
      throw ConfigError(fmt::format(
          "memory shape: softcap = {} of layer {}, must be >= 0 (0: none)", layer.softcap, l));
  }
  if (const std::int64_t groups = config.lanes_per_layer(shape.n_kv_heads);
      shape.n_kv_heads % groups != 0)
    throw ConfigError(fmt::format(
        "memory configuration: recall_groups = {} does not divide the model's {} key/value heads",
        groups, shape.n_kv_heads));
  if (config.retention && config.retention->layer >= 0 &&
      (config.retention->layer >= shape.n_layers || !recalls(config, config.retention->layer)))
    throw ConfigError(
        fmt::format("memory configuration: retention names layer {}, which the model has not or "
                    "which does not recall",
                    config.retention->layer));
  if (config.refine != Refinement::none && config.refine_layers >= shape.n_layers)
    throw ConfigError(
        fmt::format("memory configuration: refine_layers = {}, but the model has only "
                    "layers 0 to {}",
                    config.refine_layers, shape.n_layers - 1));
  for (const std::int64_t l : config.recall_layers.value_or(std::vector<std::int64_t>{}))
    if (l >= shape.n_layers)
      throw ConfigError(
          fmt::format("memory configuration: recall_layers names layer {}, but the model "
                      "has only layers 0 to {}",
                      l, shape.n_layers - 1));
}

void MemoryShape::save(ByteWriter& to) const {
  to.put(n_layers);
  to.put(n_heads);
  to.put(n_kv_heads);
  to.put(head_dim);
  for (std::int64_t l = 0; l < n_layers; ++l) {
    const LayerShape s = layer(l);
    to.put_vector(s.rotary.inverse_frequency);
    to.put(s.rotary.attention_factor);
    to.put(s.rotary.pairs);
    to.put(s.scale);
    to.put(s.softcap);
  }
}

MemoryShape MemoryShape::load(ByteReader& from) {
  MemoryShape s;
  s.n_layers = from.get<std::int64_t>();
  s.n_heads = from.get<std::int64_t>();
  s.n_kv_heads = from.get<std::int64_t>();
  s.head_dim = from.get<std::int64_t>();
  constexpr std::int64_t kMost = 1 << 20;
  for (const std::int64_t x : {s.n_layers, s.n_heads, s.n_kv_heads, s.head_dim})
    if (x < 1 || x > kMost)
      throw FileError(from.where() + ": names an impossible model shape; the file is damaged");
  for (std::int64_t l = 0; l < s.n_layers; ++l) {
    LayerShape layer;
    layer.rotary.inverse_frequency = from.get_vector<double>();
    layer.rotary.attention_factor = from.get<double>();
    layer.rotary.pairs = from.get<RotaryPairs>();
    if (layer.rotary.pairs > RotaryPairs::interleaved)
      throw FileError(from.where() + ": names an unknown rotary layout; the file is damaged");
    layer.scale = from.get<float>();
    layer.softcap = from.get<float>();
    s.layers.push_back(std::move(layer));
  }
  s.rotary = s.layers.front().rotary;
  return s;
}

}  // namespace episodic
