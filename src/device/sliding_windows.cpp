// SPDX-License-Identifier: Apache-2.0
#include "sliding_windows.hpp"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "episodic/base/bytes.hpp"
#include "episodic/base/error.hpp"

namespace episodic::device {

SlidingWindows::SlidingWindows(const ModelConfig& config, const std::vector<std::int64_t>& layers)
    : recurrent_(config) {
  for (const std::int64_t l : layers) {
    const LayerSpec& s = config.layers.at(static_cast<std::size_t>(l));
    if (s.mixer != Mixer::attention) continue;
    layers_.push_back({l, s.window, s.n_kv_heads, s.head_dim, {}, {}});
  }
}

void SlidingWindows::save(ByteWriter& to) const {
  to.put(tokens_);
  to.put(static_cast<std::int64_t>(layers_.size()));
  for (const Layer& layer : layers_) {
    const std::int64_t first = layer.first(tokens_);
    for (const std::int64_t x : {layer.number, layer.n_kv_heads, layer.head_dim, first}) to.put(x);
    const auto head = static_cast<std::size_t>((tokens_ - first) * layer.head_dim);
    for (const std::vector<float>* rows : {&layer.key, &layer.value})
      for (std::int64_t g = 0; g < layer.n_kv_heads; ++g)
        to.put_span(std::span(*rows).subspan(static_cast<std::size_t>(g) * head, head));
  }
  if (!recurrent_.empty()) recurrent_.save(to);
}

void SlidingWindows::load(ByteReader& from) {
  const auto refuse = [&](const char* what) {
    throw FileError(
        fmt::format("{}: {}; the file is damaged, or of another model", from.where(), what));
  };
  const auto tokens = from.get<std::int64_t>(), used = from.get<std::int64_t>();
  if (tokens < 0 || used != static_cast<std::int64_t>(layers_.size()))
    refuse("its sliding layers are not this model's");
  std::vector<Layer> layers = layers_;
  for (Layer& layer : layers) {
    const std::int64_t first = layer.first(tokens);
    for (const std::int64_t x : {layer.number, layer.n_kv_heads, layer.head_dim, first})
      if (from.get<std::int64_t>() != x) refuse("a layer of another shape or window");
    if (tokens - first > static_cast<std::int64_t>(from.left())) refuse("it is too short");
    const auto head = static_cast<std::size_t>((tokens - first) * layer.head_dim);
    for (std::vector<float>* rows : {&layer.key, &layer.value}) {
      rows->clear();
      for (std::int64_t g = 0; g < layer.n_kv_heads; ++g) {
        const std::vector<float> of_head = from.get_vector<float>(head, "a sliding layer's window");
        rows->insert(rows->end(), of_head.begin(), of_head.end());
      }
    }
  }
  RecurrentState recurrent = recurrent_;
  if (!recurrent.empty()) recurrent.load(from);
  from.finish();
  set(tokens, std::move(layers), std::move(recurrent));
}

}  // namespace episodic::device
