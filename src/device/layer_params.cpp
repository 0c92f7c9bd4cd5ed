// SPDX-License-Identifier: Apache-2.0
// What a layer's launches are told.
#include "device_layers.hpp"
#include "views.hpp"

namespace episodic::device {

void DeviceLayers::add_angles(std::int64_t n, std::vector<kernels::RotaryAnglesParams>& to) const {
  for (const DeviceRotary& r : rotaries_)
    to.push_back({n, r.dim() / 2, timeline_.first_position(), r.inverse_frequency,
                  r.table.attention_factor, r.cos, r.sin});
}

HeadPlace DeviceLayers::head_place(const DeviceLayer& layer, const StepState& step) const {
  const DeviceRotary& angles = rotary(layer);
  HeadPlace place;
  place.rotary_dim = angles.dim();
  place.interleaved = angles.interleaved();
  kernels::HeadTarget& to = place.target;
  to.position = timeline_.first_position();
  to.cos = angles.cos;
  to.sin = angles.sin;
  to.maybe_ring_key = layer.ring_key;
  to.ring_rotated_key = layer.ring_rotated;
  to.ring_value = layer.ring_value;
  to.ring_capacity = sizes_.capacity;
  to.ring_head_stride = sizes_.head_stride;
  to.sink_key = layer.sink_key;
  to.sink_value = layer.sink_value;
  to.n_init = sizes_.config.n_init;
  to.fixed_cos = angles.fixed_cos;
  to.fixed_sin = angles.fixed_sin;
  if (wants_mean_query(layer, step)) to.maybe_mean = mean_query_;
  return place;
}

kernels::AppendParams DeviceLayers::append_params(const DeviceLayer& layer, std::int64_t count,
                                                  const void* k, const void* v,
                                                  std::int64_t k_row_stride,
                                                  std::int64_t v_row_stride) const {
  kernels::AppendParams p;
  p.dtype = sizes_.options.dtype;
  p.n = count;
  p.n_kv_heads = sizes_.shape.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.rotary_dim = rotary(layer).dim();
  p.interleaved = rotary(layer).interleaved();
  p.first_position = timeline_.first_position();
  p.k = k;
  p.v = v;
  p.k_row_stride = k_row_stride;
  p.v_row_stride = v_row_stride;
  p.cos = rotary(layer).cos;
  p.sin = rotary(layer).sin;
  p.ring_key = layer.ring_key;
  p.ring_rotated_key = layer.ring_rotated;
  p.ring_value = layer.ring_value;
  p.ring_capacity = sizes_.capacity;
  p.ring_head_stride = sizes_.head_stride;
  p.sink_key = layer.sink_key;
  p.sink_value = layer.sink_value;
  p.n_init = sizes_.config.n_init;
  return p;
}

kernels::MeanQueryParams DeviceLayers::mean_query_params(const DeviceLayer& layer,
                                                         std::int64_t n_queries,
                                                         const Workspace& w) const {
  const DeviceRotary& angles = rotary(layer);
  kernels::MeanQueryParams p;
  p.dtype = sizes_.options.dtype;
  p.n = n_queries;
  p.n_heads = sizes_.shape.n_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.rotary_dim = angles.dim();
  p.interleaved = angles.interleaved();
  p.q_row_stride = sizes_.width();
  p.fixed_cos = angles.fixed_cos;
  p.fixed_sin = angles.fixed_sin;
  p.mean = mean_query_;
  p.workspace = w.data;
  p.workspace_bytes = static_cast<std::size_t>(w.bytes);
  p.maybe_arrived = averaged_;
  return p;
}

kernels::RecallParams DeviceLayers::recall_params(const Workspace& w) const {
  kernels::RecallParams p;
  p.n_lanes = sizes_.lanes.per_layer;
  p.n_events = timeline_.event_count();
  p.events = timeline_.events();
  p.count_stride = sizes_.count_stride();
  p.table_stride = sizes_.table_stride();
  p.max_events = sizes_.max_events;
  p.n_init = sizes_.config.n_init;
  p.tokens = timeline_.first_position();
  p.n = 1;
  p.dtype = sizes_.options.representatives;
  p.width = sizes_.lane_width();
  p.query = mean_query_;
  if (sizes_.keeps_each()) {
    p.n_repr = sizes_.most_repr();
    p.n_heads = sizes_.lanes.n_heads;
  }
  p.codes_from = sizes_.keeps_codes() ? sizes_.codes_from() : 0;
  p.n_local = sizes_.config.n_local;
  p.n_mem = sizes_.config.n_mem;
  p.chunk = sizes_.config.chunk;
  p.min_block = sizes_.config.min_block;
  p.contiguity = sizes_.config.contiguity;
  p.neighbours = sizes_.config.neighbours;
  p.workspace = w.data;
  p.workspace_bytes = static_cast<std::size_t>(w.bytes);
  return p;
}

kernels::RecallParams DeviceLayers::recall_params(const DeviceLayer& layer, const StepState& step,
                                                  const std::uint8_t* maybe_forgotten,
                                                  const Workspace& w) const {
  kernels::RecallParams p = recall_params(w);
  const RecallLists& lists = layer.lists[step.lists()];
  p.n = step.n;
  p.n_events = timeline_.event_count(scope_of(layer, 0));
  p.events = timeline_.events(scope_of(layer, 0));
  p.representatives = layer.representatives;
  p.maybe_each = layer.each;
  p.maybe_forgotten = maybe_forgotten;
  p.codes = layer.codes;
  p.code_bounds = layer.code_bounds;
  const RecallLists& before = layer.lists[StepState::kLeft];
  p.queue = before.contiguity;
  p.queue_size = before.sizes + 1;
  p.similarity = lists.similarity;
  p.contiguity_list = lists.contiguity;
  p.recalled = lists.recalled;
  p.sizes = lists.sizes;
  p.arrived = arrived_;
  p.histogram = score_tokens_;
  p.centre = score_centres_ + first_lane(layer);
  return p;
}

kernels::EventScoreParams DeviceLayers::score_params(const DeviceLayer& layer,
                                                     const RecallLists* maybe_listed) const {
  kernels::EventScoreParams p;
  p.query = mean_query_;
  p.width = sizes_.lane_width();
  p.dtype = sizes_.options.representatives;
  p.representative = layer.representatives;
  p.n_events = timeline_.event_count(scope_of(layer, 0));
  p.max_events = sizes_.max_events;
  p.score = event_scores_;
  if (maybe_listed) {
    p.maybe_listed = maybe_listed->recalled;
    p.n_listed = maybe_listed->sizes + 2;
    p.max_listed = sizes_.room;
  }
  p.n_lanes = sizes_.lanes.per_layer;
  p.count_stride = sizes_.count_stride();
  p.listed_stride = 3;
  return p;
}

kernels::RecallTopParams DeviceLayers::top_params(const DeviceLayer& layer,
                                                  const RecallLists& lists,
                                                  const std::uint8_t* maybe_forgotten) const {
  kernels::RecallTopParams p;
  p.top_k = sizes_.config.reweight_top;
  p.neighbours = sizes_.config.reweight == Reweighting::broad;
  p.score = event_scores_;
  p.n_events = timeline_.event_count(scope_of(layer, 0));
  p.max_events = sizes_.max_events;
  p.maybe_forgotten = maybe_forgotten;
  p.mark_stride = sizes_.table_stride();
  p.is_top = is_top_;
  p.similarity = lists.similarity;
  p.contiguity_list = lists.contiguity;
  p.recalled = lists.recalled;
  p.list_capacity = sizes_.room;
  p.sizes = lists.sizes;
  p.n_lanes = sizes_.lanes.per_layer;
  p.count_stride = sizes_.count_stride();
  return p;
}

kernels::RowsParams DeviceLayers::rows_params(const DeviceLayer& layer, const StepState& step,
                                              const EventPlaces& places) const {
  const RecallLists& lists = layer.lists[step.lists()];
  kernels::RowsParams p;
  p.dtype = sizes_.options.dtype;
  p.n_kv_heads = sizes_.shape.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.n_lanes = sizes_.lanes.per_layer;
  p.tokens = timeline_.first_position();
  p.n = step.n;
  p.n_init = sizes_.config.n_init;
  p.n_local = sizes_.config.n_local;
  p.sink_key = layer.sink_key;
  p.sink_value = layer.sink_value;
  p.ring_key = layer.ring_key;
  p.ring_value = layer.ring_value;
  p.ring_capacity = sizes_.capacity;
  p.ring_head_stride = sizes_.head_stride;
  p.n_events = timeline_.event_count(scope_of(layer, 0));
  p.events = timeline_.events(scope_of(layer, 0));
  p.count_stride = sizes_.count_stride();
  p.table_stride = sizes_.table_stride();
  p.max_events = sizes_.max_events;
  if (layer.place >= 0) {
    p.event_block = places.blocks;
    p.maybe_event_scales = places.maybe_scales;
    p.recalled = lists.recalled;
    p.n_recalled = lists.sizes + 2;
    p.list_capacity = sizes_.room;
    if (weighs(layer)) p.maybe_event_weight = event_scores_;
  }
  p.rows = rows_;
  p.row_scales = row_scales_;
  p.n_rows = n_rows_;
  p.max_rows = sizes_.max_rows;
  p.overflow = overflow_;
  return p;
}

kernels::AttentionParams DeviceLayers::attention_params(const DeviceLayer& layer,
                                                        std::int64_t n_queries,
                                                        const Workspace& w) const {
  const DeviceRotary& angles = rotary(layer);
  kernels::AttentionParams p;
  p.dtype = sizes_.options.dtype;
  p.n_queries = n_queries;
  p.n_heads = sizes_.shape.n_heads;
  p.n_kv_heads = sizes_.shape.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.n_local = sizes_.config.n_local;
  p.q_row_stride = sizes_.width();
  p.first_position = timeline_.first_position();
  p.scale = layer.scale;
  p.soft_cap = layer.soft_cap;
  p.rotary_dim = angles.dim();
  p.interleaved = angles.interleaved();
  p.query_cos = angles.cos;
  p.query_sin = angles.sin;
  p.fixed_cos = angles.fixed_cos;
  p.fixed_sin = angles.fixed_sin;
  p.rows = rows_;
  p.n_rows = n_rows_;
  p.max_rows = sizes_.max_rows;
  p.n_lists = sizes_.lanes.per_layer;
  if (sizes_.scales_of_event() > 0) p.max_code_rows = sizes_.max_event_rows;
  p.row_scales = row_scales_;
  if (is_code(sizes_.event_dtype())) p.code_dtype = sizes_.event_dtype();
  p.ring_capacity = sizes_.capacity;
  p.ring_head_stride = sizes_.head_stride;
  p.maybe_arrived = attended_;
  p.workspace = w.data;
  p.workspace_bytes = static_cast<std::size_t>(w.bytes);
  return p;
}

kernels::AttentionParams DeviceLayers::attention_params(const DeviceLayer& layer,
                                                        const StepState& step,
                                                        const DeviceMemory::LayerStep& of,
                                                        const Workspace& w) const {
  kernels::AttentionParams p = attention_params(layer, step.n, w);
  if (of.scale != 0.0f) p.scale = of.scale;
  p.maybe_sink_logits = of.sink_logits;
  p.q = of.q.data;
  p.q_row_stride = row_stride(of.q);
  p.local_key = layer.ring_rotated;
  p.local_value = layer.ring_value;
  p.out = of.out.data;
  p.maybe_column_sums = layer.sums;
  if (kernels::defers_column_sums(p)) p.maybe_column_stats = layer.stats;
  if (!step.far) p.max_rows = p.max_code_rows = 0;
  return p;
}

kernels::RelevanceParams DeviceLayers::relevance_params(std::int64_t n, const Workspace& w) const {
  return {n,
          sizes_.shape.n_heads,
          sizes_.config.n_local,
          timeline_.first_position(),
          sizes_.capacity,
          relevance_layers_,
          sizes_.shape.n_layers,
          kernels::defers_column_sums(attention_params(layers_.front(), n, w))};
}

kernels::RepresentativeParams DeviceLayers::representative_params(
    const kernels::ClosedEvents& closed) const {
  kernels::RepresentativeParams p;
  p.events = closed;
  p.key_dtype = sizes_.options.dtype;
  p.repr_dtype = sizes_.options.representatives;
  p.n_heads = sizes_.lanes.n_heads;
  p.n_kv_heads = sizes_.lanes.n_kv_heads;
  p.head_dim = sizes_.shape.head_dim;
  p.n_repr = sizes_.most_repr();
  p.ring_capacity = sizes_.capacity;
  p.ring_head_stride = sizes_.head_stride;
  p.relevance_stride = sizes_.shape.n_heads;
  p.capacity = sizes_.max_events;
  p.layers = representative_lanes_;
  p.n_layers = sizes_.lanes.n_lanes;
  p.unit_length = sizes_.config.reweight != Reweighting::none;
  p.full = full_;
  return p;
}

kernels::CodeParams DeviceLayers::code_params(const kernels::ClosedEvents& closed) const {
  kernels::CodeParams p;
  p.events = closed;
  p.dtype = sizes_.options.representatives;
  p.width = sizes_.lane_width();
  p.capacity = sizes_.max_events;
  p.layers = code_lanes_;
  p.n_layers = sizes_.lanes.n_lanes;
  return p;
}

}  // namespace episodic::device
