// SPDX-License-Identifier: Apache-2.0
#pragma once
// Drives an EpisodicMemory with random q, k, v and keeps everything, so that a plain float64
// reference can say what each query should have seen.

#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "episodic/memory/episodic_memory.hpp"

namespace driver {

using episodic::EpisodicMemory;
using episodic::MemoryConfig;
using episodic::MemoryShape;

inline MemoryConfig small_config() {
  MemoryConfig c;
  c.n_init = 4;
  c.n_local = 24;
  c.n_mem = 24;
  c.chunk = 12;
  c.n_repr = 3;
  c.min_block = 3;
  c.max_block = 9;
  return c;
}

inline MemoryShape small_shape(std::int64_t layers = 2, std::int64_t heads = 4, std::int64_t kv = 2,
                               std::int64_t dim = 10) {
  return {layers, heads, kv, dim, episodic::plain_rotary(dim, 10000.0)};
}

/// One token's projections in all layers: the same whatever the steps it is fed in.
struct Token {
  std::vector<std::vector<float>> q, k, v;  // per layer
  float surprise = 0;
};

inline std::vector<Token> random_tokens(const MemoryShape& s, std::int64_t n, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal;
  std::vector<Token> tokens(static_cast<std::size_t>(n));
  for (Token& t : tokens) {
    for (std::int64_t l = 0; l < s.n_layers; ++l) {
      const auto draw = [&](std::int64_t heads) {
        std::vector<float> x(static_cast<std::size_t>(heads * s.head_dim));
        for (float& f : x) f = normal(generator);
        return x;
      };
      t.q.push_back(draw(s.n_heads));
      t.k.push_back(draw(s.n_kv_heads));
      t.v.push_back(draw(s.n_kv_heads));
    }
    t.surprise = std::fabs(normal(generator)) + (generator() % 6 == 0 ? 4.0f : 0.0f);
  }
  return tokens;
}

/// Attention sinks of each layer's heads; empty: none.
using Sinks = std::vector<std::vector<float>>;

inline Sinks random_sinks(const MemoryShape& s, std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::normal_distribution<float> normal(0.0f, 2.0f);
  Sinks sinks(static_cast<std::size_t>(s.n_layers));
  for (auto& of_layer : sinks)
    for (std::int64_t h = 0; h < s.n_heads; ++h) of_layer.push_back(normal(generator));
  return sinks;
}

/// Feeds tokens [first, first + n) as one step. \return outputs per layer, each [n, H * d]
inline std::vector<std::vector<float>> step(EpisodicMemory& memory,
                                            const std::vector<Token>& tokens, std::int64_t first,
                                            std::int64_t n,
                                            episodic::StepKind kind = episodic::StepKind::decode,
                                            const Sinks& sinks = {}) {
  const MemoryShape& s = memory.shape();
  std::vector<std::vector<float>> out;
  memory.begin_step(n, kind);
  for (std::int64_t l = 0; l < s.n_layers; ++l) {
    std::vector<float> q, k, v;
    for (std::int64_t i = first; i < first + n; ++i) {
      const Token& t = tokens[static_cast<std::size_t>(i)];
      const auto layer = static_cast<std::size_t>(l);
      q.insert(q.end(), t.q[layer].begin(), t.q[layer].end());
      k.insert(k.end(), t.k[layer].begin(), t.k[layer].end());
      v.insert(v.end(), t.v[layer].begin(), t.v[layer].end());
    }
    out.emplace_back(q.size());
    if (sinks.empty()) {
      memory.attend(l, q.data(), k.data(), v.data(), out.back().data());
    } else {
      const episodic::TensorSizes wide{n, s.n_heads, s.head_dim},
          narrow{n, s.n_kv_heads, s.head_dim};
      memory.attend(l, {{q.data(), wide},
                        {k.data(), narrow},
                        {v.data(), narrow},
                        {out.back().data(), wide},
                        sinks[static_cast<std::size_t>(l)].data()});
    }
  }
  std::vector<float> surprise;
  for (std::int64_t i = first; i < first + n; ++i)
    surprise.push_back(tokens[static_cast<std::size_t>(i)].surprise);
  memory.end_step(surprise.data());
  return out;
}

/// x [heads, d] of one token, turned to a position in float64, rotate-half layout. The channels
/// that turn are multiplied by attention_factor.
inline std::vector<double> turned(const std::vector<float>& x, const MemoryShape& s,
                                  std::int64_t layer, std::int64_t head, double position) {
  const episodic::RotaryTable table = s.layer(layer).rotary;
  const std::size_t half = table.inverse_frequency.size();
  std::vector<double> y(x.begin() + head * s.head_dim, x.begin() + (head + 1) * s.head_dim);
  std::vector<double> r = y;
  for (std::size_t c = 0; c < half; ++c) {
    const double angle = position * table.inverse_frequency[c], f = table.attention_factor;
    r[c] = f * (y[c] * std::cos(angle) - y[c + half] * std::sin(angle));
    r[c + half] = f * (y[c + half] * std::cos(angle) + y[c] * std::sin(angle));
  }
  return r;
}

/// Attention weights of query `p` in a layer, in float64: of local keys at their true distance, and
/// of those keys i outside the window for which `far(i)` at the fixed one; 0 of all others.
/// \return [H][p + 1]
template <class Far>
std::vector<std::vector<double>> attention_weights(const std::vector<Token>& tokens,
                                                   const MemoryShape& s, std::int64_t layer,
                                                   std::int64_t p, std::int64_t n_local, Far far,
                                                   const Sinks& sinks = {}) {
  const auto L = static_cast<std::size_t>(layer);
  std::vector<std::vector<double>> weights;
  for (std::int64_t h = 0; h < s.n_heads; ++h) {
    const std::int64_t g = h / (s.n_heads / s.n_kv_heads);
    const std::vector<double> near_query =
        turned(tokens[static_cast<std::size_t>(p)].q[L], s, layer, h, static_cast<double>(p));
    const std::vector<double> far_query = turned(tokens[static_cast<std::size_t>(p)].q[L], s, layer,
                                                 h, static_cast<double>(n_local - 1));
    std::vector<double> of_head(static_cast<std::size_t>(p + 1), 0.0);
    double total =
        sinks.empty() ? 0.0 : std::exp(static_cast<double>(sinks[L][static_cast<std::size_t>(h)]));
    for (std::int64_t i = 0; i <= p; ++i) {
      const bool local = p - i < n_local;
      if (!local && !far(i)) continue;
      const std::vector<double> key = turned(tokens[static_cast<std::size_t>(i)].k[L], s, layer, g,
                                             local ? static_cast<double>(i) : 0.0);
      const std::vector<double>& query = local ? near_query : far_query;
      double dot = 0;
      for (std::size_t c = 0; c < key.size(); ++c) dot += query[c] * key[c];
      const double scale = s.layer(layer).scale;
      of_head[static_cast<std::size_t>(i)] =
          std::exp(dot * (scale > 0 ? scale : 1.0 / std::sqrt(static_cast<double>(s.head_dim))));
      total += of_head[static_cast<std::size_t>(i)];
    }
    for (double& w : of_head) w /= total;
    weights.push_back(std::move(of_head));
  }
  return weights;
}

/// What query `p` must give in a layer, in float64. \return [H * d]
template <class Far>
std::vector<double> reference(const std::vector<Token>& tokens, const MemoryShape& s,
                              std::int64_t layer, std::int64_t p, std::int64_t n_local, Far far,
                              const Sinks& sinks = {}) {
  const auto weights = attention_weights(tokens, s, layer, p, n_local, far, sinks);
  std::vector<double> out(static_cast<std::size_t>(s.n_heads * s.head_dim), 0.0);
  for (std::int64_t h = 0; h < s.n_heads; ++h)
    for (std::int64_t i = 0; i <= p; ++i)
      for (std::int64_t c = 0; c < s.head_dim; ++c) {
        const std::int64_t g = h / (s.n_heads / s.n_kv_heads);
        const std::vector<float>& v =
            tokens[static_cast<std::size_t>(i)].v[static_cast<std::size_t>(layer)];
        out[static_cast<std::size_t>(h * s.head_dim + c)] +=
            weights[static_cast<std::size_t>(h)][static_cast<std::size_t>(i)] *
            v[static_cast<std::size_t>(g * s.head_dim + c)];
      }
  return out;
}

}  // namespace driver
