// SPDX-License-Identifier: Apache-2.0
#include "causal_layers.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "convert.hpp"
#include "episodic/base/error.hpp"
#include "kernels/attention.hpp"
#include "kernels/window.hpp"
#include "transfers.hpp"
#include "views.hpp"

namespace episodic::device {
namespace {

kernels::AttentionParams sizes_of(DType dtype, std::int64_t n, std::int64_t n_heads,
                                  std::int64_t n_kv_heads, std::int64_t head_dim,
                                  std::int64_t window) {
  kernels::AttentionParams p;
  p.dtype = dtype;
  p.n_queries = n;
  p.n_heads = n_heads;
  p.n_kv_heads = n_kv_heads;
  p.head_dim = head_dim;
  p.n_local = window;
  return p;
}

}  // namespace

CausalLayers::CausalLayers(const ModelConfig& c, const HeadLayout& heads,
                           std::vector<std::int64_t> layers, DType dtype, std::int64_t chunk,
                           std::int64_t max_tokens)
    : head_dim_(heads.head_dim()),
      chunk_(chunk),
      dtype_(dtype),
      convolutions_(c, layers, chunk),
      recurrences_(c, layers, chunk) {
  std::vector<int> of_rope(c.ropes.size(), -1);  // among rotaries_
  for (const std::int64_t number : layers) {
    const LayerSpec& spec = c.layers.at(static_cast<std::size_t>(number));
    if (spec.mixer != Mixer::attention) continue;
    Layer layer;
    layer.number = number;
    // A window that nothing leaves is no window.
    layer.window = spec.window == 0 ? max_tokens : std::min(spec.window, max_tokens);
    layer.capacity = layer.window + chunk - 1;
    layer.n_heads = spec.n_heads;
    layer.n_kv_heads = spec.n_kv_heads;
    layer.soft_cap = static_cast<float>(spec.soft_cap);
    if (spec.rope >= 0) {
      int& rotary = of_rope.at(static_cast<std::size_t>(spec.rope));
      if (rotary < 0) {
        rotary = static_cast<int>(rotaries_.size());
        const Rope& rope = c.ropes[static_cast<std::size_t>(spec.rope)];
        rotaries_.push_back({heads.table(rope.at(max_tokens))});
      }
      layer.rotary = rotary;
    }
    const std::size_t workspace = kernels::largest_attention_workspace_bytes(
        sizes_of(dtype, chunk, layer.n_heads, layer.n_kv_heads, head_dim_, layer.window));
    if (workspace == 0)
      throw ConfigError(fmt::format(
          "CUDA decoder: no attention kernel for layer {}: head_dim = {}, {} heads, {} kv heads, "
          "a window of {} tokens",
          number, head_dim_, layer.n_heads, layer.n_kv_heads, layer.window));
    workspace_bytes_ = std::max(workspace_bytes_, static_cast<std::int64_t>(workspace));
    layers_.push_back(layer);
  }
  Layout counter;
  lay_out(counter);
  bytes_ = counter.bytes();
}

void CausalLayers::lay_out(Layout& c) {
  for (Layer& layer : layers_)
    for (std::byte** ring : {&layer.key, &layer.value})
      *ring = c.take(layer.n_kv_heads * layer.capacity * head_dim_ * size_of(dtype_));
  convolutions_.lay_out(c);
  recurrences_.lay_out(c);
  ring_bytes_ = c.bytes();
  for (Rotary& r : rotaries_) {
    const std::int64_t angles = r.table.rotary_dim() / 2;
    r.inverse_frequency = c.take<double>(angles);
    for (float** step : {&r.cos, &r.sin}) *step = c.take<float>(chunk_ * angles);
  }
  std::int64_t kv_heads = 0;
  for (const Layer& layer : layers_) kv_heads = std::max(kv_heads, layer.n_kv_heads);
  n_arrived_ = kernels::kAttentionCounters * kv_heads;
  arrived_ = c.take<std::uint32_t>(n_arrived_);
  workspace_ = c.take(workspace_bytes_);
}

void CausalLayers::allocate(cudaStream_t stream) {
  if (empty()) return;
  buffer_ =
      DeviceBuffer(bytes_, "the cache of keys and values", "lower chunk or the number of tokens");
  Layout layout(buffer_.data());
  lay_out(layout);
  std::vector<KeptRows::Ring> rings;
  for (const Layer& layer : layers_)
    for (std::byte* const ring : {layer.key, layer.value})
      rings.push_back({ring, layer.n_kv_heads, layer.capacity, head_dim_ * size_of(dtype_),
                       std::min(layer.window, layer.capacity)});
  for (const KeptRows::Ring& ring : convolutions_.rings()) rings.push_back(ring);
  for (const KeptRows::Ring& ring : recurrences_.rings()) rings.push_back(ring);
  kept_rows_ = KeptRows(std::move(rings));
  for (const Rotary& r : rotaries_)
    check(cudaMemcpyAsync(r.inverse_frequency, r.table.inverse_frequency.data(),
                          r.table.inverse_frequency.size() * sizeof(double), cudaMemcpyHostToDevice,
                          stream),
          "a copy to the device");
  check(cudaMemsetAsync(arrived_, 0, static_cast<std::size_t>(n_arrived_) * sizeof(*arrived_),
                        stream),
        "clearing");
  check(cudaStreamSynchronize(stream), "a copy to the device");
}

bool CausalLayers::serves(std::int64_t layer) const {
  return std::any_of(layers_.begin(), layers_.end(),
                     [&](const Layer& l) { return l.number == layer; });
}

const CausalLayers::Layer& CausalLayers::at(std::int64_t layer) const {
  const auto it = std::find_if(layers_.begin(), layers_.end(),
                               [&](const Layer& l) { return l.number == layer; });
  if (it == layers_.end())
    throw DataError(fmt::format("CUDA decoder: layer {} has no cache of keys and values", layer));
  return *it;
}

void CausalLayers::begin_step(std::int64_t n, const std::int64_t* position) {
  n_ = n;
  position_ = position;
}

void CausalLayers::enqueue_angles(std::span<const CausalLayers* const> sequences,
                                  cudaStream_t stream) {
  std::vector<kernels::RotaryAnglesParams> angles;
  for (const CausalLayers* const of : sequences)
    for (const Rotary& r : of->rotaries_)
      angles.push_back({of->n_, r.table.rotary_dim() / 2, of->position_, r.inverse_frequency,
                        r.table.attention_factor, r.cos, r.sin});
  launch_batch(kernels::rotary_angles_batch, angles, stream, "rotary angles");
}

const CausalLayers::Rotary& CausalLayers::rotary(const Layer& layer) const {
  static const Rotary none;
  return layer.rotary < 0 ? none : rotaries_[static_cast<std::size_t>(layer.rotary)];
}

HeadPlace CausalLayers::head_place(std::int64_t number) const {
  const Layer& layer = at(number);
  const Rotary& angles = rotary(layer);
  HeadPlace place;
  place.rotary_dim = angles.table.rotary_dim();
  place.interleaved = angles.table.pairs == RotaryPairs::interleaved;
  kernels::HeadTarget& to = place.target;
  to.position = position_;
  to.cos = angles.cos;
  to.sin = angles.sin;
  to.ring_rotated_key = layer.key;
  to.ring_value = layer.value;
  to.ring_capacity = layer.capacity;
  to.ring_head_stride = layer.capacity * head_dim_;
  return place;
}

kernels::AppendParams CausalLayers::append_params(const Layer& layer,
                                                  const DeviceMemory::LayerStep& step) const {
  const Rotary& angles = rotary(layer);
  kernels::AppendParams p;
  p.dtype = dtype_;
  p.n = n_;
  p.n_kv_heads = layer.n_kv_heads;
  p.head_dim = head_dim_;
  p.rotary_dim = angles.table.rotary_dim();
  p.interleaved = angles.table.pairs == RotaryPairs::interleaved;
  p.first_position = position_;
  p.k = step.k.data;
  p.v = step.v.data;
  p.k_row_stride = row_stride(step.k);
  p.v_row_stride = row_stride(step.v);
  p.cos = angles.cos;
  p.sin = angles.sin;
  p.ring_rotated_key = layer.key;
  p.ring_value = layer.value;
  p.ring_capacity = layer.capacity;
  p.ring_head_stride = layer.capacity * head_dim_;
  return p;
}

void CausalLayers::attend(std::int64_t number, std::span<const SequenceStep> steps,
                          cudaStream_t stream) {
  std::vector<kernels::AppendParams> appended;
  std::vector<kernels::AttentionParams> attention;
  for (const SequenceStep& s : steps) {
    const Layer& layer = s.layers->at(number);
    if (!s.step.appended) appended.push_back(s.layers->append_params(layer, s.step));
    attention.push_back(s.layers->attention_params(layer, s.step));
  }
  launch_batch(kernels::append_window_batch, appended, stream, "appending keys and values");
  launch_batch(kernels::segmented_attention_batch, attention, stream, "attention");
}

kernels::AttentionParams CausalLayers::attention_params(const Layer& layer,
                                                        const DeviceMemory::LayerStep& step) const {
  const Rotary& angles = rotary(layer);
  kernels::AttentionParams p =
      sizes_of(dtype_, n_, layer.n_heads, layer.n_kv_heads, head_dim_, layer.window);
  p.scale = step.scale;
  p.maybe_sink_logits = step.sink_logits;
  p.soft_cap = layer.soft_cap;
  p.q = step.q.data;
  p.q_row_stride = row_stride(step.q);
  p.first_position = position_;
  p.rotary_dim = angles.table.rotary_dim();
  p.interleaved = angles.table.pairs == RotaryPairs::interleaved;
  p.query_cos = p.fixed_cos = angles.cos;  // there are no far keys
  p.query_sin = p.fixed_sin = angles.sin;
  p.local_key = layer.key;
  p.local_value = layer.value;
  p.ring_capacity = layer.capacity;
  p.ring_head_stride = layer.capacity * head_dim_;
  p.out = step.out.data;
  p.maybe_arrived = arrived_;
  p.workspace = workspace_;
  p.workspace_bytes = static_cast<std::size_t>(workspace_bytes_);
  return p;
}

void CausalLayers::copy(const CausalLayers& from, cudaStream_t stream) {
  move(buffer_.data(), from.buffer_.data(), ring_bytes_, stream);
}

std::vector<std::byte> CausalLayers::read(cudaStream_t stream) const {
  std::vector<std::byte> rings(static_cast<std::size_t>(ring_bytes_));
  if (!rings.empty())
    check(
        cudaMemcpyAsync(rings.data(), buffer_.data(), rings.size(), cudaMemcpyDeviceToHost, stream),
        "a copy from the device");
  check(cudaStreamSynchronize(stream), "a copy from the device");
  return rings;
}

void CausalLayers::write(const std::vector<std::byte>& rings, cudaStream_t stream) {
  if (!rings.empty())
    check(
        cudaMemcpyAsync(buffer_.data(), rings.data(), rings.size(), cudaMemcpyHostToDevice, stream),
        "a copy to the device");
  check(cudaStreamSynchronize(stream), "a copy to the device");
}

/// f(where in the rings of keys or values, in bytes from the buffer's start; where in the window's
/// rows, in elements) for each run of rows that are side by side in both.
template <class F>
void CausalLayers::for_rows(const SlidingWindows::Layer& of, std::int64_t tokens, F&& f) const {
  const Layer& layer = at(of.number);
  const std::int64_t first = of.first(tokens), n = tokens - first, element = size_of(dtype_);
  const std::int64_t key = layer.key - buffer_.data(), value = layer.value - buffer_.data();
  for (std::int64_t g = 0; g < layer.n_kv_heads; ++g)
    for (std::int64_t t = first; t < tokens; ++t) {
      const std::int64_t in_ring = (g * layer.capacity + t % layer.capacity) * head_dim_ * element;
      f(key + in_ring, value + in_ring, static_cast<std::size_t>((g * n + t - first) * head_dim_));
    }
}

std::vector<SlidingWindows::Layer> CausalLayers::read_windows(
    std::vector<SlidingWindows::Layer> windows, std::int64_t tokens, cudaStream_t stream) const {
  const std::vector<std::byte> rings = read(stream);
  for (SlidingWindows::Layer& of : windows) {
    const auto size =
        static_cast<std::size_t>(of.n_kv_heads * (tokens - of.first(tokens)) * of.head_dim);
    of.key.resize(size);
    of.value.resize(size);
    for_rows(of, tokens, [&](std::int64_t key, std::int64_t value, std::size_t to) {
      widen(rings.data() + key, head_dim_, dtype_, of.key.data() + to);
      widen(rings.data() + value, head_dim_, dtype_, of.value.data() + to);
    });
  }
  return windows;
}

RecurrentState CausalLayers::read_recurrent(const ModelConfig& config, std::int64_t tokens,
                                            cudaStream_t stream) const {
  RecurrentState state(config);
  if (convolutions_.empty() && recurrences_.empty()) return state;
  const std::vector<std::byte> rings = read(stream);
  convolutions_.read(rings, buffer_.data(), tokens, state);
  recurrences_.read(rings, buffer_.data(), tokens, state);
  return state;
}

void CausalLayers::write_windows(const SlidingWindows& from, cudaStream_t stream) {
  std::vector<std::byte> rings(static_cast<std::size_t>(ring_bytes_));
  for (const SlidingWindows::Layer& of : from.layers())
    for_rows(of, from.tokens(), [&](std::int64_t key, std::int64_t value, std::size_t at) {
      narrow(of.key.data() + at, head_dim_, dtype_, rings.data() + key);
      narrow(of.value.data() + at, head_dim_, dtype_, rings.data() + value);
    });
  convolutions_.write(from.recurrent(), buffer_.data(), from.tokens(), rings);
  recurrences_.write(from.recurrent(), buffer_.data(), from.tokens(), rings);
  write(rings, stream);
}

}  // namespace episodic::device
