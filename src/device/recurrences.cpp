// SPDX-License-Identifier: Apache-2.0
#include "recurrences.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "episodic/base/error.hpp"

namespace episodic::device {
namespace {

const char* const kSaidOfMatrices = "the matrices of recurrent heads";

}  // namespace

Recurrences::Recurrences(const ModelConfig& config, std::span<const std::int64_t> layers,
                         std::int64_t chunk) {
  for (const std::int64_t number : layers) {
    const RecurrenceSpec& spec = config.layers.at(static_cast<std::size_t>(number)).recurrence;
    if (!spec) continue;
    if (spec.key_dim > kernels::kMostRecurrentKey)
      throw ConfigError(fmt::format(
          "CUDA decoder: recurrent heads of {} key channels, at most {}; run this {} model on the "
          "CPU",
          spec.key_dim, kernels::kMostRecurrentKey, config.model_type));
    layers_.push_back({number, spec, chunk + spec.taps - 1, nullptr, nullptr, nullptr});
  }
}

void Recurrences::lay_out(Layout& c) {
  for (Layer& layer : layers_) {
    layer.ring =
        reinterpret_cast<std::byte*>(c.take<float>(layer.capacity * layer.spec.channels()));
    layer.matrix = c.take<float>(2 * layer.spec.matrix_floats());
    layer.tag = c.take<std::int64_t>(2 * layer.tags());
  }
}

std::vector<KeptRows::Ring> Recurrences::rings() const {
  std::vector<KeptRows::Ring> rings;
  for (const Layer& layer : layers_)
    rings.push_back({layer.ring, 1, layer.capacity,
                     layer.spec.channels() * static_cast<std::int64_t>(sizeof(float)),
                     layer.spec.taps - 1});
  return rings;
}

kernels::LinearRecurrenceParams Recurrences::params(std::int64_t number, std::int64_t n,
                                                    const std::int64_t* position) const {
  const auto layer = std::find_if(layers_.begin(), layers_.end(),
                                  [&](const Layer& l) { return l.number == number; });
  if (layer == layers_.end())
    throw DataError(fmt::format("CUDA decoder: layer {} carries no matrices here", number));
  const RecurrenceSpec& s = layer->spec;
  kernels::LinearRecurrenceParams p;
  p.delta = s.delta();
  p.tiled = s.tiled;
  p.n = n;
  p.heads = s.heads;
  p.key_heads = s.key_heads;
  p.key_dim = s.key_dim;
  p.value_dim = s.value_dim;
  p.taps = s.taps;
  p.least_step = static_cast<float>(s.least_step);
  p.most_step = static_cast<float>(s.most_step);
  p.first_position = position;
  p.ring = reinterpret_cast<float*>(layer->ring);
  p.ring_capacity = layer->capacity;
  p.matrix = layer->matrix;
  p.tag = layer->tag;
  return p;
}

/// Which of its matrices have seen so many tokens: all of a layer the same.
int Recurrences::slot_of(const Layer& layer, const std::int64_t* tags, std::int64_t tokens) {
  for (const int slot : {0, 1})
    if (tags[slot * layer.tags()] == tokens) return slot;
  throw DataError(
      fmt::format("CUDA decoder: layer {} carries no matrices of {} tokens", layer.number, tokens));
}

std::vector<float> Recurrences::copy_matrices(std::int64_t tokens, cudaStream_t stream) const {
  std::vector<float> copied;
  if (layers_.empty() || tokens == 0) return copied;  // there are none, or none yet
  std::vector<std::int64_t> tags;
  std::int64_t floats = 0, at = 0;
  for (const Layer& layer : layers_) {
    tags.resize(tags.size() + 2 * static_cast<std::size_t>(layer.tags()));
    floats += layer.spec.matrix_floats();
  }
  for (const Layer& layer : layers_) {
    check(cudaMemcpyAsync(tags.data() + at, layer.tag,
                          2 * static_cast<std::size_t>(layer.tags()) * sizeof(std::int64_t),
                          cudaMemcpyDeviceToHost, stream),
          kSaidOfMatrices);
    at += 2 * layer.tags();
  }
  check(cudaStreamSynchronize(stream), kSaidOfMatrices);
  copied.resize(static_cast<std::size_t>(floats));
  float* to = copied.data();
  const std::int64_t* of_layer = tags.data();
  for (const Layer& layer : layers_) {
    const int slot = slot_of(layer, of_layer, tokens);
    check(cudaMemcpyAsync(to, layer.matrix + slot * layer.spec.matrix_floats(),
                          layer.matrix_bytes(), cudaMemcpyDeviceToHost, stream),
          kSaidOfMatrices);
    to += layer.spec.matrix_floats();
    of_layer += 2 * layer.tags();
  }
  check(cudaStreamSynchronize(stream), kSaidOfMatrices);
  return copied;
}

void Recurrences::put_matrices(const std::vector<float>& copied, std::int64_t tokens,
                               cudaStream_t stream) const {
  if (layers_.empty() || tokens == 0) return;  // none are read
  const float* from = copied.data();
  std::vector<std::vector<std::int64_t>> tags;  // until they are copied
  for (const Layer& layer : layers_) {
    const auto n = static_cast<std::size_t>(layer.tags());
    std::vector<std::int64_t>& of_layer = tags.emplace_back(2 * n, -1);
    std::fill_n(of_layer.begin(), n, tokens);
    check(cudaMemcpyAsync(layer.matrix, from, layer.matrix_bytes(), cudaMemcpyHostToDevice, stream),
          kSaidOfMatrices);
    check(cudaMemcpyAsync(layer.tag, of_layer.data(), of_layer.size() * sizeof(std::int64_t),
                          cudaMemcpyHostToDevice, stream),
          kSaidOfMatrices);
    from += layer.spec.matrix_floats();
  }
  check(cudaStreamSynchronize(stream), kSaidOfMatrices);
}

/// As ShortConvolutions: f(offset of a row from `base`, its first number in the state) of the
/// tokens that the next one's convolution sees.
template <class F>
void Recurrences::for_rows(const Layer& layer, const std::byte* base, std::int64_t tokens, F&& f) {
  const std::int64_t width = layer.spec.channels();
  for (std::int64_t i = 0; i + 1 < layer.spec.taps; ++i) {
    const std::int64_t token = tokens - layer.spec.taps + 1 + i;
    if (token < 0) continue;
    const std::int64_t row = token % layer.capacity * width;
    f(layer.ring - base + row * static_cast<std::int64_t>(sizeof(float)),
      static_cast<std::size_t>(i * width));
  }
}

void Recurrences::read(std::span<const std::byte> bytes, const std::byte* base, std::int64_t tokens,
                       RecurrentState& to) const {
  for (const Layer& layer : layers_) {
    const RecurrenceSpec& s = layer.spec;
    std::vector<float> numbers(static_cast<std::size_t>(s.floats()));
    for_rows(layer, base, tokens, [&](std::int64_t at, std::size_t first) {
      std::memcpy(numbers.data() + first, bytes.data() + at,
                  static_cast<std::size_t>(s.channels()) * sizeof(float));
    });
    if (tokens > 0) {
      std::vector<std::int64_t> tags(2 * static_cast<std::size_t>(layer.tags()));
      std::memcpy(tags.data(), bytes.data() + (reinterpret_cast<std::byte*>(layer.tag) - base),
                  tags.size() * sizeof(std::int64_t));
      const int slot = slot_of(layer, tags.data(), tokens);
      const float* const matrix = layer.matrix + slot * s.matrix_floats();
      std::memcpy(numbers.data() + s.tail_floats(),
                  bytes.data() + (reinterpret_cast<const std::byte*>(matrix) - base),
                  layer.matrix_bytes());
    }
    to.set(layer.number, numbers);
  }
}

void Recurrences::write(const RecurrentState& from, const std::byte* base, std::int64_t tokens,
                        std::span<std::byte> bytes) const {
  for (const Layer& layer : layers_) {
    const RecurrenceSpec& s = layer.spec;
    const std::span<const float> numbers = from.now(layer.number);
    for_rows(layer, base, tokens, [&](std::int64_t at, std::size_t first) {
      std::memcpy(bytes.data() + at, numbers.data() + first,
                  static_cast<std::size_t>(s.channels()) * sizeof(float));
    });
    std::vector<std::int64_t> tags(2 * static_cast<std::size_t>(layer.tags()), -1);
    std::fill_n(tags.begin(), layer.tags(), tokens);
    std::memcpy(bytes.data() + (reinterpret_cast<std::byte*>(layer.tag) - base), tags.data(),
                tags.size() * sizeof(std::int64_t));
    std::memcpy(bytes.data() + (reinterpret_cast<std::byte*>(layer.matrix) - base),
                numbers.data() + s.tail_floats(), layer.matrix_bytes());
  }
}

}  // namespace episodic::device
