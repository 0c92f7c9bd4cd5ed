// SPDX-License-Identifier: Apache-2.0
#pragma once
// Bodies of memory/detail/memory_core.hpp; how they become functions: base/inline.hpp.
#include "episodic/memory/detail/memory_core.hpp"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "episodic/base/error.hpp"
#include "episodic/base/inline.hpp"
#include "episodic/base/parallel.hpp"
#include "episodic/base/rules/recall.hpp"
#include "episodic/base/text.hpp"
#include "episodic/recall/detail/exact_index.hpp"

namespace EPISODIC_NAMESPACE::detail {

EPISODIC_INLINE std::uint64_t MemoryCore::unique_number() {
  static std::atomic<std::uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

EPISODIC_INLINE Tiers MemoryCore::make_tiers() const {
  Tiers tiers;
  if (const StoreShape s = store_shape(config, shape); s.n_lanes > 0)
    tiers.store = make_host_store(s, config.host_bytes, config.max_block);
  return tiers;
}

EPISODIC_INLINE void MemoryCore::configure(const MemoryConfig& settings,
                                           const MemoryShape& of_model,
                                           std::vector<std::int64_t> given_boundaries) {
  settings.validate();
  check_shape(settings, of_model);
  config = settings;
  shape = of_model;
  given = std::move(given_boundaries);
}

EPISODIC_INLINE std::vector<std::vector<Lane>> MemoryCore::make_lanes(VectorTier* vectors) const {
  const LaneShape all = lane_shape(config, shape);
  std::vector<std::vector<Lane>> layers(static_cast<std::size_t>(shape.n_layers));
  std::int64_t store_lane = 0;
  for (std::int64_t l = 0; l < shape.n_layers; ++l)
    for (std::int64_t p = 0; p < all.per_layer; ++p) {
      Lane& lane = layers[static_cast<std::size_t>(l)].emplace_back();
      lane.scope = config.scope == EventScope::head ? l * all.per_layer + p : 0;
      if (!recalls(config, l)) continue;
      // At least a byte: 0 would be no bound.
      const std::int64_t share =
          config.repr_bytes > 0 ? std::max<std::int64_t>(1, config.repr_bytes / all.n_lanes) : 0;
      lane.store_lane = store_lane++;
      lane.index =
          make_index(config, all.n_heads, shape.head_dim, {vectors, lane.store_lane, share});
    }
  return layers;
}

EPISODIC_INLINE std::optional<Retention> MemoryCore::make_retention() const {
  if (!config.retention) return std::nullopt;
  return Retention(*config.retention, shape.n_heads * shape.head_dim);
}

EPISODIC_INLINE void MemoryCore::build(std::vector<std::vector<Lane>> lanes,
                                       std::vector<Pages> rings) {
  // What the system promises beyond what it has ends the process when it is written to.
  const std::int64_t of_layer = LayerState::bytes_needed(config, shape, ring_capacity(config));
  if (of_layer > Pages::most_bytes() / shape.n_layers) refuse_room();
  try {
    take_room(std::move(lanes), std::move(rings));
  } catch (const std::bad_alloc&) {
    refuse_room();
  } catch (const std::length_error&) {  // of a vector that no address space holds
    refuse_room();
  }
}

EPISODIC_INLINE void MemoryCore::refuse_room() const {
  const std::int64_t of_layer = LayerState::bytes_needed(config, shape, ring_capacity(config));
  const std::pair<std::int64_t, const char*> lengths[] = {{config.n_local, "n_local"},
                                                          {config.n_init, "n_init"},
                                                          {config.max_block, "max_block"},
                                                          {config.chunk, "chunk"}};
  const auto& [length, name] =
      *std::max_element(std::begin(lengths), std::end(lengths),
                        [](const auto& a, const auto& b) { return a.first < b.first; });
  throw BudgetError(concat(name, " = ", length, ": the windows of ", shape.n_layers,
                           " layers take ", of_layer,
                           " bytes each, which the system does not give; lower ", name));
}

EPISODIC_INLINE void MemoryCore::take_room(std::vector<std::vector<Lane>> lanes,
                                           std::vector<Pages> rings) {
  capacity = ring_capacity(config);
  time = Timeline(config, {shape.n_layers, shape.n_kv_heads, shape.head_dim}, capacity, given);
  for (std::int64_t l = 0; l < shape.n_layers; ++l) {
    const LayerShape layer = shape.layer(l);
    const RotaryTable& table = layer.rotary;
    scales.push_back(layer.scale);
    softcaps.push_back(layer.softcap);
    const auto known = std::find_if(rotations.begin(), rotations.end(),
                                    [&](const Rotation& r) { return r.table == table; });
    rotation_of.push_back(static_cast<std::size_t>(known - rotations.begin()));
    if (known != rotations.end()) continue;
    Rotation& fresh = rotations.emplace_back();
    fresh.table = table;
    fresh.fixed.compute_fixed(table, config.n_local);
  }
  bank.layers.reserve(lanes.size());
  for (std::size_t l = 0; l < lanes.size(); ++l)
    bank.layers.emplace_back(config, shape, rotations[rotation_of[l]], capacity,
                             std::move(lanes[l]), rings.empty() ? Pages() : std::move(rings[l]));
  if (time.scopes() > 1) bank.number(time.scopes());
  forgotten.resize(static_cast<std::size_t>(time.scopes()));
  retention = make_retention();
  leases.reserve(lane_shape(config, shape).per_layer);
  snapshots.reset();
}

EPISODIC_INLINE void MemoryCore::build() {
  bank.tiers = make_tiers();
  build(make_lanes(bank.tiers.vectors.get()));
}

/// What a caller's ranking must be to stand in place of the index's.
inline void check_ranking(const RankRequest& asked, std::span<const ScoredEvent> best,
                          std::vector<EventId>& sorted) {
  const auto refuse = [&](const auto&... what) {
    throw DataError(concat("attend: the rank hook gave ", what..., " in layer ", asked.layer));
  };
  if (static_cast<std::int64_t>(best.size()) > asked.count)
    refuse(best.size(), " events where ", asked.count, " were asked for");
  sorted.clear();
  for (const ScoredEvent& s : best) {
    if (s.event < 0 || s.event >= asked.n_events) refuse("event ", s.event, " of ", asked.n_events);
    if (std::binary_search(asked.forgotten.begin(), asked.forgotten.end(), s.event))
      refuse("event ", s.event, ", which was forgotten,");
    if (std::isnan(s.score)) refuse("event ", s.event, " no number as its score");
    sorted.push_back(s.event);
  }
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) refuse("event ", *twice, " twice");
}

EPISODIC_INLINE void MemoryCore::recall(std::int64_t l, std::int64_t p) {
  Stopwatch watch(counters.seconds.recall);
  LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  Lane& lane = layer.lane(p);
  lane.next_recall = layer.recalled(p);
  if (!lane.index) {
    lane.next_recall.clear();
    return;
  }
  if (!recalls_now) return;  // the last step's events once more
  const EventTable& events = time.events(lane.scope);
  const std::int64_t outside =
      rules::outside_events(time.tokens() + n - config.n_local, events.tokens());
  const std::int64_t width = shape.n_heads / layer.n_lanes() * shape.head_dim;
  const float* query = mean_query.data() + p * width;
  RecallBuffers::Ranking ranking;
  if (shape.recall_together)
    ranking = ranking_of_all(lane, query);
  else if (rank_hook)
    ranking = [&](std::int64_t count, std::vector<ScoredEvent>& best) {
      const RankRequest request{l,
                                p,
                                events.size(),
                                forgotten[static_cast<std::size_t>(lane.scope)],
                                {query, static_cast<std::size_t>(width)},
                                count};
      best.clear();
      if (!rank_hook(request, best)) return false;
      check_ranking(request, best, numbers);
      return true;
    };
  lane.next_recall.recall(config, *lane.index, events, query, outside, ranking);
}

EPISODIC_INLINE RecallBuffers::Ranking MemoryCore::ranking_of_all(const Lane& lane,
                                                                  const float* query) {
  scored = false;  // a longer list of the same recall needs no further message
  return [this, &lane, query](std::int64_t count, std::vector<ScoredEvent>& best) {
    const RepresentativeIndex& index = *lane.index;
    const std::int64_t n_events = index.size();
    if (!scored) {
      sums_of_scores.assign(static_cast<std::size_t>(n_events), 0.0f);
      constexpr std::int64_t kEvents = 64;  // of a task
      parallel_for((n_events + kEvents - 1) / kEvents, [&](std::int64_t task) {
        for (EventId e = task * kEvents; e < std::min(n_events, (task + 1) * kEvents); ++e)
          if (!index.forgotten(e))
            sums_of_scores[static_cast<std::size_t>(e)] = index.score(query, e);
      });
      group->sum(std::span<float>(sums_of_scores));
      scored = true;
    }
    best.clear();
    for (EventId e = 0; e < n_events; ++e)
      if (!index.forgotten(e)) best.push_back({e, sums_of_scores[static_cast<std::size_t>(e)]});
    keep_best(best, count);
    return true;
  };
}

EPISODIC_INLINE void MemoryCore::acquire(std::int64_t l, std::int64_t p) {
  Stopwatch watch(counters.seconds.store);
  const LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  const Lane& lane = layer.lane(p);
  EventStore& store = *bank.tiers.store;
  const std::vector<EventId>& events = lane.next_recall.recalled();
  bank.stored(lane.scope, events, numbers);
  leases.acquire(store, lane.store_lane, numbers, event_segments);
  // Heads are counted in the layer, not in the lane.
  const std::int64_t first_head = p * (shape.n_kv_heads / layer.n_lanes());
  for (KvSegment& segment : event_segments) segment.first_head = first_head;
  // What this lane recalls, its neighbour in the next layer often does too, or what that recalled
  // last: it can be read while this one computes.
  if (static_cast<std::size_t>(l + 1) < bank.layers.size()) {
    const LayerState& next = bank.layers[static_cast<std::size_t>(l + 1)];
    if (next.lane(p).store_lane >= 0) {
      if (next.lane(p).scope != lane.scope)
        bank.stored(next.lane(p).scope, next.recalled(p).recalled(), numbers);
      store.prefetch(next.lane(p).store_lane, numbers);
    }
  }
}

EPISODIC_INLINE void MemoryCore::weight(std::int64_t l, std::int64_t p) {
  if (config.reweight != Reweighting::exact && !recall_hook) return;
  Stopwatch watch(counters.seconds.recall);
  const LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  const Lane& lane = layer.lane(p);
  const std::vector<EventId>& events = lane.next_recall.recalled();
  const std::int64_t width = shape.n_heads / layer.n_lanes() * shape.head_dim;
  const std::span<const float> query(mean_query.data() + p * width,
                                     static_cast<std::size_t>(width));
  scores.clear();
  for (const EventId e : events) scores.push_back(lane.index->score(query.data(), e));
  weights.assign(events.size(), 1.0f);
  if (config.reweight == Reweighting::exact) {
    // Representatives are of unit length: the score of one is |q| times the cosine.
    double square = 0;
    for (const float x : query) square += static_cast<double>(x) * x;
    for (std::size_t i = 0; i < events.size(); ++i)
      weights[i] = square > 0
                       ? std::clamp(static_cast<float>(scores[i] / std::sqrt(square)), 0.0f, 1.0f)
                       : 0.0f;
  }
  if (recall_hook) recall_hook({l, p, events, scores, query, weights});
  for (std::size_t i = 0; i < events.size(); ++i) {
    if (!std::isfinite(weights[i]))
      throw DataError(concat("attend: the recall hook gave event ", events[i], " the weight ",
                             weights[i], " in layer ", l));
    event_segments[i].value_weight = weights[i];
  }
}

EPISODIC_INLINE void MemoryCore::rotate(std::int64_t l, const TensorView& q) {
  const Rotation& rotation = rotations[rotation_of[static_cast<std::size_t>(l)]];
  const std::int64_t width = shape.n_heads * shape.head_dim;
  q_relative.resize(static_cast<std::size_t>(config.chunk * width));
  RotatedQueries queries{q_relative.data(), nullptr, nullptr};
  if (sees_far()) {
    q_fixed.resize(q_relative.size());
    mean_query.resize(static_cast<std::size_t>(width));
    queries.fixed = q_fixed.data();
    queries.mean = mean_query.data();
  }
  if (!rotate_queries(rotation.table, rotation.step.rows(), rotation.fixed.rows(), q, queries,
                      workspace, rotation.back.rows()))
    refuse_not_finite("q", q, rotation, l, time.tokens());
}

EPISODIC_INLINE void MemoryCore::attend_lists(std::int64_t l, const MutableTensorView& out,
                                              const float* sink_logits, bool count) {
  Stopwatch watch(counters.seconds.attend);
  const AttendShape of_layer{n,
                             shape.n_heads,
                             shape.n_kv_heads,
                             shape.head_dim,
                             time.tokens(),
                             config.n_local,
                             scales[static_cast<std::size_t>(l)],
                             softcaps[static_cast<std::size_t>(l)]};
  const TensorView relative(q_relative.data(), of_layer.of_queries());
  // Without far keys no segment is at the fixed position; the view is then never read.
  const AttendInput input{relative,
                          sees_far() ? TensorView(q_fixed.data(), of_layer.of_queries()) : relative,
                          lists, nullptr, sink_logits};
  AttendOutput output{out, nullptr, {}};
  if (count) output.column_sums = sums;
  if (count && wants_masses()) {
    const std::int64_t lanes = bank.layers[static_cast<std::size_t>(l)].n_lanes();
    masses.assign(segments.size() * static_cast<std::size_t>(shape.n_heads / lanes), 0.0);
    output.segment_mass = masses.data();
  }
  episodic::attend(of_layer, input, output, workspace);
}

EPISODIC_INLINE std::int64_t MemoryCore::list_segments(std::int64_t l, bool far, bool again) {
  LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  std::int64_t recalled = 0;
  segments.clear();
  list_ends.clear();
  for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
    Lane& lane = layer.lane(p);
    if (far && !again) recall(l, p);
    if (!far) lane.next_recall.clear();
    event_segments.clear();
    if (!lane.next_recall.recalled().empty()) {
      acquire(l, p);
      weight(l, p);
    }
    recalled += static_cast<std::int64_t>(event_segments.size());
    layer.window_segments(time.tokens(), n, time.events(lane.scope).pending_start(), segments);
    segments.insert(segments.end(), event_segments.begin(), event_segments.end());
    list_ends.push_back(segments.size());
  }
  lists.clear();
  for (std::size_t begin = 0; const std::size_t end : list_ends) {
    lists.emplace_back(segments.data() + begin, end - begin);
    begin = end;
  }
  return recalled;
}

EPISODIC_INLINE void MemoryCore::hand_out_masses(std::int64_t l) {
  const LayerState& layer = bank.layers[static_cast<std::size_t>(l)];
  const std::int64_t heads = shape.n_heads / layer.n_lanes();
  for (std::int64_t p = 0; p < layer.n_lanes(); ++p) {
    const std::vector<EventId>& events = layer.lane(p).next_recall.recalled();
    if (events.empty()) continue;
    // They are the last ones of their list.
    const std::size_t first = list_ends[static_cast<std::size_t>(p)] - events.size();
    event_masses.assign(events.size(), 0.0);
    for (std::size_t i = 0; i < events.size(); ++i)
      for (std::int64_t h = 0; h < heads; ++h)
        event_masses[i] +=
            masses[(first + i) * static_cast<std::size_t>(heads) + static_cast<std::size_t>(h)];
    if (retention)
      for (std::size_t i = 0; i < events.size(); ++i)
        retention->receive(events[i], event_masses[i]);
    if (attention_hook) attention_hook({l, p, events, event_masses});
  }
}

EPISODIC_INLINE void MemoryCore::check_end() const {
  if (!open || next_layer != shape.n_layers)
    throw DataError("end_step: not all layers have attended in this step");
}

/// Whatever can fail comes first, and changes nothing that a repeated step would miss; then all is
/// published by what cannot fail.
EPISODIC_INLINE void MemoryCore::finish(const std::int64_t* ids) {
  const std::int64_t first = time.tokens();
  {
    Stopwatch watch(counters.seconds.refine);
    time.decide(bank.key_rings(), group.get());
  }
  Stopwatch watch(counters.seconds.close);
  reserve_ids(n);
  // Tiers may be full and dtypes may refuse a number: then all is as it was before the step.
  const EventId first_event = time.events().size();
  const std::vector<std::int64_t> before = group ? n_events() : std::vector<std::int64_t>();
  bank.close(time, first);
  if (retention && Retention::reaches(first, first + n, config.chunk)) apply_retention(first_event);
  if (group) agree(before);

  if (retention) retention->commit();
  bank.commit(first, n);
  push_ids(ids, n);
  time.commit();
  ++step_number;
  ++counters.steps;
  counters.tokens += n;
  counters.recalled_events += n_recalled;
  open = false;
}

/// The step counts on every rank or on none: what bank.close wrote is taken back if this fails.
EPISODIC_INLINE void MemoryCore::agree(std::span<const std::int64_t> before) {
  try {
    group->agree();
  } catch (...) {
    bank.truncate(before);
    throw;
  }
}

/// What bank.close wrote is taken back if this fails.
EPISODIC_INLINE void MemoryCore::apply_retention(EventId first_event) {
  try {
    const LayerState& layer = bank.layers[static_cast<std::size_t>(retention_layer(config, shape))];
    const std::int64_t width = lane_shape(config, shape).width(shape.head_dim);
    const auto closed = static_cast<std::int64_t>(time.closed().size());
    const std::int64_t limit = Retention::limit(time.tokens() + n, config.chunk, config.n_local);
    std::vector<EventId> events;
    std::vector<float> vectors;  // of all heads, whatever groups of them recall by themselves
    EventId e = retention->graph().total();
    for (; e < first_event + closed; ++e) {
      const TokenRange range = e < first_event
                                   ? time.events()[e]
                                   : time.closed()[static_cast<std::size_t>(e - first_event)];
      if (range.end >= limit) break;
      if (is_forgotten(0, e)) continue;  // before its chunk's end
      events.push_back(e);
      for (const Lane& lane : layer.lanes) {
        const float* mean = lane.index->mean(e);
        vectors.insert(vectors.end(), mean, mean + width);
      }
    }
    if (!events.empty()) retention->prepare(events, e, std::move(vectors));
  } catch (...) {
    bank.truncate(std::span(&first_event, 1));
    throw;
  }
}

EPISODIC_INLINE void MemoryCore::forget_due() {
  if (!retention || retention->due().empty()) return;
  while (!retention->due().empty()) {
    const EventId event = retention->due().front();
    // A pinned event stays, though the graph has forgotten it.
    if (pinned(0, event)) {
      retention->forgotten(event);
      continue;
    }
    forget(0, event);
  }
  shrink();
}

EPISODIC_INLINE void MemoryCore::shrink() noexcept {
  if (!(bank.tiers.vectors && bank.tiers.vectors->keep())) bank.shrink();
}

EPISODIC_INLINE std::shared_ptr<RowLog> MemoryCore::open_log() const {
  std::shared_ptr<RowLog> last = overwritten.lock();
  if (last && last->tokens == time.tokens() && last->version == window_version) return last;
  auto log = std::make_shared<RowLog>(time.tokens(), window_version, bank.layers.size());
  if (last) last->later = log;
  overwritten = log;
  return log;
}

EPISODIC_INLINE void MemoryCore::truncate(std::span<const std::int64_t> kept) {
  const auto at = [](std::int64_t s) { return static_cast<std::size_t>(s); };
  bool less = false;
  for (std::int64_t s = 0; s < time.scopes(); ++s) less |= kept[at(s)] < time.events(s).size();
  if (!less) return;
  bank.truncate(kept);
  for (std::int64_t s = 0; s < time.scopes(); ++s) {
    time.truncate(s, kept[at(s)]);
    std::vector<EventId>& gone = forgotten[at(s)];
    while (!gone.empty() && gone.back() >= kept[at(s)]) gone.pop_back();
  }
}

EPISODIC_INLINE void MemoryCore::forget(std::int64_t scope, EventId event) {
  std::vector<EventId>& gone = forgotten[static_cast<std::size_t>(scope)];
  const auto place = std::lower_bound(gone.begin(), gone.end(), event) - gone.begin();
  gone.reserve(gone.size() + 1);
  bank.forget(scope, event);
  gone.insert(gone.begin() + place, event);
  if (retention) retention->forgotten(event);
  event_forgotten();
}

EPISODIC_INLINE bool MemoryCore::is_forgotten(std::int64_t scope, EventId event) const {
  const std::vector<EventId>& gone = forgotten[static_cast<std::size_t>(scope)];
  return std::binary_search(gone.begin(), gone.end(), event);
}

EPISODIC_INLINE MemoryCounters MemoryCore::count() const {
  MemoryCounters c = counters;
  c.events = counted_events();
  for (const LayerState& layer : bank.layers) {
    c.window_bytes += layer.bytes();
    for (const Lane& lane : layer.lanes) {
      if (!lane.index) continue;
      c.index_bytes += lane.index->bytes();
      const IndexQuality q = lane.index->quality();
      c.index_quality.checked += q.checked;
      c.index_quality.recall_sum += q.recall_sum;
    }
  }
  if (bank.tiers.store) c.store = bank.tiers.store->counters();
  if (bank.tiers.vectors) c.vector_disk_bytes = bank.tiers.vectors->disk_bytes();
  return c;
}

EPISODIC_INLINE std::vector<std::int64_t> MemoryCore::n_events() const {
  std::vector<std::int64_t> counts;
  for (std::int64_t s = 0; s < time.scopes(); ++s) counts.push_back(time.events(s).size());
  return counts;
}

EPISODIC_INLINE std::int64_t MemoryCore::counted_events() const {
  std::int64_t sum = 0;
  for (std::int64_t s = 0; s < time.scopes(); ++s) sum += time.events(s).size();
  return sum;
}

EPISODIC_INLINE const Lane& MemoryCore::lane_at(std::int64_t lane) const {
  if (const std::int64_t n_lanes = bank.n_lanes(); lane < 0 || lane >= n_lanes)
    throw DataError(
        concat("lane ", lane, " asked for, but the memory has lanes 0 to ", n_lanes - 1));
  return bank.lane(lane);
}

EPISODIC_INLINE void MemoryCore::check_idle(const char* what) const {
  if (open) throw DataError(concat(what, ": a step is open; call end_step first"));
}

EPISODIC_INLINE void MemoryCore::refuse_hook(const char* what) const {
  throw ConfigError(concat(what,
                           ": the ranks recall together, and a hook would see one rank's part "
                           "of a query; set recall_groups to a multiple of the ranks"));
}

EPISODIC_INLINE void MemoryCore::check_layer(std::int64_t layer) const {
  if (layer < 0 || layer >= shape.n_layers)
    throw DataError(
        concat("layer ", layer, " asked for, but the memory has layers 0 to ", shape.n_layers - 1));
}

EPISODIC_INLINE void MemoryCore::check_scope(std::int64_t scope) const {
  if (scope < 0 || scope >= time.scopes())
    throw DataError(
        concat("scope ", scope, " asked for, but the memory has scopes 0 to ", time.scopes() - 1));
}

EPISODIC_INLINE void MemoryCore::check_event(std::int64_t scope, EventId event) const {
  check_scope(scope);
  if (event < 0 || event >= time.events(scope).size())
    throw DataError(
        concat("event ", event, " asked for, but the memory has ", time.events(scope).size()));
}

EPISODIC_INLINE void MemoryCore::check_unpinned(std::int64_t scope, EventId event) const {
  if (pinned(scope, event))
    throw DataError(concat("event ", event, " is pinned; unpin it before it is forgotten"));
}

}  // namespace EPISODIC_NAMESPACE::detail
