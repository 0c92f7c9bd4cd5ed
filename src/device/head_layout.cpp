// SPDX-License-Identifier: Apache-2.0
#include "head_layout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "episodic/base/error.hpp"
#include "episodic/model/host_only.hpp"

namespace episodic::device {
namespace {

constexpr std::int64_t kWidest = 256;  // of all kernels of attention

std::int64_t round_up(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

}  // namespace

HeadLayout::HeadLayout(const ModelConfig& c) {
  require_no_host_only_part(c, "CUDA decoder");
  // of all tables, which a model may have several of
  const RotaryTable first = c.ropes.empty() ? RotaryTable() : c.ropes.front().table;
  const std::int64_t rotated = first.rotary_dim();
  padded_ = c.head_dim % 8 != 0;
  bool same = true;
  for (const Rope& rope : c.ropes) {
    padded_ = padded_ || rope.table.rotary_dim() % 16 != 0;
    same = same && rope.table.rotary_dim() == rotated && rope.table.pairs == first.pairs;
  }
  if (padded_ && !same)
    throw ConfigError(
        fmt::format("CUDA decoder: heads of {} channels whose rotary tables rotate different "
                    "channels; run this "
                    "{} model on the CPU",
                    c.head_dim, c.model_type));
  rotary_dim_ = round_up(rotated, 16);
  const std::int64_t dim = padded_ ? round_up(rotary_dim_ + c.head_dim - rotated, 8) : c.head_dim;
  if (dim > kWidest)
    throw ConfigError(
        fmt::format("CUDA decoder: heads of {} channels, at most {}; run this {} model on the CPU",
                    c.head_dim, kWidest, c.model_type));
  channels_.assign(static_cast<std::size_t>(dim), -1);
  if (!padded_) {
    std::iota(channels_.begin(), channels_.end(), 0);
    return;
  }
  // Both halves that rotate begin where those of the longer table do, or its first pairs are
  // theirs. The rest comes behind them.
  const bool pairs = first.pairs == RotaryPairs::interleaved;
  for (std::int64_t from = 0; from < c.head_dim; ++from) {
    const std::int64_t at = from < (pairs ? rotated : rotated / 2) ? from
                            : from < rotated ? rotary_dim_ / 2 + from - rotated / 2
                                             : rotary_dim_ + from - rotated;
    channels_[static_cast<std::size_t>(at)] = from;
  }
}

RotaryTable HeadLayout::table(const RotaryTable& of_model) const {
  RotaryTable table = of_model;
  // zeros rotate at any rate
  if (padded_ && table.rotary_dim() > 0)
    table.inverse_frequency.resize(static_cast<std::size_t>(rotary_dim_ / 2), 0.0);
  return table;
}

std::vector<float> HeadLayout::of_model(const std::vector<float>& heads) const {
  if (!padded_) return heads;
  const std::size_t dim = channels_.size();
  const auto own = static_cast<std::size_t>(
      std::count_if(channels_.begin(), channels_.end(), [](std::int64_t c) { return c >= 0; }));
  std::vector<float> out(heads.size() / dim * own);
  for (std::size_t i = 0; i < heads.size(); ++i)
    if (const std::int64_t c = channels_[i % dim]; c >= 0)
      out[i / dim * own + static_cast<std::size_t>(c)] = heads[i];
  return out;
}

MemoryShape HeadLayout::shape(MemoryShape of_model) const {
  of_model.head_dim = head_dim();
  of_model.rotary = table(of_model.rotary);
  for (LayerShape& layer : of_model.layers) layer.rotary = table(layer.rotary);
  return of_model;
}

}  // namespace episodic::device
