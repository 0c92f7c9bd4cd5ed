// SPDX-License-Identifier: Apache-2.0
#include "short_convolutions.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "episodic/base/error.hpp"

namespace episodic::device {

ShortConvolutions::ShortConvolutions(const ModelConfig& config,
                                     std::span<const std::int64_t> layers, std::int64_t chunk)
    : width_(config.hidden_size) {
  for (const std::int64_t number : layers) {
    const LayerSpec& spec = config.layers.at(static_cast<std::size_t>(number));
    if (spec.mixer == Mixer::short_convolution)
      layers_.push_back({number, spec.conv_taps, chunk + spec.conv_taps - 1, nullptr});
  }
}

void ShortConvolutions::lay_out(Layout& c) {
  for (Layer& layer : layers_)
    layer.ring = reinterpret_cast<std::byte*>(c.take<float>(layer.capacity * width_));
}

std::vector<KeptRows::Ring> ShortConvolutions::rings() const {
  std::vector<KeptRows::Ring> rings;
  for (const Layer& layer : layers_)
    rings.push_back({layer.ring, 1, layer.capacity,
                     width_ * static_cast<std::int64_t>(sizeof(float)), layer.taps - 1});
  return rings;
}

kernels::ShortConvolutionParams ShortConvolutions::params(std::int64_t number, std::int64_t n,
                                                          const std::int64_t* position) const {
  const auto layer = std::find_if(layers_.begin(), layers_.end(),
                                  [&](const Layer& l) { return l.number == number; });
  if (layer == layers_.end())
    throw DataError(fmt::format("CUDA decoder: layer {} carries no state here", number));
  kernels::ShortConvolutionParams p;
  p.n = n;
  p.width = width_;
  p.taps = layer->taps;
  p.first_position = position;
  p.ring = reinterpret_cast<float*>(layer->ring);
  p.ring_capacity = layer->capacity;
  return p;
}

/// f(offset of a row from `base`, its first number in the state) of the tokens that the next one
/// sees. Rows of tokens before the first are zeros, and in no ring.
template <class F>
void ShortConvolutions::for_rows(const Layer& layer, const std::byte* base, std::int64_t tokens,
                                 F&& f) const {
  for (std::int64_t i = 0; i + 1 < layer.taps; ++i) {
    const std::int64_t token = tokens - layer.taps + 1 + i;
    if (token < 0) continue;
    const std::int64_t row = token % layer.capacity * width_;
    f(layer.ring - base + row * static_cast<std::int64_t>(sizeof(float)),
      static_cast<std::size_t>(i * width_));
  }
}

void ShortConvolutions::read(std::span<const std::byte> bytes, const std::byte* base,
                             std::int64_t tokens, RecurrentState& to) const {
  for (const Layer& layer : layers_) {
    std::vector<float> numbers(static_cast<std::size_t>((layer.taps - 1) * width_));
    for_rows(layer, base, tokens, [&](std::int64_t at, std::size_t first) {
      std::memcpy(numbers.data() + first, bytes.data() + at,
                  static_cast<std::size_t>(width_) * sizeof(float));
    });
    to.set(layer.number, numbers);
  }
}

void ShortConvolutions::write(const RecurrentState& from, const std::byte* base,
                              std::int64_t tokens, std::span<std::byte> bytes) const {
  for (const Layer& layer : layers_) {
    const std::span<const float> numbers = from.now(layer.number);
    for_rows(layer, base, tokens, [&](std::int64_t at, std::size_t first) {
      std::memcpy(bytes.data() + at, numbers.data() + first,
                  static_cast<std::size_t>(width_) * sizeof(float));
    });
  }
}

}  // namespace episodic::device
