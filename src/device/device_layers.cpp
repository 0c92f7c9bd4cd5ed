// SPDX-License-Identifier: Apache-2.0
#include "device_layers.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "convert.hpp"
#include "episodic/base/error.hpp"
#include "ring_rows.hpp"
#include "transfers.hpp"

namespace episodic::device {

using Rows = MemoryLayout::Rows;

// -- places ---------------------------------------------------------------------------------------

void DeviceLayers::list() {
  layers_.clear();
  rotaries_.clear();
  std::int64_t place = 0;
  for (std::int64_t l = 0; l < sizes_.shape.n_layers; ++l) {
    LayerShape of = sizes_.shape.layer(l);
    const auto at = std::find_if(rotaries_.begin(), rotaries_.end(),
                                 [&](const auto& r) { return r.table == of.rotary; });
    DeviceLayer layer;
    layer.rotary = static_cast<std::size_t>(at - rotaries_.begin());
    layer.scale = of.scale;
    layer.soft_cap = of.softcap;
    layer.place = recalls(sizes_.config, l) ? place++ : -1;
    if (at == rotaries_.end()) rotaries_.emplace_back().table = std::move(of.rotary);
    layers_.push_back(layer);
  }
}

void DeviceLayers::lay_out_windows(MemoryLayout& layout) {
  const MemoryConfig& config = sizes_.config;
  const std::int64_t d = sizes_.shape.head_dim, G = sizes_.shape.n_kv_heads,
                     H = sizes_.shape.n_heads, element = sizes_.element;
  for (DeviceLayer& layer : layers_) {
    for (std::byte** ring : {&layer.ring_key, &layer.ring_rotated, &layer.ring_value})
      *ring = layout.take(G * sizes_.head_stride * element);
    for (std::byte** sinks : {&layer.sink_key, &layer.sink_value})
      *sinks = layout.take(G * std::max<std::int64_t>(1, config.n_init) * d * element);
    layer.sums = layout.take<float>((config.n_local + config.chunk - 1) * H);
    layer.stats = layout.take<kernels::ColumnStats>(H);
  }
  for (DeviceLayer& layer : layers_)
    layer.relevance = layout.take<float>(sizes_.capacity * H);  // in one piece
}

void DeviceLayers::lay_out_tables(MemoryLayout& layout) {
  const std::int64_t P = sizes_.lanes.per_layer, room = sizes_.room;
  for (DeviceLayer& layer : layers_) {
    if (layer.place < 0) continue;
    layer.representatives = layout.by_event<std::byte>(P, sizes_.repr_row(), Rows::are_final);
    if (sizes_.keeps_each())
      layer.each = layout.by_event<std::byte>(P, sizes_.each_row(), Rows::are_final);
    layer.codes = nullptr;
    layer.code_bounds = nullptr;
    if (sizes_.keeps_codes()) {
      layer.codes = layout.by_event<std::int8_t>(P, kernels::code_stride(sizes_.lane_width()),
                                                 Rows::are_final_by_slab);
      layer.code_bounds = layout.by_event<float>(P, kernels::code_floats(sizes_.lane_width()),
                                                 Rows::are_final_by_slab);
    }
    for (RecallLists& lists : layer.lists) {
      lists.similarity = layout.take<DeviceEventId>(P * room);
      lists.contiguity = layout.take<DeviceEventId>(P * room);
      lists.recalled = layout.take<DeviceEventId>(P * room);
      lists.sizes = layout.take<std::int32_t>(P * 3);
    }
  }
}

void DeviceLayers::lay_out_step(MemoryLayout& layout) {
  const MemoryConfig& config = sizes_.config;
  const MemoryShape& shape = sizes_.shape;
  const std::int64_t P = sizes_.lanes.per_layer, n_lanes = sizes_.lanes.n_lanes;
  for (DeviceRotary& r : rotaries_) {
    const std::int64_t angles = r.dim() / 2;
    r.inverse_frequency = layout.take<double>(angles);
    for (float** step : {&r.cos, &r.sin}) *step = layout.take<float>(config.chunk * angles);
    for (float** fixed : {&r.fixed_cos, &r.fixed_sin}) *fixed = layout.take<float>(angles);
  }
  mean_query_ = layout.take<float>(sizes_.width());
  if (sizes_.options.turns_back) {
    const std::int64_t row = shape.head_dim * sizes_.element;
    turned_q_ = layout.take(config.chunk * shape.n_heads * row);
    turned_k_ = layout.take(config.chunk * shape.n_kv_heads * row);
  }
  if (config.reweight != Reweighting::none)
    event_scores_ = layout.by_event<float>(P, 1, Rows::change);
  if (sizes_.takes_top()) is_top_ = layout.by_event<std::uint8_t>(P, 1, Rows::change);
  for (kernels::LaneLists*& of : lane_lists_) of = layout.take<kernels::LaneLists>(n_lanes);
  rows_ = layout.take<kernels::KvRow>(P * sizes_.max_rows);
  if (sizes_.scales_of_event() > 0) row_scales_ = layout.take<const float*>(P * sizes_.max_rows);
  n_rows_ = layout.take<std::int32_t>(P);
  overflow_ = layout.take<std::int32_t>(1);
  full_ = layout.take<std::int32_t>(1);
  arrived_ = layout.take<std::uint32_t>(P);
  score_tokens_ = layout.take<unsigned long long>(P * rules::kScoreBins);
  score_centres_ = layout.take<rules::ScoreCentre>(n_lanes);
  averaged_ = layout.take<std::uint32_t>(shape.n_heads);
  attended_ = layout.take<std::uint32_t>(kernels::kAttentionCounters * shape.n_kv_heads);
  relevance_layers_ = layout.take<kernels::RelevanceLayer>(shape.n_layers);
  representative_lanes_ = layout.take<kernels::RepresentativeLayer>(n_lanes);
  code_lanes_ = sizes_.keeps_codes() ? layout.take<kernels::CodeLayer>(n_lanes) : nullptr;
}

void DeviceLayers::upload(cudaStream_t stream) const {
  std::vector<RotaryAngles> fixed(rotaries_.size());  // which must live until they are copied
  for (std::size_t i = 0; i < rotaries_.size(); ++i) {
    const DeviceRotary& r = rotaries_[i];
    fixed[i].compute_fixed(r.table, sizes_.config.n_local);
    send(r.inverse_frequency, r.table.inverse_frequency, stream);
    send(r.fixed_cos, fixed[i].cos, stream);
    send(r.fixed_sin, fixed[i].sin, stream);
  }
  const std::int64_t room = sizes_.room, max_events = sizes_.max_events;
  std::vector<kernels::RelevanceLayer> relevance;
  std::vector<kernels::RepresentativeLayer> representatives;
  std::vector<kernels::CodeLayer> codes;
  std::array<std::vector<kernels::LaneLists>, 2> lists;
  for (const DeviceLayer& layer : layers_) {
    relevance.push_back({layer.sums, layer.relevance, layer.stats});
    for (std::int64_t p = 0; layer.place >= 0 && p < sizes_.lanes.per_layer; ++p) {
      const std::int64_t ring = p * sizes_.lanes.n_kv_heads * sizes_.head_stride * sizes_.element;
      std::byte* const vectors = layer.representatives + p * max_events * sizes_.repr_row();
      std::byte* const each =
          layer.each ? layer.each + p * max_events * sizes_.each_row() : nullptr;
      representatives.push_back(
          {layer.ring_key + ring, layer.relevance + p * sizes_.lanes.n_heads, vectors, each});
      for (std::size_t i = 0; i < 2; ++i) {
        const RecallLists& of = layer.lists[i];
        lists[i].push_back({of.similarity + p * room, of.contiguity + p * room,
                            of.recalled + p * room, of.sizes + 3 * p});
      }
      if (!sizes_.keeps_codes()) continue;
      const std::int64_t width = sizes_.lane_width();
      codes.push_back({vectors, layer.codes + p * max_events * kernels::code_stride(width),
                       layer.code_bounds + p * max_events * kernels::code_floats(width)});
    }
  }
  send(relevance_layers_, relevance, stream);
  send(representative_lanes_, representatives, stream);
  send(code_lanes_, codes, stream);
  for (std::size_t i = 0; i < 2; ++i) send(lane_lists_[i], lists[i], stream);
  check(cudaStreamSynchronize(stream), "the memory's constants");
}

void DeviceLayers::clear(cudaStream_t stream) const {
  const std::int64_t P = sizes_.lanes.per_layer;
  fill(n_rows_, 0, P, stream);
  fill(overflow_, 0, 1, stream);
  fill(full_, 0, 1, stream);
  fill(arrived_, 0, P, stream);
  fill(score_tokens_, 0, P * rules::kScoreBins, stream);
  fill(score_centres_, 0, sizes_.lanes.n_lanes, stream);
  fill(averaged_, 0, sizes_.shape.n_heads, stream);
  fill(attended_, 0, kernels::kAttentionCounters * sizes_.shape.n_kv_heads, stream);
  for (const DeviceLayer& layer : layers_)
    for (const RecallLists& lists : layer.lists)
      if (layer.place >= 0) fill(lists.sizes, 0, 3 * P, stream);
}

std::vector<KeptRows::Ring> DeviceLayers::rings() const {
  std::vector<KeptRows::Ring> rings;
  for (const DeviceLayer& layer : layers_)
    for (std::byte* const ring : {layer.ring_key, layer.ring_rotated, layer.ring_value})
      rings.push_back({ring, sizes_.shape.n_kv_heads, sizes_.capacity,
                       sizes_.shape.head_dim * sizes_.element, sizes_.window_tokens});
  return rings;
}

std::vector<const void*> DeviceLayers::ring_keys() const {
  std::vector<const void*> keys;
  for (const DeviceLayer& layer : layers_) keys.push_back(layer.ring_key);
  return keys;
}

std::int64_t DeviceLayers::relevance_bytes() const {
  return Layout::aligned(sizes_.capacity * sizes_.shape.n_heads * std::int64_t{sizeof(float)}) *
         sizes_.shape.n_layers;
}

// -- layers, their lanes and scopes ---------------------------------------------------------------

const DeviceLayer* DeviceLayers::next_recalling(std::int64_t l) const {
  const auto next = std::find_if(layers_.begin() + l + 1, layers_.end(),
                                 [](const DeviceLayer& layer) { return layer.place >= 0; });
  return next == layers_.end() ? nullptr : &*next;
}

DeviceLayers::Lane DeviceLayers::lane(std::int64_t number) const {
  const std::int64_t P = sizes_.lanes.per_layer, n = sizes_.shape.n_layers * P;
  if (number < 0 || number >= n)
    throw DataError(
        fmt::format("lane {} asked for, but the memory has lanes 0 to {}", number, n - 1));
  return {&at(number / P), number % P};
}

DeviceLayers::Lane DeviceLayers::recalling_lane(std::int64_t lane) const {
  const std::int64_t place = lane / sizes_.lanes.per_layer;
  const auto at = std::find_if(layers_.begin(), layers_.end(),
                               [&](const DeviceLayer& layer) { return layer.place == place; });
  return {&*at, lane % sizes_.lanes.per_layer};
}

DeviceLayers::ScopeLanes DeviceLayers::lanes_of(std::int64_t scope) const {
  if (!sizes_.by_head()) return {0, sizes_.lanes.n_lanes};
  const DeviceLayer& layer = at(scope / sizes_.lanes.per_layer);
  if (layer.place < 0) return {};
  return {first_lane(layer) + scope % sizes_.lanes.per_layer, 1};
}

// -- these wait -----------------------------------------------------------------------------------

HostRecallLists DeviceLayers::read_lists(const DeviceLayer& layer, std::int64_t p,
                                         cudaStream_t stream) const {
  if (layer.place < 0) return {};
  const RecallLists& of = layer.lists[StepState::kLeft];
  const std::vector<std::int32_t> sizes = read(of.sizes + 3 * p, 3, stream);
  const std::int64_t first = p * sizes_.room;
  return {read(of.similarity + first, sizes[0], stream),
          read(of.contiguity + first, sizes[1], stream),
          read(of.recalled + first, sizes[2], stream)};
}

void DeviceLayers::write_lists(const DeviceLayer& layer, std::int64_t p,
                               const HostRecallLists& from, cudaStream_t stream) const {
  if (layer.place < 0) return;
  const RecallLists& of = layer.lists[StepState::kLeft];
  std::int32_t sizes[3];
  const std::pair<DeviceEventId*, const std::vector<DeviceEventId>*> arrays[] = {
      {of.similarity, &from.similarity},
      {of.contiguity, &from.contiguity},
      {of.recalled, &from.recalled}};
  for (std::size_t i = 0; i < 3; ++i) {
    const auto count = static_cast<std::int64_t>(arrays[i].second->size());
    if (count > sizes_.room)
      throw DataError(fmt::format("CUDA memory: a recall list of {} events, at most {} fit", count,
                                  sizes_.room));
    write(arrays[i].first + p * sizes_.room, arrays[i].second->data(), count, stream);
    sizes[i] = static_cast<std::int32_t>(count);
  }
  write(of.sizes + 3 * p, sizes, 3, stream);
}

std::vector<float> DeviceLayers::read_representatives(const Lane& lane, EventId first, EventId end,
                                                      cudaStream_t stream) const {
  const std::int64_t row = sizes_.repr_row();
  return widened(read(lane.layer->representatives + (lane.p * sizes_.max_events + first) * row,
                      (end - first) * row, stream),
                 sizes_.options.representatives);
}

void DeviceLayers::write_windows(const MemoryState& from, const Workspace& w,
                                 cudaStream_t stream) const {
  const MemoryConfig& config = sizes_.config;
  const DType dtype = sizes_.options.dtype;
  const std::int64_t G = sizes_.shape.n_kv_heads, d = sizes_.shape.head_dim;
  const std::int64_t window = sizes_.window_tokens, element = sizes_.element;
  const std::int64_t first = std::max<std::int64_t>(0, from.tokens - window);
  const std::int64_t row_elements = G * d, half = config.chunk * row_elements * element;
  std::vector<float> wide_rows(static_cast<std::size_t>(config.chunk * row_elements));
  std::vector<std::byte> narrow_rows(static_cast<std::size_t>(half));
  for (std::int64_t at = first; at < from.tokens; at += config.chunk) {
    const std::int64_t count = std::min(config.chunk, from.tokens - at);
    DeviceTimeline::State here;
    here.tokens = at;
    timeline_.write_states({here}, stream);
    std::vector<kernels::RotaryAnglesParams> angles;
    add_angles(count, angles);
    launch_batch(kernels::rotary_angles_batch, angles, stream, "rotary angles");
    for (std::size_t l = 0; l < layers_.size(); ++l) {
      const MemoryState::Layer& layer = from.layers[l];
      const std::vector<float>* const rings[] = {&layer.keys, &layer.values};
      for (std::int64_t side = 0; side < 2; ++side) {
        for (std::int64_t i = 0; i < count; ++i)
          for (std::int64_t g = 0; g < G; ++g)
            std::copy_n(rings[side]->begin() + (g * window + (at + i) % window) * d, d,
                        wide_rows.begin() + (i * G + g) * d);
        narrow(wide_rows.data(), count * row_elements, dtype, narrow_rows.data());
        write(w.data + side * half, narrow_rows.data(), count * row_elements * element, stream);
      }
      const std::vector<kernels::AppendParams> rows = {
          append_params(layers_[l], count, w.data, w.data + half, row_elements, row_elements)};
      launch_batch(kernels::append_window_batch, rows, stream, "appending keys and values");
    }
  }
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const MemoryState::Layer& layer = from.layers[l];
    const auto put = [&](std::byte* to, const std::vector<float>& values) {
      const std::vector<std::byte> narrowed_values = narrowed(values, dtype);
      write(to, narrowed_values.data(), static_cast<std::int64_t>(narrowed_values.size()), stream);
    };
    put(layers_[l].sink_key, layer.sink_keys);
    put(layers_[l].sink_value, layer.sink_values);
    const std::int64_t H = sizes_.shape.n_heads, capacity = sizes_.capacity;
    const std::vector<float> relevance_rows =
        in_ring(layer.relevance, window, capacity, H, from.tokens);
    write(layers_[l].relevance, relevance_rows.data(), capacity * H, stream);
  }
}

void DeviceLayers::copy(const DeviceLayers& from, cudaStream_t stream) const {
  const std::int64_t G = sizes_.shape.n_kv_heads, P = sizes_.lanes.per_layer,
                     ring = G * sizes_.head_stride * sizes_.element,
                     sinks = G * sizes_.config.n_init * sizes_.shape.head_dim * sizes_.element;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const DeviceLayer &to = layers_[l], &of = from.layers_[l];
    move(to.ring_key, of.ring_key, ring, stream);
    move(to.ring_rotated, of.ring_rotated, ring, stream);
    move(to.ring_value, of.ring_value, ring, stream);
    move(to.sink_key, of.sink_key, sinks, stream);
    move(to.sink_value, of.sink_value, sinks, stream);
    if (to.place < 0) continue;
    const RecallLists &to_lists = to.lists[StepState::kLeft], &lists = of.lists[StepState::kLeft];
    move(to_lists.similarity, lists.similarity, P * sizes_.room, stream);
    move(to_lists.contiguity, lists.contiguity, P * sizes_.room, stream);
    move(to_lists.recalled, lists.recalled, P * sizes_.room, stream);
    move(to_lists.sizes, lists.sizes, 3 * P, stream);
  }
  move(relevance(), from.relevance(), relevance_bytes(), stream);
}

void DeviceLayers::read_windows(std::int64_t tokens, MemoryState& to, cudaStream_t stream) const {
  const std::int64_t G = sizes_.shape.n_kv_heads, d = sizes_.shape.head_dim,
                     H = sizes_.shape.n_heads, n_init = sizes_.config.n_init,
                     capacity = sizes_.capacity, window = sizes_.window_tokens;
  const auto wide = [&](const std::byte* from, std::int64_t rows_in) {
    return widened(read(from, G * rows_in * d * sizes_.element, stream), sizes_.options.dtype);
  };
  const auto ring = [&](const std::byte* from) {
    return in_ring(wide(from, capacity), capacity, window, d, tokens);
  };
  const auto sinks = [&](const std::byte* from) {
    return in_ring(wide(from, n_init), n_init, n_init, d, std::min(tokens, n_init));
  };
  for (const DeviceLayer& layer : layers_)
    to.layers.push_back(
        {ring(layer.ring_key),
         ring(layer.ring_value),
         in_ring(read(layer.relevance, capacity * H, stream), capacity, window, H, tokens),
         sinks(layer.sink_key),
         sinks(layer.sink_value),
         {}});
}

}  // namespace episodic::device
