// SPDX-License-Identifier: Apache-2.0
// One step of a DeviceMemory: what it enqueues, in order.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "episodic/base/detail/view_checks.hpp"
#include "episodic/base/error.hpp"
#include "head_place.hpp"
#include "memory_impl.hpp"
#include "views.hpp"

namespace episodic {

using device::emptied;
using device::kViewAlignment;
using device::kViewRow;
using device::RecallLists;
using kernels::TimelineState;
using Layer = device::DeviceLayer;

namespace {

/// Few blocks fill the host's link, and leave the device to others.
constexpr std::int64_t kLinkBlocks = 32;

/// f(part) for the runs of neighbours in `all` whose memories share their launches.
template <class Of, class Shares, class F>
void for_sharing(std::span<const Of> all, const Shares& shares, const F& f) {
  for (std::size_t first = 0, end = 0; first < all.size(); first = end) {
    for (end = first + 1; end < all.size() && shares(all[first], all[end]);) ++end;
    f(all.subspan(first, end - first));
  }
}

}  // namespace

/// Whether the two can make a step together: what one launch of several sequences must share
/// (kernels/batch.hpp).
bool DeviceMemory::Impl::shares_launches(const Impl& other) const {
  return device == other.device && stream == other.stream && options.dtype == other.options.dtype &&
         options.representatives == other.options.representatives &&
         event_dtype() == other.event_dtype() && shape.n_layers == other.shape.n_layers &&
         shape.n_heads == other.shape.n_heads && shape.n_kv_heads == other.shape.n_kv_heads &&
         shape.head_dim == other.shape.head_dim && recalling == other.recalling &&
         lanes.per_layer == other.lanes.per_layer && by_head() == other.by_head() &&
         most_repr() == other.most_repr() && config.score == other.config.score &&
         (config.reweight == Reweighting::none) == (other.config.reweight == Reweighting::none);
}

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
        "CUDA memory: an earlier step could be neither kept nor taken back, as was said then; "
        "reset "
        "it");
  m.open = false;  // whatever fails from here on
  const device::CurrentDevice current(m.device);
  Impl::forget_due(std::array{impl_.get()});
  m.make_room(n);
  m.kept_rows.before_step(m.tokens, n, m.stream);
  m.state_now.reset();
  if (m.lower) m.lower->begin_step(m.tokens);
  m.has_angles = false;
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
  m.open = true;
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

/// The timelines are the first.
std::array<DeviceMemory::Impl::Saved, 9> DeviceMemory::Impl::end_state() const {
  const std::int64_t raw_flags = segments_by_keys() && by_head() ? scopes : 1;
  const bool keys = segments_by_keys();
  return {{{state, scopes * std::int64_t{sizeof(TimelineState)}},
           {recent, recent_capacity * std::int64_t{sizeof(float)}},
           {raw, raw_flags * config.chunk},
           {threshold, config.chunk * std::int64_t{sizeof(float)}},
           {surprise, config.chunk * std::int64_t{sizeof(float)}},
           {flags, scopes * capacity},
           {key_segmenter,
            keys ? key_segmenters() * std::int64_t{sizeof(kernels::KeySegmenterState)} : 0},
           {key_mean, keys ? key_channels() * std::int64_t{sizeof(double)} : 0},
           {key_variance, keys ? key_variances() * std::int64_t{sizeof(double)} : 0}}};
}

namespace {
/// Each begins aligned.
std::int64_t saved_room(std::int64_t bytes) { return (bytes + 15) / 16 * 16; }
}  // namespace

std::int64_t DeviceMemory::Impl::saved_bytes() const {
  std::int64_t all = 0;
  for (const Saved& s : end_state()) all += saved_room(s.bytes);
  return all;
}

/// Between its place and saved_bytes() at `at`, on the stream.
void DeviceMemory::Impl::copy_end_state(std::byte* at, bool back, cudaMemcpyKind kind) {
  for (const Saved& s : end_state()) {
    if (s.bytes > 0)
      device::check(cudaMemcpyAsync(back ? s.of : at, back ? at : s.of,
                                    static_cast<std::size_t>(s.bytes), kind, stream),
                    "what a step's end changes");
    at += saved_room(s.bytes);
  }
}

void DeviceMemory::abandon_step() noexcept { impl_->open = false; }

/// As if the end of the open step had not begun: of what files cannot keep, nothing is left in
/// their store, and the timelines are those before. What the step closed lies behind the tables'
/// ends. \param now the timelines behind it
void DeviceMemory::Impl::take_back(std::span<const TimelineState> now) {
  std::vector<std::int64_t> before;
  const auto events_before = [&](std::int64_t scope) {
    const TimelineState& s = now[static_cast<std::size_t>(scope)];
    return s.n_events - s.n_closed;
  };
  if (!by_head()) before.push_back(events_before(0));
  for (const Layer& layer : layers)
    for (std::int64_t p = 0; by_head() && layer.place >= 0 && p < lanes.per_layer; ++p)
      before.push_back(events_before(scope_of(layer, p)));
  lower->truncate(before);
  copy_end_state(before_end, true, cudaMemcpyDeviceToDevice);
}

/// Hands the events that this step has closed to the tier below.
/// \throws as LowerTiers::keep: the step is still open, and may be ended again or begun anew
void DeviceMemory::Impl::keep_closed() {
  std::vector<TimelineState> now;
  try {
    now = read_timelines();
  } catch (...) {
    broken = true;  // the device is lost
    open = false;
    throw;
  }
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
    try {
      take_back(now);
    } catch (...) {  // the first failure is the one to be told
      broken = true;
      open = false;
    }
    throw;
  }
}

/// The rest of a step's end, once files have kept what it closed: what it adds up, and what is made
/// of the closed events in device memory. Positions are those before the step.
void DeviceMemory::Impl::commit_end() {
  const auto* const before = reinterpret_cast<const TimelineState*>(before_end);
  if (retention && far) {
    auto& masses = emptied(launched.step_masses);
    masses.push_back({layer_masses[step_lists()], recalling, lanes.per_layer, room, received});
    device::launch_batch(kernels::receive_masses_batch, masses, stream, "what events received");
  }
  if (far) {
    auto& counts = emptied(launched.counts);
    counts.push_back(recall_counts_params());
    counts.back().steps = &before->steps;
    device::launch_batch(kernels::count_recalls_batch, counts, stream, "counting recalls");
  }
  auto& relevance = emptied(launched.relevance);
  relevance.push_back(relevance_params());
  relevance.back().first_position = &before->tokens;
  device::launch_batch(kernels::commit_relevance_batch, relevance, stream, "relevance");
  auto& chosen = emptied(launched.chosen);
  chosen.push_back(representative_params());
  device::launch_batch(kernels::select_representatives_batch, chosen, stream, "representatives");
  if (keeps_codes()) encode(max_closed);
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

/// What writes the closed events' keys and values where place_events says, of `count` layers among
/// those that recall, each with its lanes.
///
/// To host memory beside the stream, from the end of the step on. The stream must not overtake it
///   in each layer of the next step, which may recall those events: there it waits (await_homes);
///   in writing to the rings: a step closes tokens from its first one - n_local - max_block on, and
///     what this step and the next append, 2 chunk at most, overwrites only older ones in rings of
///     at least n_local + max_block + 2 chunk (ring_capacity). The step behind those might
///     overwrite them;
///   in writing the lists of closed events, at the next step's end. All layers have waited by then:
///     a step of several tokens recalls in each, if an event was closed before it.
kernels::EventBlockParams DeviceMemory::Impl::block_params(std::int64_t first,
                                                           std::int64_t count) const {
  kernels::EventBlockParams p;
  p.dtype = options.dtype;
  p.block_dtype = event_dtype();
  p.n_kv_heads = lanes.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.not_finite = not_finite;
  const std::int64_t lane = first * lanes.per_layer;
  p.layers = block_lanes + lane;
  p.n_layers = count * lanes.per_layer;
  p.block = step_blocks + lane * max_closed;
  p.events = closed().of(lane);
  return p;
}

/// The same, beside the stream.
void DeviceMemory::Impl::write_blocks_out() {
  write_stream.fork_from(stream);
  for (const WriteOut& part : write_outs) {
    kernels::EventBlockParams p = block_params(part.first, part.count);
    p.max_blocks = kLinkBlocks;
    device::check(kernels::event_to_block(p, write_stream.get()), "keeping events", p);
    part.written.record(write_stream.get());
  }
  awaited = 0;
}

/// Brings the recalled events that lie in host memory alone into the layer's slots, in place of
/// those recalled longest ago.
/// \param ahead the events are those that an earlier layer recalled, a guess: it counts as no
///        recall, and what this layer recalled in its last step or might now stays
DeviceMemory::Impl::Fetch DeviceMemory::Impl::fetch_params(const Layer& layer,
                                                           const RecallLists& lists,
                                                           bool ahead) const {
  // Tokens before the step serve as its number: they grow from step to step.
  const std::int64_t* step = first_position();
  Fetch fetch;
  fetch.touch = {layer.residency, step,      lists.recalled, lists.sizes + 2, room,
                 missing,         n_missing, !ahead};
  fetch.touch.maybe_n_events = event_count(scope_of(layer, 0));
  fetch.touch.count_stride = count_stride();
  kernels::VictimParams& room_for = fetch.room_for;
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
  kernels::OccupyParams& p = fetch.occupy;
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
  fetch.runs = {copies, n_given, lanes.per_layer * room, kLinkBlocks};
  return fetch;
}

/// Of several memories.
void DeviceMemory::Impl::fetch(std::span<const Fetch> fetches, cudaStream_t on) const {
  auto& touched = emptied(launched.touched);
  auto& room_for = emptied(launched.room_for);
  auto& occupied = emptied(launched.occupied);
  auto& runs = emptied(launched.runs);
  for (const Fetch& f : fetches) {
    touched.push_back(f.touch);
    room_for.push_back(f.room_for);
    occupied.push_back(f.occupy);
    runs.push_back(f.runs);
  }
  device::launch_batch(kernels::touch_events_batch, touched, on, "residency");
  device::launch_batch(kernels::choose_victims_batch, room_for, on, "choosing what makes room");
  device::launch_batch(kernels::occupy_slots_batch, occupied, on, "residency");
  device::launch_batch(kernels::copy_runs_batch, runs, on, "fetching events");
}

/// Brings what a layer recalled to the device, of memories over a host tier that share their
/// launches, and while they attend to it, beside the stream, the same events to the next layer,
/// which recalls much the same. What finds no slot is attended where it is, over the link.
///
/// The streams take turns with the tables and lists of an exchange: those of the next layer are the
/// other stream's from the end of this function until that layer calls it.
void DeviceMemory::Impl::swap_in(std::int64_t l, std::span<Impl* const> memories) const {
  auto& fetches = emptied(launched.fetches);
  for (Impl* const m : memories) {
    const Layer& layer = m->layers[static_cast<std::size_t>(l)];
    m->await_homes(layer.place);
    if (m->fetches_ahead) m->fetch_stream.join(stream);
    m->fetches_ahead = false;
    fetches.push_back(m->fetch_params(layer, m->lists_of_step(layer), false));
  }
  fetch(fetches, stream);
  fetch_ahead(l, memories);
}

/// What layer l recalled, to the next layer that recalls: on the side stream of one of the
/// memories, behind which the others' come.
void DeviceMemory::Impl::fetch_ahead(std::int64_t l, std::span<Impl* const> memories) const {
  auto& fetches = emptied(launched.fetches);
  const device::SideStream* side = nullptr;
  for (Impl* const m : memories) {
    const auto next = std::find_if(m->layers.begin() + l + 1, m->layers.end(),
                                   [](const Layer& layer) { return layer.place >= 0; });
    if (next == m->layers.end()) continue;
    if (!side) {
      side = &m->fetch_stream;
      side->fork_from(stream);
    }
    const std::vector<WriteOut>& parts = m->write_outs;
    for (std::size_t i = m->awaited; i < parts.size() && parts[i].first <= next->place; ++i)
      parts[i].written.hold(side->get());
    const Layer& layer = m->layers[static_cast<std::size_t>(l)];
    fetches.push_back(m->fetch_params(*next, m->lists_of_step(layer), true));
    m->fetches_ahead = true;
  }
  fetch(fetches, side ? side->get() : stream);
  for (Impl* const m : memories)
    if (m->fetches_ahead && &m->fetch_stream != side) m->fetch_stream.fork_from(side->get());
}

/// Of the slabs that the closed events filled. \param most_new that closed_count may be
kernels::CodeParams DeviceMemory::Impl::code_params(std::int64_t most_new) const {
  kernels::CodeParams p;
  p.events = closed();
  p.events.max_count = most_new;
  p.dtype = options.representatives;
  p.width = lane_width();
  p.capacity = max_events;
  p.layers = code_lanes;
  p.n_layers = lanes.n_lanes;
  return p;
}

void DeviceMemory::Impl::encode(std::int64_t most_new) {
  const kernels::CodeParams p = code_params(most_new);
  device::check(kernels::encode_representatives(p, stream), "codes of representatives", p);
}

/// Scores of a layer's events by the key-space reader: of all, or of those that are recalled.
kernels::EventScoreParams DeviceMemory::Impl::score_params(const Layer& layer,
                                                           const RecallLists* maybe_listed) const {
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
  return p;
}

/// What a layer recalls by its scores, into `lists`.
kernels::RecallTopParams DeviceMemory::Impl::top_params(const Layer& layer,
                                                        const RecallLists& lists) const {
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
  return p;
}

kernels::RecallParams DeviceMemory::Impl::recall_params(const Layer& layer,
                                                        const RecallLists& lists) const {
  kernels::RecallParams p = recall_params();
  p.n = n;
  p.n_events = event_count(scope_of(layer, 0));
  p.events = events + scope_of(layer, 0) * max_events;
  p.representatives = layer.representatives;
  p.maybe_each = layer.each;
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
  p.histogram = score_tokens;
  p.centre = score_centres + first_lane(layer);
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

/// Whether what a layer recalls and its rows are one launch: nothing comes between them.
bool DeviceMemory::Impl::recalls_rows(const Layer& layer) const {
  return layer.place >= 0 && recalls_now && !lower && !has_host_tier() && !takes_top() &&
         !weighs(layer);
}

/// All between a layer's mean queries and its rows, of memories that share their launches and whose
/// rows are a launch of their own.
void DeviceMemory::Impl::recall_apart(std::int64_t l, std::span<Impl* const> apart) const {
  auto& recalls = emptied(launched.recalls_apart);
  auto& scores = emptied(launched.scores);
  auto& scores_of_lists = emptied(launched.scores_of_lists);
  auto& tops = emptied(launched.tops);
  for (const Impl* const m : apart) {
    const Layer& layer = m->layers[static_cast<std::size_t>(l)];
    const RecallLists& lists = m->lists_of_step(layer);
    // Also of events that the step before recalled: they are weighed by this step's query.
    if (m->weighs(layer)) scores_of_lists.push_back(m->score_params(layer, &lists));
    if (layer.place < 0 || !m->recalls_now) continue;
    if (m->takes_top()) {
      scores.push_back(m->score_params(layer, nullptr));
      tops.push_back(m->top_params(layer, lists));
    } else {
      recalls.push_back(m->recall_params(layer, lists));
    }
  }
  device::launch_batch(kernels::recall_events_batch, recalls, stream, "recall");
  device::launch_batch(kernels::score_events_batch, scores, stream, "scores of events");
  device::launch_batch(kernels::recall_top_batch, tops, stream, "recall");
  auto& read = emptied(launched.read);
  auto& over_host = emptied(launched.over_host);
  for (Impl* const m : apart) {
    const Layer& layer = m->layers[static_cast<std::size_t>(l)];
    const bool fetches = m->recalls_now || (m->lower && m->lists_are_written);
    if (layer.place < 0 || !fetches) continue;
    const RecallLists& lists = m->lists_of_step(layer);
    if (m->lower) {
      read.push_back(m->lower->fetch(m->first_lane(layer), lists.recalled, lists.sizes, stream));
      read.back().max_blocks = kLinkBlocks;
    }
    if (m->has_host_tier()) over_host.push_back(m);
  }
  device::launch_batch(kernels::copy_runs_batch, read, stream, "fetching events");
  for (Impl* const m : apart)
    if (m->lower) m->lower->copies_launched();
  swap_in(l, over_host);
  device::launch_batch(kernels::score_events_batch, scores_of_lists, stream, "scores of events");
}

/// Queries, lists and rows of the memories of which something lies outside the window.
void DeviceMemory::Impl::recall(std::int64_t l, std::span<const SequenceStep> steps) {
  auto& queries = emptied(launched.queries);
  auto& recalls = emptied(launched.recalls);
  auto& recalled_rows = emptied(launched.recalled_rows);
  auto& rows_alone = emptied(launched.rows_alone);
  auto& apart = emptied(launched.apart);
  for (const SequenceStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    const Layer& layer = m.layers[static_cast<std::size_t>(l)];
    if (s.step.appended || !m.wants_mean_query(layer)) continue;
    queries.push_back(m.mean_query_params(layer, m.n));
    queries.back().q = s.step.q.data;
    queries.back().q_row_stride = device::row_stride(s.step.q);
  }
  device::launch_batch(kernels::mean_fixed_query_batch, queries, stream, "the mean query");
  for (const SequenceStep& s : steps) {
    Impl& m = *s.memory->impl_;
    if (!m.far) continue;
    const Layer& layer = m.layers[static_cast<std::size_t>(l)];
    const RecallLists& lists = m.lists_of_step(layer);
    const bool in_one = m.recalls_rows(layer);
    if (in_one)
      recalls.push_back(m.recall_params(layer, lists));
    else
      apart.push_back(&m);
    (in_one ? recalled_rows : rows_alone).push_back(m.rows_params(layer, lists));
  }
  const auto count = static_cast<std::int64_t>(recalls.size());
  device::check_batch(
      kernels::recall_rows_batch(recalls.data(), recalled_rows.data(), count, stream), "recall",
      count, recalls.data(), recalled_rows.data());
  recall_apart(l, apart);
  device::launch_batch(kernels::far_rows_batch, rows_alone, stream, "far rows");
}

/// cos and sin of the next n positions, by each table.
void DeviceMemory::Impl::add_angles(std::int64_t count,
                                    std::vector<kernels::RotaryAnglesParams>& to) const {
  for (const device::DeviceRotary& r : rotaries)
    to.push_back({count, r.dim() / 2, first_position(), r.inverse_frequency,
                  r.table.attention_factor, r.cos, r.sin});
}

void DeviceMemory::Impl::rotation_angles(std::int64_t count) {
  std::vector<kernels::RotaryAnglesParams> angles;
  add_angles(count, angles);
  device::launch_batch(kernels::rotary_angles_batch, angles, stream, "rotary angles");
}

/// Keys and values of the next n tokens into the rings; their angles must be there.
kernels::AppendParams DeviceMemory::Impl::append_params(const Layer& layer, std::int64_t count,
                                                        const void* k, const void* v,
                                                        std::int64_t k_row_stride,
                                                        std::int64_t v_row_stride) const {
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
  return p;
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
  enqueue_angles(std::array{this});
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

void DeviceMemory::enqueue_angles(std::span<DeviceMemory* const> memories) {
  if (memories.empty()) return;
  const Impl& first = *memories.front()->impl_;
  auto& angles = emptied(first.launched.angles);
  for (DeviceMemory* const memory : memories) {
    Impl& m = *memory->impl_;
    if (!m.has_angles) m.add_angles(m.n, angles);
    m.has_angles = true;
  }
  if (angles.empty()) return;
  const device::CurrentDevice current(first.device);
  device::launch_batch(kernels::rotary_angles_batch, angles, first.stream, "rotary angles");
}

/// \throws DataError for a view that no kernel takes
void DeviceMemory::Impl::check_view(const char* name, const TensorView& view,
                                    std::int64_t heads) const {
  const TensorSizes sizes{n, heads, shape.head_dim};
  episodic::detail::check_view("attend", name, view, sizes, MemoryKind::cuda);
  const auto fail = [&](const std::string& what) {
    throw DataError(fmt::format("attend: {} {}", name, what));
  };
  if (view.dtype != options.dtype)
    fail(fmt::format("is {}, but the memory was made for {}", name_of(view.dtype),
                     name_of(options.dtype)));
  if (reinterpret_cast<std::uintptr_t>(view.data) % kViewAlignment != 0)
    fail(fmt::format("begins at an address that is no multiple of {} bytes", kViewAlignment));
  if (heads > 1 && view.strides.head != sizes.dim)
    fail(
        fmt::format("has head stride {}; on a device the heads of a token lie side by side, {} "
                    "elements from one to the next",
                    view.strides.head, sizes.dim));
  if (n > 1 && (view.strides.row < heads * sizes.dim || view.strides.row % kViewRow != 0))
    fail(fmt::format("has row stride {}; on a device it must be a multiple of {}, at least {}",
                     view.strides.row, kViewRow, heads * sizes.dim));
}

void DeviceMemory::Impl::check_step(std::int64_t l, const LayerStep& step) const {
  const auto check_before = [&](const char* name, const TensorView& view, std::int64_t heads) {
    check_view(name, view, heads);
    if (view.rotary == Rotary::before) return;
    const auto refuse = [&](const std::string& why) {
      throw DataError(fmt::format("attend: {} comes after rotary embedding, {}", name, why));
    };
    if (!options.turns_back)
      refuse(
          "but the device takes queries and keys before rotary embedding; make the memory with "
          "DeviceMemoryOptions::turns_back, or hand them over before it");
    const RotaryTable& table = rotary(layers[static_cast<std::size_t>(l)]).table;
    if (table.rotary_dim() == 0)
      refuse(fmt::format("but layer {} has no rotary table to turn it back by", l));
    if (!std::isfinite(table.attention_factor) || table.attention_factor == 0.0)
      refuse(
          fmt::format("but nothing turns back an attention_factor of {}, which the table of "
                      "layer {} has",
                      table.attention_factor, l));
  };
  check_before("q", step.q, shape.n_heads);
  if (!step.appended) {
    check_before("k", step.k, shape.n_kv_heads);
    check_view("v", step.v, shape.n_kv_heads);
  }
  check_view("out", step.out, shape.n_heads);
  if (!step.out.packed())
    throw DataError(fmt::format("attend: out has row stride {}; on a device it is packed",
                                step.out.strides.row));
}

void DeviceMemory::attend(std::int64_t l, const TensorView& q, const TensorView& k,
                          const TensorView& v, const MutableTensorView& out) {
  attend(l, LayerStep{q, k, v, out});
}

void DeviceMemory::attend(std::int64_t l, const LayerStep& step) {
  attend_batch(l, std::array{SequenceStep{this, step}});
}

void DeviceMemory::attend_batch(std::int64_t l, std::span<const SequenceStep> steps) {
  for (const SequenceStep& s : steps) {
    s.memory->impl_->check_turn("attend", l);
    s.memory->impl_->check_step(l, s.step);
  }
  for_sharing(
      steps,
      [](const SequenceStep& a, const SequenceStep& b) {
        return a.memory->impl_->shares_launches(*b.memory->impl_);
      },
      [&](std::span<const SequenceStep> part) { part.front().memory->impl_->attend(l, part); });
}

/// The attention of a layer's queries over what is in the rings and the rows.
kernels::AttentionParams DeviceMemory::Impl::attention_params(const Layer& layer,
                                                              const LayerStep& step) const {
  kernels::AttentionParams p = attention_params(layer, n);
  if (step.scale != 0.0f) p.scale = step.scale;
  p.maybe_sink_logits = step.sink_logits;
  p.q = step.q.data;
  p.q_row_stride = device::row_stride(step.q);
  p.local_key = layer.ring_rotated;
  p.local_value = layer.ring_value;
  p.out = step.out.data;
  p.maybe_column_sums = layer.sums;
  if (kernels::defers_column_sums(p)) p.maybe_column_stats = layer.stats;
  if (!far) p.max_rows = p.max_code_rows = 0;
  if (counts_masses(layer)) p.maybe_lse = lse;
  return p;
}

/// The steps with queries and keys as they are before rotary embedding: those that come after it
/// are turned back where `turned_q` and `turned_k` are.
std::span<const DeviceMemory::SequenceStep> DeviceMemory::Impl::before_rotary(
    std::int64_t l, std::span<const SequenceStep> steps) const {
  const auto comes_after = [](const SequenceStep& s) {
    return s.step.q.rotary == Rotary::after ||
           (!s.step.appended && s.step.k.rotary == Rotary::after);
  };
  if (std::none_of(steps.begin(), steps.end(), comes_after)) return steps;
  auto& with_angles = emptied(launched.without_angles);
  auto& turned = emptied(launched.turned);
  auto& same = emptied(launched.before_rotary);
  for (const SequenceStep& s : steps) {
    same.push_back(s);
    if (!comes_after(s)) continue;
    const Impl& m = *s.memory->impl_;
    with_angles.push_back(s.memory);
    const device::DeviceRotary& of = m.rotary(m.layers[static_cast<std::size_t>(l)]);
    const auto turn = [&](TensorView& view, std::byte* to) {
      if (view.rotary == Rotary::before) return;
      const TensorSizes& sizes = view.sizes;
      turned.push_back({m.options.dtype, sizes.n, sizes.heads, sizes.dim, of.dim(),
                        of.interleaved(), view.data, device::row_stride(view), of.cos, of.sin,
                        of.table.attention_factor, to});
      view = TensorView(to, m.options.dtype, sizes, MemoryKind::cuda);
    };
    turn(same.back().step.q, m.turned_q);
    if (!s.step.appended) turn(same.back().step.k, m.turned_k);
  }
  enqueue_angles(with_angles);
  device::launch_batch(kernels::turn_back_batch, turned, stream, "turning queries and keys back");
  return same;
}

/// A layer of memories that share their launches, this one the first.
void DeviceMemory::Impl::attend(std::int64_t l, std::span<const SequenceStep> asked) {
  const device::CurrentDevice current(device);
  const std::span<const SequenceStep> steps = before_rotary(l, asked);
  auto& without_angles = emptied(launched.without_angles);
  auto& appended = emptied(launched.appended);
  for (const SequenceStep& s : steps) {
    if (s.step.appended) continue;
    const Impl& m = *s.memory->impl_;
    without_angles.push_back(s.memory);
    appended.push_back(m.append_params(m.layers[static_cast<std::size_t>(l)], m.n, s.step.k.data,
                                       s.step.v.data, device::row_stride(s.step.k),
                                       device::row_stride(s.step.v)));
  }
  enqueue_angles(without_angles);
  device::launch_batch(kernels::append_window_batch, appended, stream, "appending keys and values");
  recall(l, steps);
  auto& attention = emptied(launched.attention);
  for (const SequenceStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    attention.push_back(m.attention_params(m.layers[static_cast<std::size_t>(l)], s.step));
  }
  device::launch_batch(kernels::segmented_attention_batch, attention, stream, "attention");
  auto& masses = emptied(launched.masses);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    Impl& m = *steps[i].memory->impl_;
    const Layer& layer = m.layers[static_cast<std::size_t>(l)];
    if (m.counts_masses(layer))
      masses.push_back(m.mass_params(layer, attention[i], m.lists_of_step(layer)));
    ++m.next_layer;
  }
  device::launch_batch(kernels::event_masses_batch, masses, stream, "what events received");
  // The one wait for what files hold: before anything that the step leaves is made of its outputs.
  if (l + 1 < shape.n_layers) return;
  for (const SequenceStep& s : steps)
    if (device::LowerTiers* const tiers = s.memory->impl_->lower.get()) tiers->wait_and_rethrow();
}

void DeviceMemory::end_step(const SurpriseView& surprise) {
  if (impl_->open)
    episodic::detail::check_surprise("end_step", surprise, impl_->n, MemoryKind::cuda);
  end_step(surprise.data);
}

void DeviceMemory::end_step(const float* surprise) {
  enqueue_end(surprise);
  impl_->finish_step();
}

std::vector<std::exception_ptr> DeviceMemory::end_step_batch(std::span<const EndOfStep> steps) {
  Impl::enqueue_ends(steps);
  std::vector<std::exception_ptr> failures;
  failures.reserve(steps.size());
  for (const EndOfStep& s : steps) {
    failures.emplace_back();
    Impl& m = *s.memory->impl_;
    const device::CurrentDevice current(m.device);
    try {
      if (m.keeps_in_files()) {
        m.keep_closed();
        m.commit_end();
      }
      m.finish_step();
    } catch (...) {
      failures.back() = std::current_exception();
    }
  }
  return failures;
}

void DeviceMemory::end_launched_step() {
  if (!step_kind())
    throw DataError(
        "end_launched_step: no step is open, or its segmenter runs on the host; use end_step");
  impl_->finish_step();
}

void DeviceMemory::enqueue_end(const float* surprise) {
  enqueue_end_batch(std::array{EndOfStep{this, surprise}});
}

void DeviceMemory::enqueue_end_batch(std::span<const EndOfStep> steps) {
  Impl::enqueue_ends(steps);
  for (const EndOfStep& s : steps) {
    Impl& m = *s.memory->impl_;
    const device::CurrentDevice current(m.device);
    if (!m.keeps_in_files()) continue;
    m.keep_closed();
    m.commit_end();
  }
}

/// But for what files keep: that waits.
void DeviceMemory::Impl::enqueue_ends(std::span<const EndOfStep> steps) {
  for (const EndOfStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    if (!m.open || m.next_layer != m.shape.n_layers)
      throw DataError(
          fmt::format("end_step: layer {} is still to come; call attend for all {} layers first",
                      m.next_layer, m.shape.n_layers));
    if (!s.surprise) throw DataError("end_step: surprise is null");
  }
  for_sharing(
      steps,
      [](const EndOfStep& a, const EndOfStep& b) {
        return a.memory->impl_->shares_launches(*b.memory->impl_);
      },
      [](std::span<const EndOfStep> part) {
        Impl& first = *part.front().memory->impl_;
        const device::CurrentDevice current(first.device);
        first.find_boundaries(part);
        first.close(part);
      });
}

/// Raw flags: by surprise or by keys on the device, by token numbers on the host, which needs
/// nothing from it.
kernels::ThresholdParams DeviceMemory::Impl::threshold_params(const float* of_step) const {
  kernels::ThresholdParams p;
  p.window = config.window == episodic::ThresholdWindow::moving ? kernels::ThresholdWindow::moving
                                                                : kernels::ThresholdWindow::chunked;
  p.tau = config.effective_tau();
  p.n_init = config.n_init;
  p.gamma = config.gamma;
  p.n = n;
  p.state = state;
  p.surprise = of_step;
  p.recent = recent;
  p.recent_capacity = recent_capacity;
  p.threshold = threshold;
  p.raw = raw;
  return p;
}

/// Of this step's lists.
kernels::RecallCountsParams DeviceMemory::Impl::recall_counts_params() const {
  return {lane_lists[step_lists()],        lanes.n_lanes, lane_scopes,    max_events,
          state ? &state->steps : nullptr, recall_counts, recalled_events};
}

/// Flags by token numbers.
void DeviceMemory::Impl::send_flags() {
  const auto count = static_cast<std::size_t>(n);
  auto& ignored = launched.ignored;
  auto& thresholds = launched.thresholds;
  ignored.assign(count, 0.0f);
  thresholds.assign(count, 0.0f);
  staging.send(raw, n, stream, [&](std::uint8_t* host) {
    segmenter->step(tokens, ignored, thresholds, {host, count});
  });
  staging.send(threshold, n, stream,
               [&](float* host) { std::copy(thresholds.begin(), thresholds.end(), host); });
}

/// Of memories that share their launches, this one the first: what their events received, and
/// boundaries.
void DeviceMemory::Impl::find_boundaries(std::span<const EndOfStep> steps) {
  auto& step_masses = emptied(launched.step_masses);
  auto& counts = emptied(launched.counts);
  auto& raw_flags = emptied(launched.raw_flags);
  auto& keys = emptied(launched.keys);
  auto& refinements = emptied(launched.refinements);
  for (const EndOfStep& s : steps) {
    Impl& m = *s.memory->impl_;
    const bool later = m.keeps_in_files();  // commit_end
    if (later) m.copy_end_state(m.before_end, false, cudaMemcpyDeviceToDevice);
    if (m.retention && m.far && !later)
      step_masses.push_back(
          {m.layer_masses[m.step_lists()], m.recalling, m.lanes.per_layer, m.room, m.received});
    if (m.far && !later) counts.push_back(m.recall_counts_params());
    raw_flags.push_back(m.threshold_params(s.surprise));
    raw_flags.back().maybe_kept = m.surprise;  // for whoever asks
    refinements.push_back(m.refine_params());
    refinements.back().n = m.n;
  }
  device::launch_batch(kernels::receive_masses_batch, step_masses, stream, "what events received");
  device::launch_batch(kernels::count_recalls_batch, counts, stream, "counting recalls");
  device::launch_batch(kernels::surprise_threshold_batch, raw_flags, stream, "thresholds");
  for (const EndOfStep& s : steps) {
    Impl& m = *s.memory->impl_;
    if (m.segmenter) m.send_flags();
    if (!m.segments_by_keys()) continue;
    keys.push_back(m.key_segmenter_params());
    keys.back().n = m.n;
  }
  device::launch_batch(kernels::segment_by_keys_batch, keys, stream, "boundaries from keys");
  device::launch_batch(kernels::refine_boundaries_batch, refinements, stream, "refinement");
}

kernels::RelevanceParams DeviceMemory::Impl::relevance_params() const {
  return {n,
          shape.n_heads,
          config.n_local,
          first_position(),
          capacity,
          relevance_layers,
          shape.n_layers,
          kernels::defers_column_sums(attention_params(layers.front(), n))};
}

kernels::CloseEventsParams DeviceMemory::Impl::close_params() const {
  kernels::CloseEventsParams p;
  p.n_local = config.n_local;
  p.min_block = config.min_block;
  p.max_block = config.max_block;
  p.n = n;
  p.n_timelines = scopes;
  p.state = state;
  p.flags = flags;
  p.flag_capacity = capacity;
  p.events = events;
  p.event_capacity = max_events;
  return p;
}

kernels::PlaceEventsParams DeviceMemory::Impl::place_params() const {
  kernels::PlaceEventsParams p;
  p.state = state;
  p.events = events;
  p.max_events = max_events;
  p.n_init = config.n_init;
  p.n_lanes = lanes.n_lanes;
  p.of_each = by_head();
  p.maybe_timeline = lane_scopes;
  p.home = reinterpret_cast<unsigned char*>(home);
  // Above files, what the step closes goes to a staging area.
  p.staged = lower != nullptr;
  p.lane_bytes = lower ? lower->staging_lane_bytes() : lane_bytes;
  p.token_bytes = token_bytes;
  p.blocks = blocks;
  p.max_count = max_closed;
  p.start = closed_start;
  p.end = closed_end;
  p.count = closed_count;
  p.first_id = closed_first;
  p.step_blocks = step_blocks;
  return p;
}

kernels::RepresentativeParams DeviceMemory::Impl::representative_params() const {
  kernels::RepresentativeParams p;
  p.events = closed();
  p.key_dtype = options.dtype;
  p.repr_dtype = options.representatives;
  p.n_heads = lanes.n_heads;
  p.n_kv_heads = lanes.n_kv_heads;
  p.head_dim = shape.head_dim;
  p.n_repr = most_repr();
  p.ring_capacity = capacity;
  p.ring_head_stride = head_stride;
  p.relevance_stride = shape.n_heads;
  p.capacity = max_events;
  p.layers = representative_lanes;
  p.n_layers = lanes.n_lanes;
  p.unit_length = config.reweight != Reweighting::none;
  p.full = full;
  return p;
}

/// Of memories that share their launches, this one the first: relevance, and what the step closes.
void DeviceMemory::Impl::close(std::span<const EndOfStep> steps) {
  auto& relevance = emptied(launched.relevance);
  auto& closings = emptied(launched.closings);
  auto& placings = emptied(launched.places);
  auto& chosen = emptied(launched.chosen);
  auto& codes = emptied(launched.codes);
  auto& kept = emptied(launched.kept);
  for (const EndOfStep& s : steps) {
    const Impl& m = *s.memory->impl_;
    const bool later = m.keeps_in_files();  // commit_end
    if (!later) relevance.push_back(m.relevance_params());
    closings.push_back(m.close_params());
    if (!m.may_close()) continue;
    placings.push_back(m.place_params());
    if (!later) chosen.push_back(m.representative_params());
    if (m.keeps_codes() && !later) codes.push_back(m.code_params(m.max_closed));
    if (!m.writes_beside()) kept.push_back(m.block_params(0, m.recalling));
  }
  device::launch_batch(kernels::commit_relevance_batch, relevance, stream, "relevance");
  device::launch_batch(kernels::close_events_batch, closings, stream, "closing events");
  device::launch_batch(kernels::place_events_batch, placings, stream, "placing events");
  device::launch_batch(kernels::select_representatives_batch, chosen, stream, "representatives");
  device::launch_batch(kernels::encode_representatives_batch, codes, stream,
                       "codes of representatives");
  device::launch_batch(kernels::event_to_block_batch, kept, stream, "keeping events");
  for (const EndOfStep& s : steps)
    if (Impl& m = *s.memory->impl_; m.may_close() && m.writes_beside()) m.write_blocks_out();
}

/// The host's side of a step whose work is enqueued.
void DeviceMemory::Impl::finish_step() {
  state_now.reset();  // of a snapshot within the step
  last_first = tokens;
  last_n = n;
  tokens += n;
  ++n_steps;
  steps_since_recall = next_since_recall;
  if (recalled_in_step) lists_now = 1 - lists_now;
  far_in_last_step = far;
  if (far) lists_are_written = false;
  is_judged = !retention || !detail::Retention::reaches(last_first, tokens, config.chunk);
  open = false;
}

}  // namespace episodic
