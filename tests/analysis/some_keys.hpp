// SPDX-License-Identifier: Apache-2.0
#pragma once
// Keys drawn at random, with events in them: a direction of its own for each.

#include <random>
#include <vector>

#include "analysis/keys.hpp"

inline episodic::analysis::RecordedKeys some_keys(std::int64_t tokens, std::int64_t layers,
                                                  std::int64_t heads, std::int64_t head_dim,
                                                  std::int64_t event = 0, unsigned seed = 1) {
  episodic::analysis::RecordedKeys keys;
  keys.n_tokens = tokens, keys.n_layers = layers;
  keys.n_kv_heads = heads, keys.head_dim = head_dim;
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (std::int64_t l = 0; l < layers; ++l) {
    auto& layer = keys.layers.emplace_back();
    std::vector<float> direction(static_cast<std::size_t>(keys.row()), 1.0f);
    for (std::int64_t t = 0; t < tokens; ++t) {
      if (event > 0 && t % event == 0)
        for (float& x : direction) x = 2 * normal(random);
      for (const float x : direction) layer.push_back(x + 0.3f * normal(random));
    }
  }
  return keys;
}
