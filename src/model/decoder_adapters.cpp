// SPDX-License-Identifier: Apache-2.0
#include "decoder_adapters.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/model/weight_plan.hpp"
#include "lora_scale.hpp"

namespace episodic {
namespace {

LowRank low_rank_of(const LoraProduct& p, double scale) {
  const auto linear = [](const float* weight, std::int64_t out, std::int64_t in) {
    return Linear{TensorType::f32, reinterpret_cast<const std::byte*>(weight), nullptr, out, in};
  };
  return {linear(p.a, p.rank, p.in), linear(p.b, p.out, p.rank),
          static_cast<float>(scale * p.scaling)};
}

/// The weights that a role names; null if it is none of a product's.
const Linear* product_of(const DecoderWeights& w, WeightRole role, std::int64_t layer) {
  if (role == WeightRole::head) return &w.head;
  if (role == WeightRole::per_layer_model) return &w.per_layer_model;
  if (layer < 0 || layer >= static_cast<std::int64_t>(w.layers.size())) return nullptr;
  const DecoderLayer& l = w.layers[static_cast<std::size_t>(layer)];
  switch (role) {
    case WeightRole::q:
      return w.config.layers[static_cast<std::size_t>(layer)].latent ? &l.latent.q : &l.q;
    case WeightRole::q_down:
      return &l.latent.q_down;
    case WeightRole::q_up:
      return &l.latent.q;
    case WeightRole::kv_down:
      return &l.latent.down;
    case WeightRole::per_layer_gate:
      return &l.per_layer_gate;
    case WeightRole::per_layer_out:
      return &l.per_layer_out;
    case WeightRole::k:
      return &l.k;
    case WeightRole::v:
      return &l.v;
    case WeightRole::o:
    case WeightRole::conv_out:
    case WeightRole::mix_out:
      return &l.o;
    case WeightRole::conv_in:
      return &l.conv.in;
    case WeightRole::mix_in:
      return &l.recurrence.in;
    case WeightRole::mix_gate:
      return &l.recurrence.gate;
    case WeightRole::mix_step:
      return &l.recurrence.step;
    case WeightRole::mix_write:
      return &l.recurrence.write;
    case WeightRole::gate:
      return &l.gate;
    case WeightRole::up:
      return &l.up;
    case WeightRole::down:
      return &l.down;
    default:
      return nullptr;
  }
}

}  // namespace

DecoderAdapters::DecoderAdapters(std::vector<AppliedLora> chosen, const DecoderWeights& weights) {
  LowRanks added;
  std::int64_t rank = 0;
  for (const AppliedLora& one : chosen) {
    if (!one.adapter) throw ConfigError("Decoder::use_adapters: an adapter is null");
    const std::string name = one.adapter->dir().string();
    require_scale(one.adapter->dir(), one.scale);
    for (const LoraProduct& p : one.adapter->products()) {
      if (p.role == WeightRole::kv_up)
        throw ConfigError(fmt::format(
            "{}: an adapter of kv_b_proj cannot be computed beside latent attention, which never "
            "makes its rows; merge it (ModelOptions::merge_lora)",
            name));
      const Linear* to = product_of(weights, p.role, p.layer);
      if (!to || to->in != p.in || to->out != p.out)
        throw ConfigError(
            fmt::format("{}: the adapter was loaded for another model: this one's {} of layer {} "
                        "does not fit it",
                        name, name_of(p.role), p.layer));
      added[to].push_back(low_rank_of(p, one.scale));
      rank = std::max(rank, p.rank);
    }
  }
  applied = std::move(chosen);
  low_ranks = std::move(added);
  most_rank = rank;
}

}  // namespace episodic
