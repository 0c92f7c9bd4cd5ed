// SPDX-License-Identifier: Apache-2.0
#include "episodic/model/recurrent_state.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/checksum.hpp"
#include "episodic/base/error.hpp"

namespace episodic {
namespace {

constexpr std::uint32_t kRecurrentVersion = 1;

}  // namespace

std::int64_t recurrent_floats(const ModelConfig& config, const LayerSpec& layer) {
  if (layer.mixer == Mixer::recurrence) return layer.recurrence.floats();
  return layer.mixer == Mixer::short_convolution ? (layer.conv_taps - 1) * config.hidden_size : 0;
}

bool has_recurrent_layers(const ModelConfig& config) {
  return std::any_of(config.layers.begin(), config.layers.end(),
                     [](const LayerSpec& layer) { return layer.mixer != Mixer::attention; });
}

void require_attention_in_all_layers(const ModelConfig& config, const std::string& who) {
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    const LayerSpec& layer = config.layers[l];
    const char* what = layer.mixer == Mixer::short_convolution ? "a convolution in place of"
                       : layer.mixer == Mixer::recurrence      ? "a recurrence in place of"
                       : layer.output_gate                     ? "a gate behind its"
                                                               : nullptr;
    if (what)
      throw ConfigError(fmt::format(
          "{}: layer {} of this {} model has {} attention, which is not supported there; run the "
          "model by Model and Sequence",
          who, l, config.model_type, what));
  }
}

RecurrentState::RecurrentState(const ModelConfig& config) {
  std::size_t floats = 0;
  for (std::size_t l = 0; l < config.layers.size(); ++l) {
    if (config.layers[l].mixer == Mixer::attention) continue;
    const auto count = static_cast<std::size_t>(recurrent_floats(config, config.layers[l]));
    layers_.push_back({static_cast<std::int64_t>(l), floats, count});
    floats += count;
  }
  now_.resize(floats);
  next_.resize(floats);
}

const RecurrentState::Layer& RecurrentState::at(std::int64_t layer) const {
  const auto it = std::lower_bound(layers_.begin(), layers_.end(), layer,
                                   [](const Layer& l, std::int64_t n) { return l.number < n; });
  if (it == layers_.end() || it->number != layer)
    throw DataError(fmt::format("RecurrentState: layer {} carries no state", layer));
  return *it;
}

std::span<const float> RecurrentState::now(std::int64_t layer) const {
  const Layer& l = at(layer);
  return std::span(now_).subspan(l.first, l.count);
}

std::span<float> RecurrentState::next(std::int64_t layer) {
  const Layer& l = at(layer);
  return std::span(next_).subspan(l.first, l.count);
}

void RecurrentState::set(std::int64_t layer, std::span<const float> numbers) {
  const Layer& l = at(layer);
  if (numbers.size() != l.count)
    throw DataError(fmt::format("RecurrentState: layer {} carries {} numbers, not {}", layer,
                                l.count, numbers.size()));
  std::copy(numbers.begin(), numbers.end(), now_.begin() + static_cast<std::ptrdiff_t>(l.first));
}

void RecurrentState::clear() noexcept { std::fill(now_.begin(), now_.end(), 0.0f); }

std::uint64_t RecurrentState::checksum() const {
  return checksum_of(std::span<const float>(now_), kRecurrentVersion);
}

void RecurrentState::save(ByteWriter& to) const {
  to.put(kRecurrentVersion);
  to.put(static_cast<std::int64_t>(layers_.size()));
  for (const Layer& layer : layers_) {
    to.put(layer.number);
    to.put_span(now(layer.number));
  }
  to.put(checksum());
}

void RecurrentState::load(ByteReader& from) {
  const auto refuse = [&](const std::string& what) {
    throw FileError(fmt::format("{}: {}", from.where(), what));
  };
  if (const auto version = from.get<std::uint32_t>(); version != kRecurrentVersion)
    refuse(
        fmt::format("its recurrent state is of version {}, this library reads {}; use the "
                    "library that wrote it",
                    version, kRecurrentVersion));
  if (from.get<std::int64_t>() != static_cast<std::int64_t>(layers_.size()))
    refuse("other layers carry a state; the file is damaged, or of another model");
  RecurrentState read = *this;
  for (const Layer& layer : layers_) {
    if (from.get<std::int64_t>() != layer.number)
      refuse("another layer carries a state; the file is damaged, or of another model");
    read.set(layer.number, from.get_vector<float>(layer.count, "a layer's recurrent state"));
  }
  if (from.get<std::uint64_t>() != read.checksum())
    refuse("the checksum of its recurrent state is wrong; the file is damaged");
  *this = std::move(read);
}

}  // namespace episodic
