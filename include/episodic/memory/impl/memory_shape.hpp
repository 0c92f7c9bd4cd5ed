// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/memory_shape.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/memory_shape.hpp"

#include <cmath>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/text.hpp"

namespace EPISODIC_NAMESPACE {

EPISODIC_INLINE bool MemoryShape::operator==(const MemoryShape& other) const {
  return difference(*this, other).empty();
}

EPISODIC_INLINE std::string difference(const MemoryShape& a, const MemoryShape& b) {
  const auto number = [](const char* name, std::int64_t then, std::int64_t now) {
    return then == now ? std::string() : concat(name, " is ", then, ", not ", now);
  };
  if (a.ranks != b.ranks)
    return concat("the number of ranks that its heads are divided among is ", a.ranks, ", not ",
                  b.ranks);
  if (a.recall_together != b.recall_together)
    return a.recall_together ? "its ranks recall together (recall_groups 1), not each by itself"
                             : "its ranks recall each by itself, not together (recall_groups 1)";
  for (const std::string& found :
       {number("its rank", a.rank, b.rank), number("the number of layers", a.n_layers, b.n_layers),
        number("the number of query heads", a.n_heads, b.n_heads),
        number("the number of key/value heads", a.n_kv_heads, b.n_kv_heads),
        number("head_dim", a.head_dim, b.head_dim)})
    if (!found.empty()) return found;
  for (std::int64_t l = 0; l < a.n_layers; ++l) {
    const LayerShape x = a.layer(l), y = b.layer(l);
    if (x == y) continue;
    if (x.rotary.rotary_dim() != y.rotary.rotary_dim())
      return concat("the rotary dimension of layer ", l, " is ", x.rotary.rotary_dim(), ", not ",
                    y.rotary.rotary_dim());
    for (std::size_t c = 0; c < x.rotary.inverse_frequency.size(); ++c)
      if (x.rotary.inverse_frequency[c] != y.rotary.inverse_frequency[c])
        return concat("the rotary base or scaling of layer ", l, " (inverse frequency ", c, " is ",
                      x.rotary.inverse_frequency[c], ", not ", y.rotary.inverse_frequency[c], ")");
    if (x.rotary.attention_factor != y.rotary.attention_factor)
      return concat("the rotary attention_factor of layer ", l, " is ", x.rotary.attention_factor,
                    ", not ", y.rotary.attention_factor);
    if (x.rotary.pairs != y.rotary.pairs)
      return concat("the layout of rotary pairs (halves or interleaved) of layer ", l);
    if (x.scale != y.scale)
      return concat("the attention scale of layer ", l, " is ", x.scale, ", not ", y.scale);
    if (x.softcap != y.softcap)
      return concat("the soft cap of layer ", l, " is ", x.softcap, ", not ", y.softcap);
    return concat("the rotary embedding of layer ", l);
  }
  return {};
}

EPISODIC_INLINE void MemoryShape::save(ByteWriter& to) const {
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
  if (ranks == 1) return;
  to.put(ranks);
  to.put(rank);
  to.put(static_cast<std::int64_t>(recall_together));
}

EPISODIC_INLINE MemoryShape MemoryShape::load(ByteReader& from) {
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
  if (from.version() < kSharesOfRanks) return s;
  s.ranks = from.get<std::int64_t>();
  s.rank = from.get<std::int64_t>();
  const auto together = from.get<std::int64_t>();
  if (s.ranks < 2 || s.ranks > kMost || s.rank < 0 || s.rank >= s.ranks || together < 0 ||
      together > 1)
    throw FileError(from.where() + ": names an impossible rank; the file is damaged");
  s.recall_together = together == 1;
  return s;
}

}  // namespace EPISODIC_NAMESPACE
