// SPDX-License-Identifier: Apache-2.0
// One step of a DeviceMemory: what it enqueues, in order.
#include <fmt/format.h>

#include <algorithm>

#include "episodic/base/error.hpp"
#include "head_place.hpp"
#include "kernels/place_events.hpp"
#include "kernels/threshold.hpp"
#include "kernels/window.hpp"
#include "memory_impl.hpp"

namespace episodic {

using device::RecallLists;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

namespace {

/// Few blocks fill the host's link, and leave the device to others.
constexpr std::int64_t kLinkBlocks = 32;

}  // namespace

void DeviceMemory::begin_step(std::int64_t n, StepKind kind) {
  Impl& m = *impl_;
  if (n < 1 || n > m.config.chunk)
    throw DataError(
        fmt::format("begin_step: n = {} tokens, must be in [1, chunk = {}]; feed longer "
                    "texts in several steps",
                    n, m.config.chunk));
  if (m.tokens + n > m.options.max_tokens)
    throw BudgetError(fmt::format(
        "CUDA memory: it has room for max_tokens = {}, {} are there and {} more come; make it with "
        "more",
        m.options.max_tokens, m.tokens, n));
  if (m.broken)
    throw DataError(
        "CUDA memory: events of an earlier step could not be kept, as was said then; reset it");
  const device::CurrentDevice current(m.device);
  m.judge();
  m.forget_due();
  m.make_room(n);
  if (m.lower) m.lower->begin_step(m.tokens);
  m.open = true;
  m.n = n;
  m.next_layer = 0;
  m.far = m.tokens + n > m.config.n_local;
  const RecallTurn turn = recall_turn(n, kind, m.steps_since_recall, m.config.recall_every);
  m.recalls_now = turn.recalls;
  m.next_since_recall = turn.since;
  m.recalled_in_step = m.far && m.recalls_now;
  // The stream waits here rather than where it must: for a layer of a step that is now begun anew,
  // and before a step of one token, which may be a graph. A graph waits for nothing outside it.
  if (m.fetches_ahead || n == 1) m.join_side_streams();
}

std::optional<std::uint32_t> DeviceMemory::step_kind() const {
  const Impl& m = *impl_;
  if (!m.open || m.segmenter || m.lower || (m.has_host_tier() && m.n > 1)) return std::nullopt;
  const bool lists = m.far && m.recalling > 0;
  std::uint32_t kind = 0;
  for (const bool bit : {m.far, lists && m.recalls_now, lists && m.lists_now == 1, m.may_close(),
                         lists && m.has_forgotten})
    kind = kind << 1 | static_cast<std::uint32_t>(bit);
  return kind;
}

/// Begins to copy the scales of a lane's closed events beside their codes, which the device wrote
/// there itself: `read` of what follows waits for both.
void DeviceMemory::Impl::stage_scales(std::int64_t lane, std::int64_t first, std::int64_t count) {
  if (scales_of_event() == 0 || count == 0) return;
  device::check(
      cudaMemcpyAsync(lower->staged_scales(lane), scales_of(lane) + first * scales_of_event(),
                      static_cast<std::size_t>(count * scales_of_event()) * sizeof(float),
                      cudaMemcpyDeviceToHost, stream),
      "a copy from the device");
}

/// Hands the events that this step has closed to the tier below.
void DeviceMemory::Impl::keep_closed() {
  const std::vector<TimelineState> now = read_timelines();
  const auto closed_of = [&](std::int64_t scope) {
    const TimelineState& s = now[static_cast<std::size_t>(scope)];
    return read(events + scope * max_events + s.n_events - s.n_closed, s.n_closed);
  };
  try {
    for (const Layer& layer : layers)
      for (std::int64_t p = 0; layer.place >= 0 && p < lanes.per_layer; ++p) {
        const TimelineState& s = now[static_cast<std::size_t>(scope_of(layer, p))];
        stage_scales(first_lane(layer) + p, s.n_events - s.n_closed, s.n_closed);
      }
    if (!by_head()) {
      lower->keep(closed_of(0));
    } else {
      for (const Layer& layer : layers)
        for (std::int64_t p = 0; layer.place >= 0 && p < lanes.per_layer; ++p)
          lower->keep(first_lane(layer) + p, closed_of(scope_of(layer, p)));
    }
  } catch (...) {
    broken = true;  // the device has gone on
    open = false;
    throw;
  }
}

/// A step's events are written home in parts of 1, 2, 4, ... layers, a launch each. A layer of the
/// next step waits for the parts up to its own: the first for its own events and no others.
void DeviceMemory::Impl::make_side_streams() {
  write_stream = device::SideStream::create();
  fetch_stream = device::SideStream::create();
  for (std::int64_t first = 0; first < recalling; first = 2 * first + 1)
    write_outs.push_back({first, std::min(first + 1, recalling - first), device::Event::create()});
  awaited = write_outs.size();
}

/// The stream may now read at home what this layer, and those before it, closed in earlier steps.
void DeviceMemory::Impl::await_homes(std::int64_t place) {
  for (; awaited < write_outs.size() && write_outs[awaited].first <= place; ++awaited)
    write_outs[awaited].written.hold(stream);
}

/// The stream comes behind all that runs beside it.
void DeviceMemory::Impl::join_side_streams() {
  await_homes(recalling - 1);
  if (fetches_ahead) fetch_stream.join(stream);
  fetches_ahead = false;
}

/// Writes the closed events' keys and values where place_events says.
///
/// To host memory beside the stream, from the end of the step on. The stream must not overtake it
///   in each layer of the next step, which may recall those events: there it waits (await_homes);
///   in writing to the rings: a step closes tokens from its first one - n_local - max_block on, and
///     what this step and the next append, 2 chunk at most, overwrites only older ones in rings of
///     n_local + max_block + 2 chunk (ring_capacity). The step behind those might overwrite them;
///   in writing the lists of closed events, at the next step's end. All layers have waited by then:
///     a step of several tokens recalls in each, if an event was closed before it.
void DeviceMemory::Impl::keep_blocks() {
  kernels::EventBlockParams p;
  p.dtype = options.dtype;
  p.block_dtype = event_dtype();
  p.n_kv_heads = lanes.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.not_finite = not_finite;
  // Of layers that recall, each with its lanes.
  const auto keep = [&](std::int64_t first, std::int64_t count, cudaStream_t on) {
    const std::int64_t lane = first * lanes.per_layer;
    p.layers = block_lanes + lane;
    p.n_layers = count * lanes.per_layer;
    p.block = step_blocks + lane * max_closed;
    p.events = closed().of(lane);
    device::check(kernels::event_to_block(p, on), "keeping events", p);
  };
  // A step of one token closes little and may be captured: a graph must have joined what forked off
  // it, so that nothing of this would run beside the next step.
  if (write_outs.empty() || n == 1) return keep(0, recalling, stream);
  p.max_blocks = kLinkBlocks;
  write_stream.fork_from(stream);
  for (const WriteOut& part : write_outs) {
    keep(part.first, part.count, write_stream.get());
    part.written.record(write_stream.get());
  }
  awaited = 0;
}

/// Brings the recalled events that lie in host memory alone into the layer's slots, in place of
/// those recalled longest ago.
/// \param ahead the events are those that an earlier layer recalled, a guess: it counts as no
///        recall, and what this layer recalled in its last step or might now stays
void DeviceMemory::Impl::fetch(const Layer& layer, const RecallLists& lists, bool ahead,
                               cudaStream_t on) {
  // Tokens before the step serve as its number: they grow from step to step.
  const std::int64_t* step = first_position();
  const kernels::TouchParams touch{
      layer.residency, step, lists.recalled, lists.sizes + 2, room, missing, n_missing, !ahead};
  device::check(kernels::touch_events(touch, on), "residency", touch);
  kernels::VictimParams room_for;
  room_for.map = layer.residency;
  room_for.since = ahead ? layer.residency.newest : step;
  room_for.n_needed = n_missing;
  room_for.max_needed = lanes.per_layer * room;
  room_for.slots = given_slots;
  room_for.n_given = n_given;
  room_for.victims = victims;
  room_for.n_victims = n_victims;
  room_for.maybe_pinned = pins + scope_of(layer, 0) * max_events;
  room_for.pin_stride = table_stride();
  if (ahead) {
    room_for.maybe_kept = lists.recalled;
    room_for.n_kept = lists.sizes + 2;
    room_for.kept_capacity = room;
  }
  device::check(kernels::choose_victims(room_for, on), "choosing what makes room", room_for);
  kernels::OccupyParams p;
  p.map = layer.residency;
  p.missing = missing;
  p.slots = given_slots;
  p.n_given = n_given;
  p.victims = victims;
  p.n_victims = n_victims;
  p.max_needed = lanes.per_layer * room;
  p.events = events + scope_of(layer, 0) * max_events;
  p.table_stride = table_stride();
  p.n_init = config.n_init;
  p.home = reinterpret_cast<unsigned char*>(home + first_lane(layer) * lane_bytes);
  p.lane_bytes = lane_bytes;
  p.token_bytes = token_bytes;
  p.slot_memory = reinterpret_cast<unsigned char*>(layer.slots);
  p.slot_bytes = slot_bytes;
  p.blocks = blocks + first_lane(layer) * max_events;
  p.runs = copies;
  device::check(kernels::occupy_slots(p, on), "residency", p);
  const kernels::CopyRunsParams runs{copies, n_given, lanes.per_layer * room, kLinkBlocks};
  device::check(kernels::copy_runs(runs, on), "fetching events", runs);
}

/// Brings a layer's recalled events to the device, and while it attends to them, beside the stream,
/// the same events to the next layer, which recalls much the same. What finds no slot is attended
/// where it is, over the link.
///
/// The streams take turns with the tables and lists of an exchange: those of the next layer are the
/// other stream's from the end of this function until that layer calls it.
void DeviceMemory::Impl::swap_in(const Layer& layer, const RecallLists& lists) {
  await_homes(layer.place);
  if (fetches_ahead) fetch_stream.join(stream);
  fetches_ahead = false;
  fetch(layer, lists, false, stream);
  const auto next = std::find_if(layers.begin() + (&layer - layers.data()) + 1, layers.end(),
                                 [](const Layer& l) { return l.place >= 0; });
  if (next == layers.end()) return;
  fetch_stream.fork_from(stream);
  fetches_ahead = true;
  for (std::size_t i = awaited; i < write_outs.size() && write_outs[i].first <= next->place; ++i)
    write_outs[i].written.hold(fetch_stream.get());
  fetch(*next, lists, true, fetch_stream.get());
}

/// Codes of the slabs that the closed events filled. \param most_new that closed_count may be
void DeviceMemory::Impl::encode(std::int64_t most_new) {
  kernels::CodeParams p;
  p.events = closed();
  p.events.max_count = most_new;
  p.dtype = options.representatives;
  p.width = lane_width();
  p.capacity = max_events;
  p.layers = code_lanes;
  p.n_layers = lanes.n_lanes;
  device::check(kernels::encode_representatives(p, stream), "codes of representatives", p);
}

/// Scores of a layer's events by the key-space reader: of all, or of those that are recalled.
void DeviceMemory::Impl::score_events(const Layer& layer, const RecallLists* maybe_listed) {
  kernels::EventScoreParams p;
  p.query = mean_query;
  p.width = lane_width();
  p.dtype = options.representatives;
  p.representative = layer.representatives;
  p.n_events = event_count(scope_of(layer, 0));
  p.max_events = max_events;
  p.score = event_scores;
  if (maybe_listed) {
    p.maybe_listed = maybe_listed->recalled;
    p.n_listed = maybe_listed->sizes + 2;
    p.max_listed = room;
  }
  p.n_lanes = lanes.per_layer;
  p.count_stride = count_stride();
  p.listed_stride = 3;
  device::check(kernels::score_events(p, stream), "scores of events", p);
}

/// What a layer recalls, into `lists`; the mean query must be there.
void DeviceMemory::Impl::choose_events(const Layer& layer, const RecallLists& lists) {
  if (!takes_top()) {
    const kernels::RecallParams p = recall_params(layer, lists);
    return device::check(kernels::recall_events(p, stream), "recall", p);
  }
  score_events(layer, nullptr);
  kernels::RecallTopParams p;
  p.top_k = config.reweight_top;
  p.neighbours = config.reweight == Reweighting::broad;
  p.score = event_scores;
  p.n_events = event_count(scope_of(layer, 0));
  p.max_events = max_events;
  p.maybe_forgotten = maybe_marks(layer);
  p.mark_stride = table_stride();
  p.is_top = is_top;
  p.similarity = lists.similarity;
  p.contiguity_list = lists.contiguity;
  p.recalled = lists.recalled;
  p.list_capacity = room;
  p.sizes = lists.sizes;
  p.n_lanes = lanes.per_layer;
  p.count_stride = count_stride();
  device::check(kernels::recall_top(p, stream), "recall", p);
}

kernels::RecallParams DeviceMemory::Impl::recall_params(const Layer& layer,
                                                        const RecallLists& lists) const {
  kernels::RecallParams p = recall_params();
  p.n = n;
  p.n_events = event_count(scope_of(layer, 0));
  p.events = events + scope_of(layer, 0) * max_events;
  p.representatives = layer.representatives;
  p.maybe_forgotten = maybe_marks(layer);
  p.codes = layer.codes;
  p.code_bounds = layer.code_bounds;
  const RecallLists& before = layer.lists[lists_now];
  p.queue = before.contiguity;
  p.queue_size = before.sizes + 1;
  p.similarity = lists.similarity;
  p.contiguity_list = lists.contiguity;
  p.recalled = lists.recalled;
  p.sizes = lists.sizes;
  p.arrived = arrived;
  return p;
}

kernels::RowsParams DeviceMemory::Impl::rows_params(const Layer& layer,
                                                    const RecallLists& lists) const {
  kernels::RowsParams p;
  p.dtype = options.dtype;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.n_lanes = lanes.per_layer;
  p.tokens = first_position();
  p.n = n;
  p.n_init = config.n_init;
  p.n_local = config.n_local;
  p.sink_key = layer.sink_key;
  p.sink_value = layer.sink_value;
  p.ring_key = layer.ring_key;
  p.ring_value = layer.ring_value;
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.n_events = event_count(scope_of(layer, 0));
  p.events = events + scope_of(layer, 0) * max_events;
  p.count_stride = count_stride();
  p.table_stride = table_stride();
  p.max_events = max_events;
  if (layer.place >= 0) {
    p.event_block = blocks + first_lane(layer) * max_events;
    p.maybe_event_scales = scales_of(first_lane(layer));
    p.recalled = lists.recalled;
    p.n_recalled = lists.sizes + 2;
    p.list_capacity = room;
    if (weighs(layer)) p.maybe_event_weight = event_scores;
  }
  p.rows = rows;
  p.row_scales = row_scales;
  p.n_rows = n_rows;
  p.max_rows = max_rows;
  p.overflow = overflow;
  return p;
}

/// Queries, lists and rows of a step in which something lies outside the window.
void DeviceMemory::Impl::recall(const Layer& layer, const LayerStep& step) {
  const RecallLists& lists = lists_of_step(layer);
  if (wants_mean_query(layer) && !step.appended) {
    kernels::MeanQueryParams query = mean_query_params(layer, n);
    query.q = step.q;
    query.q_row_stride = step.q_row_stride;
    device::check(kernels::mean_fixed_query(query, stream), "the mean query", query);
  }
  const kernels::RowsParams far_rows = rows_params(layer, lists);
  const bool recalls = layer.place >= 0 && recalls_now;
  // Nothing comes between what is recalled and its rows: one launch.
  if (recalls && !lower && !has_host_tier() && !takes_top() && !weighs(layer)) {
    const kernels::RecallParams p = recall_params(layer, lists);
    return device::check(kernels::recall_rows(p, far_rows, stream), "recall", p, far_rows);
  }
  if (recalls) {
    choose_events(layer, lists);
    // The one place where the host waits within a step: files are read by the host.
    for (std::int64_t p = 0; lower && p < lanes.per_layer; ++p)
      lower->fetch(first_lane(layer) + p,
                   read(lists.recalled + p * room, read(lists.sizes + 3 * p, 3)[2]), stream);
    if (has_host_tier()) swap_in(layer, lists);
  }
  // Also of events that the step before recalled: they are weighed by this step's query.
  if (weighs(layer)) score_events(layer, &lists);
  device::check(kernels::far_rows(far_rows, stream), "far rows", far_rows);
}

/// cos and sin of the next n positions.
void DeviceMemory::Impl::rotation_angles(std::int64_t count) {
  for (const device::DeviceRotary& r : rotaries) {
    const kernels::RotaryAnglesParams p{
        count, r.dim() / 2, first_position(), r.inverse_frequency, r.table.attention_factor,
        r.cos, r.sin};
    device::check(kernels::rotary_angles(p, stream), "rotary angles", p);
  }
}

/// Keys and values of the next n tokens into the rings; their angles must be there.
void DeviceMemory::Impl::append(const Layer& layer, std::int64_t count, const void* k,
                                const void* v, std::int64_t k_row_stride,
                                std::int64_t v_row_stride) {
  kernels::AppendParams p;
  p.dtype = options.dtype;
  p.n = count;
  p.n_kv_heads = shape.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.rotary_dim = rotary(layer).dim();
  p.interleaved = rotary(layer).interleaved();
  p.first_position = first_position();
  p.k = k;
  p.v = v;
  p.k_row_stride = k_row_stride;
  p.v_row_stride = v_row_stride;
  p.cos = rotary(layer).cos;
  p.sin = rotary(layer).sin;
  p.ring_key = layer.ring_key;
  p.ring_rotated_key = layer.ring_rotated;
  p.ring_value = layer.ring_value;
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.sink_key = layer.sink_key;
  p.sink_value = layer.sink_value;
  p.n_init = config.n_init;
  device::check(kernels::append_window(p, stream), "appending keys and values", p);
}

void DeviceMemory::Impl::check_turn(const char* call, std::int64_t l) const {
  if (!open || l != next_layer || l >= shape.n_layers)
    throw DataError(
        fmt::format("{}: layer {} out of turn; call begin_step, then attend for layers "
                    "0 to {} in order, then end_step",
                    call, l, shape.n_layers - 1));
}

device::HeadPlace DeviceMemory::head_place(std::int64_t l) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.check_turn("head_place", l);
  if (m.n != 1)
    throw DataError(
        fmt::format("head_place: a step of {} tokens, must be of one; give attend the keys and "
                    "values of more",
                    m.n));
  const Layer& layer = m.layers[static_cast<std::size_t>(l)];
  if (l == 0) m.rotation_angles(1);
  const device::DeviceRotary& angles = m.rotary(layer);
  device::HeadPlace place;
  place.rotary_dim = angles.dim();
  place.interleaved = angles.interleaved();
  kernels::HeadTarget& to = place.target;
  to.position = m.first_position();
  to.cos = angles.cos;
  to.sin = angles.sin;
  to.maybe_ring_key = layer.ring_key;
  to.ring_rotated_key = layer.ring_rotated;
  to.ring_value = layer.ring_value;
  to.ring_capacity = m.capacity;
  to.ring_head_stride = m.head_stride;
  to.sink_key = layer.sink_key;
  to.sink_value = layer.sink_value;
  to.n_init = m.config.n_init;
  to.fixed_cos = angles.fixed_cos;
  to.fixed_sin = angles.fixed_sin;
  if (m.wants_mean_query(layer)) to.maybe_mean = m.mean_query;
  return place;
}

void DeviceMemory::attend(std::int64_t l, const LayerStep& step) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  m.check_turn("attend", l);
  const Layer& layer = m.layers[static_cast<std::size_t>(l)];
  if (!step.appended) {
    if (l == 0) m.rotation_angles(m.n);
    m.append(layer, m.n, step.k, step.v, step.k_row_stride, step.v_row_stride);
  }
  if (m.far) m.recall(layer, step);

  kernels::AttentionParams p = m.attention_params(layer, m.n);
  if (step.scale != 0.0f) p.scale = step.scale;
  p.q = step.q;
  p.q_row_stride = step.q_row_stride;
  p.local_key = layer.ring_rotated;
  p.local_value = layer.ring_value;
  p.out = step.out;
  p.maybe_column_sums = layer.sums;
  if (kernels::defers_column_sums(p)) p.maybe_column_stats = layer.stats;
  if (!m.far) p.max_rows = p.max_code_rows = 0;
  const bool counts = m.retention && m.far && layer.place >= 0;
  if (counts) p.maybe_lse = m.lse;
  device::check(kernels::segmented_attention(p, m.stream), "attention", p);
  if (counts) {
    const kernels::EventMassParams masses = m.mass_params(layer, p, m.lists_of_step(layer));
    device::check(kernels::event_masses(masses, m.stream), "what events received", masses);
  }
  ++m.next_layer;
}

void DeviceMemory::end_step(const float* surprise) {
  enqueue_end(surprise);
  impl_->finish_step();
}

void DeviceMemory::end_launched_step() {
  if (!step_kind())
    throw DataError(
        "end_launched_step: no step is open, or its segmenter runs on the host; use end_step");
  impl_->finish_step();
}

void DeviceMemory::enqueue_end(const float* surprise) {
  Impl& m = *impl_;
  const device::CurrentDevice current(m.device);
  if (!m.open || m.next_layer != m.shape.n_layers)
    throw DataError(
        fmt::format("end_step: layer {} is still to come; call attend for all {} layers first",
                    m.next_layer, m.shape.n_layers));
  if (m.retention && m.far) {
    const kernels::ReceiveParams received{m.layer_masses[m.step_lists()], m.recalling,
                                          m.lanes.per_layer, m.room, m.received};
    device::check(kernels::receive_masses(received, m.stream), "what events received", received);
  }
  if (m.far) {
    const kernels::RecallCountsParams counts{
        m.lane_lists[m.step_lists()],        m.lanes.n_lanes, m.lane_scopes,    m.max_events,
        m.state ? &m.state->steps : nullptr, m.recall_counts, m.recalled_events};
    device::check(kernels::count_recalls(counts, m.stream), "counting recalls", counts);
  }
  // Raw flags: by surprise or by keys on the device, by token numbers on the host, which needs
  // nothing from it. The step's surprise is kept for whoever asks.
  kernels::ThresholdParams raw;
  raw.window = m.config.window == episodic::ThresholdWindow::moving
                   ? kernels::ThresholdWindow::moving
                   : kernels::ThresholdWindow::chunked;
  raw.tau = m.config.effective_tau();
  raw.n_init = m.config.n_init;
  raw.gamma = m.config.gamma;
  raw.n = m.n;
  raw.state = m.state;
  raw.surprise = surprise;
  raw.recent = m.recent;
  raw.recent_capacity = m.recent_capacity;
  raw.threshold = m.threshold;
  raw.raw = m.raw;
  device::check(cudaMemcpyAsync(m.surprise, surprise, static_cast<std::size_t>(m.n) * sizeof(float),
                                cudaMemcpyDeviceToDevice, m.stream),
                "keeping the surprise");
  device::check(kernels::surprise_threshold(raw, m.stream), "thresholds", raw);
  if (m.segmenter) {
    const auto count = static_cast<std::size_t>(m.n);
    // These segmenters look at token numbers alone.
    std::vector<float> ignored(count), thresholds(count);
    m.staging.send(m.raw, m.n, m.stream, [&](std::uint8_t* host) {
      m.segmenter->step(m.tokens, ignored, thresholds, {host, count});
    });
    m.staging.send(m.threshold, m.n, m.stream,
                   [&](float* host) { std::copy(thresholds.begin(), thresholds.end(), host); });
  }
  if (m.segments_by_keys()) {
    kernels::KeySegmenterParams keys = m.key_segmenter_params();
    keys.n = m.n;
    device::check(kernels::segment_by_keys(keys, m.stream), "boundaries from keys", keys);
  }
  kernels::RefineParams refine = m.refine_params();
  refine.n = m.n;
  device::check(kernels::refine_boundaries(refine, m.stream), "refinement", refine);
  const kernels::RelevanceParams relevance{
      m.n,
      m.shape.n_heads,
      m.config.n_local,
      m.first_position(),
      m.capacity,
      m.relevance_layers,
      m.shape.n_layers,
      kernels::defers_column_sums(m.attention_params(m.layers.front(), m.n))};
  device::check(kernels::commit_relevance(relevance, m.stream), "relevance", relevance);
  kernels::CloseEventsParams close;
  close.n_local = m.config.n_local;
  close.min_block = m.config.min_block;
  close.max_block = m.config.max_block;
  close.n = m.n;
  close.n_timelines = m.scopes;
  close.state = m.state;
  close.flags = m.flags;
  close.flag_capacity = m.capacity;
  close.events = m.events;
  close.event_capacity = m.max_events;
  device::check(kernels::close_events(close, m.stream), "closing events", close);
  if (m.may_close()) {
    kernels::PlaceEventsParams place;
    place.state = m.state;
    place.events = m.events;
    place.max_events = m.max_events;
    place.n_init = m.config.n_init;
    place.n_lanes = m.lanes.n_lanes;
    place.of_each = m.by_head();
    place.maybe_timeline = m.lane_scopes;
    place.home = reinterpret_cast<unsigned char*>(m.home);
    // Above files, what the step closes goes to a staging area.
    place.staged = m.lower != nullptr;
    place.lane_bytes = m.lower ? m.lower->staging_lane_bytes() : m.lane_bytes;
    place.token_bytes = m.token_bytes;
    place.blocks = m.blocks;
    place.max_count = m.max_closed;
    place.start = m.closed_start;
    place.end = m.closed_end;
    place.count = m.closed_count;
    place.first_id = m.closed_first;
    place.step_blocks = m.step_blocks;
    device::check(kernels::place_events(place, m.stream), "placing events", place);
    kernels::RepresentativeParams chosen;
    chosen.events = m.closed();
    chosen.key_dtype = m.options.dtype;
    chosen.repr_dtype = m.options.representatives;
    chosen.n_heads = m.lanes.n_heads;
    chosen.n_kv_heads = m.lanes.n_kv_heads;
    chosen.head_dim = m.shape.head_dim;
    chosen.n_repr = m.config.n_repr;
    chosen.ring_capacity = m.capacity;
    chosen.ring_head_stride = m.head_stride;
    chosen.relevance_stride = m.shape.n_heads;
    chosen.capacity = m.max_events;
    chosen.layers = m.representative_lanes;
    chosen.n_layers = m.lanes.n_lanes;
    chosen.unit_length = m.config.reweight != Reweighting::none;
    chosen.full = m.full;
    device::check(kernels::select_representatives(chosen, m.stream), "representatives", chosen);
    if (m.keeps_codes()) m.encode(m.max_closed);
    m.keep_blocks();
    if (m.lower) m.keep_closed();
  }
}

/// The host's side of a step whose work is enqueued.
void DeviceMemory::Impl::finish_step() {
  last_first = tokens;
  last_n = n;
  tokens += n;
  ++steps;
  steps_since_recall = next_since_recall;
  if (recalled_in_step) lists_now = 1 - lists_now;
  far_in_last_step = far;
  is_judged = !retention;
  open = false;
}

}  // namespace episodic
